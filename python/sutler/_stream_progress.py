"""How far a loader has come in a stream, and what of it a checkpoint keeps."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Any

from sutler._stream_reader import ReaderProgress


@dataclass(frozen=True)
class StreamProgress:
    """Where every reader of a stream stands, as far as the trainer has got its batches, and whose turn it is."""

    readers: tuple[ReaderProgress, ...]
    turn: int = 0

    @classmethod
    def beginning(cls, readers: int) -> StreamProgress:
        """Nothing has been read."""
        return cls((ReaderProgress(),) * readers)

    @property
    def samples(self) -> int:
        """Samples taken from the stream by all readers."""
        return sum(reader.samples for reader in self.readers)

    def waiting(self) -> list[int]:
        """The readers that have not ended, from the one whose turn it is on: turns go round."""
        count = len(self.readers)
        order = ((self.turn + step) % count for step in range(count))
        return [reader for reader in order if not self.readers[reader].ended]

    def after(self, reader: int, progress: ReaderProgress) -> StreamProgress:
        """The same, once a reader has delivered a batch."""
        readers = (*self.readers[:reader], progress, *self.readers[reader + 1 :])
        return StreamProgress(readers, (reader + 1) % len(readers))

    def passed(self, reader: int) -> StreamProgress:
        """The same, once a reader had its turn and delivered nothing."""
        return self.after(reader, self.readers[reader])

    def ended(self, reader: int) -> StreamProgress:
        """The same, once a reader has nothing left."""
        return self.after(reader, replace(self.readers[reader], ended=True))


def describe_progress(progress: StreamProgress) -> dict[str, Any]:
    """Progress in plain values; the states of datasets are what the datasets made them."""
    return {
        "turn": progress.turn,
        "workers": [
            {
                "samples": reader.samples,
                "ended": reader.ended,
                "state": None if reader.state is None else pickle.loads(reader.state),
            }
            for reader in progress.readers
        ],
    }


def restore_progress(described: Any) -> StreamProgress:
    """The progress that `describe_progress` described."""
    try:
        readers = tuple(
            ReaderProgress(
                int(worker["samples"]),
                bool(worker["ended"]),
                None if worker["state"] is None else pickle.dumps(worker["state"]),
            )
            for worker in described["workers"]
        )
        turn = int(described["turn"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the state is damaged: its progress is {described!r}") from error
    if not 0 <= turn < len(readers) or any(reader.samples < 0 for reader in readers):
        raise ValueError(f"the state is damaged: its progress is {described!r}")
    return StreamProgress(readers, turn)
