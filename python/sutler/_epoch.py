"""One pass over the data, from the consumer's side."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sutler._cuda import DevicePrefetcher
from sutler._device_ops import device_finisher
from sutler._stream_progress import StreamProgress

if TYPE_CHECKING:
    from sutler._sampling import Drawn
    from sutler.loader import Loader


class Position:
    """Where a job stands: its epoch, and how much of the epoch's sequence all ranks have consumed."""

    __slots__ = ("complete", "consumed", "drawn", "epoch", "streams")

    def __init__(self, epoch: int, consumed: int, drawn: str | None = None) -> None:
        self.epoch = epoch
        self.consumed = consumed
        #: The digest of what the user's sampler drew for this epoch, where there is such a sampler.
        self.drawn = drawn
        #: Whether the epoch's last batch is in the trainer's hands, so that a checkpoint belongs to the next epoch.
        self.complete = False
        #: Where the readers of a stream are, where the dataset is one.
        self.streams: StreamProgress | None = None

    def copy(self) -> Position:
        """The same place, to go on from."""
        copied = Position(self.epoch, self.consumed, self.drawn)
        copied.streams = self.streams
        return copied

    def is_where(self, other: Position) -> bool:
        """Whether both name the same place."""
        return (self.epoch, self.consumed) == (other.epoch, other.consumed) and self.streams is other.streams

    def go_on_to(self, consumed: int | StreamProgress) -> None:
        """Another batch is in the trainer's hands."""
        if isinstance(consumed, StreamProgress):
            self.streams = consumed
            consumed = consumed.samples
        self.consumed = consumed


class EpochIterator(Iterator[Any]):
    """Yields the batches of one epoch; made by ``iter(loader)``.

    Batches are prepared from the start, but the epoch counts as begun only when the first one is asked for. Trainers
    such as Lightning make iterators to see whether they can, and choose the epoch after they have made one.

    Dropping it calls the rest of the epoch off. So nothing that runs on its own may hold it: a copying thread is given
    the source of host batches, which knows nothing of its iterator.
    """

    def __init__(self, loader: Loader, position: Position, drawn: Drawn | None) -> None:
        self._loader = loader
        self._position = position
        self._drawn = drawn
        #: Whether a batch was asked for.
        self.begun = False
        self._ended = False
        self._start()

    @property
    def epoch(self) -> int:
        """The epoch that this is a pass of."""
        return self._position.epoch

    def begin(self) -> None:
        """Settles which epoch this is, now that it counts."""
        if self.begun:
            return
        position, drawn = self._loader._settle(self._position, self._drawn)
        if position is not self._position:
            self._call_off()
            self._position, self._drawn = position, drawn
            self._start()
        self._loader._epoch_began(position, drawn)
        self.begun = True

    def _start(self) -> None:
        """Begins the native side at the current position: at first, and again in a forked child."""
        loader = self._loader
        self._owner = os.getpid()
        self._source, self._left, call_off = loader._source(self._position, self._drawn)
        self._prefetcher: DevicePrefetcher | None = None
        if loader.device is not None:
            finish = device_finisher(loader._backend.device_operations, loader.device)
            self._prefetcher = DevicePrefetcher(self._source.next, loader.device, finish)
        # Not only when the iterator is dropped: also before the interpreter shuts down, which a thread that waits
        # outside of Python would not survive.
        self._call_off = weakref.finalize(self, _call_off, self._owner, call_off, self._prefetcher)

    def __iter__(self) -> EpochIterator:
        return self

    @property
    def left(self) -> int | None:
        """How many batches are still to come; not known of a stream."""
        return self._left

    def __len__(self) -> int:
        return len(self._loader) if self._left is None else self._left

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        self.begin()
        if self._owner != os.getpid():
            # Forked in the middle of an epoch: the threads stayed behind, but the position is ours.
            self._call_off.detach()
            self._start()
        answer = self._prefetcher.next() if self._prefetcher else self._source.next()
        if answer is None:
            self._ended = True
            self._position.complete = True
            self.close()
            raise StopIteration
        batch, consumed = answer
        self._position.go_on_to(consumed)
        if self._left is None:
            self._loader._compare_with_length(self._position.consumed)
        else:
            self._left -= 1
            self._position.complete = self._left == 0
        return batch

    def close(self) -> None:
        """Calls the rest of the epoch off."""
        self._call_off()


def _call_off(owner: int, call_off: Callable[[], None], prefetcher: DevicePrefetcher | None) -> None:
    if owner == os.getpid():
        call_off()
        if prefetcher is not None:
            prefetcher.close()
