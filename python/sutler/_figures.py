"""What happened in epochs that the engine does not run, in numbers: those of streams, and of `num_workers=0`.

And what a trainer waited for whose batches a thread of the loader takes, to copy them to a device ahead of it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

#: What the trainer's time goes to, in the order in which a batch meets them.
CAUSES = ("fetch", "prep", "transport", "trainer")

#: Batches that are kept one by one; the engine keeps as many.
BATCHES_KEPT = 1024


@dataclass
class Wait:
    """A trainer's request for a batch, in seconds of the monotonic clock, and what it waited for."""

    requested: float
    answered: float
    #: When the request before it was answered, if the epoch had one.
    previous: float | None
    fetch: float = 0.0
    prep: float = 0.0
    transport: float = 0.0
    #: The batch's number in its epoch, and how many samples it has; none came where the epoch was over.
    batch: int = 0
    samples: int = 0
    #: How many finished batches there were when it was asked for.
    ready: int = 0
    #: When its last sample was finished, where that is known.
    finished: float | None = None


class TrainerFigures:
    """The sums over all epochs; the native engine keeps the same for its own."""

    def __init__(self) -> None:
        self.samples = 0
        self.batches = 0
        self.failed = 0
        #: Of the samples, how many were made from what a cache had kept.
        self.recalled = 0
        self.stalls = dict.fromkeys(CAUSES, 0.0)
        #: How often none, one, two … finished batches were there when one was asked for.
        self.ready: list[int] = []
        self._origin = time.monotonic()
        self._timeline: deque[dict[str, Any]] = deque(maxlen=BATCHES_KEPT)

    def note(self, wait: Wait) -> float:
        """Adds a request and the trainer's own time before it; returns when it was answered."""
        trainer = 0.0 if wait.previous is None else wait.requested - wait.previous
        parts = {"fetch": wait.fetch, "prep": wait.prep, "transport": wait.transport, "trainer": trainer}
        for cause, seconds in parts.items():
            self.stalls[cause] += seconds
        if wait.samples:
            self.ready += [0] * (wait.ready + 1 - len(self.ready))
            self.ready[wait.ready] += 1
            self._timeline.append(
                {
                    "batch": wait.batch,
                    "samples": wait.samples,
                    "requested": wait.requested - self._origin,
                    "ready": (wait.answered if wait.finished is None else wait.finished) - self._origin,
                    "answered": wait.answered - self._origin,
                    "ready_batches": wait.ready,
                }
                | parts
            )
        return wait.answered

    def last_delivery(self) -> tuple[float, float, float, int]:
        """What was waited for before the latest batch came, and how many samples it has."""
        last = self._timeline[-1]
        return last["fetch"], last["prep"], last["transport"], last["samples"]

    def waits(self) -> dict[str, Any]:
        """What the trainer waited for, under the names that the engine gives it."""
        waited = sum(self.stalls[cause] for cause in CAUSES if cause != "trainer")
        return {
            "seconds": waited + self.stalls["trainer"],
            "wait_seconds": waited,
            "stalls": dict(self.stalls),
            "ready": list(self.ready),
        }

    def metrics(self) -> dict[str, Any]:
        """All figures under the names that the engine gives them."""
        return self.waits() | {
            "samples": self.samples,
            "batches": self.batches,
            "failed": self.failed,
            "served": {
                "storage": self.samples - self.recalled,
                "encoded": 0,
                "decoded": self.recalled,
                "augmented": 0,
            },
        }

    def timeline(self) -> dict[str, Any]:
        """The latest batches, in the shape of the engine's own."""
        return {
            "age": time.monotonic() - self._origin,
            "timeline": {"batches": list(self._timeline), "samples": []},
            "quantiles": [],
        }
