"""What every contender does, and how its epochs are timed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: ImageNet's, as everybody uses them, on the scale from 0 to 1.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Settings:
    """What is asked of all contenders alike."""

    root: str
    pipeline: str = "train"
    batch_size: int = 64
    #: Worker threads or worker processes.
    threads: int = 2
    #: The side of what comes out.
    size: int = 224
    #: The socket of the agent that does the work, for Sutler's loader.
    agent: str | None = None

    @property
    def shuffle(self) -> bool:
        return self.pipeline == "train"

    @property
    def shorter_side(self) -> int:
        """What ``Resize`` is given before ``CenterCrop``: 256 for 224."""
        return self.size * 8 // 7


@dataclass
class Epoch:
    """What an epoch delivered and how long it took."""

    samples: int
    seconds: float
    first_batch_seconds: float
    #: The sum of all labels delivered: equal for all who delivered the same samples. None where no labels are read.
    label_sum: int | None

    @property
    def per_second(self) -> float:
        return self.samples / self.seconds


class Contender(ABC):
    """A loader over the photos, constructed and not yet started."""

    #: Seconds for listing the files; 0 where that is no step of its own.
    listing_seconds = 0.0

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @abstractmethod
    def batches(self, number: int) -> Iterator[tuple[int, int]]:
        """The batches of an epoch as they arrive: how many samples, and the sum of their labels."""

    def first_batch(self) -> float:
        """Seconds until the first batch of the first epoch."""
        started = time.perf_counter()
        next(self.batches(0))
        return time.perf_counter() - started

    def epoch(self, number: int) -> Epoch:
        """Takes all batches of an epoch."""
        samples = label_sum = 0
        first_batch_seconds = 0.0
        started = time.perf_counter()
        for count, labels in self.batches(number):
            if not samples:
                first_batch_seconds = time.perf_counter() - started
            samples += count
            label_sum += labels
        return Epoch(samples, time.perf_counter() - started, first_batch_seconds, label_sum)

    def facts(self) -> dict[str, Any]:
        """What else it knows about itself."""
        return {}
