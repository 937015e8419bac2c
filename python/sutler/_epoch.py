"""One pass over the data, from the consumer's side."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

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

    def go_on_to(self, consumed: int | StreamProgress) -> None:
        """Another batch is in the trainer's hands."""
        if isinstance(consumed, StreamProgress):
            self.streams = consumed
            consumed = consumed.samples
        self.consumed = consumed


class Extent(NamedTuple):
    """How far an iterator goes."""

    #: How many batches it delivers, those that raise included.
    batches: int
    #: How much of the epoch's sequence all ranks have consumed after the last.
    end: int


class EpochIterator(Iterator[Any]):
    """Yields the batches of one epoch; made by ``iter(loader)``.

    Dropping it calls the rest of the epoch off. So nothing that runs on its own may hold it: a copying thread is given
    the source of host batches, which knows nothing of its iterator.
    """

    def __init__(self, loader: Loader, position: Position, drawn: Drawn | None) -> None:
        self._loader = loader
        self._position = position
        self._drawn = drawn
        self.epoch = position.epoch
        self._ended = False
        self._start()

    def _start(self) -> None:
        """Begins the native side at the current position: at first, and again in a forked child."""
        loader = self._loader
        self._owner = os.getpid()
        self._source, self._extent, call_off = loader._source(self._position, self._drawn)
        #: The worker processes; by the name that programs which watch over PyTorch's know them.
        self._workers = loader._processes(self._source)
        self._prefetcher: DevicePrefetcher | None = None
        if loader.device is not None:
            finish = device_finisher(loader._backend.device_operations, loader.device)
            self._prefetcher = DevicePrefetcher(self._source.next, loader.device, finish)
        # Not only when the iterator is dropped: also before the interpreter shuts down, which a thread that waits
        # outside of Python would not survive.
        self._call_off = weakref.finalize(self, _call_off, self._owner, call_off, self._prefetcher)

    def __iter__(self) -> EpochIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader) if self._extent is None else self._extent.batches

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
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
        if self._extent is None:
            self._loader._compare_with_length(self._position.consumed)
        else:
            self._position.complete = self._position.consumed == self._extent.end
        return batch

    def close(self) -> None:
        """Calls the rest of the epoch off."""
        self._call_off()


def _call_off(owner: int, call_off: Callable[[], None], prefetcher: DevicePrefetcher | None) -> None:
    if owner == os.getpid():
        call_off()
        if prefetcher is not None:
            prefetcher.close()
