"""What happened in the epochs of a stream, in numbers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from sutler._figures import TrainerFigures, Wait

if TYPE_CHECKING:
    from sutler._stream_progress import StreamProgress
    from sutler._streams import InlineStream, WorkerStream


class MeasuredStream:
    """The batches of one epoch, counted and timed."""

    #: Nobody knows how many batches a stream has.
    total: int | None = None
    #: A reader's batch is taken when it is delivered.
    interrupted = False

    def __init__(self, stream: InlineStream | WorkerStream, begun_at: int, figures: TrainerFigures) -> None:
        self._stream = stream
        self._samples = begun_at
        self._figures = figures
        self._left_at: float | None = None
        self._delivered = 0

    def next(self) -> tuple[Any, StreamProgress] | None:
        """The next batch and how far the stream is read with it; ``None`` at the end."""
        entered = time.monotonic()
        samples = 0
        try:
            answer = self._stream.next()
            if answer is not None:
                samples = answer[1].samples - self._samples
                self._samples = answer[1].samples
                self._figures.batches += 1
                self._figures.samples += samples
            return answer
        finally:
            self._note(entered, samples)

    def _note(self, entered: float, samples: int) -> None:
        """From outside a dataset nobody can tell reading from preparing; but when a worker was done is known."""
        left, finished = time.monotonic(), self._stream.finished_at
        done = left if finished is None else min(max(finished, entered), left)
        wait = Wait(entered, left, self._left_at, prep=done - entered, transport=left - done)
        wait.batch, wait.samples, wait.finished = self._delivered, samples, finished
        wait.ready = int(finished is not None and finished <= entered)
        self._left_at = self._figures.note(wait)
        self._delivered += 1

    def last_delivery(self) -> tuple[float, float, float, int]:
        """What was waited for before the latest batch came, and how many samples it has."""
        return self._figures.last_delivery()

    @property
    def beginning(self) -> StreamProgress:
        """Where the epoch began."""
        return self._stream.beginning

    def processes(self) -> list[Any]:
        """The worker processes, where there are some."""
        return self._stream.processes()

    def close(self) -> None:
        """Calls the rest of the epoch off."""
        self._stream.close()
