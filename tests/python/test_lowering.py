"""torchvision pipelines, as people write them, become native operations and perhaps a Python tail."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sutler import transforms as T  # noqa: N812 - as users write it
from sutler.transforms import lower

torch = pytest.importorskip("torch")
v1 = pytest.importorskip("torchvision.transforms")
v2 = pytest.importorskip("torchvision.transforms.v2")

from PIL import Image  # noqa: E402
from torchvision import tv_tensors  # noqa: E402
from torchvision.transforms._presets import ImageClassification  # noqa: E402

Run = Callable[[list[dict[str, Any]], Any], Any]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALIZE = {"op": "normalize", "mean": list(MEAN), "std": list(STD)}
TO_FLOAT = {"op": "to_dtype", "dtype": "float32", "scale": True}
FLIP = {"op": "random_horizontal_flip", "p": 0.5}

Check = Callable[[list[dict[str, Any]]], None]


def names(lowered: T.Lowered) -> list[str]:
    return [op["op"] for op in lowered.ops]


def tail_names(lowered: T.Lowered) -> list[str]:
    return [type(step).__name__ for step in lowered.tail]


# The reference pipelines.


def reference_train(module: Any, policy: Any, backend: str) -> list[Any]:
    """The training preset of torchvision's classification reference, step by step."""
    steps: list[Any] = []
    if backend == "tensor":
        steps.append(v1.PILToTensor() if module is v1 else v2.ToImage())
    steps += [
        module.RandomResizedCrop(176, interpolation=v1.InterpolationMode.BILINEAR, antialias=True),
        module.RandomHorizontalFlip(0.5),
        *([policy] if policy else []),
    ]
    if backend == "pil":
        steps.append(v1.PILToTensor() if module is v1 else v2.ToImage())
    steps.append(
        module.ConvertImageDtype(torch.float) if module is v1 else v2.ToDtype(torch.float, scale=True)
    )
    steps += [module.Normalize(mean=MEAN, std=STD), module.RandomErasing(p=0.1)]
    if module is v2:
        steps.append(v2.ToPureTensor())
    return steps


@pytest.mark.parametrize("backend", ["pil", "tensor"])
@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("policy", [None, "RandAugment", "TrivialAugmentWide"])
def test_the_reference_training_preset_is_native(
    module: Any, policy: str | None, backend: str, check_ops: Check
) -> None:
    chosen = getattr(module, policy)(interpolation=v1.InterpolationMode.BILINEAR) if policy else None
    lowered = lower(module.Compose(reference_train(module, chosen, backend)))
    expected = {"RandAugment": ["rand_augment"], "TrivialAugmentWide": ["trivial_augment_wide"], None: []}[
        policy
    ]
    assert names(lowered) == [
        "random_resized_crop",
        "random_horizontal_flip",
        *expected,
        "to_dtype",
        "normalize",
        "random_erasing",
    ]
    assert lowered.tail == []
    assert lowered.notes == []
    check_ops(lowered.ops)
    assert json.loads(lowered.ops_json) == lowered.ops


@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
def test_the_reference_evaluation_preset_is_native(module: Any, check_ops: Check) -> None:
    lowered = lower(
        module.Compose(
            [
                module.Resize(256, interpolation=v1.InterpolationMode.BILINEAR, antialias=True),
                module.CenterCrop(224),
                module.PILToTensor(),
                module.ConvertImageDtype(torch.float),
                module.Normalize(mean=MEAN, std=STD),
            ]
        )
    )
    assert lowered.ops == [
        {"op": "resize", "size": 256, "max_size": None, "interpolation": "bilinear", "antialias": True},
        {"op": "center_crop", "size": [224, 224]},
        TO_FLOAT,
        NORMALIZE,
    ]
    assert lowered.tail == []
    assert lowered.static == 5
    check_ops(lowered.ops)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_preset_that_comes_with_weights_is_native(interpolation: str, picture: Any, run_ops: Run) -> None:
    preset = ImageClassification(
        crop_size=24, resize_size=32, interpolation=v1.InterpolationMode(interpolation), antialias=None
    )
    lowered = lower(preset)
    assert names(lowered) == ["resize", "center_crop", "to_dtype", "normalize"]
    assert lowered.ops[0]["interpolation"] == interpolation
    assert lowered.ops[0]["antialias"] is True  # on PIL images, Pillow decides
    torch.testing.assert_close(run_ops(lowered.ops, picture), preset(picture))


def test_the_preset_of_real_weights_is_native() -> None:
    models = pytest.importorskip("torchvision.models")
    lowered = lower(models.ResNet50_Weights.IMAGENET1K_V2.transforms())
    assert [op.get("size") for op in lowered.ops[:2]] == [232, [224, 224]]
    assert lowered.tail == []


@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
def test_the_usual_cifar_pipeline_is_native(module: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the second interface calls ToTensor deprecated
        to_tensor = module.ToTensor()
    lowered = lower(
        module.Compose(
            [
                module.RandomCrop(32, padding=4),
                module.RandomHorizontalFlip(),
                to_tensor,
                module.Normalize(MEAN, STD),
            ]
        )
    )
    assert lowered.ops == [
        {
            "op": "random_crop",
            "size": [32, 32],
            "padding": [4, 4, 4, 4],
            "pad_if_needed": False,
            "fill": [0, 0, 0],
            "padding_mode": "constant",
        },
        FLIP,
        TO_FLOAT,
        NORMALIZE,
    ]


# The containers.


def test_nothing_is_nothing() -> None:
    lowered = lower(None)
    assert (lowered.ops, lowered.tail, lowered.notes, lowered.tail_input) == ([], [], [], "pil")


def test_a_sequential_is_a_pipeline() -> None:
    lowered = lower(
        torch.nn.Sequential(v1.CenterCrop(10), v1.ConvertImageDtype(torch.float), v1.Normalize(MEAN, STD))
    )
    assert names(lowered) == ["center_crop", "to_dtype", "normalize"]
    assert lowered.tail == []


def test_a_single_transform_is_a_pipeline() -> None:
    assert lower(v2.RandomHorizontalFlip()).ops == [FLIP]
    assert lower(v1.RandomHorizontalFlip()).ops == [FLIP]
    assert lower(T.RandomHorizontalFlip()).ops == [FLIP]


def test_pipelines_nest_in_any_mixture() -> None:
    flip = v2.RandomHorizontalFlip()
    lowered = lower(
        v2.Compose([v1.Compose([flip]), torch.nn.Sequential(flip, torch.nn.Identity()), T.Compose([flip])])
    )
    assert lowered.ops == [FLIP] * 3
    assert lowered.tail == []


def test_a_transform_that_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="function from image to image, got 'resize'"):
        lower("resize")


def test_a_function_runs_in_python_on_a_picture() -> None:
    lowered = lower(repr)
    assert (lowered.ops, lowered.tail, lowered.tail_input) == ([], [repr], "pil")
    assert "Sutler cannot look into the function `repr`" in lowered.notes[-1]


def test_a_class_derived_from_torchvisions_is_left_alone() -> None:
    class Twice(v2.RandomHorizontalFlip):  # type: ignore[name-defined]
        pass

    lowered = lower(Twice())
    assert lowered.ops == []
    assert tail_names(lowered) == ["Twice"]


# The parameters.

BOTH = [pytest.param(v1, id="v1"), pytest.param(v2, id="v2")]


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize(
    ("size", "native"), [(256, 256), ([256], 256), ((256, 128), [256, 128]), ([8, 9], [8, 9])], ids=str
)
def test_resize_sizes(module: Any, size: Any, native: Any) -> None:
    assert lower(module.Resize(size)).ops[0]["size"] == native


@pytest.mark.parametrize("module", BOTH)
def test_resize_max_size(module: Any) -> None:
    assert lower(module.Resize(256, max_size=400)).ops[0]["max_size"] == 400


def test_resize_by_the_longer_side_runs_in_python() -> None:
    for transform in (v2.Resize(None, max_size=400), T.Resize(None, max_size=400)):
        lowered = lower(transform)
        assert lowered.ops == []
        assert lowered.tail == [transform]
        assert "longer side" in lowered.notes[-1]


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize("antialias", [True, False, None])
def test_antialias_is_pillows_for_pictures_and_as_given_for_tensors(
    module: Any, antialias: bool | None
) -> None:
    for transform in (
        module.Resize(64, antialias=antialias),
        module.RandomResizedCrop(64, antialias=antialias),
    ):
        assert lower(transform).ops[0]["antialias"] is True
        assert lower(module.Compose([module.PILToTensor(), transform])).ops[0]["antialias"] is bool(antialias)


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize("interpolation", list(v1.InterpolationMode))
def test_each_interpolation_of_pictures_is_native(module: Any, interpolation: Any) -> None:
    native = "nearest" if interpolation.value == "nearest-exact" else interpolation.value
    assert lower(module.Resize(64, interpolation=interpolation)).ops[0]["interpolation"] == native
    assert lower(module.RandomResizedCrop(64, interpolation=interpolation)).ops[0]["interpolation"] == native


def test_interpolation_takes_pillows_numbers_and_names() -> None:
    assert lower(v1.Resize(64, interpolation=Image.Resampling.BICUBIC)).ops[0]["interpolation"] == "bicubic"
    assert lower(v2.Resize(64, interpolation=Image.Resampling.BICUBIC)).ops[0]["interpolation"] == "bicubic"
    assert lower(v2.Resize(64, interpolation="bicubic")).ops[0]["interpolation"] == "bicubic"


@pytest.mark.parametrize("module", BOTH)
def test_policies_with_filters_that_only_pillow_has_run_in_python(module: Any) -> None:
    for name in ("RandAugment", "TrivialAugmentWide"):
        lowered = lower(getattr(module, name)(interpolation=v1.InterpolationMode.BICUBIC))
        assert tail_names(lowered) == [name]


def test_filters_that_tensors_have_to_themselves_run_in_python() -> None:
    for transform in (
        v2.Resize(64, interpolation="nearest"),
        v2.Resize(64, interpolation="bicubic", antialias=False),
    ):
        lowered = lower(v2.Compose([v2.ToImage(), transform]))
        assert lowered.ops == []
        assert lowered.tail_input == "tensor_uint8"
    assert lower(v2.Compose([v2.ToImage(), v2.Resize(64, interpolation="nearest-exact")])).tail == []


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize(
    ("padding", "native"),
    [(4, [4] * 4), ([4], [4] * 4), ((1, 2), [1, 2, 1, 2]), ([1, 2, 3, 4], [1, 2, 3, 4])],
    ids=str,
)
def test_paddings(module: Any, padding: Any, native: list[int]) -> None:
    assert lower(module.Pad(padding)).ops[0]["padding"] == native
    assert lower(module.RandomCrop(32, padding=padding)).ops[0]["padding"] == native


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_padding_modes(module: Any, mode: str) -> None:
    assert lower(module.Pad(4, padding_mode=mode)).ops[0]["padding_mode"] == mode
    assert lower(module.RandomCrop(32, padding=4, padding_mode=mode)).ops[0]["padding_mode"] == mode


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize(
    ("fill", "native"),
    [(0, [0] * 3), (127, [127] * 3), (127.9, [127] * 3), ((1, 2, 3), [1, 2, 3]), ([9], [9] * 3)],
    ids=str,
)
def test_fills(module: Any, fill: Any, native: list[int]) -> None:
    assert lower(module.Pad(4, fill=fill)).ops[0]["fill"] == native
    assert lower(module.RandomCrop(32, 4, fill=fill)).ops[0]["fill"] == native
    assert lower(module.RandAugment(fill=fill)).ops[0]["fill"] == native
    assert lower(module.TrivialAugmentWide(fill=fill)).ops[0]["fill"] == native


@pytest.mark.parametrize("module", BOTH)
def test_no_fill_stays_no_fill(module: Any) -> None:
    assert lower(module.RandAugment()).ops[0]["fill"] is None
    assert lower(v2.Pad(4, fill=None)).ops[0]["fill"] == [0, 0, 0]


def test_a_fill_by_type_is_looked_up_for_the_type_at_that_point() -> None:
    fills = {Image.Image: 1, tv_tensors.Image: 2, torch.Tensor: 3, "others": 4}

    def fill(*before: Any, table: dict[Any, int] = fills) -> Any:
        return lower(v2.Compose([*before, v2.Pad(4, fill=dict(table))])).ops[0]["fill"][0]

    assert fill(v2.Identity()) == 1
    assert fill(v2.ToImage()) == 2
    assert fill(v2.PILToTensor()) == 3
    assert fill(v2.ToImage(), v2.ToPureTensor()) == 3
    assert fill(v2.ToImage(), table={Image.Image: 1, "others": 4}) == 4


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize("transform", ["Pad(-1)", "Pad(4, fill=300)", "Pad(4, fill=(1, 2))"])
def test_parameters_without_native_form_run_in_python(module: Any, transform: str) -> None:
    step = eval(transform, vars(module))
    lowered = lower(module.Compose([module.CenterCrop(32), step, module.RandomHorizontalFlip()]))
    assert names(lowered) == ["center_crop"]
    assert tail_names(lowered) == ["Pad", "RandomHorizontalFlip"]
    assert "Pad has parameters without a native form" in lowered.notes[-1]


@pytest.mark.parametrize("module", BOTH)
def test_color_jitter(module: Any) -> None:
    assert lower(module.ColorJitter(0.5, (0.2, 0.8), 0, 0.25)).ops == [
        {
            "op": "color_jitter",
            "brightness": [0.5, 1.5],
            "contrast": [0.2, 0.8],
            "saturation": None,
            "hue": [-0.25, 0.25],
        }
    ]
    assert lower(module.ColorJitter(brightness=2)).ops[0]["brightness"] == [0.0, 3.0]


@pytest.mark.parametrize("module", BOTH)
def test_gaussian_blur(module: Any) -> None:
    assert lower(module.GaussianBlur(5)).ops == [
        {"op": "gaussian_blur", "kernel_size": [5, 5], "sigma": [0.1, 2.0]}
    ]
    assert lower(module.GaussianBlur((3, 5), sigma=1.5)).ops[0] == {
        "op": "gaussian_blur",
        "kernel_size": [3, 5],
        "sigma": [1.5, 1.5],
    }
    assert lower(module.GaussianBlur([3, 3], sigma=[1, 2])).ops[0]["sigma"] == [1.0, 2.0]


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize(
    ("value", "native"),
    [(0, [0.0]), (0.5, [0.5]), ((0.1, 0.2, 0.3), [0.1, 0.2, 0.3]), ("random", "random")],
    ids=str,
)
def test_random_erasing(module: Any, value: Any, native: Any, check_ops: Check) -> None:
    before = [module.PILToTensor(), module.ConvertImageDtype(torch.float)]
    lowered = lower(module.Compose([*before, module.RandomErasing(0.2, value=value, inplace=True)]))
    assert lowered.ops[-1] == {
        "op": "random_erasing",
        "p": 0.2,
        "scale": [0.02, 0.33],
        "ratio": [0.3, 3.3],
        "value": native,
    }
    check_ops(lowered.ops)


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_normalize_takes_sequences_arrays_and_tensors(kind: Any) -> None:
    expected = {"op": "normalize", "mean": [0.5, 0.25, 0.125], "std": [1.0, 2.0, 4.0]}
    assert lower(v1.Normalize(kind([0.5, 0.25, 0.125]), kind([1.0, 2.0, 4.0]))).ops == [expected]
    assert lower(v2.Normalize(kind([0.5, 0.25, 0.125]), kind([1.0, 2.0, 4.0]))).ops == [expected]


def test_normalize_takes_one_value_for_all_channels() -> None:
    expected = [{"op": "normalize", "mean": [0.5] * 3, "std": [0.25] * 3}]
    assert lower(v1.Normalize((0.5,), (0.25,))).ops == expected
    assert lower(v1.Normalize(0.5, 0.25)).ops == expected


def test_normalize_for_other_than_three_channels_runs_in_python() -> None:
    lowered = lower(v1.Compose([v1.ToTensor(), v1.Normalize((0.5,) * 4, (0.5,) * 4)]))
    assert lowered.ops == [TO_FLOAT]
    assert lowered.tail_input == "tensor_float32"


def test_rgb_and_gray_in_three_channels_are_native_and_one_channel_is_not() -> None:
    assert lower(v2.RGB()).ops == []
    assert lower(v2.RGB()).tail == []
    for module in (v1, v2):
        assert lower(module.Grayscale(3)).ops == [{"op": "random_grayscale", "p": 1.0}]
        assert tail_names(lower(module.Grayscale())) == ["Grayscale"]
        assert lower(module.RandomGrayscale(0.2)).ops == [{"op": "random_grayscale", "p": 0.2}]


# The types of values.


def test_a_dtype_by_type_is_looked_up() -> None:
    table = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    assert lower(v2.Compose([v2.ToImage(), v2.ToDtype(table, scale=True)])).ops == [TO_FLOAT]
    assert lower(v2.Compose([v2.PILToTensor(), v2.ToDtype(table, scale=True)])).ops == []
    assert (
        lower(v2.Compose([v2.ToImage(), v2.ToDtype({tv_tensors.Mask: torch.int64, "others": None})])).ops
        == []
    )


def test_a_second_conversion_changes_nothing() -> None:
    lowered = lower(
        v2.Compose([v2.ToImage(), v2.ToDtype(torch.uint8, scale=True), v2.ToDtype(torch.float32, scale=True)])
    )
    assert lowered.ops == [TO_FLOAT]
    lowered = lower(v1.Compose([v1.ToTensor(), v1.ConvertImageDtype(torch.float32)]))
    assert lowered.ops == [TO_FLOAT]


def test_other_types_run_in_python() -> None:
    lowered = lower(v2.Compose([v2.ToImage(), v2.CenterCrop(8), v2.ToDtype(torch.float16, scale=True)]))
    assert names(lowered) == ["center_crop"]
    assert lowered.tail_input == "tensor_uint8"


def test_going_back_to_bytes_runs_in_python() -> None:
    lowered = lower(v1.Compose([v1.ToTensor(), v1.ConvertImageDtype(torch.uint8)]))
    assert (lowered.ops, lowered.tail_input) == ([TO_FLOAT], "tensor_float32")
    assert "going back from float" in lowered.notes[-1]


def test_going_back_to_a_picture_runs_in_python_but_a_picture_stays_one() -> None:
    lowered = lower(v1.Compose([v1.ToPILImage(), v1.CenterCrop(8), v1.ToTensor(), v1.ToPILImage()]))
    assert names(lowered) == ["center_crop", "to_dtype"]
    assert (tail_names(lowered), lowered.tail_input) == (["ToPILImage"], "tensor_float32")


def test_unscaled_values_stay_unscaled() -> None:
    unscaled = {"op": "to_dtype", "dtype": "float32", "scale": False}
    assert lower(v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32)])).ops == [unscaled]
    lowered = lower(v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32), v2.Normalize(MEAN, STD)]))
    assert lowered.ops == [unscaled, NORMALIZE]
