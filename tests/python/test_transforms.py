"""Sutler's transforms against torchvision's: the same names, parameters, attributes and refusals."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sutler import transforms as T  # noqa: N812 - as users write it

v2 = pytest.importorskip("torchvision.transforms.v2")

NAMES = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "GaussianBlur",
    "Lambda",
    "Normalize",
    "Pad",
    "RandAugment",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "ToImage",
    "ToPureTensor",
    "TrivialAugmentWide",
]

# Constructor calls that both sides accept, each parameter in each of its forms.
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("Resize", {"size": 256}),
    ("Resize", {"size": [256]}),
    ("Resize", {"size": (256, 128), "interpolation": "bicubic", "antialias": False}),
    ("Resize", {"size": 256, "max_size": 512, "antialias": None}),
    ("Resize", {"size": 256, "interpolation": "nearest-exact"}),
    ("CenterCrop", {"size": 224}),
    ("CenterCrop", {"size": [224]}),
    ("CenterCrop", {"size": (224, 160)}),
    ("RandomCrop", {"size": 32}),
    ("RandomCrop", {"size": 32, "pad_if_needed": True, "fill": (1, 2, 3), "padding_mode": "constant"}),
    ("RandomResizedCrop", {"size": 224}),
    ("RandomResizedCrop", {"size": [224, 160], "scale": (0.35, 1.0), "ratio": (0.5, 2.0)}),
    ("RandomResizedCrop", {"size": 224, "interpolation": "bicubic", "antialias": None}),
    ("RandomHorizontalFlip", {}),
    ("RandomHorizontalFlip", {"p": 1}),
    ("RandomVerticalFlip", {"p": 0.25}),
    ("Pad", {"padding": 4}),
    ("Pad", {"padding": [4], "fill": 127}),
    ("Pad", {"padding": (1, 2), "fill": [9.0], "padding_mode": "edge"}),
    ("Pad", {"padding": [1, 2, 3, 4], "fill": None, "padding_mode": "symmetric"}),
    ("ColorJitter", {}),
    ("ColorJitter", {"brightness": 0.4, "contrast": 0, "saturation": 2, "hue": 0.1}),
    ("ColorJitter", {"brightness": (0.5, 1.5), "contrast": [1, 1], "saturation": [0, 0], "hue": (-0.5, 0.5)}),
    ("RandomGrayscale", {}),
    ("RandomGrayscale", {"p": 0.2}),
    ("GaussianBlur", {"kernel_size": 23}),
    ("GaussianBlur", {"kernel_size": [3, 5], "sigma": 1}),
    ("GaussianBlur", {"kernel_size": (3, 3), "sigma": (0.1, 5.0)}),
    ("RandAugment", {}),
    ("RandAugment", {"num_ops": 3, "magnitude": 15, "num_magnitude_bins": 20, "interpolation": "bilinear"}),
    ("RandAugment", {"fill": [124, 116, 104]}),
    ("TrivialAugmentWide", {}),
    ("TrivialAugmentWide", {"num_magnitude_bins": 10, "interpolation": "bilinear", "fill": 128}),
    ("RandomErasing", {}),
    ("RandomErasing", {"p": 0.1, "scale": [0.1, 0.2], "ratio": [0.5, 2.0], "value": [0.1, 0.2, 0.3]}),
    ("RandomErasing", {"value": "random", "inplace": True}),
    ("Normalize", {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}),
    ("Normalize", {"mean": (0.5,), "std": (0.5,), "inplace": True}),
    ("ToImage", {}),
    ("ToPureTensor", {}),
]

# Constructor calls that torchvision refuses.
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("Resize", {"size": (1, 2, 3)}),
    ("Resize", {"size": "256"}),
    ("Resize", {"size": None}),
    ("CenterCrop", {"size": (1, 2, 3)}),
    ("RandomCrop", {"size": (1, 2, 3)}),
    ("RandomCrop", {"size": 32, "padding": (1, 2, 3)}),
    ("RandomCrop", {"size": 32, "padding": 2, "padding_mode": "wrap"}),
    ("RandomResizedCrop", {"size": 224, "scale": 0.5}),
    ("RandomResizedCrop", {"size": 224, "ratio": (1.0,)}),
    ("RandomHorizontalFlip", {"p": 1.5}),
    ("RandomVerticalFlip", {"p": -0.1}),
    ("RandomGrayscale", {"p": 2}),
    ("Pad", {"padding": (1, 2, 3)}),
    ("Pad", {"padding": 0.5}),
    ("Pad", {"padding": 1, "padding_mode": "wrap"}),
    ("Pad", {"padding": 1, "fill": "red"}),
    ("ColorJitter", {"brightness": -1}),
    ("ColorJitter", {"brightness": (1.5, 0.5)}),
    ("ColorJitter", {"contrast": (1, 2, 3)}),
    ("ColorJitter", {"hue": 0.6}),
    ("ColorJitter", {"saturation": "1"}),
    ("GaussianBlur", {"kernel_size": 4}),
    ("GaussianBlur", {"kernel_size": 3, "sigma": 0}),
    ("GaussianBlur", {"kernel_size": 3, "sigma": (2.0, 1.0)}),
    ("GaussianBlur", {"kernel_size": 3, "sigma": (1.0, 2.0, 3.0)}),
    ("RandAugment", {"num_ops": -1}),
    ("RandAugment", {"num_ops": 1.5}),
    ("RandAugment", {"fill": "red"}),
    ("RandomErasing", {"p": 3}),
    ("RandomErasing", {"value": "white"}),
    ("RandomErasing", {"value": None}),
    ("RandomErasing", {"scale": 0.5}),
    ("RandomErasing", {"scale": (0.5, 1.5)}),
    ("RandomErasing", {"ratio": 1.0}),
    ("Normalize", {"mean": 0.5, "std": 0.5}),
    ("ToDtype", {"dtype": 3}),
    ("Compose", {"transforms": []}),
    ("Compose", {"transforms": None}),
]

# Calls that torchvision lets through, to fail at the first image or to draw nonsense.
REFUSED_EARLIER: list[tuple[str, dict[str, Any]]] = [
    ("GaussianBlur", {"kernel_size": 3, "sigma": "1"}),
    ("Resize", {"size": 0}),
    ("Resize", {"size": 256, "interpolation": "linear"}),
    ("Resize", {"size": 256, "interpolation": 6}),
    ("Resize", {"size": (256, 256), "max_size": 512}),
    ("Resize", {"size": 256, "max_size": 256}),
    ("Resize", {"size": 65_536}),
    ("Resize", {"size": 256, "interpolation": "lanczos", "antialias": False}),
    ("CenterCrop", {"size": -1}),
    ("RandomResizedCrop", {"size": 224, "scale": (1.0, 0.08)}),
    ("RandomResizedCrop", {"size": 224, "scale": (-0.5, 0.5)}),
    ("RandomResizedCrop", {"size": 224, "ratio": (0.0, 1.0)}),
    ("Pad", {"padding": -1}),
    ("Pad", {"padding": 1, "fill": 256}),
    ("Pad", {"padding": 1, "fill": (1, 2)}),
    ("ColorJitter", {"brightness": (0.0, float("inf"))}),
    ("RandAugment", {"magnitude": 31}),
    ("RandAugment", {"interpolation": "bicubic"}),
    ("TrivialAugmentWide", {"num_magnitude_bins": 1}),
    ("RandomErasing", {"value": (1.0, 2.0)}),
    ("Normalize", {"mean": [0.5, 0.5], "std": [0.5, 0.5]}),
    ("Normalize", {"mean": [0.5], "std": [0.0]}),
    ("Normalize", {"mean": [0.5], "std": [1e-50]}),
    ("Normalize", {"mean": [float("nan")], "std": [1.0]}),
    ("ToDtype", {"dtype": "float16"}),
]


def call_id(call: Any) -> str | None:
    if isinstance(call, str):
        return call
    return ",".join(f"{key}={value}" for key, value in call.items()) if isinstance(call, dict) else None


@pytest.mark.parametrize("name", NAMES)
def test_signature_is_torchvisions(name: str) -> None:
    ours = inspect.signature(getattr(T, name)).parameters
    theirs = inspect.signature(getattr(v2, name)).parameters
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    expected = {key: parameter.default for key, parameter in theirs.items() if parameter.kind not in variadic}
    assert {key: parameter.default for key, parameter in ours.items()} == expected
    assert list(ours) == list(expected)


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=call_id)
def test_attributes_and_repr_are_torchvisions(name: str, arguments: dict[str, Any]) -> None:
    ours, theirs = getattr(T, name)(**arguments), getattr(v2, name)(**arguments)
    assert repr(ours) == repr(theirs)
    for attribute, value in vars(ours).items():
        assert getattr(theirs, attribute) == value, attribute


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=call_id)
def test_ops_are_what_the_native_module_declares(
    name: str, arguments: dict[str, Any], check_ops: Callable[[list[T.base.Op]], None]
) -> None:
    check_ops(getattr(T, name)(**arguments).ops)


def test_every_native_operation_has_a_transform(op_schema: Any) -> None:
    made = {op["op"] for name, arguments in CALLS for op in getattr(T, name)(**arguments).ops}
    of_our_own = [
        T.ToDtype("float32"),
        T.ToBGR255(),
    ]  # torchvision has another call for the one and lacks the other
    assert made | {op["op"] for transform in of_our_own for op in transform.ops} == set(op_schema.ops)


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=call_id)
def test_a_copy_equals_its_original(name: str, arguments: dict[str, Any]) -> None:
    transform = getattr(T, name)(**arguments)
    copy = pickle.loads(pickle.dumps(transform))
    assert copy == transform
    assert hash(copy) == hash(transform)
    assert copy.ops == transform.ops


def test_transforms_of_different_parameters_or_classes_differ() -> None:
    assert T.Resize(256) != T.Resize(255)
    assert T.RandomHorizontalFlip() != T.RandomVerticalFlip()
    assert T.CenterCrop(224) != 224
    assert T.Compose([T.Resize(256)]) == T.Compose([T.Resize([256])])


@pytest.mark.parametrize(("name", "arguments"), REFUSED, ids=call_id)
def test_what_torchvision_refuses_is_refused_with_the_same_error(
    name: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises((ValueError, TypeError)) as theirs:
        getattr(v2, name)(**arguments)
    with pytest.raises(theirs.type):
        getattr(T, name)(**arguments)


@pytest.mark.parametrize(("name", "arguments"), REFUSED_EARLIER, ids=call_id)
def test_what_could_never_run_is_refused_at_once(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        getattr(T, name)(**arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("RandomHorizontalFlip", {"p": 2}, "`p` should be a floating point value in the interval [0.0, 1.0]"),
        ("Pad", {"padding": (1, 2, 3)}, "Padding must be an int or a 1, 2, or 4 element of tuple or list"),
        ("GaussianBlur", {"kernel_size": 4}, "Kernel size value should be an odd and positive number."),
        ("RandomErasing", {"value": "white"}, "If value is str, it should be 'random'"),
        ("Resize", {"size": None}, "max_size must be an integer when size is None, but got None instead."),
        ("ColorJitter", {"hue": 0.6}, "hue values should be between (-0.5, 0.5) and increasing"),
    ],
)
def test_messages_are_torchvisions(name: str, arguments: dict[str, Any], message: str) -> None:
    for module in (T, v2):
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is compared below
            getattr(module, name)(**arguments)
        assert message in str(error.value)


def test_random_crop_takes_padding_in_each_form() -> None:
    for padding, sides in (
        (4, [4, 4, 4, 4]),
        ([4], [4, 4, 4, 4]),
        ((1, 2), [1, 2, 1, 2]),
        ((1, 2, 3, 4), [1, 2, 3, 4]),
    ):
        assert T.RandomCrop(32, padding=padding).ops[0]["padding"] == sides
    assert T.RandomCrop(32).ops[0]["padding"] is None


def test_interpolation_takes_each_form() -> None:
    from PIL import Image
    from torchvision.transforms.functional import InterpolationMode, _interpolation_modes_from_int

    for form in (
        "bicubic",
        T.InterpolationMode.BICUBIC,
        InterpolationMode.BICUBIC,
        3,
        Image.Resampling.BICUBIC,
    ):
        transform = T.Resize(256, interpolation=form)
        assert transform.interpolation is T.InterpolationMode.BICUBIC
        assert transform.ops[0]["interpolation"] == "bicubic"
    for mode in InterpolationMode:
        assert T.Resize(256, interpolation=mode).interpolation.value == mode.value
    for number in range(6):
        assert T.Resize(8, number).interpolation.value == _interpolation_modes_from_int(number).value


def test_nearest_exact_is_natively_nearest() -> None:
    assert T.Resize(8, "nearest-exact").ops == T.Resize(8, "nearest").ops


def test_dtype_takes_each_form() -> None:
    import torch

    form: object
    for form in ("float32", "torch.float32", np.float32, np.dtype("float32"), torch.float32, torch.float):
        assert T.ToDtype(form, scale=True).ops == [{"op": "to_dtype", "dtype": "float32", "scale": True}]
    for form in ("uint8", np.uint8, np.dtype("uint8"), torch.uint8):
        assert T.ToDtype(form).ops == [{"op": "to_dtype", "dtype": "uint8", "scale": False}]


def test_normalize_takes_arrays_and_tensors() -> None:
    import torch

    expected = T.Normalize([0.5, 0.25, 0.125], [1, 2, 4])
    assert T.Normalize(np.array([0.5, 0.25, 0.125]), np.array([1, 2, 4])) == expected
    assert T.Normalize(torch.tensor([0.5, 0.25, 0.125]), torch.tensor([1.0, 2.0, 4.0])) == expected
    assert T.Normalize([0.5], [0.25]).ops == [{"op": "normalize", "mean": [0.5] * 3, "std": [0.25] * 3}]


def test_sizes_take_numpy_integers() -> None:
    assert T.CenterCrop(np.int64(8)).ops == T.CenterCrop(8).ops  # type: ignore[arg-type]
    assert T.Resize(np.int64(8)).ops == T.Resize(8).ops  # type: ignore[arg-type]


def test_compose_flattens() -> None:
    inner = T.Compose([T.Resize(256), T.CenterCrop(224)])
    outer = T.Compose([inner, v2.Compose([inner, T.RandomHorizontalFlip()])])
    assert outer.transforms == [*inner.transforms, *inner.transforms, T.RandomHorizontalFlip()]


def test_compose_takes_a_plain_function_as_a_lambda() -> None:
    pipeline = T.Compose([T.Resize(256), repr])
    assert pipeline.transforms == [T.Resize(256), T.Lambda(repr)]
    assert pipeline.tail == [repr]


def test_compose_refuses_what_cannot_be_called() -> None:
    with pytest.raises(TypeError, match="function from image to image, got 3"):
        T.Compose([T.Resize(256), 3])  # type: ignore[list-item]


def test_compose_is_cut_at_the_first_random_transform() -> None:
    pipeline = T.Compose([T.Resize(256), T.Pad(4), T.RandomCrop(224), T.Normalize([0.5], [0.5])])
    assert pipeline.static_prefix == [T.Resize(256), T.Pad(4)]
    assert pipeline.random_suffix == [T.RandomCrop(224), T.Normalize([0.5], [0.5])]
    assert pipeline.random
    still = T.Compose([T.Resize(256), T.CenterCrop(224)])
    assert still.static_prefix == still.transforms
    assert still.random_suffix == []
    assert not still.random


def test_a_lambda_is_not_static() -> None:
    pipeline = T.Compose([T.Resize(256), repr, T.CenterCrop(224)])
    assert pipeline.static_prefix == [T.Resize(256)]


def test_torchvisions_transforms_count_as_static_too() -> None:
    pipeline = T.Compose([v2.Resize(256), v2.ToImage(), v2.CenterCrop(224), v2.RandomHorizontalFlip()])
    assert len(pipeline.static_prefix) == 3
    assert [op["op"] for op in pipeline.ops] == ["resize", "center_crop", "random_horizontal_flip"]


def test_a_pipeline_survives_pickling() -> None:
    pipeline = T.Compose([T.Resize(256), T.RandomCrop(224), T.Lambda(repr)])
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=call_id)
def test_a_call_on_an_image_is_torchvisions(name: str, arguments: dict[str, Any], picture: Any) -> None:
    import torch

    image = v2.functional.to_image(picture)
    if name == "Normalize":
        image = v2.functional.to_dtype(image, torch.float32, scale=True)
    torch.manual_seed(3)
    theirs = getattr(v2, name)(**arguments)(image)
    torch.manual_seed(3)
    assert torch.equal(getattr(T, name)(**arguments)(image), theirs)


def test_a_call_takes_pictures_and_arrays(picture: Any) -> None:
    import torch

    assert T.CenterCrop(8)(picture).size == (8, 8)
    assert tuple(T.CenterCrop(8)(np.asarray(picture)).shape) == (3, 8, 8)
    values = T.Compose([T.CenterCrop(8), T.Normalize([0.5], [0.5])])(picture)
    expected = (v2.functional.pil_to_tensor(picture)[:, 20:28, 26:34].float() / 255 - 0.5) / 0.5
    torch.testing.assert_close(values, expected)
    assert T.ToDtype("float32", scale=True)(picture).dtype == torch.float32


def test_a_call_on_something_else_says_what_transforms_are_for() -> None:
    with pytest.raises(TypeError, match="describe a pipeline; pass them to a dataset"):
        T.RandomHorizontalFlip()("picture.jpg")


def test_importing_transforms_imports_neither_pytorch_nor_pillow() -> None:
    code = (
        "import sys; from sutler import transforms as T; "
        "T.lower(T.Compose([T.Resize(256), T.RandomCrop(224), T.Normalize([0.5], [0.5])])).ops_json; "
        "print([name for name in ('torch', 'torchvision', 'PIL') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
