"""One pass over the data, from the consumer's side."""

from __future__ import annotations

import copy
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sutler._cuda import DevicePrefetcher
from sutler._dataset_state import Reached, WorkerStates, outlasts_epochs, tells_states
from sutler._device_ops import device_finisher
from sutler._functions_in_workers import NATIVE_THREADS
from sutler._run import TimedOutError
from sutler._same_order import note_begun
from sutler._shares import warn_of_share
from sutler._stream_figures import MeasuredStream
from sutler._stream_progress import StreamProgress
from sutler._sutler import Positions, Served
from sutler.errors import WorkerError, WorkerStartError, sample_error

if TYPE_CHECKING:
    from sutler._drawn_from import DrawnFrom
    from sutler._sampling import Drawing
    from sutler.loader import Loader


#: How far an epoch is with a batch: how much of its sequence is consumed, or which positions of it are done as well.
Progress = int | StreamProgress | Positions | Reached


class Position:
    """Where a job stands: its epoch, and how much of the epoch's sequence all ranks have consumed."""

    __slots__ = (
        "before",
        "complete",
        "consumed",
        "copies",
        "copies_origin",
        "drawing",
        "drawn",
        "drawn_from",
        "ended",
        "epoch",
        "origin",
        "seeded",
        "served",
        "streams",
        "streams_before",
    )

    def __init__(self, epoch: int, consumed: int, drawn: dict[str, Any] | None = None) -> None:
        self.epoch = epoch
        self.consumed = consumed
        #: How far the user's sampler had been drawn where a saved state stands, if there is such a sampler.
        self.drawn = drawn
        #: What it had been drawn from, likewise.
        self.drawn_from: DrawnFrom | None = None
        #: What draws from the sampler, while the epoch runs.
        self.drawing: Drawing | None = None
        #: The places of the sequence that the whole job had done when the rest was dealt out over its ranks anew.
        self.before: Served | None = None
        #: Which positions of this rank's share are done beyond that, where batches are not served in order.
        self.served: Served | None = None
        #: Whether the epoch's last batch is in the trainer's hands, where that is known.
        self.complete = False
        #: Whether the iterator has said so, too: then the trainer has left the epoch, and states belong to the next.
        self.ended = False
        #: Whether the seeds of the epoch's workers were drawn before the state was saved that this comes from.
        self.seeded = False
        #: What the workers' copies of a dataset have come to that has a state of its own.
        self.copies: WorkerStates | None = None
        #: What they had come to when this was planned.
        self.copies_origin: WorkerStates | None = None
        #: Where the readers of a stream are, where the dataset is one.
        self.streams: StreamProgress | None = None
        #: Where they were before the latest batch.
        self.streams_before: StreamProgress | None = None
        #: Where they were when this was planned: beginning an epoch draws seeds, which `streams` then has.
        self.origin: StreamProgress | None = None

    def copy(self) -> Position:
        """The same place, to go on from."""
        copied = Position(self.epoch, self.consumed, self.drawn)
        copied.drawn_from = self.drawn_from  # shared by all copies, since nothing is added to it
        copied.before = self.before
        copied.served = None if self.served is None else Served(self.served.save())
        copied.seeded = self.seeded
        copied.streams = copied.origin = self.streams
        copied.copies = copied.copies_origin = self.copies
        return copied

    def with_copies(self, copies: WorkerStates | None) -> Position:
        """The same place, for an epoch that begins with what the workers' copies of the dataset have come to."""
        self.copies = self.copies_origin = copies
        return self

    def before_latest(self) -> Position:
        """Where the epoch of a stream was before its latest batch; here, if there was none."""
        if self.streams_before is None or self.ended:
            return self
        earlier = Position(self.epoch, self.streams_before.samples)
        earlier.streams = self.streams_before
        return earlier

    def is_where(self, other: Position) -> bool:
        """Whether both name the same place."""
        if (self.epoch, self.consumed) != (other.epoch, other.consumed) or self.origin is not other.origin:
            return False
        if self.copies_origin != other.copies_origin:
            return False
        if self.before is not other.before:  # shared by all copies, since nothing is added to it
            return False
        if self.served is None or other.served is None:
            return self.served is other.served
        return self.served.save() == other.served.save()

    def go_on_to(self, progress: Progress) -> None:
        """Another batch is in the trainer's hands."""
        if isinstance(progress, Reached):
            self.copies = progress.states
            self.go_on_to(progress.progress)
        elif isinstance(progress, Positions):
            self.served = self.served or Served()
            self.served.mark(progress)
        elif isinstance(progress, StreamProgress):
            self.streams, self.streams_before = progress, self.streams
            self.consumed = progress.samples
        else:
            self.consumed = progress

    @property
    def done(self) -> int:
        """How much of the epoch's sequence is done: by all ranks, and by this one beyond that."""
        return self.consumed + (0 if self.served is None else len(self.served))

    @property
    def drawn_so_far(self) -> dict[str, Any] | None:
        """How far the user's sampler has been drawn."""
        return self.drawn if self.drawing is None else self.drawing.mark()

    @property
    def drawn_from_so_far(self) -> DrawnFrom | None:
        """What the user's sampler has been drawn from."""
        return self.drawn_from if self.drawing is None else self.drawing.draws.drawn_from

    @property
    def is_begun(self) -> bool:
        """Whether a part of the epoch is done."""
        return self.consumed > 0 or self.served is not None


class EpochIterator(Iterator[Any]):
    """Yields the batches of one epoch; made by ``iter(loader)``.

    Batches are prepared from the start, but the epoch counts as begun only when the first one is asked for. Trainers
    such as Lightning make iterators to see whether they can, and choose the epoch after they have made one. So where
    reading ahead would move what later epochs begin from, nothing is read before that.

    Dropping it calls the rest of the epoch off. So nothing that runs on its own may hold it: a copying thread is given
    the source of host batches, which knows nothing of its iterator.
    """

    def __init__(self, loader: Loader, position: Position) -> None:
        self._loader = loader
        self._position = position
        #: Whether a batch was asked for.
        self.begun = False
        #: Which part of the epoch's order the latest batch took: of all ranks', where they are known to be in step.
        self.latest = range(0)
        #: The worker processes; by the name that programs which watch over PyTorch's know them.
        self._workers: list[Any] = []
        self._started = False
        self._ended = False
        #: What has ended the epoch before its time, without a traceback, since that holds this iterator.
        self._lost: Exception | None = None
        if _may_start_early(loader, position):
            self._start()
        elif loader._streams is not None and not loader._is_under_way():
            self._workers = loader._streams.start_workers(loader, position.streams)

    @property
    def running(self) -> bool:
        """Whether batches are being prepared for it."""
        return self._started and self._call_off.alive

    def is_fresh(self) -> bool:
        """Whether batches are being prepared in this process, and none was asked for."""
        return self.running and not self.begun and self._owner == os.getpid()

    @property
    def epoch(self) -> int:
        """The epoch that this is a pass of."""
        return self._position.epoch

    def is_planned_at(self, position: Position) -> bool:
        """Whether the epoch is to begin there."""
        return self._position.is_where(position)

    def planned(self) -> Position:
        """Where the epoch is to begin, as far as that is settled before its first batch is asked for."""
        streams = self._loader._streams
        if not self._started and streams is not None and not streams.knows_rest(self._loader):
            self._start()  # the workers will tell
        if self._started and self._owner == os.getpid() and isinstance(self._source, MeasuredStream):
            self._position.streams = self._source.beginning
        return self._position

    def begin(self) -> Position:
        """Settles which epoch this is, now that it counts, and tells where in it the pass stands."""
        if self.begun:
            return self._position
        loader = self._loader
        position = loader._passes.settle(loader, self._position)
        # A process group may have come in between. How the ranks share a stream is the stream's own to say.
        share_changed = self._started and self._place != (loader.rank, loader.world_size)
        if position is not self._position or (share_changed and position.streams is None):
            self.close()
            self._position = position
            self._started = False
        if not self._started:
            self._start()
        loader._passes.begin(position)
        self.begun = True
        note_begun(self, loader, stacklevel=3)
        warn_of_share(loader, stacklevel=3)  # where the trainer asked for the batch
        return position

    def _start(self) -> None:
        """Begins the native side at the current position: at first, and again in a forked child."""
        loader = self._loader
        if not loader._in_process() and tells_states(loader):
            for other in list(loader._iterators):
                if other is not self and other.running:
                    other.make_way()
        self._owner = os.getpid()
        self._place = loader.rank, loader.world_size
        self._source, call_off = loader._begin(self._position)
        self._delivered = 0
        self._workers = loader._processes(self._source)
        self._prefetcher: DevicePrefetcher | None = None
        if loader.device is not None:
            finish = device_finisher(loader._device_operations(), loader.device)
            self._prefetcher = DevicePrefetcher(self._source, loader.device, finish, loader._device_figures)
        # Not only when the iterator is dropped: also before the interpreter shuts down, which a thread that waits
        # outside of Python would not survive.
        self._call_off = weakref.finalize(self, _call_off, self._owner, call_off, self._prefetcher)
        self._started = True

    def __iter__(self) -> EpochIterator:
        return self

    @property
    def left(self) -> int | None:
        """How many batches are still to come; not known of a stream, nor of a sampler until it is at its end."""
        if not self._started or self._source.total is None:
            return None
        return self._source.total - self._delivered

    def __len__(self) -> int:
        total = self._source.total if self._started else None
        return len(self._loader) if total is None else total

    def __next__(self) -> Any:
        if self._ended:
            self._position.ended = self._position.complete
            raise StopIteration
        if self._lost is not None:
            raise copy.copy(self._lost)
        if not self.begun:
            with self._loader._beginning_or_ending():
                self.begin()
        if self._owner != os.getpid():
            # Forked in the middle of an epoch: the threads stayed behind, but the position is ours.
            self._call_off.detach()
            with self._loader._beginning_or_ending():
                self._start()
        try:
            answer = self._prefetcher.next() if self._prefetcher else self._source.next()
        except TimedOutError:
            raise
        except (WorkerError, WorkerStartError) as error:
            # No batch comes any more. Whoever keeps the error keeps this iterator, and the other workers should not
            # wait for that.
            self._lost = copy.copy(error)
            with self._loader._beginning_or_ending():
                self.close()
            raise
        except Exception:
            if not self._source.interrupted:
                self._delivered += 1  # the next request passes over the batch, where the epoch goes on at all
            raise
        if answer is None:
            if self._delivered == 0:
                _warn_of_failures(self._loader, self._position, stacklevel=2)
            self._ended = self._position.complete = True
            with self._loader._beginning_or_ending():
                self.close()
            # Not where Ctrl-C came instead: the trainer has not heard of the end.
            self._position.ended = True
            raise StopIteration
        batch, progress = answer
        before = self._position.done
        self._position.go_on_to(progress)
        self.latest = range(before, self._position.done)
        self._delivered += 1
        self._position.complete = self._source.total == self._delivered
        if self._position.streams is not None:
            self._loader._compare_with_length(self._position.consumed)
        self._loader._successor.look_ahead(self._loader, self)
        in_trainer = self._loader._in_trainer
        if in_trainer is not None and self._loader.num_workers > 0:  # else nobody expects otherwise
            self._loader._function_times.warn_if_noticed(in_trainer, stacklevel=2)
        elif self._loader._has_native_threads() and self._loader.num_workers > 0:
            self._loader._besides_times.warn_if_noticed(NATIVE_THREADS, stacklevel=2, unit="batch")
        return batch

    def close(self) -> None:
        """Calls the rest of the epoch off."""
        if self._started:
            self._call_off()

    def make_way(self) -> None:
        """Another pass begins, which needs the workers' copies of the dataset for itself."""
        self.close()
        self._lost = RuntimeError(
            f"another pass over this loader has begun, and the workers of {type(self._loader.dataset).__name__}, which "
            "has a state of its own, serve one at a time; make a loader for each pass"
        )

    def _shutdown_workers(self) -> None:
        """Ends the epoch, and with it workers that do not stay; trainers know the name from PyTorch's iterators."""
        self._ended = True
        self.close()


def _may_start_early(loader: Loader, position: Position) -> bool:
    """Whether an epoch may be prepared before it is certain that it begins."""
    if loader._streams is not None:
        return loader._streams.has_new_copies(loader)
    if outlasts_epochs(loader) or (tells_states(loader) and loader._is_under_way()):
        return False
    # A sampler that was drawn when a state was saved may yet be told which epoch that was.
    return position.drawing is None or position.drawing.epoch is None or position.drawn is None


def _call_off(owner: int, call_off: Callable[[], None], prefetcher: DevicePrefetcher | None) -> None:
    if owner == os.getpid():
        call_off()
        if prefetcher is not None:
            prefetcher.close()


def _warn_of_failures(loader: Loader, position: Position, stacklevel: int) -> None:
    """Warns where an epoch had no batch since every sample failed: from outside it looks like one without samples."""
    failures = loader.failures()
    if not failures:
        return
    epoch = f"{'the rest of ' if position.is_begun else ''}epoch {position.epoch}"
    first = sample_error(failures[0].id, failures[0].path, failures[0].reason, failures[0].kind)
    end = "" if str(first).endswith(".") else "."
    warnings.warn(
        f"Every sample of {epoch} failed, so there was no batch. The first was {first}{end} loader.failures() lists "
        'them all; errors="raise" shows where one comes from.',
        RuntimeWarning,
        stacklevel=stacklevel + 1,
    )
