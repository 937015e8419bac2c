"""What a checkpoint keeps of a stream, and what is checked when it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sutler._epoch import Position
from sutler._stream_progress import describe_progress, restore_progress

if TYPE_CHECKING:
    from sutler._streams import StreamBackend
    from sutler.loader import Loader

#: Raised when a state can no longer be read by older releases.
STREAM_STATE_VERSION = 1

#: The order that states of streams have.
STREAM = "stream"


def make_stream_state(loader: Loader, streams: StreamBackend, position: Position) -> dict[str, Any]:
    """The state of a stream's loader at a position."""
    return {
        "version": STREAM_STATE_VERSION,
        "sampling": STREAM,
        "epoch": position.epoch,
        "fingerprint": streams.fingerprint(),
        "num_workers": loader.num_workers,
        "progress": describe_progress(position.streams or streams.at_rest(loader)),
    }


def check_stream_state(streams: StreamBackend, state: Any, num_workers: int) -> Position:
    """The position in a state, if the state belongs to this loader."""
    if isinstance(state, list | tuple):
        raise ValueError(
            "this is a list of states, and each rank of a job over a stream goes on from a state of its own, as nobody "
            "but the stream knows how it is shared out; load the state that this rank saved"
        )
    if not isinstance(state, dict):
        raise ValueError(f"this is not a state of a sutler.Loader but a {type(state).__name__}")
    if state.get("sampling") != STREAM:
        raise ValueError(
            f"the state was saved in {state.get('sampling')} order by a loader of a dataset with __getitem__; this "
            f"loader's dataset, {streams.fingerprint()}, is a stream. Pass the dataset that the state was saved for"
        )
    missing = [
        key for key in ("version", "epoch", "fingerprint", "num_workers", "progress") if key not in state
    ]
    if missing:
        raise ValueError(f"this is not a state of a sutler.Loader: it has no {', '.join(missing)}")
    if state["version"] != STREAM_STATE_VERSION:
        raise ValueError(
            f"the state has version {state['version']}, this release of Sutler reads version {STREAM_STATE_VERSION}"
        )
    if state["fingerprint"] != streams.fingerprint():
        raise ValueError(
            f"the state was saved for the stream {state['fingerprint']}, this loader's is {streams.fingerprint()}; "
            "pass the dataset that the state was saved for"
        )
    if state["num_workers"] != num_workers:
        raise ValueError(
            f"the state was saved with num_workers={state['num_workers']}, this loader has num_workers="
            f"{num_workers}; each worker goes through a part of the stream of its own, so resume needs the "
            "same number of them"
        )
    if not isinstance(state["epoch"], int) or not 0 <= state["epoch"] < 2**32:
        raise ValueError(f"the state is damaged: its epoch is {state['epoch']!r}")
    progress = restore_progress(state["progress"])
    expected = len(streams.beginning(num_workers).readers)
    if len(progress.readers) != expected:
        raise ValueError(
            f"the state is damaged: it has the progress of {len(progress.readers)} readers, not {expected}"
        )
    position = Position(state["epoch"], progress.samples)
    position.streams = progress
    return position
