"""What happened in the epochs of a stream, in numbers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sutler._stream_progress import StreamProgress
    from sutler._streams import InlineStream, WorkerStream


class StreamFigures:
    """The sums over all epochs; the native engine keeps the same for datasets with indices."""

    def __init__(self) -> None:
        self.samples = 0
        self.batches = 0
        self.seconds = 0.0
        self.wait_seconds = 0.0

    def metrics(self) -> dict[str, Any]:
        """The figures under the names that the engine gives them."""
        return {
            "samples": self.samples,
            "batches": self.batches,
            "seconds": self.seconds,
            "wait_seconds": self.wait_seconds,
            # From outside a stream nobody can tell reading from preparing.
            "stalls": {
                "fetch": 0.0,
                "prep": self.wait_seconds,
                "transport": 0.0,
                "trainer": self.seconds - self.wait_seconds,
            },
        }


class MeasuredStream:
    """The batches of one epoch, counted and timed."""

    #: Nobody knows how many batches a stream has.
    total: int | None = None

    def __init__(self, stream: InlineStream | WorkerStream, begun_at: int, figures: StreamFigures) -> None:
        self._stream = stream
        self._samples = begun_at
        self._figures = figures
        self._left_at: float | None = None

    def next(self) -> tuple[Any, StreamProgress] | None:
        """The next batch and how far the stream is read with it; ``None`` at the end."""
        figures, entered = self._figures, time.monotonic()
        answer = self._stream.next()
        left = time.monotonic()
        figures.wait_seconds += left - entered
        figures.seconds += left - (entered if self._left_at is None else self._left_at)
        self._left_at = left
        if answer is not None:
            figures.batches += 1
            figures.samples += answer[1].samples - self._samples
            self._samples = answer[1].samples
        return answer

    def close(self) -> None:
        """Calls the rest of the epoch off."""
        self._stream.close()
