"""How far a loader has come in a stream, and what of it a checkpoint keeps."""

from __future__ import annotations

import base64
import pickle
from dataclasses import dataclass, replace
from typing import Any

from sutler._stream_random import RandomStates
from sutler._stream_reader import ReaderProgress


@dataclass(frozen=True)
class StreamProgress:
    """Where every reader of a stream stands, as far as the trainer has got its batches, and whose turn it is."""

    readers: tuple[ReaderProgress, ...]
    turn: int = 0
    #: What the workers' seeds are made from; ``None`` until it is drawn.
    base_seed: int | None = None
    #: The epoch that the dataset was told, where somebody told it one.
    dataset_epoch: int | None = None
    #: What data pipes are told to draw from; ``None`` until it is drawn, and for other streams.
    pipe_seed: int | None = None
    #: The state of the loader's ``generator``, if it has one, behind the seeds that were drawn from it for this pass.
    generator: bytes | None = None

    @classmethod
    def beginning(cls, readers: int, dataset_epoch: int | None) -> StreamProgress:
        """Nothing has been read."""
        return cls((ReaderProgress(),) * readers, dataset_epoch=dataset_epoch)

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
        return replace(self, readers=readers, turn=(reader + 1) % len(readers))

    def began(self, reader: int, progress: ReaderProgress, base_seed: int) -> StreamProgress:
        """The same, once a reader that stayed has told what it drew in earlier epochs."""
        readers = (*self.readers[:reader], progress, *self.readers[reader + 1 :])
        return replace(self, readers=readers, base_seed=base_seed)

    def passed(self, reader: int) -> StreamProgress:
        """The same, once a reader had its turn and delivered nothing."""
        return self.after(reader, self.readers[reader])

    def ended(self, reader: int, progress: ReaderProgress) -> StreamProgress:
        """The same, once a reader has nothing left."""
        return self.after(reader, replace(progress, ended=True))

    def at_rest(self, base_seed: int) -> StreamProgress | None:
        """Where the next pass of the same readers begins; ``None`` unless all have ended this one."""
        if self.waiting():
            return None
        return StreamProgress(tuple(reader.at_rest() for reader in self.readers), base_seed=base_seed)


def describe_progress(progress: StreamProgress) -> dict[str, Any]:
    """Progress in plain values; the states of datasets are what the datasets made them."""
    return {
        "turn": progress.turn,
        "base_seed": progress.base_seed,
        "dataset_epoch": progress.dataset_epoch,
        "pipe_seed": progress.pipe_seed,
        "generator": None if progress.generator is None else base64.b64encode(progress.generator).decode(),
        "workers": [
            {
                "samples": reader.samples,
                "failed": reader.failed,
                "ended": reader.ended,
                "state": None if reader.state is None else pickle.loads(reader.state),
                "random": None if reader.random is None else _describe_random(reader.random),
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
                int(worker["failed"]),
                None if worker["random"] is None else _restore_random(worker["random"]),
            )
            for worker in described["workers"]
        )
        turn = int(described["turn"])
        # The last ones are not in states of releases that knew of no data pipes, or that did not keep the generator.
        numbers = (described["base_seed"], described["dataset_epoch"], described.get("pipe_seed"))
        seed, epoch, pipe_seed = (None if value is None else int(value) for value in numbers)
        saved = described.get("generator")
        generator = None if saved is None else base64.b64decode(saved, validate=True)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the state is damaged: its progress is {described!r}") from error
    if not 0 <= turn < len(readers) or any(reader.samples < 0 for reader in readers):
        raise ValueError(f"the state is damaged: its progress is {described!r}")
    return StreamProgress(readers, turn, seed, epoch, pipe_seed, generator)


def _describe_random(states: RandomStates) -> dict[str, dict[str, str]]:
    return {
        moment: {name: base64.b64encode(state).decode() for name, state in generators.items()}
        for moment, generators in (("began", states.began), ("now", states.now))
    }


def _restore_random(described: Any) -> RandomStates:
    moments = (
        {str(name): base64.b64decode(state, validate=True) for name, state in described[moment].items()}
        for moment in ("began", "now")
    )
    return RandomStates(*moments)
