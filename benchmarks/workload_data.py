"""The datasets of the workloads: written in Python, so that every loader does the same work."""

from __future__ import annotations

import io
import os
import random
import time
import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

#: As many steps as an artificial heavy one is cut into: a loader that can put a sample aside may do so between them.
HEAVY_STEPS = 4
#: Small photos are like ImageNet's, large ones like a camera's: 20 megapixels.
SMALL, LARGE = (500, 375), (5472, 3648)


@dataclass(frozen=True)
class Mix:
    """How many samples there are, and how many of them are slow."""

    samples: int
    slow_share: float

    @property
    def slow(self) -> frozenset[int]:
        """The slow ones, at places that are the same in every run."""
        return frozenset(random.Random(0).sample(range(self.samples), round(self.samples * self.slow_share)))


@dataclass(frozen=True)
class Burn:
    """Takes processor time, not wall time: a sample stays as much work when its core is shared."""

    seconds: float

    def __call__(self, values: Any) -> Any:
        if is_slow(values):
            end = time.thread_time() + self.seconds
            while time.thread_time() < end:
                pass
        return values


def is_slow(values: Any) -> bool:
    """Whether a clip goes through the heavy step: those of an odd number of values do.

    A function behind native transforms knows nothing of a sample but what it is given.
    """
    return len(values) % 2 == 1


def read_clip(path: Path) -> Any:
    """A clip's values, from -1 to 1."""
    with wave.open(str(path)) as file:
        values = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    return values.astype(np.float32) / 32768


def heavy_steps(heavy_ms: float) -> list[Callable[[Any], Any]]:
    """What is done to a clip once it is read: nothing to most of them, and then its spectrum."""
    return [*[Burn(heavy_ms / 1000 / HEAVY_STEPS)] * HEAVY_STEPS, spectrum]


def spectrum(values: Any) -> Any:
    """The logarithm of a clip's power over time and frequency, of one length for all."""
    import torch

    values = np.asarray(values)
    fixed = np.zeros(8000, np.float32)
    fixed[: min(len(values), 8000)] = values[:8000]
    found = torch.stft(
        torch.from_numpy(fixed), 512, hop_length=160, window=torch.hann_window(512), return_complex=True
    )
    return torch.log(found.abs() ** 2 + 1e-20)


def find_clips(folder: Path) -> list[Path]:
    """The recordings below a folder."""
    files = sorted(folder.rglob("*.wav"))
    if not files:
        raise FileNotFoundError(
            f"there are no .wav files in {folder}; pass a folder that has some as --speech"
        )
    return files


def list_clips(source: Path, folder: Path, mix: Mix) -> None:
    """Lists the clips of a mix: each under many names, and once in a copy that lacks one value if that tells it."""
    files = find_clips(source)
    (folder / "all").mkdir(parents=True)
    made = folder.with_name(f"{folder.name}-made")
    made.mkdir()
    slow = mix.slow
    for index in range(mix.samples):
        number = index % len(files)
        clip = made / f"{number:06}-{index in slow}.wav"
        if not clip.exists():
            _cut_clip(files[number], clip, odd=index in slow)
        os.link(clip, folder / "all" / f"{index:06}.wav")


def _cut_clip(source: Path, target: Path, *, odd: bool) -> None:
    """Copies a clip, without its last value where that gives it an odd, or an even, number of them."""
    with wave.open(str(source)) as clip, wave.open(str(target), "wb") as written:
        written.setparams(clip.getparams())
        count = clip.getnframes()
        written.writeframes(clip.readframes(count - (count % 2 != odd)))


class Speech:
    """Spoken digits, of which some go through a heavy step besides."""

    def __init__(self, folder: Path, heavy_ms: float) -> None:
        from torchvision.transforms import Compose

        self._files = find_clips(folder)
        self._transform = Compose([read_clip, *heavy_steps(heavy_ms)])

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self._transform(self._files[index])


class Photos:
    """Photographs, small ones and large ones, as torchvision's users train on them."""

    def __init__(self, folder: Path) -> None:
        from torchvision import transforms

        self._files = sorted(folder.rglob("*.jpg"))
        self._transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(224),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        from PIL import Image

        with Image.open(self._files[index]) as image:
            return index, self._transform(image.convert("RGB"))


def make_photos(folder: Path) -> None:
    """Writes a small photo and a large one."""
    folder.mkdir(parents=True)
    for name, size in (("small", SMALL), ("large", LARGE)):
        (folder / f"{name}.jpg").write_bytes(_photo(size))


def list_photos(made: Path, folder: Path, mix: Mix) -> None:
    """Lists the photos of a mix: all small ones are one file under many names, and so are the large ones."""
    (folder / "all").mkdir(parents=True)
    slow = mix.slow
    for index in range(mix.samples):
        photo = made / ("large.jpg" if index in slow else "small.jpg")
        os.link(photo, folder / "all" / f"{index:06}.jpg")


def _photo(size: tuple[int, int]) -> bytes:
    """Something with edges, gradients and grain, as a photograph has; its bytes per pixel are like one's."""
    from PIL import Image

    width, height = size
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
    image = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)).astype(np.int16)
    image += rng.integers(-12, 13, (height, width, 1), dtype=np.int16)
    written = io.BytesIO()
    Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(written, "JPEG", quality=85)
    return written.getvalue()
