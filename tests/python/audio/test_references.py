"""Sound is decoded and transformed as torchaudio, librosa and libsndfile do it."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
from sutler import transforms as T  # noqa: N812 - as users write it

from . import references
from .references import FILES, RATE, SOUND

ARRAYS = references.load()

#: Each reference: the transform it is one of, and how far a value may be off, as a share of the largest.
#:
#: Sums of floats in another order differ in the seventh digit. torchaudio works its mel filters and the phases of its
#: resampling out in 32 bits, Sutler in 64. A speed is drawn as a real number, and its filters are interpolated. A
#: logarithm magnifies what is nearly nothing.
TRANSFORMS: dict[str, tuple[Any, float]] = {
    "resample_down": (T.Resample(new_freq=8000), 1e-6),
    "resample_odd": (T.Resample(RATE, 22_050), 1e-5),
    "resample_kaiser": (
        T.Resample(12_000, lowpass_filter_width=16, resampling_method="sinc_interp_kaiser"),
        1e-6,
    ),
    "speed": (T.SpeedPerturb(factors=[0.9]), 5e-6),
    "trim": (T.TrimSilence(60), 0.0),
    "pre_emphasis": (T.PreEmphasis(0.97), 1e-7),
    "mel": (T.MelSpectrogram(RATE, n_mels=64), 3e-6),
    "mel_slaney": (
        T.MelSpectrogram(
            RATE,
            n_fft=512,
            win_length=320,
            hop_length=160,
            n_mels=80,
            norm="slaney",
            mel_scale="slaney",
            periodic=False,
        ),
        3e-6,
    ),
    "mel_magnitude": (
        T.MelSpectrogram(
            n_fft=256, n_mels=32, power=1.0, normalized=True, center=False, f_min=50.0, f_max=4000.0
        ),
        3e-6,
    ),
    "rnnt": (
        T.Compose(
            [
                T.TrimSilence(60),
                T.PreEmphasis(0.97),
                T.LogMel(
                    n_fft=512,
                    win_length=320,
                    hop_length=160,
                    n_mels=80,
                    norm="slaney",
                    mel_scale="slaney",
                    periodic=False,
                    offset=1e-20,
                    normalize="per_feature",
                    epsilon=1e-5,
                ),
                T.FrameStack(3, 3),
            ]
        ),
        2e-4,
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_gives_what_the_reference_gives(name: str, run_on_clip: Callable[..., Any]) -> None:
    transform, tolerance = TRANSFORMS[name]
    expected = ARRAYS[name]
    found = run_on_clip(transform)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_decoded_as_libsndfile_does(name: str, tmp_path: Path) -> None:
    rate, channels = FILES[name]
    (tmp_path / "a").mkdir()
    shutil.copy(SOUND / name, tmp_path / "a" / name)
    dataset = sutler.AudioFolder(tmp_path, mono=False)
    found, expected = np.asarray(dataset[0][0]), ARRAYS[name]
    assert dataset.sample_rates == [rate]
    assert found.shape == expected.shape == (channels, expected.shape[1])
    # FLAC is exact. The others are decoded by formulas whose rounding is left to the decoder.
    tolerance = 0.0 if name.endswith("flac") else 2e-4
    assert np.abs(found - expected).max() <= tolerance
    assert dataset.lengths == [expected.shape[1]]
    mixed = np.asarray(sutler.AudioFolder(tmp_path)[0][0])
    assert np.abs(mixed - found.mean(axis=0)).max() < 1e-6


def test_the_references_are_what_the_libraries_still_give() -> None:
    for library in ("librosa", "soundfile"):
        pytest.importorskip(library)
    try:
        importlib.import_module("torchaudio")
    except (ImportError, RuntimeError, OSError) as error:
        pytest.skip(f"torchaudio cannot be imported: {error}")
    for name, expected in (references.transformed() | references.decoded()).items():
        found = ARRAYS[name]
        assert found.shape == expected.shape, name
        assert np.abs(found - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max()), name


def test_resampling_is_the_sum_that_defines_it(run_on_clip: Callable[..., Any]) -> None:
    values = references.signal().astype(np.float64)
    found = run_on_clip(T.Resample(new_freq=22_050))
    for place in range(3500, 7500, 7):
        distance = (np.arange(len(values)) - place * RATE / 22_050) * 0.99
        near = np.abs(distance) < 6
        weights = np.sinc(distance) * np.cos(distance * np.pi / 12) ** 2 * 0.99
        assert abs(found[place] - (values * weights)[near].sum()) < 2e-7


def test_noise_and_masks_are_of_the_promised_size(run_on_clip: Callable[..., Any]) -> None:
    silence = np.zeros(20_000, dtype=np.float32)
    noise = run_on_clip(T.Dither(1e-3), silence)
    assert abs(noise.std() - 1e-3) < 3e-5
    assert abs(noise.mean()) < 3e-5
    mel = T.MelSpectrogram(n_fft=512, hop_length=160, n_mels=80)
    masked = run_on_clip(T.Compose([mel, T.SpecAugment(2, 5, 20, 0, 0, 0, value=-7.0)]), noise)
    rows = (masked == -7.0).all(axis=1)
    assert 5 <= rows.sum() <= 40
    frames = masked.shape[1]
    masked = run_on_clip(T.Compose([mel, T.SpecAugment(0, 0, 0, 10, 0.02, 0.03, value=-7.0)]), noise)
    columns = (masked == -7.0).all(axis=0)
    assert round(0.02 * frames) <= columns.sum() <= 10 * round(0.03 * frames)


@pytest.mark.parametrize("frames", [16, 17, 50, 84])
def test_a_share_of_the_length_is_rounded_to_whole_frames(
    run_on_clip: Callable[..., Any], frames: int
) -> None:
    noise = np.random.default_rng(0).standard_normal(160 * frames - 1).astype(np.float32)
    mel = T.MelSpectrogram(n_fft=512, hop_length=160, n_mels=80)
    masked = run_on_clip(T.Compose([mel, T.SpecAugment(0, 0, 0, 1, 0.03, 0.03, value=-7.0)]), noise)
    assert masked.shape[1] == frames
    assert (masked == -7.0).all(axis=0).sum() == round(0.03 * frames)


def test_speeds_are_spread_over_the_range(tones: Path) -> None:
    changed_speed = sutler.AudioFolder(tones, T.SpeedPerturb(0.5, 2.0))
    plain = [len(clip) for clip, _ in map(sutler.AudioFolder(tones).__getitem__, range(30))]
    changed = [len(clip) for clip, _ in map(changed_speed.__getitem__, range(30))]
    speeds = np.array(plain) / np.array(changed)
    assert speeds.min() > 0.49
    assert speeds.max() < 2.01
    assert speeds.std() > 0.2
