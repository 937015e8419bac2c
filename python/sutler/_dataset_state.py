"""The state that a map-style dataset has of its own, which a checkpoint keeps where there is one.

Without workers the trainer's dataset is the only one, and it is asked for its state when the loader is. Each worker has
a copy of it, which is prepared ahead with, so there every batch comes with the state that its worker's copy had after
it, and a checkpoint keeps those of the batches that the trainer has. So that a copy comes to the same again, workers
take whole batches in turn (`Job.take_turns`), unless batches may overtake each other anyway.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sutler._collated import Untold
from sutler._stream_copy import is_stateful
from sutler._worker_errors import describe_trainers, rebuild

if TYPE_CHECKING:
    from sutler._epoch import Progress
    from sutler.loader import Loader


@dataclass(frozen=True)
class WorkerStates:
    """What the workers' copies of a dataset have come to with the batches that the trainer has."""

    #: Pickled, for each worker; ``None`` for a copy of which no batch has come: it is as it was made.
    states: tuple[bytes | Untold | None, ...]
    #: Whose turn the next batch is, where workers take turns.
    turn: int = 0
    #: Whether the copies stay for the next epoch.
    stay: bool = False

    def after(self, worker: int, state: bytes | Untold) -> WorkerStates:
        """The same, once a worker has told the state that its copy had after a batch."""
        return replace(self, states=(*self.states[:worker], state, *self.states[worker + 1 :]))

    def at_rest(self) -> WorkerStates | None:
        """Where the next epoch begins; ``None`` where it has new copies."""
        return replace(self, turn=0) if self.stay else None


class Reached(NamedTuple):
    """How far the epoch is with a batch, and the dataset's copies."""

    progress: Progress
    #: Nothing where the trainer's own dataset tells.
    states: WorkerStates | None


class WorkerCopies:
    """The copies of a dataset that a loader's workers have, over all epochs that they are there for."""

    def __init__(self) -> None:
        #: Where the epoch that is running, or about to begin, begins.
        self._beginning = WorkerStates(())
        #: What the copies have come to as far as the trainer's side has been told.
        self._told: WorkerStates | None = None
        #: Whether they have come to no more than that, since an epoch has ended with all of its batches delivered.
        self._at_rest = False

    def plan(self, beginning: WorkerStates | None, workers: int, *, stay: bool) -> None:
        """An epoch is about to begin, where a saved state or the epoch before has left the copies, or with new ones."""
        if beginning is None or len(beginning.states) != workers:
            beginning = WorkerStates((None,) * workers)
        self._beginning = replace(beginning, stay=stay)

    def are_elsewhere(self) -> bool:
        """Whether workers that are there have copies of no use to that epoch, as they have come to something else.

        Those of which nobody knows what they have come to cannot be made anew.
        """
        told = self._told
        if told is not None and any(isinstance(state, Untold) for state in told.states):
            return False
        return told is None or not self._at_rest or told.states != self._beginning.states

    def begin(self) -> WorkerStates:
        """The epoch begins: where."""
        self._told, self._at_rest = self._beginning, False
        return self._beginning

    def begun(self) -> WorkerStates:
        """Where the epoch began that is running."""
        return self._beginning

    def note(self, states: WorkerStates) -> None:
        """A batch has come."""
        self._told = states

    def latest(self, worker: int) -> bytes | None:
        """What a worker that is started, or replaced, is to begin from."""
        state = (self._told or self._beginning).states[worker]
        return state if isinstance(state, bytes) else None

    def forget(self) -> None:
        """The workers are another process's: whoever is started here begins where the epoch does."""
        self._told, self._at_rest = None, False

    def end(self) -> None:
        """All batches of the epoch have come. The next one begins here, unless it is planned otherwise."""
        self._at_rest = True
        if self._told is not None:
            self._beginning = self._told


def tells_states(loader: Loader) -> bool:
    """Whether the states of a dataset's copies in workers are known: not where workers come and go."""
    return is_stateful(loader.dataset) and loader._auto_workers is None


def own_state(loader: Loader) -> WorkerStates | None:
    """What the trainer's own dataset has come to, where it is asked for samples ahead of the trainer, for a device."""
    return state_now(loader.dataset) if loader._in_process() and outlasts_epochs(loader) else None


def state_now(dataset: Any) -> WorkerStates:
    """What the trainer's own dataset has come to, as if it were the copy of the only worker."""
    return WorkerStates((pickle.dumps(dataset.state_dict()),))


def state_noted(dataset: Any) -> WorkerStates:
    """The same before a batch is begun. What is raised over it is for whoever saves a state: most never do."""
    try:
        return state_now(dataset)
    except Exception as error:
        return WorkerStates((Untold(describe_trainers(error)),))


def outlasts_epochs(loader: Loader) -> bool:
    """Whether preparing ahead for an epoch moves a dataset, or copies of one, that a later one begins from."""
    if loader._in_process():
        return loader.device is not None and is_stateful(loader.dataset)
    return loader.persistent_workers and tells_states(loader)


def describe_states(states: WorkerStates | None) -> dict[str, Any] | None:
    """States in plain values: they are what the dataset made them. ``None`` where there is nothing to tell."""
    if states is None or not any(states.states):
        return None
    return {"turn": states.turn, "states": [_described(state) for state in states.states]}


def _described(state: bytes | Untold | None) -> Any:
    if isinstance(state, Untold):
        raise rebuild(state.exception)
    return None if state is None else pickle.loads(state)


def own_part(loader: Loader, state: Any) -> dict[str, Any]:
    """Of a state, or of the states of all ranks, the one that has what this rank's dataset had come to, if any has.

    Where the ranks of a job are in step, any rank's state says how far they all are. But each has a dataset of its own.
    """
    place = [loader.rank, loader.world_size]
    states = list(state) if isinstance(state, list | tuple) else [state]
    saved = [one for one in states if has_dataset_state(one)]
    return next((one for one in saved if one.get("dataset_place") in (None, place)), {})


def has_dataset_state(state: Any) -> bool:
    """Whether a state has what a map-style dataset, or its copies in workers, had come to."""
    return any(state.get(key) is not None for key in ("dataset", "dataset_workers"))


def warn_of_other_ranks(loader: Loader, state: Any, stacklevel: int) -> None:
    """Warns where a state has what the datasets of other ranks had come to, and not this one's."""
    states = list(state) if isinstance(state, list | tuple) else [state]
    others = [one["dataset_place"] for one in states if has_dataset_state(one)]
    if not others or own_part(loader, state) or not is_stateful(loader.dataset):
        return
    warnings.warn(
        f"the state was saved by rank {others[0][0]} of {others[0][1]}, and this is rank {loader.rank} of "
        f"{loader.world_size}: the order goes on, but what {type(loader.dataset).__name__} remembers is not told to "
        "it, as each rank has one of its own. Save every rank's state, and load each where it came from, or on every "
        "rank the list of all of them.",
        stacklevel=stacklevel + 1,
    )


def restore_states(loader: Loader, state: Any) -> WorkerStates | None:
    """The states that `describe_states` described, where the dataset is one that can load them."""
    described = own_part(loader, state).get("dataset_workers")
    if described is None or not is_stateful(loader.dataset):
        return None
    try:
        states = tuple(None if state is None else pickle.dumps(state) for state in described["states"])
        turn = int(described["turn"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the state is damaged: its dataset_workers is {described!r}") from error
    if not 0 <= turn < len(states):
        raise ValueError(f"the state is damaged: its dataset_workers is {described!r}")
    if loader._auto_workers is not None or loader.num_workers != len(states):
        raise _other_workers(loader, len(states))
    return WorkerStates(states, turn, stay=loader.persistent_workers)


def save_dataset_state(loader: Loader, states: WorkerStates | None, stacklevel: int) -> Any:
    """The state of the trainer's own dataset after the batch that was handed out last; ``None`` where it has none."""
    if not is_stateful(loader.dataset):
        _warn_of_half(loader, stacklevel + 1)
        return None
    if loader.num_workers > 0 and loader._auto_workers is None:
        return None
    if loader._in_process():
        told = None if states is None else _described(states.states[0])
        return copy.deepcopy(loader.dataset.state_dict()) if told is None else told
    if not loader._warned_of_dataset_state:
        loader._warned_of_dataset_state = True
        warnings.warn(
            f'{type(loader.dataset).__name__} has a state_dict, but what it holds is not saved with num_workers="auto" '
            "as workers, each of which has a copy of the dataset, come and go; with any fixed number of them it is.",
            stacklevel=stacklevel + 1,
        )
    return None


def _warn_of_half(loader: Loader, stacklevel: int) -> None:
    """Warns of a dataset that can do one of saving and loading a state."""
    names = ("state_dict", "load_state_dict")
    found = [name for name in names if callable(getattr(loader.dataset, name, None))]
    if len(found) != 1 or loader._warned_of_dataset_state:
        return
    loader._warned_of_dataset_state = True
    (missing,) = set(names) - set(found)
    warnings.warn(
        f"{type(loader.dataset).__name__} has a {found[0]} and no {missing}, so what it remembers is no part of the "
        "loader's state; give it both.",
        stacklevel=stacklevel + 1,
    )


def load_dataset_state(loader: Loader, state: Any) -> None:
    """Tells the trainer's own dataset the state that a checkpoint has of it, whether of one rank or of all of them."""
    saved = own_part(loader, state).get("dataset")
    if saved is None or not is_stateful(loader.dataset):
        return
    if not loader._in_process():
        raise _other_workers(loader, 0)
    loader.dataset.load_state_dict(copy.deepcopy(saved))


def _other_workers(loader: Loader, saved: int) -> ValueError:
    now = '"auto"' if loader._auto_workers is not None else loader.num_workers
    return ValueError(
        f"the state was saved with num_workers={saved}, this loader has num_workers={now}; each worker has a copy of "
        f"{type(loader.dataset).__name__}, which has a state of its own, so resume needs the same number of them. To "
        'go on without what the dataset had come to, set state["dataset"] and state["dataset_workers"] to None.'
    )
