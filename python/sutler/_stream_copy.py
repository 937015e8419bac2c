"""A reader's copy of a stream, and what it is told before a pass over it begins.

A stream may keep its position, or the number of its pass, in itself, and tell that with a `state_dict`. The copies that
stay between two passes, the trainer's own and those of workers that stay, then begin the next pass where the last one
left them. A run that resumes between the two has new copies, which are told the states of the old ones.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sutler._stream_reader import ReaderProgress

#: In the states of a reader: that of its dataset before a pass begins. After a batch of the pass it is `DATASET`.
BEFORE, DATASET = "before", "dataset"


def is_stateful(value: Any) -> bool:
    """Whether a dataset or an iterator can save and load a state."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def tell_epoch(dataset: Any, epoch: int | None) -> None:
    """Tells a dataset which epoch is the next, if it wants to know, as Hugging Face's shuffled streams do."""
    set_epoch = getattr(dataset, "set_epoch", None)
    if epoch is not None and callable(set_epoch):
        set_epoch(epoch)


def state_before(state: bytes | None) -> bytes | None:
    """What a copy is to be told before its next pass, whose state at the end of the last one is given."""
    states = {} if state is None else pickle.loads(state)
    return pickle.dumps({BEFORE: states[DATASET]}) if DATASET in states else None


class StreamCopy:
    """A copy of a stream that one reader after the other goes through."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        #: The pickled states of a pass that an earlier run ended, of which this copy knows nothing yet.
        self._untold: bytes | None = None
        self._epoch: int | None = None
        #: The pickled states that it had before it was told another, and with that, until the pass has a sample.
        self._as_made: bytes | None = None
        self._as_told: bytes | None = None
        #: Whether it shows nothing of what it was told, as it keeps that for when it is opened.
        self._pending = False

    def state(self) -> bytes | None:
        """The pickled states to begin the next pass from; ``None`` where the dataset has none."""
        if self._untold is not None:
            return self._untold
        return pickle.dumps({BEFORE: self.dataset.state_dict()}) if is_stateful(self.dataset) else None

    def tell(self, start: ReaderProgress, epoch: int | None) -> None:
        """Tells the dataset all that it is to know before it is opened: where earlier passes left it, and the epoch."""
        states = pickle.loads(start.state or self._untold or pickle.dumps({}))
        # Nothing of a pass that has ended is opened. What it left is for the next one to begin from.
        self._untold = state_before(start.state) if start.ended else None
        self._as_made = self._as_told = None
        self._pending = False
        self._epoch = epoch
        if BEFORE not in states:
            tell_epoch(self.dataset, epoch)
            return
        self._as_made = pickle.dumps(self.dataset.state_dict())
        self.dataset.load_state_dict(states[BEFORE])
        self._pending = not _is_same(self.dataset.state_dict(), pickle.dumps(states[BEFORE]))
        tell_epoch(self.dataset, epoch)
        self._as_told = pickle.dumps(self.dataset.state_dict())

    @property
    def was_told(self) -> bool:
        """Whether it was told what an earlier pass has left, so that it may take that for the end of this one."""
        return self._as_told is not None

    def begin_anew(self) -> bool:
        """Whether a pass that has ended without a sample is to be opened again, which the dataset then is ready for.

        Many datasets go on from a state only in the pass that it is of: told of the end of one they have nothing left.
        Those that keep a state until they are opened have forgotten it by then, and have all of their samples when they
        are opened again. For others the pass begins as for a new copy, unless their state shows that they have gone on.
        """
        as_made, as_told = self._as_made, self._as_told
        if as_made is None or as_told is None:
            return False
        if self._pending:
            self._pending = False
            return True
        self._as_made = self._as_told = None
        if not _is_same(self.dataset.state_dict(), as_told):
            return False
        self.dataset.load_state_dict(pickle.loads(as_made))
        tell_epoch(self.dataset, self._epoch)
        return True


def _is_same(state: Any, pickled: bytes) -> bool:
    """Equal states need not be pickled to equal bytes, and arrays cannot be compared as plain values can."""
    try:
        return bool(state == pickle.loads(pickled))
    except Exception:
        return pickle.dumps(state) == pickled
