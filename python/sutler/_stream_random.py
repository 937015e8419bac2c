"""The random numbers of whoever goes through a stream, so that they go on where an earlier run was.

A stream may draw from the process's generators: when it begins (which part to read, how to shuffle), for each sample,
and in its `collate_fn`. So a reader keeps two moments: when the epoch began, for what is replayed, and after the latest
batch, for what comes next. In a worker process nobody else draws. In the trainer the model does, too: there the
generators are the trainer's to save, and only what is replayed gets those of the beginning. A worker thread has only
generators of its own, which every worker has besides.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sutler import _generators
from sutler._worker_rng import WorkerRng


@dataclass(frozen=True)
class RandomStates:
    """The states of generators that have been drawn from; the others are as they were seeded."""

    #: When the epoch began.
    began: dict[str, bytes] = field(default_factory=dict)
    #: After the latest batch; empty in the trainer.
    now: dict[str, bytes] = field(default_factory=dict)


class WorkerRandom:
    """A worker's generators. They were seeded when it began, so what was not drawn from needs no saving."""

    def __init__(self, own: WorkerRng, *, whole_process: bool) -> None:
        self._own = own
        #: How the process's generators began; ``None`` where they are not ours to save.
        self._seeded = _generators.marks() if whole_process else None
        self._began: dict[str, bytes] = {}

    @contextmanager
    def opening(self, saved: RandomStates | None) -> Iterator[None]:
        """A stream is opened inside, where an earlier run was."""
        if saved is not None:
            self._restore(saved.began)
        # Not empty in a later epoch of a worker that stayed.
        self._began = self._drawn()
        yield
        if saved is not None:
            self._restore(saved.now)

    def before_opening(self) -> dict[str, bytes]:
        """Where the process's generators are, if they are ours to put back."""
        return {} if self._seeded is None else _generators.save(list(_generators.marks()))

    def leave(self, names: list[str]) -> None:
        """The dataset has put some of the process's generators back itself: to where they are put here."""

    def _drawn(self) -> dict[str, bytes]:
        shared = {} if self._seeded is None else _generators.save(_generators.moved(self._seeded))
        return shared | self._own.states()

    def _restore(self, states: dict[str, bytes]) -> None:
        if self._seeded is not None:
            _generators.restore({name: states[name] for name in _generators.NAMES if name in states})
        self._own.restore(states)

    def states(self) -> RandomStates | None:
        """What is to be saved; ``None`` where nothing was drawn."""
        drawn = self._drawn()
        return RandomStates(self._began, drawn) if drawn else None


class TrainerRandom:
    """The trainer's generators, which a stream without workers draws from as PyTorch lets it."""

    def __init__(self) -> None:
        self._marks = _generators.marks()
        self._trainers = _generators.save(list(self._marks))
        #: The states that an earlier run of this epoch began with.
        self._earlier: dict[str, bytes] = {}
        #: Those that the dataset has put back itself.
        self._left: set[str] = set()

    @contextmanager
    def opening(self, saved: RandomStates | None) -> Iterator[None]:
        """A stream is opened inside, where an earlier run was; the trainer's own numbers go on as before."""
        if saved is None:
            yield
            return
        self._earlier = saved.began
        _generators.restore(saved.began)
        try:
            yield
        finally:
            kept = {name: state for name, state in self._trainers.items() if name not in self._left}
            _generators.restore(kept)

    def before_opening(self) -> dict[str, bytes]:
        """Where the generators are: nobody but the stream draws from them until it has its first sample."""
        return _generators.save(list(_generators.marks()))

    def leave(self, names: list[str]) -> None:
        """The dataset has put some generators back itself, as its state says; so they are not put elsewhere."""
        self._left.update(names)

    def states(self) -> RandomStates | None:
        """What is to be saved; ``None`` where nothing was drawn."""
        drawn = {
            name: self._trainers[name] for name in _generators.moved(self._marks) if name in self._trainers
        }
        began = drawn | self._earlier
        return RandomStates(began) if began else None
