"""The loader: PyTorch's arguments, native threads, exactly-once epochs."""

from __future__ import annotations

import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

from sutler._agent import check_agent, choose_agent, warn_of_idle_cache
from sutler._arguments import (
    ErrorPolicy,
    Order,
    check_arguments,
    check_context,
    choose_order,
    choose_workers,
    error_policy,
    place_in_job,
    read_context,
    read_device,
    warn_of_many_workers,
    warn_of_no_effect,
    warn_of_undivided,
    warn_of_undivided_stream,
    why_no_hand_over,
)
from sutler._backend import Backend, BatchSource, ProcessBackend, length_of
from sutler._beginning import begin_epoch
from sutler._copying import arguments_of, besides_of
from sutler._counting import counts_batches, has_counted_all, has_taken_ahead
from sutler._data_pipes import is_data_pipe, shuffle_pipes
from sutler._dataset_state import load_dataset_state, save_dataset_state, warn_of_other_ranks
from sutler._engine_room import PROCESSES_MAX, THREADS_MAX, EngineRoom
from sutler._epoch import EpochIterator, Position
from sutler._epoch_batches import check_samples
from sutler._figures import TrainerFigures
from sutler._function_backend import make_backend
from sutler._functions import FunctionTimes
from sutler._functions_in_workers import has_functions, why_in_trainer
from sutler._output import Output, resolve_output
from sutler._parts import cache_for, leaves
from sutler._passes import Passes
from sutler._python_batches import default_collate
from sutler._sampling import EpochBatchSampler, EpochSampler, as_pytorchs
from sutler._selection import Numbers, origin_of, selection_of, warn_of_concatenation
from sutler._state import check_state, make_state, within_of
from sutler._stats import describe, figures_of, figures_of_source, no_timeline, timeline_of
from sutler._stream_figures import MeasuredStream
from sutler._stream_reader import is_stream
from sutler._streams import StreamBackend, check_stream_arguments, warn_if_longer
from sutler._successor import Successor, why_no_overlap
from sutler._turns import StepsInTurn, divides_itself, size_of_turn
from sutler._words import counted
from sutler.cache import Cache, check_alone, read_cache
from sutler.datasets import NativeDataset
from sutler.errors import Errors, Failure

if TYPE_CHECKING:
    # Type checkers know this module without its being installed; only its variables have defaults.
    from typing_extensions import TypeVar

    BatchType_co = TypeVar("BatchType_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    BatchType_co = TypeVar("BatchType_co", covariant=True)

#: By how many batches a slow sample may be late at least, where nothing is said.
LATENESS_MIN = 8

#: The most samples that an epoch may have.
SAMPLES_MAX = 2**32 - 1

#: Attributes that an epoch's order rests on, so that PyTorch refuses to change them.
FIXED = frozenset({"batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"})


class Loader(Generic[BatchType_co]):
    """Serves a dataset in batches, each sample of an epoch exactly once.

    The arguments up to ``in_order`` are PyTorch's ``DataLoader``'s, with its names, order, meanings and errors, and
    each is an attribute. For a native dataset (:class:`sutler.ImageFolder`, :class:`sutler.Manifest`) the work is done
    by threads outside of Python, so there is nothing to start up, nothing to pickle, and no copy between processes.
    Python functions in its transform are run by worker processes.

    Args:
        dataset: A native dataset, any object with ``__getitem__`` and ``__len__``, or a stream: an object that has only
            ``__iter__``, such as an ``IterableDataset``, of which every worker goes through its own copy.
        batch_size: Samples per batch; ``None`` yields single samples.
        shuffle: Reorder the samples in every epoch.
        sampler: Where the order comes from instead; an iterable of indices, or of whatever keys the dataset takes.
        batch_sampler: Where whole batches come from instead; an iterable of lists of those.
        num_workers: Threads for a native dataset, or processes where Python functions belong to it, by default one per
            usable core; processes for one written in Python (threads where Python has no global interpreter lock), by
            default none. With 0 the caller does the work itself. ``"auto"`` lets their number follow what the trainer
            takes and cores can do; processes are started and ended between samples.
        collate_fn: Called with a list of samples to make a batch: in worker processes where there are some, for a
            native dataset without functions in this process. The default needs no copy.
        pin_memory: Register the batch memory with CUDA, once.
        drop_last: Leave an incomplete last batch out.
        timeout: Seconds to wait for a batch before ``RuntimeError``; 0 waits for ever.
        worker_init_fn: Called with its number in each worker that runs Python; native threads run none.
        multiprocessing_context: How worker processes are started, or ``"thread"`` for worker threads; native threads
            have no use for it.
        generator: A ``torch.Generator`` whose initial seed takes the place of ``seed``. Nothing is drawn from it for
            the order, so loaders that share one have the same, and seeding it anew does not change it.
        prefetch_factor: Batches to prepare ahead; at least this many samples per thread are kept in the making. Left
            out, there are 2, and up to four times as many where the trainer waits though workers have nothing to begin;
            ``stats()["batches_ahead"]`` tells.
        persistent_workers: Keep workers that run Python between epochs; native threads always stay.
        pin_memory_device: Without effect, as in PyTorch by now: memory is pinned for the device there is.
        in_order: ``False`` is ``order="ready"``.
        order: ``"strict"``, the default: the seeded permutation exactly. ``"ready"``: the same samples in batches as
            they get ready, so that a slow one holds up nobody; what a batch sampler drew stays together. Of a stream,
            whose workers make whole batches: theirs in turn, or whichever is ready.
            ``"shared"``: every sample once, and those first that other jobs of the same agent have prepared; what is
            prepared for one job serves all that have the same dataset and transform.
        lateness: By how many batches a slow sample may be late in ``"ready"`` and ``"shared"``; has no meaning in
            ``"strict"`` and for a stream. Left out, as many as are prepared ahead in the beginning, and at least 8.
        hand_over: In ``"ready"``, let a worker process put a slow sample aside between two transforms and take up
            another, in another of its threads. For datasets that may be called from several threads, one at a time;
            not with ``num_workers="auto"``. Native datasets need no asking, but for Python functions in them.
        overlap_epochs: Begin the next epoch while the last batches of this one are served, so that its first batch is
            ready at once. It is begun after the last epoch, too, and then called off.
        seed: With the epoch and the sample's index, decides all randomness, so loaders that are iterated together need
            different ones. Samples of a stream have no index; its workers are seeded as PyTorch's are.
        rank: This process's number in its job; from ``torch.distributed`` when that is initialised.
        world_size: How many processes the job has; likewise.
        cache: How much memory to keep samples in from one epoch to the next: bytes, ``"8GiB"``, or a
            :class:`sutler.Cache`, which says more. Batches hold the same bytes with and without it. A dataset written
            in Python says what may be kept: see :class:`sutler.PreparedDataset`.
        errors: What a bad sample does: ``"raise"``, ``"skip"``, or a budget such as ``sutler.Errors(max=100)``.
        return_ids: Yield the samples' indices as the last element of each batch.
        output: ``"torch"``, ``"numpy"`` or ``"dlpack"``; PyTorch where it is installed.
        channels_last: Keep the values of a pixel together in memory. The shape is NCHW either way.
        device: Copy batches to this device ahead of the trainer, e.g. ``"cuda"``.
        device_normalize: With ``device``, send bytes and do a trailing ``ToDtype``/``Normalize`` there.
        progress: Show a bar with the rate and the share of time spent waiting.
        agent: Have the samples prepared by the agent of this machine (``sutler serve``), which does so for all jobs:
            ``"auto"`` where one runs, or the path of its socket. It keeps samples as ``sutler serve --memory`` says;
            ``cache`` is for loaders without one.
        job_name: What the ranks of this job call it, so that the agent refuses one whose arguments differ.

    Examples:
        >>> import sutler, sutler.testing, tempfile
        >>> from sutler import transforms as T
        >>> folder = tempfile.mkdtemp()
        >>> sutler.testing.make_photos(folder, count=10, classes=2)
        >>> train = sutler.ImageFolder(folder, transform=T.Compose([T.RandomResizedCrop(32), T.ToDtype("float32")]))
        >>> loader = sutler.Loader(train, batch_size=4, shuffle=True)
        >>> [tuple(images.shape) for images, labels in loader]
        [(4, 3, 32, 32), (4, 3, 32, 32), (2, 3, 32, 32)]
        >>> loader.stats()["samples"]
        10
    """

    #: Where PyTorch keeps an iterator together with workers that stay, which some trainers end through it. Here workers
    #: stay without one, so there is nothing for them to end.
    _iterator = None

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: int | Literal["auto"] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        order: Order | None = None,
        lateness: int | None = None,
        hand_over: bool = False,
        overlap_epochs: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        cache: str | int | Cache | None = None,
        errors: Literal["raise", "skip"] | Errors = "raise",
        return_ids: bool = False,
        output: Output | None = None,
        channels_last: bool = False,
        device: Any = None,
        device_normalize: bool = False,
        progress: bool = False,
        agent: str | os.PathLike[str] | None = None,
        job_name: str | None = None,
    ) -> None:
        set_before = frozenset(self.__dict__)  # by a class derived from this
        self.output = resolve_output(output)
        self.order = choose_order(order, in_order)
        device = read_device(device, self.output)
        if is_data_pipe(dataset):
            dataset, shuffle = shuffle_pipes(dataset, shuffle), None
        if is_stream(dataset):
            check_stream_arguments(
                shuffle=shuffle,
                sampler=sampler,
                batch_sampler=batch_sampler,
                errors=errors,
                return_ids=return_ids,
            )
        check_arguments(
            dataset=dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            order=self.order,
            lateness=lateness,
            hand_over=hand_over,
            overlap_epochs=overlap_epochs,
            seed=seed,
            return_ids=return_ids,
            output=self.output,
            channels_last=channels_last,
            device=device,
            device_normalize=device_normalize,
            progress=progress,
        )
        check_agent(agent, job_name)
        self.dataset = dataset
        #: What prepares the samples: the native dataset under a subset, else the dataset itself.
        self._origin = origin_of(dataset)
        #: Which samples of it, where not all.
        self._selection = selection_of(dataset)
        native = isinstance(self._origin, NativeDataset)
        check_samples(batch_sampler, dataset)
        self.batch_size = None if batch_sampler is not None else batch_size
        self.shuffle = bool(shuffle)
        self.num_workers = choose_workers(num_workers, dataset)
        #: The number from which that of the threads follows the demand, until somebody assigns another.
        self._auto_workers = self.num_workers if isinstance(num_workers, str) else None
        self.collate_fn = collate_fn
        if collate_fn is None and not native:
            self.collate_fn = default_collate(
                self.output, batched=batch_size is not None or batch_sampler is not None
            )
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = read_context(multiprocessing_context)
        self.generator = generator
        self.prefetch_factor = prefetch_factor if prefetch_factor is not None else 2
        #: Whether more batches may be prepared ahead where these turn out to be too few: not where somebody chose.
        self._ahead_grows = prefetch_factor is None
        self.persistent_workers = persistent_workers
        self.in_order = self.order == "strict"
        self.hand_over = hand_over
        self.overlap_epochs = overlap_epochs
        self._successor = Successor()
        self.seed = int(generator.initial_seed()) % 2**64 if generator is not None else seed
        self._place = place_in_job(rank, world_size)
        if world_size is not None and (sampler is not None or batch_sampler is not None):
            warn_of_undivided(batch_sampler if sampler is None else sampler, world_size, stacklevel=2)
        if world_size is not None and world_size > 1 and is_stream(dataset) and not is_data_pipe(dataset):
            warn_of_undivided_stream(dataset, stacklevel=2)
        self.cache = read_cache(cache)
        if self.cache is not None and agent is None:
            check_alone(self.cache)
        #: What of it a dataset written in Python can use.
        self._prepared_cache = None if native else cache_for(self.cache, dataset, stacklevel=2)
        self.errors = errors
        self.return_ids = return_ids
        self.channels_last = channels_last
        self.device = device
        self.device_normalize = device_normalize
        self.progress = progress
        self.agent = agent
        self.job_name = job_name
        self._agent = choose_agent(agent, dataset, self.num_workers, stacklevel=2)
        if self._agent is not None and self.cache is not None:
            warn_of_idle_cache(stacklevel=3)

        #: Why functions behind native transforms run in this process; ``None`` where workers run them, or there are
        #: none.
        self._in_trainer = why_in_trainer(self) if has_functions(self._origin) else None
        self.lateness = (
            max(LATENESS_MIN, self._batches_ahead(self.batch_size or 1)) if lateness is None else lateness
        )
        if lateness is not None and self.order == "strict":
            why = 'in strict order, in which no sample is late; pass order="ready" as well'
            warn_of_no_effect(f"lateness={lateness}", why, stacklevel=2)
        #: What is left out follows from the number of workers, in which the ranks of a job may differ.
        self._lateness_given = lateness is not None

        if channels_last and has_functions(self._origin):
            why = "where functions make the samples, which lie in memory as these leave them; leave it out"
            warn_of_no_effect("channels_last=True", why, stacklevel=2)
        if not self._has_native_threads():
            warn_of_many_workers(self.num_workers)
        if not native:
            warn_of_concatenation(dataset, list(leaves(dataset)), stacklevel=2)
        self._policy: ErrorPolicy = error_policy(errors)
        self._given_sampler = sampler
        self._given_batch_sampler = batch_sampler
        own_sampler = as_pytorchs(EpochSampler, "RandomSampler" if shuffle else "SequentialSampler")
        clock: EpochSampler = own_sampler(
            dataset, shuffle=self.shuffle, seed=self.seed, drop_last=drop_last, place=self._place
        )
        self._passes = Passes(clock, sampler, batch_sampler)
        #: Whether a trainer of ours sees to each rank's share.
        self._shares_settled = False
        #: How the ranks divide what the sampler draws, where they take turns.
        self._steps: StepsInTurn | None = None
        self.sampler: Any = clock if sampler is None else sampler
        if batch_sampler is not None:
            self.batch_sampler: Any = batch_sampler
        else:
            own_batch_sampler = as_pytorchs(EpochBatchSampler, "BatchSampler")
            self.batch_sampler = (
                None if batch_size is None else own_batch_sampler(self.sampler, batch_size, drop_last)
            )

        self._streams = StreamBackend(dataset, persistent=persistent_workers) if is_stream(dataset) else None
        if self._streams is None:
            self._backend: Backend = make_backend(self)
            self._room = EngineRoom(self._backend)
        if hand_over:
            warn_of_no_effect("hand_over=True", why_no_hand_over(self), stacklevel=2)
        if overlap_epochs:
            warn_of_no_effect("overlap_epochs=True", why_no_overlap(self), stacklevel=2)
        #: How many samples a stream was said to have when the loader's length was asked for.
        self._stream_length: int | None = None
        self._closed = False
        self._last_figures: tuple[dict[str, Any], list[Failure]] = ({}, [])
        self._last_timeline = no_timeline()
        #: What happened without workers, and the samples that the latest epoch left out.
        self._inline = TrainerFigures()
        self._inline_failures: list[Failure] = []
        #: How long the trainer waited for workers to start and to end, outside of the requests that are counted.
        self._beginning_seconds = 0.0
        #: What the functions behind native transforms took, which run in this process.
        self._function_times = FunctionTimes()
        #: What the trainer waited for, where batches are copied to a device ahead of it.
        self._device_figures = TrainerFigures()
        #: What it takes to make batches here of samples that native threads had ready, for a `target_transform` or a
        #: `collate_fn`.
        self._besides_times = FunctionTimes()
        self._iterators: weakref.WeakSet[EpochIterator] = weakref.WeakSet()
        self._warned_of_dataset_state = False
        self._warned_of_same_order = False
        #: The attributes that every loader has.
        self._own_attributes = frozenset(self.__dict__) - set_before
        self._initialised = True

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "_initialised", False):
            if name in FIXED:
                raise ValueError(
                    f"{name} attribute should not be set after {type(self).__name__} is initialized; make a new one"
                )
            if name == "multiprocessing_context":
                check_context(value, self.num_workers)
                value = read_context(value)
        super().__setattr__(name, value)

    @property
    def rank(self) -> int:
        """This process's number in its job: as given, or that in the process group of this moment."""
        return self._place()[0]

    @property
    def world_size(self) -> int:
        """How many processes the job has: as given, or as many as the process group of this moment."""
        return self._place()[1]

    def _take_turns(self) -> None:
        """Has ranks take whole batches in turn from the next epoch on, as trainers divide PyTorch's loaders.

        Of the loader's own order only where it is the dataset's and strict, so that all rows in turn are in order; else
        it is divided already. What a sampler draws and what a stream yields is divided where they do not do so.
        """
        own = self._given_sampler is None and self._given_batch_sampler is None and self._streams is None
        self._divide_sampler()
        if self._streams is not None:
            self._streams.in_turns = not is_data_pipe(self.dataset) and not divides_itself(self.dataset)
        elif own and not self.shuffle and self.order == "strict":
            self.sampler.turn = self.batch_size and size_of_turn(self.batch_size, len(self.dataset))
            self._successor.close()

    def _divide_sampler(self) -> None:
        """Has ranks take whole batches in turn of what a sampler draws, if there is one that does not divide itself."""
        self._shares_settled = True
        given = self._given_sampler if self._given_batch_sampler is None else self._given_batch_sampler
        if given is not None and self.world_size > 1 and not divides_itself(given):
            in_batches = self._given_batch_sampler is not None
            batch_size = getattr(given, "batch_size", None) if in_batches else self.batch_size or 1
            samples = max(length_of(given) or 0, length_of(self.dataset) or 0)
            self._steps = StepsInTurn(
                given,
                in_batches=in_batches,
                batch_size=None if batch_size is None else size_of_turn(batch_size, samples),
                drop_last=getattr(given, "drop_last", False) if in_batches else self.drop_last,
                world_size=self.world_size,
            )

    def _dealt(self, position: Position) -> Numbers | None:
        """The order in which ranks take turns from a position on; ``None`` where each takes every so manieth sample."""
        dealt: Numbers | None = None if self.shuffle else self.sampler.dealt(position.consumed)
        return dealt

    # --- what runs where -------------------------------------------------------------------------------------------

    @property
    def _functions_in_workers(self) -> bool:
        """Whether worker processes make the samples of a native dataset, since functions belong to them."""
        return self._in_trainer is None and has_functions(self._origin)

    def _has_native_threads(self) -> bool:
        """Whether native threads prepare the samples: the engine's own, or an agent's."""
        return isinstance(self._origin, NativeDataset) and not self._functions_in_workers

    def _settle_functions(self) -> None:
        """An epoch begins: where functions behind native transforms run may have changed with the attributes."""
        if not has_functions(self._origin) or self._is_under_way():
            return
        before, self._in_trainer = self._in_trainer, why_in_trainer(self)
        if (before is None) != (self._in_trainer is None):
            self._remember_figures()
            self._room.close()
            self._backend = make_backend(self)
            self._room = EngineRoom(self._backend)
            self._function_times = FunctionTimes()

    def _batched(self) -> bool:
        """Whether samples are put together to batches."""
        return self.batch_size is not None or self._given_batch_sampler is not None

    @property
    def _auto_collation(self) -> bool:
        """The same by the name that libraries which look into PyTorch's loader know."""
        return self._batched()

    def _collation(self) -> Callable[[Any], Any]:
        """What makes a batch of the samples of a dataset written in Python."""
        return self.collate_fn or default_collate(self.output, batched=self._batched())

    def _rows(self) -> int:
        """How many samples a batch has at most: ``batch_size``, or one more than an epoch has where that is less.

        Some pass the largest number there is, to get all samples in one batch. The engine counts samples in 32 bits,
        and of a native dataset memory is taken for as many as a batch may have.
        """
        rows = min(self.batch_size or 1, SAMPLES_MAX)
        own_order = self._given_sampler is None  # what a sampler draws may be any number, whatever its length
        return (
            min(rows, len(self.sampler) + 1)
            if own_order and isinstance(self._origin, NativeDataset)
            else rows
        )

    def _lateness(self) -> int | None:
        """By how many batches a sample may be late; ``None`` where batches are served in order."""
        return None if self.order == "strict" else self.lateness

    def _collates_plainly(self) -> bool:
        """Whether batches are collated by default, so that workers may write into them."""
        return self._batched() and self._collation() is default_collate(self.output, batched=True)

    def _collates_in_workers(self) -> bool:
        """Whether a function of the user's makes the batches, which may take long: then worker processes run it."""
        return self._collation() is not default_collate(self.output, batched=self._batched())

    def _most_workers(self) -> int:
        """How many workers there may be at a time."""
        if self._auto_workers != self.num_workers:
            return self.num_workers
        return self.num_workers * (THREADS_MAX if self._has_native_threads() else PROCESSES_MAX)

    def _batches_ahead(self, batch_size: int) -> int:
        """How many batches to prepare ahead.

        Native threads share a batch, so `prefetch_factor` batches will do, or more where batches are smaller than the
        team. Datasets written in Python may take very different times for their samples: as many as PyTorch's, so
        that a slow one at the front leaves enough to do for the others.
        """
        team = max(1, self.num_workers)
        if not self._has_native_threads():
            return self.prefetch_factor * team
        return max(1, self.prefetch_factor, -(-self.prefetch_factor * team // batch_size))

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this loader is closed; make a new one to iterate again")

    # --- epochs ----------------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch to run next; without it epochs count up from 0.

        An epoch begins with its first batch, so this may also follow ``iter(loader)``, as it does in some trainers.
        Tells the sampler, and a stream, that have a ``set_epoch`` of their own; a stream's copies in workers, too.
        """
        self._passes.set_epoch(epoch)
        if self._streams is not None:
            self._streams.set_epoch(epoch)

    def __iter__(self) -> Iterator[BatchType_co]:
        with self._beginning_or_ending():
            position = self._passes.plan(self)
            iterator = self._successor.take(self, position) or EpochIterator(self, position)
        self._iterators.add(iterator)
        if position.drawing is not None:
            position.drawing.draws.belong_to(iterator)
        if self.progress:
            from sutler._progress import ProgressIterator

            return ProgressIterator(iterator, self)
        return iterator

    def _device_operations(self) -> list[dict[str, Any]]:
        """Operations that are left for the device."""
        return [] if self._streams is not None else self._backend.device_operations

    def _processes(self, source: BatchSource) -> list[Any]:
        """The worker processes of an epoch that has begun."""
        return source.processes() if isinstance(source, MeasuredStream) else self._backend.processes()

    def _begin(self, position: Position) -> tuple[BatchSource, Callable[[], None]]:
        """The batches of an epoch from a position on, and how to call the rest off."""
        return begin_epoch(self, position)

    @contextmanager
    def _beginning_or_ending(self) -> Iterator[None]:
        """The trainer waits inside, in ``iter()`` or ``next()``, for an epoch to begin or to end.

        Workers are started and ended meanwhile, samplers are drawn from, and a busy machine may do something else.
        """
        began = time.monotonic()
        try:
            yield
        finally:
            self._beginning_seconds += time.monotonic() - began

    def _is_under_way(self) -> bool:
        """Whether batches are being prepared for a pass."""
        return any(iterator.running for iterator in self._iterators)

    def _forget_parent(self) -> None:
        """We are in a forked child: what happened, and what is under way, is the parent's."""
        self._last_figures = ({}, [])
        self._last_timeline = no_timeline()
        self._beginning_seconds = 0.0
        self._function_times = FunctionTimes()
        self._iterators = weakref.WeakSet()

    def _remember_figures(self) -> None:
        """What is counted with is about to end."""
        self._last_figures = figures_of_source(self)
        self._last_timeline = timeline_of(self)

    def _in_process(self) -> bool:
        """Whether a dataset written in Python is called by the trainer itself."""
        return self.num_workers == 0 and not isinstance(self._origin, NativeDataset)

    def __len__(self) -> int:
        if self._steps is not None:
            return len(self._steps)
        if self._given_batch_sampler is not None:
            return len(
                cast(Sized, self._given_batch_sampler)
            )  # TypeError where it has no length, as documented
        if self._streams is not None:
            samples = self._stream_length = len(self.dataset)
            ranks = self._streams.place(self)[1]
        else:
            samples, ranks = len(cast(Sized, self.sampler)), 1
        batch_size = (self.batch_size or 1) * ranks
        return samples // batch_size if self.drop_last else -(-samples // batch_size)

    def _compare_with_length(self, samples: int) -> None:
        warn_if_longer(self.dataset, self._stream_length, samples, self.num_workers)

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: small, plain JSON, to be kept with the model's checkpoint.

        Of a dataset that has a ``state_dict`` itself it holds that too, whatever it is, once per worker.

        Valid between any two batches. Inside the loop over an epoch it is a state of that epoch, of which nothing is
        left after the last batch; after the loop it is one of the next epoch. In strict order all ranks consume in
        step, so one rank's state can be loaded by all of them, and by any other number of them. With ``order="ready"``
        each rank has served samples of its own, so each saves a state. The reference page of this class explains every
        key.
        """
        caller = sys._getframe(1)
        if not counts_batches(caller):
            return self._state(by_length=False, stacklevel=2)
        over = self._streams is None and has_counted_all(caller)
        untrained = self._streams is not None and has_taken_ahead(caller)
        state = self._state(by_length=True, over=over, untrained=untrained, stacklevel=2)
        # It tells the epoch again once it has loaded the state, whatever the epoch of ours is that this is of.
        return state | {"within": self._passes.within}

    def _state(
        self, *, by_length: bool, stacklevel: int, over: bool = False, untrained: bool = False
    ) -> dict[str, Any]:
        """The state for a trainer that leaves an epoch when told of its end, or `by_length`, with its last batch.

        `untrained` is for one that has taken a batch which it is yet to train on.
        """
        position = self._passes.standing(self, by_length=by_length, over=over)
        state = make_state(self, position.before_latest() if untrained else position)
        if self._streams is None:
            state["dataset"] = save_dataset_state(self, position.copies, stacklevel=stacklevel + 1)
            if state["dataset"] is not None:
                state["dataset_place"] = [self.rank, self.world_size]
        return state

    def load_state_dict(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Goes on from a saved state: the next ``iter(loader)`` delivers the exact rest of that epoch.

        ``batch_size``, ``num_workers`` and ``world_size`` may differ from those it was saved with. For another
        ``world_size`` in the middle of an epoch with ``order="ready"`` or ``"shared"``, pass the list of the states of
        all ranks; the rest of the epoch is then dealt out anew. For an iterable dataset, and for any that has a state
        of its own, ``num_workers`` must be the same, as each worker has a copy of the dataset. A sampler of yours must
        draw what it drew before, which is checked when the epoch begins.

        Raises:
            ValueError: The state belongs to another dataset or another order, or states do not belong together; the
                message shows both sides.
        """
        position = check_state(self, state)
        if self._streams is None:
            load_dataset_state(self, state)
            warn_of_other_ranks(self, state, stacklevel=2)
        self._passes.resume_at(position, within_of(state))
        if self._streams is not None and position.streams is not None:
            self._streams.go_on_from(self, position.streams)

    # --- figures ---------------------------------------------------------------------------------------------------

    def failures(self) -> list[Failure]:
        """The samples that could not be served in the latest epoch: ``id``, ``path``, ``kind``, ``reason``."""
        return figures_of(self)[1]

    def stats(self) -> dict[str, Any]:
        """What happened so far, in numbers. The page "Figures" of the reference explains each key.

        ``stalls`` splits the time inside epochs into waiting for bytes (fetch), for decoding and transforms (prep), for
        finished batches to arrive (transport), and the trainer's own work.
        """
        return describe(self)

    def timeline(self) -> dict[str, Any]:
        """The latest batches and samples one by one: when each was asked for, waited for and worked at.

        The page "Figures" of the reference explains each key. What is kept is bounded: a thousand batches or so.
        """
        return timeline_of(self)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the timeline as a Chrome trace, to be opened in Perfetto (ui.perfetto.dev) or ``chrome://tracing``.

        The trainer and each worker have a track; on it are the waits by what they were for, and the stages of samples.
        """
        from sutler.analysis.trace import write_trace

        write_trace(path, self.timeline(), rank=self.rank)

    # --- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the threads and gives the memory back; batches already delivered stay valid."""
        if self._closed:
            return
        self._closed = True
        self._remember_figures()
        self._successor.close()
        for iterator in list(self._iterators):
            iterator.close()  # leaves what belongs to the parent of a forked child alone, as all of this does
        if self._streams is not None:
            self._streams.end()
        else:
            self._room.close()
            if isinstance(self._backend, ProcessBackend):
                self._backend.give_up_cache()
        self._iterators.clear()

    def __enter__(self) -> Loader[BatchType_co]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """What ``pickle`` and ``copy.deepcopy`` make another loader of: arguments, and which epoch comes next."""
        return {
            "arguments": arguments_of(self),
            "besides": besides_of(self),
            "passes": self._passes.save(self),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._make_like(state["arguments"], state["besides"])
        self._passes.load(self, state["passes"])

    def __copy__(self) -> Loader[BatchType_co]:
        """Another loader with the same arguments, which begins with epoch 0 and has threads and workers of its own."""
        copied = type(self).__new__(type(self))
        copied._make_like(arguments_of(self), besides_of(self))
        return copied

    def _make_like(self, arguments: dict[str, Any], besides: dict[str, Any]) -> None:
        """Makes this a loader with the arguments of another one, and with what a derived class has besides."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whatever there is to say of the arguments was said
            Loader.__init__(self, **arguments)
        self.__dict__.update(besides)

    def __repr__(self) -> str:
        samples = length_of(self.dataset)
        known = "? samples" if samples is None else counted(samples, "sample")
        return (
            f"Loader({type(self.dataset).__name__} of {known}, "
            f"batch_size={self.batch_size}, "
            f"shuffle={self.shuffle}, num_workers={self.num_workers}, order={self.order!r})"
        )
