"""What happened in the epochs of a stream, in numbers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from sutler._figures import TrainerFigures

if TYPE_CHECKING:
    from sutler._stream_progress import StreamProgress
    from sutler._streams import InlineStream, WorkerStream


class MeasuredStream:
    """The batches of one epoch, counted and timed."""

    #: Nobody knows how many batches a stream has.
    total: int | None = None

    def __init__(self, stream: InlineStream | WorkerStream, begun_at: int, figures: TrainerFigures) -> None:
        self._stream = stream
        self._samples = begun_at
        self._figures = figures
        self._left_at: float | None = None

    def next(self) -> tuple[Any, StreamProgress] | None:
        """The next batch and how far the stream is read with it; ``None`` at the end."""
        figures, entered = self._figures, time.monotonic()
        answer = self._stream.next()
        self._left_at = figures.note_wait(entered, self._left_at)
        if answer is not None:
            figures.batches += 1
            figures.samples += answer[1].samples - self._samples
            self._samples = answer[1].samples
        return answer

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
