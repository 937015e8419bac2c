"""Each transform against what NumPy makes of the same arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sutler import transforms as T  # noqa: N812 - as users write it

from . import references
from .references import Array

Run = Callable[..., list[tuple[Array, Array]]]

SHAPE = (10, 12, 14)


def image() -> Array:
    """Values that tell where they are."""
    return np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)


def blobs() -> Array:
    """Labels 1 and 4, in several parts."""
    label = np.zeros(SHAPE, np.uint8)
    label[1, 1, 1] = 1
    label[2:4, 2:5, 2:6] = 1
    label[6:9, 6:11, 9:13] = 1
    label[5, 0:2, 13] = 4
    return label


def place_of(crop: Array) -> tuple[int, ...]:
    """Where a crop of `image()` was cut out."""
    return tuple(int(side) for side in np.unravel_index(int(crop[0, 0, 0]), SHAPE))


def test_a_crop_cuts_image_and_labels_at_one_place(run_on_volume: Run) -> None:
    for crop, label in run_on_volume(T.RandBalancedCrop((4, 5, 6)), image(), blobs(), 20):
        z, y, x = place_of(crop)
        block = np.s_[z : z + 4, y : y + 5, x : x + 6]
        np.testing.assert_array_equal(crop, image()[block])
        np.testing.assert_array_equal(label, blobs()[block])


def test_a_crop_over_something_lies_over_one_of_the_two_largest_parts(run_on_volume: Run) -> None:
    size = (4, 4, 4)
    allowed = [block for value in (1, 4) for block in references.largest(references.parts(blobs(), value))]
    assert len(allowed) == 3, "the single voxel of label 1 is not one of them"
    used = set()
    for crop, _ in run_on_volume(T.RandBalancedCrop(size, oversampling=1.0), image(), blobs(), 60):
        start = place_of(crop)

        def fits(block: tuple[slice, ...], start: tuple[int, ...] = start) -> bool:
            return all(
                (first <= side.start and side.stop <= first + length)
                or (side.start <= first and first + length <= side.stop)
                for side, first, length in zip(block, start, size, strict=True)
            )

        over = [number for number, block in enumerate(allowed) if fits(block)]
        assert over, f"a crop at {start} lies over no part"
        used.update(over)
    assert used == {0, 1, 2}


def test_crops_are_everywhere_and_as_often_over_something_as_was_asked_for(run_on_volume: Run) -> None:
    label = np.zeros(SHAPE, np.uint8)
    label[9, 11, 13] = 1  # a corner: a crop that is placed anywhere shows it once in 7 * 9 * 11 times
    shown = 0
    starts = set()
    for crop, cut in run_on_volume(T.RandBalancedCrop(4), image(), label, 150):
        shown += int(cut.any())
        starts.add(place_of(crop))
    assert 150 * 0.25 < shown < 150 * 0.55
    assert len(starts) > 60
    for axis, side in enumerate(SHAPE):
        assert {0, side - 4} <= {start[axis] for start in starts}, "the first place and the last are possible"


@pytest.mark.parametrize("axes", [[0], [1], [2], [0, 2], [0, 1, 2], []])
def test_flips(run_on_volume: Run, axes: list[int]) -> None:
    [found] = run_on_volume(T.RandFlip(p=1.0, axes=axes), image(), blobs())
    np.testing.assert_array_equal(found[0], np.flip(image(), tuple(axes)))
    np.testing.assert_array_equal(found[1], np.flip(blobs(), tuple(axes)))


def test_each_axis_is_flipped_by_itself_and_a_third_of_the_time(run_on_volume: Run) -> None:
    flipped = np.zeros(3)
    kinds = set()
    for found, _ in run_on_volume(T.RandFlip(), image(), blobs(), 120):
        turned = tuple(bool(side) for side in place_of(found))
        kinds.add(turned)
        flipped += turned
    assert len(kinds) == 8
    assert ((flipped > 20) & (flipped < 62)).all(), flipped


def test_brightness(run_on_volume: Run) -> None:
    factors = []
    for found, label in run_on_volume(T.RandomBrightness(p=1.0), image(), blobs(), 40):
        factor = found[-1, -1, -1] / image()[-1, -1, -1]
        np.testing.assert_allclose(found, image() * np.float32(factor), rtol=1e-6)
        np.testing.assert_array_equal(label, blobs())
        factors.append(float(factor))
    assert all(1.7 <= factor <= 2.3 for factor in factors)
    assert max(factors) - min(factors) > 0.4
    found_all = run_on_volume(T.RandomBrightness(), image(), blobs(), 60)
    unchanged = sum(np.array_equal(found, image()) for found, _ in found_all)
    assert 45 <= unchanged < 60, "it happens one time in ten"


def test_noise(run_on_volume: Run) -> None:
    flat = np.full((20, 20, 20), 3.0, np.float32)
    deviations = []
    noisy = T.GaussianNoise(mean=1.0, std=0.5, p=1.0)
    for found, _ in run_on_volume(noisy, flat, flat.astype(np.uint8), 30):
        noise = found.astype(np.float64) - 3.0
        deviation = noise.std()
        assert abs(noise.mean() - 1.0) < 5 * deviation / np.sqrt(noise.size)
        # Normal: a kurtosis of 3, and neighbours that know nothing of each other.
        normalised = (noise - noise.mean()) / deviation
        assert abs((normalised**4).mean() - 3) < 0.35
        assert abs((normalised[:, :, 1:] * normalised[:, :, :-1]).mean()) < 0.06
        deviations.append(deviation)
    assert max(deviations) < 0.52
    assert min(deviations) < 0.1
    assert 0.15 < float(np.mean(deviations)) < 0.35


def test_clipping_and_normalising(run_on_volume: Run) -> None:
    values = np.linspace(-300, 600, int(np.prod(SHAPE))).astype(np.float32).reshape(SHAPE)
    [(found, _)] = run_on_volume(T.ClipNormalize(), values, blobs())
    expected = (np.clip(values, np.float32(-79), np.float32(304)) - np.float32(101)) / np.float32(76.9)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("spacing", [(0.5, 1.3, 2.0), (1.0, 1.0, 1.0), (3.7, 0.31, 0.9), (20.0, 1.0, 1.0)])
def test_resampling(run_on_volume: Run, spacing: tuple[float, float, float]) -> None:
    random = np.random.default_rng(3)
    values = random.normal(size=SHAPE).astype(np.float32)
    label = random.integers(0, 5, SHAPE).astype(np.uint8)
    shape = [max(1, side) for side in references.resampled_shape(SHAPE, (1.0, 1.0, 1.0), spacing)]
    [found] = run_on_volume(T.Resample(spacing=spacing), values, label)
    np.testing.assert_allclose(found[0], references.trilinear(values, shape), atol=2e-5)
    np.testing.assert_array_equal(found[1], references.nearest(label, shape))
    # And PyTorch's own, which is what the published chain calls.
    given = torch.from_numpy(values)[None, None]
    linear = torch.nn.functional.interpolate(given, size=shape, mode="trilinear", align_corners=True)
    np.testing.assert_allclose(found[0], linear[0, 0].numpy(), atol=2e-5)
    labels = torch.nn.functional.interpolate(torch.from_numpy(label)[None, None], size=shape, mode="nearest")
    np.testing.assert_array_equal(found[1], labels[0, 0].numpy())


def test_the_whole_chain_is_its_steps_one_after_the_other(run_on_volume: Run) -> None:
    """Decisions are drawn for each step in turn, so a chain that always does all can be undone step by step."""
    chain = T.Compose(
        [
            T.RandBalancedCrop((4, 5, 6)),
            T.RandFlip(),
            T.Cast(),
            T.RandomBrightness(p=1.0),
            T.GaussianNoise(std=1e-3, p=1.0),
        ]
    )
    for found, label in run_on_volume(chain, image() + 1.0, blobs(), 20):
        # The factor shows in the differences, which are 1 along the last axis.
        factor = np.abs(np.diff(found, axis=2)).mean()
        assert 1.7 <= factor <= 2.3
        plain = np.rint(found / factor - 1.0)
        axes = [
            axis for axis, step in enumerate((12 * 14, 14, 1)) if np.diff(plain, axis=axis).mean() < 0 < step
        ]
        z, y, x = place_of(np.flip(plain, tuple(axes)))
        block = np.s_[z : z + 4, y : y + 5, x : x + 6]
        np.testing.assert_allclose(
            found, np.flip(image()[block] + 1.0, tuple(axes)) * factor, atol=1e-2, rtol=2e-5
        )
        np.testing.assert_array_equal(label, np.flip(blobs()[block], tuple(axes)))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: T.RandBalancedCrop((1, 2)), "one whole number above 0 or three"),
        (lambda: T.RandBalancedCrop(0), "one whole number above 0 or three"),
        (lambda: T.RandBalancedCrop(5.5), r"one whole number above 0 or three, .* got 5\.5"),  # type: ignore[arg-type]
        (lambda: T.RandBalancedCrop(8, oversampling=2), "oversampling=2 should be from 0 to 1"),
        (lambda: T.RandFlip(axes=[3]), "an axis"),
        (lambda: T.Cast(label="int64"), "convert in the training step"),  # type: ignore[arg-type]
        (lambda: T.RandomBrightness(p=-1), "p=-1"),
        (lambda: T.RandomBrightness(factor=math.nan), "RandomBrightness: factor=nan should be finite"),
        (lambda: T.Resample(spacing=(1, math.inf, 1)), r"Resample: spacing=.*inf.* should be finite"),
        (lambda: T.GaussianNoise(std=-1), "std=-1"),
        (lambda: T.ClipNormalize(std=0), "std=0 should be from 1e-30 to 1e30"),
        (lambda: T.ClipNormalize(min=5, max=4), "max=4 should be from 5 to 1e30"),
        (lambda: T.Resample(spacing=(1, 2)), "three distances"),
        (lambda: T.Resample(spacing=(1, 2, 0)), "a spacing=0"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()


def test_resample_serves_sound_and_volumes() -> None:
    assert T.Resample(16000).medium == "sound"
    assert T.Resample(spacing=(1, 1, 1)).medium == "volumes"
    assert T.Resample(spacing=(1, 1, 1)) != T.Resample(16000)
    with pytest.raises(TypeError, match="pass one of them"):
        T.Resample(16000, spacing=(1, 1, 1))
    with pytest.raises(TypeError, match="transform on sound; this pipeline is one on volumes"):
        T.lower_volumes(T.Compose([T.RandFlip(), T.Resample(16000)]))
    with pytest.raises(TypeError, match="transform on volumes; this pipeline is one on sound"):
        T.lower_audio(T.Compose([T.PreEmphasis(), T.Resample(spacing=(1, 1, 1))]))
    with pytest.raises(ValueError, match="put functions behind them"):
        T.lower_volumes(T.Compose([T.Lambda(abs), T.RandFlip()]))
    with pytest.raises(TypeError, match=r"pass RandFlip to sutler\.VolumeFolder"):
        T.RandFlip()(None)
