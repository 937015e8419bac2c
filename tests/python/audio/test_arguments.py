"""What sound refuses, and in which words: when it is made, not at the first batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
import sutler.testing
from sutler import LengthBuckets
from sutler import transforms as T  # noqa: N812 - as users write it


@pytest.mark.parametrize(
    ("duration", "error", "message"),
    [
        (float("nan"), ValueError, "max_duration should be a positive number of seconds, .* got nan"),
        (-1, ValueError, "max_duration should be a positive number of seconds, .* got -1"),
        (0, ValueError, "max_duration should be a positive number of seconds, .* got 0"),
        ("x", TypeError, "max_duration should be a number of seconds, or None for no limit, got 'x'"),
        (True, TypeError, "max_duration should be a number of seconds, .* got True"),
    ],
    ids=str,
)
def test_a_duration_is_a_positive_number(
    tones: Path, duration: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        sutler.AudioFolder(tones, max_duration=duration)


def test_a_duration_may_be_a_number_of_numpys_or_infinite(tones: Path) -> None:
    assert len(sutler.AudioFolder(tones, max_duration=float("inf"))) == 30
    assert len(sutler.AudioFolder(tones, max_duration=np.float32(1000))) == 30  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([1.0, float("nan")], ValueError, "finite and not negative, and that of sample 1 is nan"),
        ([1.0, float("inf")], ValueError, "finite and not negative, and that of sample 1 is inf"),
        ([-1], ValueError, "finite and not negative, and that of sample 0 is -1"),
        (["long"], TypeError, "lengths should be numbers, and that of sample 0 is 'long'"),
        (5, TypeError, "lengths should be an AudioFolder or the length of every sample, got 5"),
    ],
    ids=str,
)
def test_lengths_are_finite_numbers(lengths: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        LengthBuckets(lengths, batch_size=2)


def test_images_have_no_lengths(photos: Path) -> None:
    images: Any = sutler.ImageFolder(photos)
    with pytest.raises(TypeError, match="ImageFolder holds images, which have none; leave LengthBuckets out"):
        LengthBuckets(images, batch_size=2)


@pytest.mark.parametrize(("seed", "error"), [(-1, ValueError), (2**64, ValueError), ("a", TypeError)])
def test_buckets_have_the_seeds_of_loaders(seed: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"seed should be an integer from 0 to 2\*\*64 - 1"):
        LengthBuckets([1, 2], batch_size=2, seed=seed)


def test_buckets_refuse_an_epoch_that_is_none() -> None:
    epoch: Any = "a"
    with pytest.raises(TypeError, match="epoch should be an integer"):
        LengthBuckets([1, 2], batch_size=2).set_epoch(epoch)


@pytest.mark.parametrize("count", [29, 31, 1])
def test_buckets_of_another_number_of_samples_are_refused(tones: Path, count: int) -> None:
    dataset = sutler.AudioFolder(tones)
    expected = (
        f"made of {count} length{'' if count == 1 else 's'}, and the dataset has 30 samples; make them of"
    )
    with pytest.raises(ValueError, match=expected):
        sutler.Loader(dataset, batch_sampler=LengthBuckets([1.0] * count, batch_size=2))


@pytest.mark.parametrize(
    ("function", "returned"),
    [(str, "str"), (lambda clip: clip.sum(), "a number"), (lambda clip: None, "NoneType")],
)
def test_a_function_that_returns_no_clip_is_named(tones: Path, function: Any, returned: str) -> None:
    dataset = sutler.AudioFolder(tones, T.Compose([T.PreEmphasis(), T.Lambda(function)]))
    name = function.__name__
    with (
        sutler.Loader(dataset, batch_size=2) as loader,
        pytest.raises(
            TypeError, match=rf"{name}, the last function of the transform, returned {returned}, and clips"
        ),
    ):
        next(iter(loader))


def test_a_collate_fn_may_take_what_is_no_clip(tones: Path) -> None:
    dataset = sutler.AudioFolder(tones, T.Lambda(lambda clip: {"length": len(clip)}))
    with sutler.Loader(dataset, batch_size=3, collate_fn=list) as loader:
        batch = next(iter(loader))
    assert [sample["length"] for sample, _ in batch] == dataset.lengths[:3]
