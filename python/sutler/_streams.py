"""Streams: datasets that can only be gone through. In worker processes, each with its own copy, or in the trainer."""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sutler import _generators
from sutler._backend import draw_seed
from sutler._cuda import BATCHES_AHEAD, make_pinner
from sutler._data_pipes import PipeOrders, common_seed, is_data_pipe
from sutler._figures import TrainerFigures
from sutler._stream_collate import collation_in_workers
from sutler._stream_copy import StreamCopy, is_stateful, state_before, tell_epoch
from sutler._stream_figures import MeasuredStream
from sutler._stream_memory import HELD
from sutler._stream_processes import StreamWorkers
from sutler._stream_progress import StreamProgress
from sutler._stream_random import TrainerRandom
from sutler._stream_reader import EndOfStream, ReaderProgress, StreamReader
from sutler._stream_worker import END, StreamOptions
from sutler._words import counted

if TYPE_CHECKING:
    from sutler.loader import Loader


def check_stream_arguments(
    *, shuffle: Any, sampler: Any, batch_sampler: Any, errors: Any, return_ids: bool
) -> None:
    """Refuses what a stream cannot do, as PyTorch's ``DataLoader`` does, and likewise for our own arguments."""
    for name, value, unspecified in (
        ("shuffle", shuffle, shuffle in (None, False)),
        ("sampler", sampler, sampler is None),
        ("batch_sampler", batch_sampler, batch_sampler is None),
    ):
        if not unspecified:
            raise ValueError(
                f"DataLoader with IterableDataset: expected unspecified {name} option, but got {name}={value}"
            )
    if errors != "raise":
        raise ValueError(
            f"errors={errors!r} needs a dataset with __getitem__. A stream that raised has most often ended, as every "
            "generator has, so leaving one sample out would leave out all that follow, unseen. Catch the error inside "
            "the stream, around what makes one sample"
        )
    if return_ids:
        raise ValueError(
            "return_ids=True needs a dataset with __getitem__: the samples of a stream have no indices. Let the stream "
            "yield a name or number with each sample"
        )


class InlineStream:
    """The batches of one epoch, made by the trainer itself: `num_workers=0`."""

    #: When a worker was done with the latest batch: there is none.
    finished_at: float | None = None

    def __init__(
        self, options: StreamOptions, copy: StreamCopy, progress: StreamProgress, pin: Callable[[Any], Any]
    ) -> None:
        self._progress = progress
        self._pin = pin
        self._reader = StreamReader(
            copy,
            options.batch_size,
            options.drop_last,
            options.collate,
            progress.readers[0],
            TrainerRandom(),
            options.place,
        )
        #: Where the epoch began.
        self.beginning = progress
        if self._reader.has_stateful_iterator and progress.readers[0].state is None:
            # Nobody but the iterator knows where it begins, which it may have drawn.
            self.beginning = progress.after(0, self._reader.progress())
        self._closed = False

    def next(self) -> tuple[Any, StreamProgress] | None:
        """The next batch and how far the stream is read with it; ``None`` at the end."""
        if self._closed:
            return None
        try:
            batch = self._reader.read()
        except EndOfStream:
            return None
        self._progress = self._progress.after(0, self._reader.progress())
        return self._pin(batch), self._progress

    def processes(self) -> list[Any]:
        """There are none."""
        return []

    def close(self) -> None:
        """Makes no more batches."""
        self._closed = True


class WorkerStream:
    """The batches of one epoch, as worker processes deliver them: in turn, or as they get ready."""

    def __init__(
        self,
        workers: StreamWorkers,
        progress: StreamProgress,
        ready: bool,
        timeout: float,
        pin: Callable[[Any], Any],
        release: Callable[[StreamWorkers, StreamProgress | None], None],
    ) -> None:
        self._workers = workers
        self._progress = progress
        self._beginning = progress
        #: Whether whoever is ready is served, rather than one worker after the other.
        self._ready = ready
        self._timeout = timeout
        self._pin = pin
        self._release = release
        #: Held while a batch is awaited, which a thread that copies ahead may do while the trainer calls the epoch off.
        #: One thread may take it twice, since the collector may call off in the middle of anything.
        self._lock = threading.RLock()
        self._closed = False
        #: When its worker was done with the latest batch.
        self.finished_at: float | None = None
        self._stop, self._stopper = socket.socketpair()

    @property
    def beginning(self) -> StreamProgress:
        """Where the epoch began, with what workers that stayed drew in earlier ones."""
        with self._lock:
            self._hear_of_earlier_epochs()
            return self._beginning

    def _hear_of_earlier_epochs(self) -> None:
        """What all drew before the epoch must be known before the first state can be told."""
        while self._workers.unheard and not self._closed:
            unheard = self._workers.unheard
            received = self._workers.receive(unheard, self._progress, self._timeout, self._stop)
            if received is None:
                return
            worker, answer = received
            self._beginning = self._beginning.began(worker, answer.progress, self._workers.base_seed)
            self._progress = self._beginning

    def next(self) -> tuple[Any, StreamProgress] | None:
        """The next batch and how far the stream is read with it; ``None`` at the end."""
        with self._lock:
            self._hear_of_earlier_epochs()
            while not self._closed:
                waiting = self._progress.waiting()
                if not waiting:
                    return None
                candidates = waiting if self._ready else waiting[:1]
                received = self._workers.receive(candidates, self._progress, self._timeout, self._stop)
                if received is None:
                    return None
                worker, answer = received
                if answer.kind == END:
                    self._progress = self._progress.ended(worker, answer.progress)
                    continue
                self.finished_at = answer.finished
                # Its turn is over even if what it delivered is an exception: the trainer may catch it and go on.
                self._progress = self._progress.passed(worker)
                if not answer.progress.ended:
                    self._workers.ask(worker)
                batch = answer.value()
                self._progress = self._progress.after(worker, answer.progress)
                return self._pin(batch), self._progress
        return None

    def processes(self) -> list[Any]:
        """The worker processes."""
        return self._workers.processes()

    def close(self) -> None:
        """Calls the rest of the epoch off."""
        if self._closed:
            return
        self._closed = True
        self._stopper.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._release(self._workers, self._progress.at_rest(self._workers.base_seed))
            self._stop.close()
            self._stopper.close()


class StreamBackend:
    """Begins the epochs of a loader's stream, and keeps workers that stay between them."""

    def __init__(self, dataset: Any, *, persistent: bool) -> None:
        self._dataset = dataset
        self._persistent = persistent
        self._kept: StreamWorkers | None = None
        #: Where they begin their next pass, if that is known.
        self._kept_at: StreamProgress | None = None
        #: The dataset as the trainer goes through it itself, once it has begun to.
        self._own_copy: StreamCopy | None = None
        #: The epoch that the dataset was told last, since a state was loaded.
        self._dataset_epoch: int | None = None
        #: Where that state was, until a pass begins: there, or in another epoch that was chosen since.
        self._loaded: StreamProgress | None = None
        #: Whether ranks take whole batches in turn, rather than each all that the stream yields.
        self.in_turns = False
        self._owner = os.getpid()
        self.figures = TrainerFigures()

    def place(self, loader: Loader) -> tuple[int, int]:
        """Whose batches of the stream are served: a rank's, and of how many."""
        return loader._place() if self.in_turns else (0, 1)

    def fingerprint(self) -> str:
        """The dataset's own, where it has one, else the name of its class."""
        own = getattr(self._dataset, "fingerprint", None)
        if isinstance(own, str):
            return own
        return f"{type(self._dataset).__module__}.{type(self._dataset).__qualname__}"

    def set_epoch(self, epoch: int) -> None:
        """Tells the dataset which epoch is the next; workers tell their copies when it begins."""
        self._dataset_epoch = epoch
        tell_epoch(self._dataset, epoch)

    def beginning(self, num_workers: int) -> StreamProgress:
        """The progress of an epoch that has not begun."""
        return StreamProgress.beginning(max(1, num_workers), self._dataset_epoch)

    def has_new_copies(self, loader: Loader) -> bool:
        """Whether every epoch reads new copies of the dataset, so that nothing is lost of one that is called off.

        A stream may keep its position in itself. Then what is read from a copy that stays is gone for the next epoch.
        """
        return loader.num_workers > 0 and not self._persistent

    def start_workers(self, loader: Loader, progress: StreamProgress | None) -> list[Any]:
        """Starts workers that will stay, if there are none, and leaves their copies of the dataset as they are.

        A pass that has not begun may be called off, and then the next one begins with these.
        """
        loader._check_open()
        # The seed of data pipes is drawn when a pass begins, and before those of the workers.
        if loader.num_workers == 0 or is_data_pipe(self._dataset):
            return []
        options = _worker_options(loader, self.place(loader))
        progress = progress or self._loaded
        workers = self._kept = self._take(loader, options, None if progress is None else progress.base_seed)
        if not workers.stayed:
            self._kept_at = replace(self.beginning(workers.count), base_seed=workers.base_seed)
        return workers.processes()

    def knows_rest(self, loader: Loader) -> bool:
        """Whether `at_rest` is known before the next epoch is begun: not of workers that left their last one early.

        Nor where the dataset has no state in the trainer's own process, but its iterator may have.
        """
        if self._loaded is not None:
            return False
        if loader.num_workers == 0:
            return is_stateful(self._dataset)  # else its iterator may be, once there is one
        return self._kept is not None and self._kept_at is not None

    def at_rest(self, loader: Loader) -> StreamProgress:
        """Where a run that resumes between two epochs begins: with what those who stay know of the earlier ones."""
        progress = self.beginning(loader.num_workers)
        self._forget_if_forked()
        if loader.num_workers == 0:
            progress = replace(progress, readers=(self._own_progress(),))
        elif self._kept is not None and self._kept.count == loader.num_workers and self._kept_at is not None:
            progress = replace(self._kept_at, dataset_epoch=self._dataset_epoch)
        return _with_generator(progress, loader)

    def _own_progress(self) -> ReaderProgress:
        """Where the trainer itself begins the next pass."""
        return ReaderProgress(state=(self._own_copy or StreamCopy(self._dataset)).state())

    def go_on_from(self, loader: Loader, progress: StreamProgress) -> None:
        """A state was loaded: seeds are drawn and epochs told as they were when it was saved."""
        self._dataset_epoch = None
        self._loaded = progress
        if loader.generator is not None and progress.generator is not None:
            # At once and not when the epoch begins, as a trainer may seed it again before that.
            _generators.restore_torch(loader.generator, progress.generator)

    def begin(
        self, loader: Loader, progress: StreamProgress | None, epoch: int
    ) -> tuple[MeasuredStream, StreamProgress]:
        """Begins an epoch, or goes on with one of an earlier run; with its progress, which has the seeds by now."""
        progress = progress or self._beginning_after_loaded(loader, epoch)
        self._loaded = None
        if self._dataset_epoch is None:  # else it was told after the state was loaded
            self._dataset_epoch = progress.dataset_epoch
        progress = replace(progress, dataset_epoch=self._dataset_epoch)
        pipes, progress = self._order_pipes(loader, progress, epoch)
        stream: InlineStream | WorkerStream
        options = _worker_options(loader, self.place(loader))
        pin = make_pinner(loader.pin_memory, loader.device)
        if loader.num_workers == 0:
            progress = _with_generator(progress, loader)
            stream, progress = self._begin_here(options, progress, pipes, pin)
        else:
            tell_epoch(self._dataset, progress.dataset_epoch)
            workers = self._take(loader, options, progress.base_seed)
            if not workers.stayed:  # else their seeds are of no use without what they have drawn since
                progress = replace(progress, base_seed=workers.base_seed)
            progress = _with_generator(progress, loader)
            workers.begin(progress, loader.prefetch_factor, pipes)
            ready = loader.order == "ready"
            stream = WorkerStream(workers, progress, ready, loader.timeout, pin, self._give_back)
        return MeasuredStream(stream, progress.samples, self.figures), progress

    def _beginning_after_loaded(self, loader: Loader, epoch: int) -> StreamProgress:
        """Where an epoch begins for which no state was loaded. The one that a state is of, if one was, is left there.

        Lightning leaves an epoch with the last batch that it counts, before the stream has said that it is over, and
        goes on from there with the next.
        """
        beginning = self.beginning(loader.num_workers)
        loaded = self._loaded
        if loaded is None or len(loaded.readers) != len(beginning.readers):
            return beginning
        if loaded.samples == 0:
            return loaded
        if loader.num_workers == 0:
            return replace(beginning, readers=(ReaderProgress(state=state_before(loaded.readers[0].state)),))
        if self._persistent:
            # Workers read ahead of what the trainer took, and so they do again.
            pipes, loaded = self._order_pipes(loader, loaded, epoch)
            workers = self._take(loader, _worker_options(loader, self.place(loader)), loaded.base_seed)
            workers.begin(loaded, loader.prefetch_factor, pipes)
            self._give_back(workers, None)
        return beginning

    def _begin_here(
        self,
        options: StreamOptions,
        progress: StreamProgress,
        pipes: PipeOrders | None,
        pin: Callable[[Any], Any],
    ) -> tuple[InlineStream, StreamProgress]:
        """Begins an epoch in the trainer itself, and tells its progress."""
        start = progress.readers[0]
        if start == ReaderProgress():  # until there is a batch, states are of what earlier passes have left
            progress = replace(progress, readers=(self._own_progress(),))
        if self._own_copy is None:
            self._own_copy = StreamCopy(self._dataset)
        self._own_copy.tell(start, progress.dataset_epoch)
        if pipes is not None:
            pipes.tell(self._dataset, 0, 1)
        return InlineStream(options, self._own_copy, progress, pin), progress

    def _order_pipes(
        self, loader: Loader, progress: StreamProgress, epoch: int
    ) -> tuple[PipeOrders | None, StreamProgress]:
        """What data pipes are told in this epoch, if the stream is made of them, and progress with their seed."""
        if not is_data_pipe(self._dataset):
            return None, progress
        rank, world_size = loader._place()
        seed = progress.pipe_seed
        if seed is None and world_size > 1:
            seed = common_seed(loader.seed, epoch)
        elif seed is None:
            seed = draw_seed(loader.generator, loader.seed)
        return PipeOrders(seed, rank, world_size), replace(progress, pipe_seed=seed)

    def _take(self, loader: Loader, options: StreamOptions, base_seed: int | None) -> StreamWorkers:
        """Workers that stayed, unless an epoch that was not left has them, or it is some others we need.

        Those have other seeds, or there are not as many of them as the loader is to have now.
        """
        self._forget_if_forked()
        kept = self._kept
        if kept is not None and kept.count == options.num_workers and kept.may_begin_with(base_seed):
            self._kept = None
            return kept
        self._end_kept()
        options.base_seed = (
            draw_seed(loader.generator, options.sample_seed) if base_seed is None else base_seed
        )
        return StreamWorkers(self._dataset, options, loader.multiprocessing_context)

    def _forget_if_forked(self) -> None:
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._kept = None

    def _give_back(self, workers: StreamWorkers, at_rest: StreamProgress | None) -> None:
        if self._persistent and self._kept is None and not workers.broken:
            self._kept, self._kept_at = workers, at_rest
        else:
            workers.end()

    def end(self) -> None:
        """Ends workers that stayed."""
        self._persistent = False
        self._end_kept()

    def _end_kept(self) -> None:
        kept, self._kept, self._kept_at = self._kept, None, None
        if kept is not None:
            kept.end()


def _with_generator(progress: StreamProgress, loader: Loader) -> StreamProgress:
    """The same with the state that the loader's generator has now, from which the seeds of later passes are drawn."""
    if loader.generator is None:
        return progress
    return replace(progress, generator=_generators.save_torch(loader.generator))


def _worker_options(loader: Loader, place: tuple[int, int]) -> StreamOptions:
    """What new workers are told: the loader's attributes as they are now, since trainers set some of them later."""
    on_the_way = 2 * BATCHES_AHEAD if loader.device is not None else 0
    return StreamOptions(
        worker=0,
        num_workers=loader.num_workers,
        base_seed=0,
        sample_seed=loader.seed,
        batch_rows=0,
        batched=loader.batch_size is not None,
        dense=False,
        init_fn=loader.worker_init_fn,
        trainer=os.getpid(),
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        collate=collation_in_workers(loader),
        batches_held=loader.prefetch_factor + HELD + on_the_way,
        place=place,
        stays=loader.persistent_workers,
    )


def warn_if_longer(dataset: Any, announced: int | None, samples: int, num_workers: int) -> None:
    """Warns when more samples have come than ``len(loader)`` was computed from.

    PyTorch compares batches with samples there, and so keeps silent about most streams that come once per worker.
    """
    if announced is None or samples <= announced:
        return
    remedy = (
        "For multiprocessing data-loading, this happens where every worker goes through all of its own copy of the "
        "stream: let `__iter__` or worker_init_fn take the worker's share only, which get_worker_info() tells."
        if num_workers > 0
        else "Correct its __len__."
    )
    warnings.warn(
        f"Length of IterableDataset {dataset} was reported to be {announced} (when accessing len(dataloader)), but "
        f"{counted(samples, 'sample')} {'has' if samples == 1 else 'have'} been fetched. {remedy}",
        stacklevel=4,  # where the trainer asked for the batch
    )
