"""Going through one copy of a stream, batch by batch: in a worker process, or in the trainer itself."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from sutler import _generators
from sutler._stream_copy import DATASET, StreamCopy, is_stateful, state_before
from sutler._stream_random import RandomStates, TrainerRandom, WorkerRandom
from sutler._turns import size_of_turn
from sutler._words import counted


class EndOfStream(Exception):  # noqa: N818 - not an error: there is no more
    """The stream has no further batch."""


@dataclass(frozen=True)
class ReaderProgress:
    """How far one reader has come."""

    #: Samples taken from the stream, up to the end of the latest delivered batch.
    samples: int = 0
    #: Whether there is nothing after that batch.
    ended: bool = False
    #: The pickled states of a dataset or iterator that has some, after that batch; before the first one, those that the
    #: dataset is told before the pass begins.
    state: bytes | None = None
    #: How often the stream raised instead of giving a sample, where somebody caught that and went on.
    failed: int = 0
    #: The random number generators that were drawn from.
    random: RandomStates | None = None

    def at_rest(self) -> ReaderProgress:
        """Where the next pass over the same copy begins, now that this one has ended."""
        random = None if self.random is None else RandomStates(began=self.random.now)
        return ReaderProgress(state=state_before(self.state), random=random)


def is_stream(dataset: Any) -> bool:
    """Whether a dataset can only be gone through, as PyTorch's `IterableDataset`."""
    data = getattr(getattr(sys.modules.get("torch"), "utils", None), "data", None)
    # Its base class has a `__getitem__`, which only raises.
    if data is not None and isinstance(dataset, data.IterableDataset):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


class StreamReader:
    """Goes through a stream, from its beginning or from where an earlier reader had come."""

    def __init__(
        self,
        copy: StreamCopy,
        batch_size: int | None,
        drop_last: bool,
        collate: Callable[[Any], Any],
        start: ReaderProgress,
        random: WorkerRandom | TrainerRandom,
        place: tuple[int, int] = (0, 1),
    ) -> None:
        self._copy = copy
        self._dataset = copy.dataset
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._collate = collate
        self._ended = start.ended
        self._samples = start.samples
        self._failed = start.failed
        self._random = random
        #: Whose batches are delivered, where ranks that go through the same stream take turns, and how many they are.
        self._rank, self._world_size = place
        #: Where the generators were before the stream was opened, where it may be opened again.
        self._before = random.before_opening() if copy.was_told else {}
        with random.opening(start.random):
            self._iterator: Any = iter(()) if start.ended else self._open(start)

    def _open(self, start: ReaderProgress) -> Any:
        """The stream's iterator, where the earlier reader left it."""
        states = {} if start.state is None else pickle.loads(start.state)
        if DATASET in states:
            self._tell(self._dataset, states[DATASET])
        iterator: Any = iter(self._dataset)
        if "iterator" in states:
            self._tell(iterator, states["iterator"])
        elif DATASET in states and iterator is self._dataset:
            # Its `__iter__` may have begun anew, so it is told again.
            self._tell(self._dataset, states[DATASET])
        elif not states:
            self._replay(iterator, start)
        return iterator

    def _tell(self, stateful: Any, state: Any) -> None:
        """Tells a dataset or its iterator where it was; the generators that it has put back itself stay there."""
        before = _generators.marks()
        stateful.load_state_dict(state)
        self._random.leave(_generators.moved(before))

    def _replay(self, iterator: Any, start: ReaderProgress) -> None:
        """Passes over what an earlier reader took, and over what it failed at."""
        passed = failed = 0
        while passed < start.samples or failed < start.failed:
            try:
                next(iterator)
                passed += 1
            except StopIteration:
                raise ValueError(
                    f"the state was saved after {counted(start.samples, 'sample')} of this stream, which now ends "
                    f"after {passed}; resume needs the same stream"
                ) from None
            except Exception:
                failed += 1
                if failed > start.failed:
                    raise

    def read(self) -> Any:
        """The next batch.

        Raises:
            EndOfStream: There is none.
        """
        if self._ended:
            raise EndOfStream
        batch_size = self._batch_size or 1
        full = batch_size * self._world_size
        samples = self._draw(full)
        if not samples or (self._drop_last and len(samples) < full):
            raise EndOfStream
        if self._world_size > 1:
            # A rank that had no batch would be waited for by the others for ever.
            size = size_of_turn(batch_size, len(samples))
            first = self._rank * size
            samples = list(islice(cycle(samples), first, first + size))
        return self._collated(samples[0] if self._batch_size is None else samples)

    def _draw(self, count: int) -> list[Any]:
        samples: list[Any] = []
        while len(samples) < count:
            try:
                sample = next(self._iterator)
            except StopIteration:
                if self._samples == 0 and self._copy.begin_anew():
                    _generators.restore(self._before)
                    self._iterator = iter(self._dataset)
                    continue
                self._ended = True
                break
            except Exception:
                self._failed += 1
                raise
            samples.append(sample)
            self._samples += 1
        return samples

    def _collated(self, samples: Any) -> Any:
        try:
            return self._collate(samples)
        except StopIteration as error:
            raise RuntimeError("a collate_fn raised StopIteration; an epoch ends on its own") from error

    @property
    def has_stateful_iterator(self) -> bool:
        """Whether the stream's iterator has a state that the dataset does not have."""
        return self._iterator is not self._dataset and is_stateful(self._iterator)

    @property
    def samples(self) -> int:
        """Samples taken from the stream."""
        return self._samples

    def progress(self) -> ReaderProgress:
        """How far this reader has come."""
        states = {}
        if is_stateful(self._dataset):
            states[DATASET] = self._dataset.state_dict()
        if self.has_stateful_iterator:
            states["iterator"] = self._iterator.state_dict()
        # Pickled at once: the next sample may change what the state refers to.
        pickled = pickle.dumps(states) if states else None
        return ReaderProgress(self._samples, self._ended, pickled, self._failed, self._random.states())
