"""What a checkpoint keeps, and what is checked when it is loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sutler import _sutler
from sutler._backend import ProcessBackend, length_of
from sutler._dataset_state import describe_states, restore_states
from sutler._drawn_from import DrawnFrom
from sutler._epoch import Position
from sutler._job_state import check_job_states
from sutler._stream_state import STREAM, check_stream_state, make_stream_state
from sutler._words import counted
from sutler.datasets import NativeDataset

if TYPE_CHECKING:
    from sutler.loader import Loader

#: Raised when a state can no longer be read by older releases.
STATE_VERSION = 1

#: What older states do not have, and need not.
CAME_LATER = ("before", "seeded", "drawn_from", "dataset", "dataset_workers", "dataset_place")


def describe_order(loader: Loader) -> str:
    """Who says in which order samples come, as a state has it."""
    if loader._streams is not None:
        return STREAM
    if loader._given_batch_sampler is not None:
        return "batch_sampler"
    if loader._given_sampler is not None:
        return "sampler"
    return "shuffle" if loader.shuffle else "sequential"


def make_state(loader: Loader, position: Position) -> dict[str, Any]:
    """The state of a loader at a position."""
    if loader._streams is not None:
        return make_stream_state(loader, loader._streams, position)
    # Where batches are served in order, what is consumed says it all; and then any rank may load any rank's state.
    served = _saved(position.served)
    uneven = loader._steps is not None and loader._steps.batch_size is None
    described = describe_states(position.copies) if loader.num_workers > 0 else None
    return {
        "version": STATE_VERSION,
        "epoch": position.epoch,
        "consumed": position.consumed,
        "before": _saved(position.before),
        "served": served,
        "place": [loader.rank, loader.world_size] if uneven or served is not None else None,
        "seed": loader.seed,
        "seeded": position.seeded or position.is_begun or _keeps_workers(loader),
        "order": loader.order,
        "sampling": describe_order(loader),
        "drawn": position.drawn_so_far,
        "drawn_from": None if position.drawn_from_so_far is None else position.drawn_from_so_far.save(),
        "samples": length_of(loader.dataset),
        "fingerprint": loader._backend.fingerprint(),
        "dataset": None,
        "dataset_workers": described,
        "dataset_place": None if described is None else [loader.rank, loader.world_size],
    }


def _keeps_workers(loader: Loader) -> bool:
    """Whether the next epoch has workers that were seeded for an earlier one."""
    return isinstance(loader._backend, ProcessBackend) and loader._backend.keeps_workers()


def within_of(state: Any) -> int | None:
    """The epoch of a trainer that a state was saved within, if one told it; the states of all ranks have the same."""
    one = state[0] if isinstance(state, list | tuple) else state
    within = one.get("within")
    return within if isinstance(within, int) else None


def _samples(number: Any) -> str:
    return counted(number, "sample") if isinstance(number, int) else "an unknown number of samples"


def _why_another(loader: Loader) -> str:
    """What may have made another dataset of it."""
    if loader._selection is not None:
        return (
            "The Subset names other samples, or files were added, removed or renamed in between; resume needs the same "
            "Subset of the same listing."
        )
    if isinstance(loader.dataset, NativeDataset):
        return (
            "Files were added, removed or renamed in between, or the state is of a Subset; resume needs the same "
            "listing."
        )
    return "Its class, its length or its own fingerprint was another then; resume needs the same dataset."


def _saved(served: _sutler.Served | None) -> Any:
    return None if served is None else json.loads(served.save())


def check_state(loader: Loader, state: Any) -> Position:
    """The position in a state, or in the states of all ranks, if they belong to this loader."""
    if loader._streams is not None:
        return check_stream_state(loader._streams, state, loader.num_workers)
    return _check_place(loader, state).with_copies(restore_states(loader, state))


def _check_place(loader: Loader, state: Any) -> Position:
    """The same, without what the dataset had come to."""
    if isinstance(state, list | tuple):
        return check_job_states(loader, [(one, _check_one(loader, one)) for one in state])
    position = _check_one(loader, state)
    if state["place"] is None or list(state["place"]) == [loader.rank, loader.world_size]:
        return position
    if state["served"] is None:
        raise ValueError(
            f"the state was saved by rank {state['place'][0]} of {state['place'][1]}, and this is rank {loader.rank} "
            f"of {loader.world_size}. The ranks take batches of different sizes in turn, so each stands at a place of "
            "its own: save every rank's state, and load each where it came from."
        )
    if state["place"][1] == 1:  # the only rank there was
        return check_job_states(loader, [(state, position)])
    raise ValueError(
        f"the state was saved by rank {state['place'][0]} of {state['place'][1]}, and this is rank {loader.rank} of "
        f"{loader.world_size}. In order={loader.order!r} each rank has served samples of its own: save every rank's "
        "state, and load each where it came from, or on every rank the list of all of them; order='strict' has one "
        "state for all."
    )


def _check_one(loader: Loader, state: Any) -> Position:
    """The position in a state, if it is of the same dataset and order, whichever rank saved it."""
    expected = make_state(loader, Position(0, 0))
    if not isinstance(state, dict):
        raise ValueError(f"this is not a state of a sutler.Loader but a {type(state).__name__}")
    missing = [key for key in expected if key not in state and key not in CAME_LATER]
    if missing:
        raise ValueError(f"this is not a state of a sutler.Loader: it has no {', '.join(missing)}")
    if state["version"] != STATE_VERSION:
        raise ValueError(
            f"the state has version {state['version']}, this release of Sutler reads version {STATE_VERSION}"
        )
    if state["fingerprint"] != loader._backend.fingerprint():
        raise ValueError(
            f"the state was saved for fingerprint {str(state['fingerprint'])[:8]} ({_samples(state['samples'])}); this "
            f"dataset is {loader._backend.fingerprint()[:8]} ({_samples(length_of(loader.dataset))}). "
            f"{_why_another(loader)}"
        )
    if state["sampling"] != expected["sampling"]:
        raise ValueError(
            f"the state was saved in {state['sampling']} order, this loader runs in {expected['sampling']} order; "
            "pass the same shuffle, sampler and batch_sampler as before"
        )
    if state["seed"] != loader.seed:
        raise ValueError(
            f"the state was saved with seed={state['seed']}, this loader has seed={loader.seed}; pass the saved seed"
        )
    for key, bound in (("epoch", 2**32), ("consumed", 2**63)):
        if not isinstance(state[key], int) or not 0 <= state[key] < bound:
            raise ValueError(f"the state is damaged: its {key} is {state[key]!r}")
    position = Position(state["epoch"], state["consumed"], state["drawn"])
    position.drawn_from = DrawnFrom.load(state.get("drawn_from"))
    before = state.get("before")
    if before is not None or state["served"] is not None:
        _check_gaps(loader, state)
    position.before = None if before is None else _sutler.Served(json.dumps(before))
    position.served = None if state["served"] is None else _sutler.Served(json.dumps(state["served"]))
    position.seeded = bool(state.get("seeded", position.is_begun))
    return position


def _check_gaps(loader: Loader, state: dict[str, Any]) -> None:
    """Refuses a state with gaps where it cannot be gone on from."""
    if loader.order != state["order"]:
        raise ValueError(
            f"the state was saved in the middle of an epoch with order={state['order']!r}, in which samples are served "
            f"as they get ready, and this loader has order={loader.order!r}; pass the same order to go on from it"
        )
    if state["served"] is None:
        return
    place = state["place"]
    numbers = isinstance(place, list | tuple) and len(place) == 2 and all(isinstance(n, int) for n in place)
    if not numbers or not 0 <= place[0] < place[1]:
        raise ValueError(f"the state is damaged: its place is {place!r}, not a rank and a number of ranks")
