"""A sampler for the tests of trainers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any


class Remembering:
    """Draws every epoch from a generator that nobody knows of, and so has a state."""

    def __init__(self, dataset: Sized) -> None:
        self._samples = len(dataset)
        self._random = random.Random(3)

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[int]:
        yield from self._random.sample(range(self._samples), self._samples)

    def state_dict(self) -> dict[str, Any]:
        return {"random": self._random.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._random.setstate(state["random"])
