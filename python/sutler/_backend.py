"""Who prepares a loader's samples: native threads, worker processes or threads, or the trainer itself.

Nothing here refers to the loader, so that dropping the loader ends what it started.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from sutler import _sutler
from sutler._agent import AgentChoice, say_alone
from sutler._assembly import HostBatches
from sutler._auto_split import AutoSplit
from sutler._columns import Columns
from sutler._dataset_state import WorkerCopies, tells_states
from sutler._detection_batches import DetectionBatches
from sutler._fetch import bulk_getter
from sutler._generators import no_fork
from sutler._interrupts import interrupts_put_off
from sutler._keys import KeyTable
from sutler._padded_batches import PaddedBatches
from sutler._processes import WorkerPool
from sutler._python_batches import ProcessBatches
from sutler._run import RunReader
from sutler._stream_collate import collation_in_workers
from sutler._stream_copy import is_stateful
from sutler._threads import ThreadPool, wants_threads
from sutler._volume_batches import VolumeBatches, VolumeColumns
from sutler._worker import WorkerOptions
from sutler.cache import AUTO, open_cache
from sutler.datasets import NativeDataset
from sutler.detection import CocoDetection
from sutler.volumes import VolumeFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from sutler._dataset_state import WorkerStates
    from sutler._epoch import Progress
    from sutler._sampling import Feed
    from sutler._selection import Selection
    from sutler.errors import WorkerStartError
    from sutler.loader import Loader


#: Workers that are there before an epoch begins. Starting one takes some ten milliseconds, one after the other, and in
#: that time those before it can be at their first samples.
FIRST_WORKERS = 1


class BatchSource(Protocol):
    """The batches of one epoch in host memory, one after the other."""

    @property
    def total(self) -> int | None:
        """How many batches there are in all, once that is known."""

    @property
    def interrupted(self) -> bool:
        """Whether the latest request was broken off before its batch was taken, which the next one then gets."""

    def next(self) -> tuple[Any, Progress] | None:
        """The next batch and how far the epoch is with it; ``None`` at the end."""

    def last_delivery(self) -> tuple[float, float, float, int]:
        """The seconds of fetch, prep and transport in the wait for the latest batch, and its samples."""


class Backend(Protocol):
    """What a loader needs of whoever prepares its samples."""

    #: Operations that are left for the device.
    device_operations: list[dict[str, Any]]
    #: The numbers of keys that are none, where the dataset may be asked for such.
    keys: KeyTable | None
    #: The agent that does the work, where one does.
    agent: AgentChoice | None

    def fingerprint(self) -> str:
        """A name for the dataset, by which a checkpoint knows it again."""

    def make_job(
        self, batch_size: int, batches_ahead: int, batches_held: int, *, grows: bool, in_step: bool
    ) -> _sutler.Job:
        """The native side of the work: with more batches ahead where it `grows`, `in_step` with other ranks."""

    def cache_figures(self) -> dict[str, Any] | None:
        """What the cache holds, if there is one."""

    def enter_epoch(self, loader: Loader, job: _sutler.Job) -> None:
        """Gets ready for an epoch."""

    def announce_keys(self, job: _sutler.Job) -> None:
        """Tells the native side about keys that were drawn for the first time."""

    def source(
        self, loader: Loader, run: _sutler.Run, job: _sutler.Job, epoch: int, feed: Feed | None
    ) -> BatchSource:
        """The batches of a run."""

    def processes(self) -> list[Any]:
        """The worker processes, where there are some."""

    def leave_epoch(self, job: _sutler.Job) -> None:
        """An epoch that was entered has ended."""

    def forget(self) -> None:
        """We are in a forked child: what was started belongs to the parent."""

    def hang_up(self, job: _sutler.Job) -> None:
        """The engine's threads are about to end: nothing may keep them waiting."""

    def end(self) -> None:
        """The engine's threads have ended."""


class NativeBackend:
    """A native dataset: native threads do everything, the engine's own or an agent's."""

    keys: KeyTable | None = None

    def __init__(self, loader: Loader, dataset: NativeDataset) -> None:
        self._dataset = dataset
        self._selection = loader._selection
        self._policy = loader._policy
        self._seed = loader.seed
        #: Functions get samples that lie front to back, wherever they run.
        self._channels_last = loader.channels_last and not dataset.lowered.tail
        self._lateness = loader._lateness()
        self._lateness_given = loader._lateness_given
        self._shared = loader.order == "shared"
        self.agent = loader._agent
        self._name = loader.job_name
        operations = dataset.lowered.ops
        native = len(operations)
        self.device_operations: list[dict[str, Any]] = []
        last_on_host = dataset.lowered.tail or loader.collate_fn is not None
        check_device_normalize(loader, dataset)
        if loader.device is not None and loader.device_normalize and not last_on_host:
            while native and operations[native - 1]["op"] in ("to_dtype", "normalize"):
                native -= 1
            self.device_operations = operations[native:]
        self._pipeline = dataset.pipeline(native)
        #: Clips are padded natively, unless Python has something to do to each of them first.
        one_by_one = dataset.lowered.tail or loader.collate_fn is not None or not loader._batched()
        self._pad = None if one_by_one else dataset.padding_value
        #: The same for pictures that are put in frames.
        self._frame = (
            dataset.size_divisible if isinstance(dataset, CocoDetection) and not one_by_one else None
        )
        self._cache_wanted = loader.cache
        self._threads = loader.num_workers
        #: Who decides on the split, where the user does not.
        self._auto: AutoSplit | None = None
        #: Made at once, so that a size that cannot be had is known before training begins. It costs nothing until used.
        self._cache = self._make_cache()

    def _make_cache(self) -> _sutler.Cache | None:
        wanted = self._cache_wanted
        if wanted is None:
            return None
        native = self._dataset._native
        cache = open_cache(wanted, len(native), self._dataset.content, self._seed)
        if wanted.split == AUTO:
            self._auto = AutoSplit(
                native, self._pipeline, cache, wanted.memory, self._threads, self._selection
            )
        return cache

    def cache_figures(self) -> dict[str, Any] | None:
        """What the cache holds, if there is one; an agent has its own."""
        if self._cache is None or self.agent is not None:
            return None
        figures: dict[str, Any] = json.loads(self._cache.figures())
        if self._auto is not None:
            figures["plan"] = self._auto.facts()
        return figures

    def fingerprint(self) -> str:
        """The hash of the dataset's listing, and of which samples of it are served where not all are."""
        return native_fingerprint(self._dataset, self._selection)

    def make_job(
        self, batch_size: int, batches_ahead: int, batches_held: int, *, grows: bool, in_step: bool
    ) -> _sutler.Job:
        """A job over the dataset's files."""

        def make(agent: AgentChoice | None) -> _sutler.Job:
            return _sutler.Job(
                self._dataset._native,
                self._pipeline,
                seed=self._seed,
                channels_last=self._channels_last,
                batch_size=batch_size,
                batches_ahead=batches_ahead,
                ahead_grows=grows and agent is None,  # an agent has one memory for many jobs
                batches_held=batches_held,
                in_step=in_step,
                errors=self._policy.name,
                errors_max=self._policy.max,
                errors_rate=self._policy.rate,
                lateness=self._lateness,
                lateness_given=self._lateness_given,
                shared=self._shared,
                pad=self._pad,
                frame=self._frame,
                cache=self._cache,
                agent=agent,
                name=self._name,
            )

        if self.agent is not None and self.agent.threads is not None:
            try:
                return make(self.agent)
            except (ConnectionError, PermissionError) as error:  # it was there when the loader was made
                say_alone(error, stacklevel=5)
                self.agent = None
        return make(self.agent)

    def enter_epoch(self, loader: Loader, job: _sutler.Job) -> None:
        """Threads are always ready; the cache may want to plan."""
        if self._auto is not None and self.agent is None:
            self._auto.enter_epoch(job)

    def announce_keys(self, job: _sutler.Job) -> None:
        """Every sample has a number."""

    def source(
        self, loader: Loader, run: _sutler.Run, job: _sutler.Job, epoch: int, feed: Feed | None
    ) -> BatchSource:
        """Batches as the threads wrote them."""
        reader = RunReader(loader, run, feed)
        if isinstance(self._dataset, CocoDetection):
            return DetectionBatches(loader, reader, epoch, self._dataset)
        padding_value = self._dataset.padding_value
        if padding_value is not None:
            return PaddedBatches(loader, reader, epoch, padding_value)
        if isinstance(self._dataset, VolumeFolder):
            return VolumeBatches(loader, reader, epoch, VolumeColumns(loader))
        return HostBatches(loader, reader, epoch, Columns(loader))

    def processes(self) -> list[Any]:
        """Threads are none."""
        return []

    def leave_epoch(self, job: _sutler.Job) -> None:
        """Threads stay."""

    def forget(self) -> None:
        """The cache is the parent's, and so are the threads that may be at it: the child has one of its own."""
        self._cache = self._make_cache()

    def hang_up(self, job: _sutler.Job) -> None:
        """Threads end by themselves; an agent is told."""
        job.hang_up()

    def end(self) -> None:
        """Nobody needs the cache any more."""
        self._cache = self._auto = None


class ProcessBackend:
    """A dataset written in Python: each of the engine's threads has a worker, process or thread, that calls it."""

    agent: AgentChoice | None = None

    def __init__(self, loader: Loader, dataset: Any) -> None:
        self._dataset = dataset
        self._policy = loader._policy
        self._persistent = loader.persistent_workers
        self._lateness = loader._lateness()
        #: Whether workers come and go with the demand.
        self._elastic = loader._auto_workers is not None
        #: In strict order samples stay in the thread that PyTorch's users know them in. What a worker has put aside
        #: only it can go on with, so workers that may go at any time put nothing aside.
        self._hand_over = loader.hand_over and loader.order == "ready" and not self._elastic
        #: What the workers' copies of a dataset have come to that has a state of its own.
        self._copies = WorkerCopies() if tells_states(loader) and is_stateful(dataset) else None
        #: In strict order they then take turns.
        self._in_turn = loader.order == "strict"
        #: Where a batch is made in one piece, one worker prepares all of it.
        self._whole_batches = (
            loader._collates_in_workers()
            or (loader._batched() and bulk_getter(dataset) is not None)
            or self._copies is not None
        )
        self._batch_rows = 1
        self._seed = loader.seed
        self._cache_wanted = loader._prepared_cache
        self._cache = self._make_cache()
        #: What the cache held when it was given up.
        self._cache_figures: dict[str, Any] | None = None
        self._owner = os.getpid()
        self._pool: WorkerPool | ThreadPool | None = None
        #: The base of the seeds of workers that are about to be started.
        self._base_seed = 0
        #: The workers that are started once the epoch has begun.
        self._to_come = range(0)
        self._epochs = 0
        self._table = KeyTable()
        self.keys: KeyTable | None = self._table
        self.device_operations: list[dict[str, Any]] = []

    def fingerprint(self) -> str:
        """The dataset's own, where it has one, else its class and length."""
        own = getattr(self._dataset, "fingerprint", None)
        if isinstance(own, str):
            return own
        name = (
            f"{type(self._dataset).__module__}.{type(self._dataset).__qualname__}:{length_of(self._dataset)}"
        )
        return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()

    def _make_cache(self) -> _sutler.Cache | None:
        """Made at once, as for native datasets: a size that cannot be had is known before training begins."""
        wanted = self._cache_wanted
        if wanted is None:
            return None
        return _sutler.Cache.of_prepared(
            samples=len(self._dataset), budget_bytes=wanted.memory, policy=wanted.policy, seed=self._seed
        )

    def cache(self) -> _sutler.Cache | None:
        """Where the deterministic part of samples is kept; a forked child has a cache of its own."""
        if self._owner != os.getpid():
            self.forget()
        return self._cache

    def cache_figures(self) -> dict[str, Any] | None:
        """What the cache holds, if there is one."""
        cache = self.cache()
        return self._cache_figures if cache is None else json.loads(cache.figures())

    def give_up_cache(self) -> None:
        """Nobody needs the cache any more; its figures stay."""
        self._cache_figures, self._cache = self.cache_figures(), None

    def make_job(
        self, batch_size: int, batches_ahead: int, batches_held: int, *, grows: bool, in_step: bool
    ) -> _sutler.Job:
        """A job whose workers come with the first epoch."""
        self._batch_rows = batch_size
        self._table.tell_again()
        return _sutler.Job.with_processes(
            batch_size=batch_size,
            batches_ahead=batches_ahead,
            ahead_grows=grows,
            batches_held=batches_held,
            in_step=in_step,
            whole_batches=self._whole_batches,
            revive=self._revive,
            is_alive=self._is_alive,
            post_mortem=self._post_mortem,
            errors=self._policy.name,
            errors_max=self._policy.max,
            errors_rate=self._policy.rate,
            lateness=self._lateness,
            elastic=self._elastic,
            cache=self.cache(),
            hand_over=self._hand_over,
        )

    def seed_workers(self, loader: Loader, *, unseen: bool) -> None:
        """Draws the base of the workers' seeds, if the next epoch is to start some: before a sampler is drawn from.

        `unseen` is for the rest of an epoch: its seeds were drawn when it began, so that the trainer's generator, which
        may have been put back to a later place, is left there.
        """
        parents = self._owner != os.getpid()
        if self._pool is None or parents or self._is_to_be_replaced(self._pool):
            self._base_seed = draw_seed(loader.generator, loader.seed, unseen=unseen)

    def plan_copies(self, beginning: WorkerStates | None, workers: int) -> None:
        """An epoch is about to begin, with copies of the dataset that have come to this, or with new ones."""
        if self._copies is not None:
            self._copies.plan(beginning, workers, stay=self._persistent)

    def keeps_workers(self) -> bool:
        """Whether there are workers that stay for the next epoch."""
        pool = None if self._owner != os.getpid() else self._pool
        return self._persistent and pool is not None and not self._is_to_be_replaced(pool)

    def _is_to_be_replaced(self, pool: WorkerPool | ThreadPool) -> bool:
        """Whether workers are of no use to an epoch: a lost one's samples were spoken of when it died.

        Neither are those whose copies of the dataset have come to something else than it begins from.
        """
        elsewhere = self._copies is not None and self._copies.are_elsewhere()
        return self._epochs == 0 and (elsewhere or pool.has_lost_one())

    def enter_epoch(self, loader: Loader, job: _sutler.Job) -> None:
        """New workers, unless there are some that stay or that another running epoch uses."""
        if self._pool is not None and self._is_to_be_replaced(self._pool):
            self.hang_up(job)
            self.end()
        self._epochs += 1
        if self._copies is not None:
            beginning = self._copies.begin()
            if self._in_turn:
                job.take_turns(len(beginning.states), beginning.turn)
        if self._pool is not None:
            return
        options = self._worker_options(loader)
        state_of = None if self._copies is None else self._copies.latest
        if wants_threads(loader.multiprocessing_context):
            own_copies = self._copies is not None
            self._pool = ThreadPool(self._dataset, options, own_copies=own_copies, state_of=state_of)
        else:
            self._pool = WorkerPool(
                self._dataset,
                options,
                loader.multiprocessing_context,
                may_shrink=self._elastic,
                state_of=state_of,
            )
        wanted = loader._room.workers(loader)
        first = range(min(wanted, FIRST_WORKERS))
        self._to_come = range(len(first), wanted)
        try:
            with interrupts_put_off():
                job.use_workers([self._pool.connect(worker) for worker in first], len(self._to_come))
        except BaseException:
            self._epochs -= 1
            self._to_come = range(wanted)
            self.give_up_team(job)
            raise

    def complete_team(self, job: _sutler.Job) -> None:
        """Starts the workers that are still to come, while those that are there have begun with the epoch."""
        while self._to_come:
            with interrupts_put_off():
                job.add_worker(self._revive(self._to_come[0]))
                self._to_come = self._to_come[1:]

    def give_up_team(self, job: _sutler.Job) -> None:
        """Ends workers of which some have not been started, so that the next epoch starts all of them anew."""
        if self._to_come:
            self._to_come = range(0)
            self.hang_up(job)
            self.end()

    def _worker_options(self, loader: Loader) -> WorkerOptions:
        """What new workers are told: the loader's attributes as they are now, since trainers set some of them later."""
        by_default = not loader._collates_in_workers()
        all_collated = not by_default or self._copies is not None
        return WorkerOptions(
            worker=0,
            num_workers=loader._most_workers(),
            base_seed=self._base_seed,
            sample_seed=loader.seed,
            batch_rows=self._batch_rows,
            batched=loader._batched(),
            dense=loader._collates_plainly() and self._copies is None,
            init_fn=loader.worker_init_fn,
            trainer=os.getpid(),
            collate_batches=collation_in_workers(loader) if all_collated else None,
            collates_by_default=by_default,
            tells_states=self._copies is not None,
            output=loader.output,
            any_count=not loader.return_ids,
            leaves_out=self._policy.name != "raise",
            cache=self.cache() if wants_threads(loader.multiprocessing_context) else None,
            hand_over=self._hand_over,
        )

    def announce_keys(self, job: _sutler.Job) -> None:
        """Workers are told a key by its number."""
        job.add_keys(self._table.take_fresh())

    def source(
        self, loader: Loader, run: _sutler.Run, job: _sutler.Job, epoch: int, feed: Feed | None
    ) -> BatchSource:
        """Batches of samples that the workers left in shared memory."""
        reader = self._reader(loader, run, job, feed)
        return ProcessBatches(loader, reader, job, epoch, self._table, self._copies)

    def _reader(
        self,
        loader: Loader,
        run: _sutler.Run,
        job: _sutler.Job,
        feed: Feed | None,
        understood: Callable[[Exception], Exception] = lambda error: error,
    ) -> RunReader:
        """The consumer's end of a run that workers prepare; `understood` says more of what failed in them."""
        return RunReader(loader, run, feed, partial(self._doing, job), self._failed_start, understood)

    def _doing(self, job: _sutler.Job) -> str:
        """What the workers are at, as the end of a message."""
        return "" if self._pool is None else self._pool.at_samples(job.under_way())

    def _failed_start(self) -> WorkerStartError | None:
        return None if self._pool is None else self._pool.failed_start()

    def processes(self) -> list[Any]:
        """One process for each of the engine's threads, unless workers are threads."""
        return [] if self._pool is None else self._pool.processes

    def leave_epoch(self, job: _sutler.Job) -> None:
        """Workers that are not to stay end with the last running epoch, and so do those that have lost one."""
        self._epochs -= 1
        lost_one = self._pool is not None and self._is_to_be_replaced(self._pool)
        if self._epochs == 0 and (lost_one or not self._persistent):
            self.hang_up(job)
            self.end()

    def forget(self) -> None:
        """The workers are the parent's, and so is the cache that they read."""
        self._pool = None
        if self._copies is not None:
            self._copies.forget()
        self._epochs = 0
        self._owner = os.getpid()
        self._cache = self._make_cache()

    def hang_up(self, job: _sutler.Job) -> None:
        """Ends every conversation; the processes see it and end."""
        if self._pool is not None:
            self._pool.refuse()
            job.hang_up()

    def end(self) -> None:
        """Waits for the processes."""
        if self._pool is not None:
            try:
                self._pool.end()
            finally:  # also when whoever waits is interrupted: they were hung up on
                self._pool = None

    def _revive(self, worker: int, dataset_state: bytes | None = None) -> tuple[int, Any, int | None]:
        if self._pool is None:
            raise RuntimeError("the workers have ended")
        return self._pool.connect(worker, dataset_state)

    def _is_alive(self, worker: int) -> bool:
        return self._pool is not None and self._pool.is_alive(worker)

    def _post_mortem(self, worker: int) -> str:
        return "is gone" if self._pool is None else self._pool.post_mortem(worker)


def draw_seed(generator: Any, seed: int, *, unseen: bool = False) -> int:
    """The base of the workers' seeds, drawn as PyTorch draws it where PyTorch is in use.

    `unseen` leaves the generator where it is.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return seed
    source = torch.default_generator if generator is None else generator
    with no_fork:
        before = source.get_state()
        drawn = int(torch.empty((), dtype=torch.int64).random_(generator=source).item())
        if unseen:
            source.set_state(before)
    return drawn


def length_of(dataset: Any) -> int | None:
    """How many samples a dataset has, if it knows: with a sampler it need not."""
    try:
        return len(dataset)
    except TypeError:
        return None


def end_all(backend: Backend, engine: _sutler.Engine, job: _sutler.Job, owner: int) -> None:
    """Ends what a loader started: the conversations, then the threads that held them, then the processes."""
    if owner == os.getpid():
        backend.hang_up(job)
        engine.close()
        backend.end()


def check_device_normalize(loader: Loader, dataset: NativeDataset) -> None:
    """Raises where what is normalised on the device is more than the pictures."""
    if isinstance(dataset, CocoDetection) and loader.device_normalize:
        raise ValueError(
            "device_normalize=True would normalise the zeros that surround the pictures of a CocoDetection, too; "
            "leave it out"
        )


def native_fingerprint(dataset: NativeDataset, selection: Selection | None) -> str:
    """A name for a native dataset's listing, and for which samples of it are served where not all are."""
    whole = dataset.fingerprint
    return whole if selection is None else selection.named(whole)
