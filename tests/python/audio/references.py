"""What torchaudio, librosa and libsndfile make of a short clip; `python references.py` writes it beside this file.

The arrays are kept, so that the tests need none of these libraries. Where they are installed, a test computes
everything again and compares.
"""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np

ARRAYS = Path(__file__).parent / "references.npz"
#: The encoded files, which the Rust tests read as well.
SOUND = Path(__file__).parents[3] / "crates" / "sutler-media" / "tests" / "sound"
RATE = 16_000

Floats = np.ndarray[Any, np.dtype[np.float32]]


def signal() -> Floats:
    """A quarter of a second: silence, a gliding tone in noise, silence."""
    random = np.random.default_rng(0)
    count = 3000
    tone = np.sin(np.cumsum(np.linspace(0.05, 0.8, count))) * np.hanning(count)
    sounding = 0.4 * tone + 0.05 * random.standard_normal(count)
    return np.concatenate([np.zeros(2500), sounding, np.zeros(2700)]).astype(np.float32)


def write_wav(path: Path, values: Floats, rate: int = RATE) -> None:
    """Writes 32-bit floats, so that nothing is rounded; `values` is [values] or [channels, values]."""
    channels = 1 if values.ndim == 1 else values.shape[0]
    data = values.T.astype("<f4").tobytes()
    head = struct.pack("<HHIIHH", 3, channels, rate, rate * 4 * channels, 4 * channels, 32)
    chunks = b"fmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", len(data)) + data
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks)


def transformed() -> dict[str, Floats]:
    """The references of the transforms, by name."""
    import librosa
    import torch
    import torchaudio
    from torchaudio import functional as F  # noqa: N812 - as its users write it

    values = signal()
    wave = torch.from_numpy(values)
    mel = torchaudio.transforms.MelSpectrogram
    trimmed, _ = librosa.effects.trim(values, top_db=60)
    found = {
        # The transform works its filter out in 64 bits, the function in 32.
        "resample_down": torchaudio.transforms.Resample(RATE, 8000)(wave),
        "resample_odd": torchaudio.transforms.Resample(RATE, 22_050)(wave),
        "resample_kaiser": torchaudio.transforms.Resample(
            RATE, 12_000, lowpass_filter_width=16, resampling_method="sinc_interp_kaiser"
        )(wave),
        "speed": F.speed(wave, RATE, 0.9)[0],
        "trim": trimmed,
        "pre_emphasis": F.preemphasis(wave.clone()),
        "mel": mel(RATE, n_mels=64)(wave),
        "mel_slaney": mel(
            RATE,
            n_fft=512,
            win_length=320,
            hop_length=160,
            n_mels=80,
            norm="slaney",
            mel_scale="slaney",
            wkwargs={"periodic": False},
        )(wave),
        "mel_magnitude": mel(
            RATE, n_fft=256, n_mels=32, power=1.0, normalized=True, center=False, f_min=50.0, f_max=4000.0
        )(wave),
        "rnnt": rnnt(torch.from_numpy(trimmed)),
    }
    return {name: np.asarray(array, dtype=np.float32) for name, array in found.items()}


def rnnt(trimmed: Any) -> Any:
    """The features of MLPerf's RNN-T after trimming, without what is random: its formulas, written down once more."""
    import librosa
    import torch

    emphasised = torch.cat([trimmed[:1], trimmed[1:] - 0.97 * trimmed[:-1]])
    window = torch.hann_window(320, periodic=False)
    spectrum = torch.stft(
        emphasised, 512, hop_length=160, win_length=320, window=window, center=True, return_complex=True
    )
    filters = torch.from_numpy(librosa.filters.mel(sr=RATE, n_fft=512, n_mels=80))
    logarithms = torch.log(filters @ spectrum.abs().pow(2) + 1e-20)
    deviation = logarithms.std(dim=1, keepdim=True) + 1e-5
    normalised = (logarithms - logarithms.mean(dim=1, keepdim=True)) / deviation
    stacked = [normalised]
    for offset in (1, 2):
        later = torch.zeros_like(normalised)
        later[:, :-offset] = normalised[:, offset:]
        stacked.append(later)
    return torch.cat(stacked)[:, ::3]


#: The encoded files that are kept, each with its sample rate and channels.
FILES = {
    "mono.flac": (RATE, 1),
    "stereo.flac": (44_100, 2),
    "mono.mp3": (RATE, 1),
    "stereo.mp3": (44_100, 2),
    "mono.ogg": (8000, 1),
    "stereo.ogg": (RATE, 2),
}

#: One that is refused, as Vorbis with more than two channels is not decoded right.
SURROUND = "three.ogg"


def encode() -> None:
    """Writes the files."""
    import soundfile

    left = signal()
    both = np.stack([left, np.roll(left, 500)], axis=1)
    for name, (rate, channels) in FILES.items():
        buffer = io.BytesIO()
        soundfile.write(buffer, left if channels == 1 else both, rate, format=name.rsplit(".", 1)[1])
        (SOUND / name).write_bytes(buffer.getvalue())
    buffer = io.BytesIO()
    soundfile.write(buffer, np.stack([left[:1000]] * 3, axis=1), 8000, format="ogg")
    (SOUND / SURROUND).write_bytes(buffer.getvalue())


def decoded() -> dict[str, Floats]:
    """What libsndfile makes of the files, as [channels, values]."""
    import soundfile

    return {name: soundfile.read(SOUND / name, dtype="float32", always_2d=True)[0].T for name in FILES}


def load() -> dict[str, Floats]:
    """The kept arrays."""
    with np.load(ARRAYS) as arrays:
        return dict(arrays)


if __name__ == "__main__":
    encode()
    arrays: dict[str, Any] = transformed() | decoded()
    np.savez_compressed(ARRAYS, **arrays)
