"""The ceiling: Sutler's operations on as many threads with nothing around them."""

from __future__ import annotations

from collections.abc import Iterator

import sutler
from sutler import _sutler

from benchmarks.contenders.base import Contender, Epoch, Settings
from benchmarks.contenders.sutler_loader import pipeline


class BareLoop(Contender):
    """Reads, decodes and transforms each sample once, and throws the result away."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._dataset = sutler.ImageFolder(settings.root, transform=pipeline(settings), progress=False)
        self._pipeline = self._dataset.pipeline(len(self._dataset.lowered.ops))

    def batches(self, number: int) -> Iterator[tuple[int, int]]:
        raise NotImplementedError("the bare loop makes no batches; it is timed as a whole, by `epoch`")

    def epoch(self, number: int) -> Epoch:
        seconds = _sutler.bare_seconds(
            self._dataset._native,
            self._pipeline,
            shuffle=self.settings.shuffle,
            seed=0,
            epoch=number,
            threads=self.settings.threads,
        )
        return Epoch(len(self._dataset), seconds, 0.0, None)
