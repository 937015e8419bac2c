"""What happened in epochs that the engine does not run, in numbers: those of streams, and of `num_workers=0`."""

from __future__ import annotations

import time
from typing import Any


class TrainerFigures:
    """The sums over all epochs; the native engine keeps the same for its own."""

    def __init__(self) -> None:
        self.samples = 0
        self.batches = 0
        self.failed = 0
        #: Of the samples, how many were made from what a cache had kept.
        self.recalled = 0
        self.seconds = 0.0
        self.wait_seconds = 0.0

    def note_wait(self, entered: float, left_before: float | None) -> float:
        """Adds a request for a batch that ends now, and the trainer's own time since the one before; returns now."""
        left = time.monotonic()
        self.wait_seconds += left - entered
        self.seconds += left - (entered if left_before is None else left_before)
        return left

    def metrics(self) -> dict[str, Any]:
        """The figures under the names that the engine gives them."""
        return {
            "samples": self.samples,
            "batches": self.batches,
            "failed": self.failed,
            "served": {
                "storage": self.samples - self.recalled,
                "encoded": 0,
                "decoded": self.recalled,
                "augmented": 0,
            },
            "seconds": self.seconds,
            "wait_seconds": self.wait_seconds,
            # From outside a dataset nobody can tell reading from preparing.
            "stalls": {
                "fetch": 0.0,
                "prep": self.wait_seconds,
                "transport": 0.0,
                "trainer": self.seconds - self.wait_seconds,
            },
        }
