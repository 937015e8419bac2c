"""Steps that may change places, and choices among steps: what of them is native."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sutler import transforms as T  # noqa: N812 - as users write it
from sutler.transforms import lower

torch = pytest.importorskip("torch")
v1 = pytest.importorskip("torchvision.transforms")
v2 = pytest.importorskip("torchvision.transforms.v2")

Run = Callable[[list[dict[str, Any]], Any], Any]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BOTH = [pytest.param(v1, id="v1"), pytest.param(v2, id="v2")]


def names(lowered: T.Lowered) -> list[str]:
    return [op["op"] for op in lowered.ops]


def tail_names(lowered: T.Lowered) -> list[str]:
    return [type(step).__name__ for step in lowered.tail]


# What changes place with the conversion to float.

FLOAT = [v1.PILToTensor(), v1.ConvertImageDtype(torch.float)]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    "transform",
    [
        v1.RandomCrop(20),
        v1.RandomCrop(20, padding=4, padding_mode="reflect"),
        v1.Pad(5, padding_mode="edge"),
    ],
    ids=str,
)
def test_what_only_moves_pixels_slips_before_the_conversion(
    transform: Any, normalize: bool, picture: Any, run_ops: Run
) -> None:
    pipeline = v1.Compose([*FLOAT, *([v1.Normalize(MEAN, STD)] if normalize else []), transform])
    lowered = lower(pipeline)
    assert lowered.tail == []
    assert lowered.notes == []
    assert names(lowered)[1:] == ["to_dtype", "normalize"][: 1 + normalize]
    torch.manual_seed(1)
    expected = pipeline(picture)
    torch.manual_seed(1)
    torch.testing.assert_close(run_ops(lowered.ops, picture), expected)


@pytest.mark.parametrize(
    "transform", [v1.CenterCrop(56), v1.Pad(3), v1.RandomCrop(56, pad_if_needed=True)], ids=str
)
def test_black_borders_slip_before_the_conversion_but_not_before_a_normalization(
    transform: Any, picture: Any, run_ops: Run
) -> None:
    pipeline = v1.Compose([*FLOAT, transform])
    lowered = lower(pipeline)
    assert lowered.tail == []
    torch.manual_seed(1)
    expected = pipeline(picture)
    torch.manual_seed(1)
    torch.testing.assert_close(run_ops(lowered.ops, picture), expected)
    normalized = lower(v1.Compose([*FLOAT, v1.Normalize(MEAN, STD), transform]))
    assert normalized.tail == [transform]
    assert "after the conversion to float" in normalized.notes[-1]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    "transform", [v1.Resize(24), v1.RandomResizedCrop(24, antialias=False), v1.GaussianBlur(5)], ids=str
)
def test_averages_slip_before_the_conversion_and_cost_a_rounding(
    transform: Any, normalize: bool, picture: Any, run_ops: Run
) -> None:
    pipeline = v1.Compose([*FLOAT, *([v1.Normalize(MEAN, STD)] if normalize else []), transform])
    lowered = lower(pipeline)
    assert lowered.tail == []
    assert "rounding to 8 bits" in lowered.notes[0]
    torch.manual_seed(1)
    expected = pipeline(picture)
    torch.manual_seed(1)
    got = run_ops([{"op": "to_dtype", "dtype": "uint8", "scale": True}, *lowered.ops], picture)
    # One level, as Pillow and torch round in two passes; in units of the smallest deviation if normalized.
    torch.testing.assert_close(got, expected, rtol=0, atol=1.01 / 255 / (min(STD) if normalize else 1))


@pytest.mark.parametrize(
    "transform",
    [
        v1.Resize(24, interpolation=v1.InterpolationMode.BICUBIC),
        v1.ColorJitter(0.5),
        v1.RandomGrayscale(),
        v1.Pad(4, fill=0.5),
    ],
    ids=str,
)
def test_what_would_come_out_different_runs_in_python_on_floats(transform: Any) -> None:
    lowered = lower(v1.Compose([v1.CenterCrop(8), *FLOAT, transform]))
    assert names(lowered) == ["center_crop", "to_dtype"]
    assert (lowered.tail, lowered.tail_input) == ([transform], "tensor_float32")


def test_flips_stay_where_they_are() -> None:
    flips = [v1.RandomHorizontalFlip(), v1.RandomVerticalFlip()]
    lowered = lower(v1.Compose([*FLOAT, v1.RandomErasing(), *flips, v1.Normalize(MEAN, STD)]))
    assert names(lowered) == [
        "to_dtype",
        "random_erasing",
        "random_horizontal_flip",
        "random_vertical_flip",
        "normalize",
    ]
    assert lowered.tail == []


def test_flips_slip_together_with_what_follows_them(picture: Any, run_ops: Run) -> None:
    pipeline = v1.Compose([*FLOAT, v1.RandomHorizontalFlip(1.0), v1.Normalize(MEAN, STD), v1.RandomCrop(20)])
    lowered = lower(pipeline)
    assert names(lowered) == ["random_horizontal_flip", "random_crop", "to_dtype", "normalize"]
    torch.manual_seed(1)
    expected = pipeline(picture)
    torch.manual_seed(1)
    torch.testing.assert_close(run_ops(lowered.ops, picture), expected)


def test_nothing_slips_past_an_erasing() -> None:
    lowered = lower(v1.Compose([*FLOAT, v1.RandomErasing(), v1.RandomCrop(8)]))
    assert names(lowered) == ["to_dtype", "random_erasing"]
    assert tail_names(lowered) == ["RandomCrop"]


# Choices among transforms.


@pytest.mark.parametrize("module", BOTH)
def test_choices_without_a_choice_are_native(module: Any) -> None:
    jitter = module.ColorJitter(0.5)
    assert names(lower(module.RandomApply([jitter], p=1.0))) == ["color_jitter"]
    assert lower(module.RandomApply([jitter], p=0.0)).ops == []
    assert names(lower(module.RandomChoice([jitter]))) == ["color_jitter"]
    assert names(lower(module.RandomOrder([jitter]))) == ["color_jitter"]
    assert names(lower(module.RandomApply(torch.nn.ModuleList([jitter, module.CenterCrop(8)]), p=1))) == [
        "color_jitter",
        "center_crop",
    ]


@pytest.mark.parametrize("module", BOTH)
def test_two_coins_in_a_row_are_one(module: Any) -> None:
    assert lower(module.RandomApply([module.RandomHorizontalFlip(0.5)], p=0.5)).ops[0]["p"] == 0.25
    assert lower(module.RandomApply([module.Grayscale(3)], p=0.2)).ops == [
        {"op": "random_grayscale", "p": 0.2}
    ]
    assert lower(module.RandomApply([module.RandomErasing(0.5, value="random")], p=0.5)).ops[0]["p"] == 0.25


@pytest.mark.parametrize("module", BOTH)
def test_real_choices_run_in_python_with_all_that_follows(module: Any) -> None:
    for choice in (
        module.RandomApply([module.ColorJitter(0.5)], p=0.8),
        module.RandomChoice([module.CenterCrop(8), module.RandomCrop(8)]),
        module.RandomOrder([module.CenterCrop(8), module.RandomHorizontalFlip()]),
    ):
        flip = module.RandomHorizontalFlip()
        lowered = lower(module.Compose([module.RandomResizedCrop(16), choice, flip]))
        assert names(lowered) == ["random_resized_crop"]
        assert (lowered.tail, lowered.tail_input) == ([choice, flip], "pil")
        assert type(choice).__name__ in lowered.notes[-1]
