"""What the networks of the convergence benchmark learn: the direction of gratings, or which digit is spoken."""

from __future__ import annotations

import math
import random
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.contenders.base import MEAN, STD
from benchmarks.paced import pipeline

CLASSES = 10

_SIDE = 32
#: The side of the pictures that the network sees.
SIZE = 24

#: Of so many clips one is for testing, and one is slow.
_EVERY = 5
#: Silence behind a slow clip, in values: to read it and cut it off takes some fifteen times as long as all the rest.
_SILENCE = 1 << 19
_MELS = 40
#: What the network hears of a clip: two thirds of a second.
_FRAMES = 64


class Task(Protocol):
    """A dataset, a network and how the one is given to the other. It crosses over to other processes."""

    @property
    def root(self) -> Path: ...
    @property
    def samples(self) -> int: ...
    @property
    def description(self) -> str: ...
    def dataset(self) -> Any:
        """What is trained on."""

    def tests(self) -> Any:
        """What is tested on, without random transforms."""

    def model(self) -> Any:
        """A network with weights drawn from PyTorch's random numbers."""

    def inputs(self, batch: Any) -> tuple[Any, Any]:
        """What the network gets of a batch, and what it should say."""


@dataclass(frozen=True)
class Gratings:
    """Pictures of stripes in so much noise that the network does not get all of them right."""

    root: Path
    samples: int

    @classmethod
    def make(cls, root: Path, samples: int) -> Gratings:
        """Writes the pictures."""
        make_gratings(root / "train", samples, seed=1)
        make_gratings(root / "test", max(CLASSES, samples // 2), seed=2)
        return cls(root, samples)

    @property
    def description(self) -> str:
        return f"{self.samples:,} generated pictures in {CLASSES} classes"

    def dataset(self) -> Any:
        import sutler

        return sutler.ImageFolder(self.root / "train", transform=pipeline(SIZE), progress=False)

    def tests(self) -> Any:
        import sutler
        from sutler import transforms as T  # noqa: N812 (the name that torchvision's users expect)

        transform = T.Compose([T.Resize(SIZE + 4), T.CenterCrop(SIZE), T.Normalize(MEAN, STD)])
        return sutler.ImageFolder(self.root / "test", transform=transform, progress=False)

    def model(self) -> Any:
        from torch import nn

        return nn.Sequential(
            nn.Conv2d(3, 16, 5, padding=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 5, padding=2),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, CLASSES),
        )

    def inputs(self, batch: Any) -> tuple[Any, Any]:
        return batch[0], batch[1]


def make_gratings(root: Path, count: int, seed: int) -> None:
    """Pictures of stripes in noise: what class one is in is the direction of its stripes."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(seed)
    across, down = np.meshgrid(np.arange(_SIDE), np.arange(_SIDE))
    for index in range(count):
        label = index % CLASSES
        angle = (label + rng.uniform(-0.6, 0.6)) * math.pi / CLASSES
        wave_number = rng.uniform(0.5, 0.9)
        along = across * math.cos(angle) + down * math.sin(angle)
        stripes = np.sin(along * wave_number + rng.uniform(0, 2 * math.pi))
        colour = rng.uniform(8, 24, 3)
        values = 128 + stripes[..., None] * colour + rng.normal(0, 60, (_SIDE, _SIDE, 3))
        folder = root / f"class_{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(folder / f"{index:06d}.jpg", quality=85)


@dataclass(frozen=True)
class Digits:
    """Spoken digits through the native chain of sounds. A fifth of the clips is slow, whatever is said in them.

    Slow ones have a long silence behind them, which the chain cuts off again: they are as others are when they get to
    the network, but later.
    """

    root: Path
    samples: int
    slow: int

    @classmethod
    def make(cls, source: Path, root: Path) -> Digits:
        """Deals out the clips of a folder that has one folder for each digit."""
        clips = sorted(source.glob("*/*.wav"))
        if not clips:
            raise FileNotFoundError(
                f"there are no .wav files in folders of {source}; pass a folder with one folder for each digit"
            )
        random.Random(0).shuffle(clips)
        training = [clip for number, clip in enumerate(clips) if number % _EVERY]
        for number, clip in enumerate(training):
            _copy(clip, root / "train" / clip.parent.name, _SILENCE if number % _EVERY == 0 else 0)
        for clip in clips[::_EVERY]:
            _copy(clip, root / "test" / clip.parent.name, 0)
        return cls(root, len(training), -(-len(training) // _EVERY))

    @property
    def description(self) -> str:
        return f"{self.samples:,} spoken digits, {self.slow:,} of them slow"

    def dataset(self) -> Any:
        import sutler
        from sutler import transforms as T  # noqa: N812 (the name that torchvision's users expect)

        chain = T.Compose([T.TrimSilence(60), T.SpeedPerturb(0.85, 1.15), self._features()])
        return sutler.AudioFolder(self.root / "train", transform=chain, progress=False)

    def tests(self) -> Any:
        import sutler
        from sutler import transforms as T  # noqa: N812 (the name that torchvision's users expect)

        chain = T.Compose([T.TrimSilence(60), self._features()])
        return sutler.AudioFolder(self.root / "test", transform=chain, progress=False)

    def _features(self) -> Any:
        from sutler import transforms as T  # noqa: N812 (the name that torchvision's users expect)

        return T.LogMel(n_fft=256, hop_length=80, n_mels=_MELS, normalize="all_features", offset=1e-6)

    def model(self) -> Any:
        from torch import nn

        return nn.Sequential(
            nn.Conv1d(_MELS, 32, 5, stride=2, padding=2),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.Conv1d(32, 32, 5, stride=2, padding=2),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(4),
            nn.Flatten(),
            nn.Linear(4 * 32, CLASSES),
        )

    def inputs(self, batch: Any) -> tuple[Any, Any]:
        """Clips of one length, so that what a clip is padded with does not depend on what it shares a batch with."""
        from torch.nn.functional import pad

        heard, labels = batch[0][..., :_FRAMES], batch[2]
        return pad(heard, (0, _FRAMES - heard.shape[-1])), labels


def _copy(clip: Path, folder: Path, silence: int) -> None:
    """A clip with so much silence behind it."""
    folder.mkdir(parents=True, exist_ok=True)
    with wave.open(str(clip)) as read, wave.open(str(folder / clip.name), "wb") as written:
        written.setparams(read.getparams())
        written.writeframes(read.readframes(read.getnframes()))
        written.writeframes(bytes(silence * read.getsampwidth() * read.getnchannels()))
