"""The part of a pipeline that runs in Python, and what users are told about it."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sutler import PythonTransformWarning
from sutler import transforms as T  # noqa: N812 - as users write it
from sutler.transforms import lower, lowering, run_tail

torch = pytest.importorskip("torch")
v1 = pytest.importorskip("torchvision.transforms")
v2 = pytest.importorskip("torchvision.transforms.v2")


Run = Callable[[list[dict[str, Any]], Any], Any]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize(
    ("pipeline", "tail_input"),
    [
        (lambda: v1.Compose([v1.Resize(32), v1.RandomRotation(10), v1.ToTensor()]), "pil"),
        (lambda: v1.Compose([v1.PILToTensor(), v1.RandomRotation(10)]), "tensor_uint8"),
        (lambda: v1.Compose([v1.Resize(32), v1.ToTensor(), v1.RandomRotation(10)]), "tensor_float32"),
        (lambda: v2.Compose([v2.Resize(32), v2.RandomRotation(10), v2.ToImage()]), "pil"),
        (lambda: v2.Compose([v2.ToImage(), v2.Resize(32), v2.RandomRotation(10)]), "tensor_uint8"),
        (
            lambda: v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.RandomRotation(10)]),
            "tensor_float32",
        ),
        (lambda: T.Compose([T.Resize(32), T.Lambda(repr)]), "pil"),
        (lambda: T.Compose([T.ToImage(), T.Lambda(repr)]), "tensor_uint8"),
        (lambda: T.Compose([T.Normalize(MEAN, STD), T.Lambda(repr)]), "tensor_float32"),
    ],
)
def test_a_tail_takes_what_torchvision_would_have_there(pipeline: Callable[[], Any], tail_input: str) -> None:
    assert lower(pipeline()).tail_input == tail_input


@pytest.mark.parametrize(
    "build",
    [
        lambda odd: v1.Compose([v1.CenterCrop(32), odd, v1.ToTensor(), v1.Normalize(MEAN, STD)]),
        lambda odd: v1.Compose([v1.CenterCrop(32), v1.PILToTensor(), odd, v1.ConvertImageDtype(torch.float)]),
        lambda odd: v1.Compose([v1.CenterCrop(32), v1.ToTensor(), odd, v1.Normalize(MEAN, STD)]),
        lambda odd: v2.Compose([v2.CenterCrop(32), odd, v2.ToImage(), v2.ToDtype(torch.float, scale=True)]),
        lambda odd: v2.Compose([v2.ToImage(), v2.CenterCrop(32), odd, v2.ToDtype(torch.float, scale=True)]),
        lambda odd: T.Compose([T.CenterCrop(32), odd, T.CenterCrop(24), T.Normalize(MEAN, STD)]),
    ],
)
def test_operations_and_tail_together_are_the_pipeline(
    build: Callable[[Any], Any], picture: Any, run_ops: Run
) -> None:
    pipeline = build(v1.RandomAdjustSharpness(2.0, p=1.0))
    lowered = lower(pipeline)
    assert lowered.tail
    middle = run_ops(lowered.ops, picture)
    array = middle.numpy() if isinstance(middle, torch.Tensor) else np.array(middle)
    result = run_tail(lowered.tail, lowered.tail_input, array)
    torch.testing.assert_close(result.as_subclass(torch.Tensor), torch.Tensor(pipeline(picture)))


def test_a_tail_gets_each_kind_of_image() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    seen: list[Any] = []

    def look(value: Any) -> Any:
        seen.append(value)
        return value

    result = run_tail([look], "pil", pixels)
    assert seen[-1].size == (4, 2)
    assert torch.equal(result, torch.from_numpy(pixels).permute(2, 0, 1))
    assert torch.equal(run_tail([look], "tensor_uint8", pixels), result)
    assert seen[-1].is_contiguous()
    floats = np.ones((3, 2, 4), dtype=np.float32)
    assert run_tail([look], "tensor_float32", floats).dtype == torch.float32
    assert run_tail([lambda image: image.convert("L")], "pil", pixels).shape == (1, 2, 4)
    assert run_tail([lambda image: "anything"], "pil", pixels) == "anything"


def test_a_tail_cannot_write_to_memory_it_was_only_lent() -> None:
    floats = np.zeros((3, 2, 2), dtype=np.float32)
    floats.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_tail([lambda image: image.add_(1)], "tensor_float32", floats)
    assert not floats.any()


def test_a_tail_refuses_an_array_of_the_wrong_kind() -> None:
    with pytest.raises(ValueError, match="needs a float32 array"):
        run_tail([], "tensor_float32", np.zeros((2, 2, 3), dtype=np.uint8))
    with pytest.raises(ValueError, match="three dimensions"):
        run_tail([], "pil", np.zeros((2, 2), dtype=np.uint8))


def test_a_seed_decides_all_of_a_tails_randomness_and_leaves_no_trace() -> None:
    def draw(_: Any) -> Any:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    pixels = np.zeros((2, 2, 3), dtype=np.uint8)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draw(None)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    first = run_tail([draw], "pil", pixels, seed=2**63 + 7)
    assert first == run_tail([draw], "pil", pixels, seed=2**63 + 7)
    assert first != run_tail([draw], "pil", pixels, seed=8)
    assert draw(None) == expected


# What users are told.


def test_a_tail_is_announced_once_with_what_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "_ANNOUNCED", set())
    pipeline = v1.Compose([v1.Resize(32), v1.RandomRotation(10), v1.ToTensor()])
    with pytest.warns(PythonTransformWarning) as told:
        lower(pipeline).announce()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lower(pipeline).announce()
    assert [str(warning.message) for warning in told] == [
        "RandomRotation, ToTensor run in Python, one image at a time in each worker process, because "
        "torchvision's RandomRotation has no native form, and what follows has to wait for it. Move it to the "
        "end, or replace it with a transform of sutler.transforms, to leave more to native threads; write it as "
        "sutler.transforms.Lambda to run it in Python without this warning."
    ]
    assert told[0].filename == __file__


@pytest.mark.parametrize(
    "pipeline",
    [None, T.Compose([T.Resize(32), T.Lambda(repr)]), T.Compose([T.Resize(32), repr]), T.Resize(32)],
    ids=str,
)
def test_python_on_purpose_is_not_announced(pipeline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "_ANNOUNCED", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lower(pipeline).announce()


def test_native_steps_behind_a_lambda_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "_ANNOUNCED", set())
    with pytest.warns(PythonTransformWarning, match="repr, CenterCrop run in Python"):
        lower(T.Compose([T.Lambda(repr), T.CenterCrop(8)])).announce()


def test_a_lambda_is_python_whatever_is_in_it() -> None:
    rotation, resize = v1.RandomRotation(10), v1.Resize(8)
    lowered = lower(T.Compose([T.Lambda(resize), T.Lambda(rotation)]))
    assert (lowered.ops, lowered.tail, lowered.asked_for) == ([], [resize, rotation], True)
    assert not lower(T.Compose([rotation])).asked_for
