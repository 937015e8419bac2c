"""What a checkpoint keeps, and what is checked when it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sutler._epoch import Position

if TYPE_CHECKING:
    from sutler.loader import Loader

#: Raised when a state can no longer be read by older releases.
STATE_VERSION = 1


def _describe_order(loader: Loader) -> str:
    if loader._given_batch_sampler is not None:
        return "batch_sampler"
    if loader._given_sampler is not None:
        return "sampler"
    return "shuffle" if loader.shuffle else "sequential"


def make_state(loader: Loader, position: Position) -> dict[str, Any]:
    """The state of a loader at a position."""
    return {
        "version": STATE_VERSION,
        "epoch": position.epoch,
        "consumed": position.consumed,
        "seed": loader.seed,
        "order": loader.order,
        "sampling": _describe_order(loader),
        "samples": len(loader.dataset),
        "fingerprint": loader.dataset.fingerprint,
    }


def check_state(loader: Loader, state: dict[str, Any]) -> Position:
    """The position in a state, if the state belongs to this loader."""
    missing = [key for key in make_state(loader, Position(0, 0)) if key not in state]
    if missing:
        raise ValueError(f"this is not a state of a sutler.Loader: it has no {', '.join(missing)}")
    if state["version"] != STATE_VERSION:
        raise ValueError(
            f"the state has version {state['version']}, this release of Sutler reads version {STATE_VERSION}"
        )
    if state["fingerprint"] != loader.dataset.fingerprint:
        raise ValueError(
            f"the state was saved for fingerprint {state['fingerprint'][:8]} ({state['samples']:,} samples); this "
            f"dataset is {loader.dataset.fingerprint[:8]} ({len(loader.dataset):,} samples). "
            "Files were added, removed or renamed in between; resume needs the same listing."
        )
    sampling = _describe_order(loader)
    if state["sampling"] != sampling:
        raise ValueError(
            f"the state was saved in {state['sampling']} order, this loader runs in {sampling} order; "
            "pass the same shuffle, sampler and batch_sampler as before"
        )
    if state["seed"] != loader.seed:
        raise ValueError(
            f"the state was saved with seed={state['seed']}, this loader has seed={loader.seed}; pass the saved seed"
        )
    return Position(int(state["epoch"]), int(state["consumed"]))
