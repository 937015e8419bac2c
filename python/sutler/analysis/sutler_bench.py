"""Sutler's own loaders on the bench."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sutler import _sutler
from sutler._functions import FunctionTimes, Timed
from sutler._threads import THREAD, runs_in_turns, wants_threads
from sutler.analysis.benches import (
    Batches,
    Bench,
    Config,
    Probe,
    check_stream,
    without_moving,
    without_transform,
)
from sutler.analysis.copies import copies
from sutler.analysis.files import WatchingWorker, with_files
from sutler.cache import DEFAULT_SPLIT, Cache
from sutler.datasets import NativeDataset
from sutler.errors import Failure
from sutler.loader import Loader
from sutler.testing import can_be_throttled, set_rate, throttled

#: Storage that is no limit, for loaders whose samples are to be in memory.
UNTHROTTLED = 1e15


class SutlerProbe(Probe):
    """A loader of ours over a few batches."""

    #: Known once it is made, as it is given the list that it draws from.
    loader: Loader[Any]
    #: What its storage is held to.
    storage_bytes_per_s: float | None = None

    def __init__(self, drawn: list[Any]) -> None:
        super().__init__(drawn)
        #: Of functions that the loader itself does not time.
        self.function_times = FunctionTimes()

    def fill(self, batches: Batches) -> None:
        """Goes through these batches once, as fast as storage can be read."""
        if self.storage_bytes_per_s is None:
            super().fill(batches)
            return
        set_rate(self.loader.dataset, UNTHROTTLED)
        try:
            super().fill(batches)
        finally:
            set_rate(self.loader.dataset, self.storage_bytes_per_s)

    def _iterate(self) -> Iterator[Any]:
        return iter(self.loader)

    def close(self) -> None:
        """Ends its workers."""
        self.loader.close()

    @property
    def ahead(self) -> int:
        """How many batches are prepared ahead. What is known to take long is begun first among them."""
        if self.loader._streams is not None:
            return 0
        size = max((len(batch) for batch in self.order if isinstance(batch, list)), default=1)
        return self.loader._batches_ahead(max(1, size))

    def failures(self) -> list[Failure]:
        """The samples of the latest epoch that could not be served."""
        return self.loader.failures()

    def stages(self) -> dict[str, Any]:
        """How long samples spent where."""
        quantiles = self.loader.timeline()["quantiles"]
        stages: dict[str, Any] = self.loader.stats()["stages"]
        return {name: times | {"quantiles": quantiles.get(name, [])} for name, times in stages.items()}

    def timeline(self) -> dict[str, Any] | None:
        """Its latest batches and samples."""
        return self.loader.timeline()

    def cache(self) -> _sutler.Cache:
        """The memory that its samples are kept in."""
        kept = getattr(self.loader._backend, "_cache", None)
        assert isinstance(kept, _sutler.Cache)
        return kept

    def storage_bytes(self) -> int | None:
        """The bytes that it has asked storage for so far."""
        return self.loader.stats()["storage_bytes"] if self.loader._has_native_threads() else None

    def kept(self) -> tuple[int, int] | None:
        """How many samples its cache holds, and the bytes that they take."""
        figures = self.loader.stats()["cache"]
        if figures is None:
            return None
        return sum(figures[form]["entries"] for form in ("encoded", "decoded")), figures["used_bytes"]

    def transport_seconds(self) -> float:
        """How long the trainer has waited for finished batches to arrive so far."""
        waited: float = self.loader.stats()["stalls"]["transport"]
        return waited

    def function_seconds(self) -> dict[str, float]:
        """What functions of the user's have taken so far that run in this process, while native threads prepare."""
        taken = self.function_times.seconds()
        for name, seconds in self.loader._function_times.seconds().items():
            taken[name] = taken.get(name, 0.0) + seconds
        return taken


class SutlerBench(Bench):
    """A :class:`sutler.Loader` as it is, over other batches."""

    def __init__(self, loader: Loader[Any]) -> None:
        self.loader = loader
        # Of a subset of a native dataset native threads prepare the samples as they do those of all of it.
        self.dataset = dataset = loader._origin
        self.collate_fn = loader.collate_fn
        if loader._streams is not None:
            self.kind = "stream"
        else:
            # Worker processes prepare what functions belong to, be it native otherwise.
            self.kind = "native" if loader._has_native_threads() else "python"
        self.throttles = self.kind == "native" and can_be_throttled(dataset)
        place = getattr(dataset, "root", None) or getattr(dataset, "manifest", None)
        self.name = f"{type(dataset).__name__} {place}" if place else type(dataset).__name__
        self.workers = max(1, loader.num_workers) if self.kind == "native" else loader.num_workers
        self.shareable = self.kind == "native" and dataset.served_by_agents
        # Functions of the user's that collate run in workers, on whole batches.
        self.whole_batches = self.kind == "stream"
        wanted = loader.cache if self.kind == "native" else loader._prepared_cache
        self._cache: Cache | None = wanted
        self.cache_bytes = wanted.memory if wanted is not None else 0
        self.batch_size = loader.batch_size or 1
        self.ready = loader.order != "strict"
        if self.kind != "native":
            self.stay = loader.persistent_workers
            self.in_turns = runs_in_turns(loader.multiprocessing_context)

    def use_copies(self) -> list[str]:
        """The same of the functions that run in this process though native threads prepare."""
        if self.kind != "native":
            return super().use_copies()
        dataset = self.dataset
        mine = {
            "collate_fn": self.collate_fn,
            "target_transform": dataset.target_transform,
            # The functions in it and those behind the native part of it are the same, and should stay so.
            "transform": (dataset.transform, dataset.lowered.tail) if dataset.lowered.tail else None,
        }
        found, notes = copies(mine)
        self.collate_fn = found["collate_fn"]
        changes = {"target_transform": found["target_transform"]}
        if found["transform"] is not None:
            changes["transform"], tail = found["transform"]
            changes["lowered"] = replace(dataset.lowered, tail=tail)
        self.dataset = _changed(dataset, **changes)
        return notes

    @property
    def samples(self) -> int | None:
        """How many samples the dataset has, or the subset of it, where that is known."""
        selection = self.loader._selection
        return super().samples if selection is None else len(selection.numbers)

    @property
    def has_agent(self) -> bool:
        """Whether its samples come from the agent of the machine."""
        return self.loader._agent is not None

    @property
    def in_process(self) -> bool:
        """Whether samples are prepared in this process."""
        return super().in_process or wants_threads(self.loader.multiprocessing_context)

    def draw(self, count: int) -> Batches:
        """The first batches as the user's loader would draw them."""
        loader = self.loader
        if self.kind == "stream":
            check_stream(self.dataset, self.workers)
            return []
        # A sampler of ours draws the same again whenever it is asked; one of the user's may not, so a copy is asked.
        own = loader._given_sampler is None and loader._given_batch_sampler is None
        if loader.batch_sampler is None:
            sampler = loader.sampler if own else without_moving(loader.sampler, loader.dataset)
            drawn = [[index] for index in itertools.islice(iter(sampler), count)]
        else:
            sampler = loader.batch_sampler if own else without_moving(loader.batch_sampler, loader.dataset)
            drawn = [list(batch) for batch in itertools.islice(iter(sampler), count)]
        if loader.batch_size is None:  # somebody else decides
            self.batch_size = max((len(batch) for batch in drawn), default=1)
        selection = loader._selection
        return drawn if selection is None else [list(map(selection.number, batch)) for batch in drawn]

    def open(self, batches: Batches, config: Config) -> SutlerProbe:
        """A loader over these batches."""
        loader, dataset = self.loader, self.dataset
        if config.without is not None:
            dataset = without_transform(dataset, config.without)
        if config.ready is not None:
            dataset = config.ready
        if config.storage_bytes_per_s is not None and self.throttles:
            dataset = throttled(dataset, config.storage_bytes_per_s)
        workers = self.workers if config.workers is None else config.workers
        arguments: dict[str, Any] = {
            "num_workers": workers,
            "collate_fn": self.collate_fn,
            "pin_memory": loader.pin_memory,
            "timeout": loader.timeout,
            "worker_init_fn": loader.worker_init_fn,
            "multiprocessing_context": loader.multiprocessing_context if workers else None,
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": workers > 0 and self.kind != "native",
            "seed": loader.seed,
            "output": loader.output,
            "channels_last": loader.channels_last,
            "device": loader.device,
            "device_normalize": loader.device_normalize,
            # Order is shared through an agent, which is left out of this.
            "order": "ready" if loader.order == "shared" or config.out_of_order else loader.order,
            "lateness": None if loader.order == "strict" else loader.lateness,
            "rank": 0,
            "world_size": 1,
        }
        if self.kind == "stream":
            arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
            probe = SutlerProbe([])
            probe.loader = _loader(dataset, arguments)
            return probe
        arguments |= {"errors": loader.errors, "return_ids": loader.return_ids}
        if config.watched:
            arguments |= {
                "collate_fn": with_files,
                "worker_init_fn": WatchingWorker(loader.worker_init_fn),
                "pin_memory": False,
                "device": None,
                "device_normalize": False,
                "order": "strict",
                "lateness": None,
                "return_ids": False,
            }
        single = loader.batch_sampler is None or config.watched
        probe = SutlerProbe([index for batch in batches for index in batch] if single else batches)
        arguments |= (
            {"batch_size": None, "sampler": probe.order} if single else {"batch_sampler": probe.order}
        )
        cache_bytes = 0 if config.ready else config.cache_bytes
        if cache_bytes:
            policy = self._cache.policy if self._cache is not None else "pinned"
            split = config.split or (self._cache.split if self._cache is not None else DEFAULT_SPLIT)
            arguments["cache"] = Cache(cache_bytes, split=split, policy=policy)
        if self.kind == "native":
            if workers:
                # Functions run where they do in the user's loader, be it for an agent or a cache that this one lacks.
                arguments["multiprocessing_context"] = THREAD
            if dataset.target_transform is not None:
                timed = Timed(dataset.target_transform, probe.function_times)
                dataset = _changed(dataset, target_transform=timed)
            if self.collate_fn is not None:
                arguments["collate_fn"] = Timed(self.collate_fn, probe.function_times)
        probe.loader = _loader(dataset, arguments)
        if self.throttles:
            probe.storage_bytes_per_s = config.storage_bytes_per_s
        return probe


def _changed(dataset: NativeDataset, **changes: Any) -> NativeDataset:
    """The same dataset with other functions."""
    other = object.__new__(type(dataset))
    vars(other).update(vars(dataset) | changes)  # not `copy.copy`, which would list the files again
    return other


def _loader(dataset: Any, arguments: dict[str, Any]) -> Loader[Any]:
    with warnings.catch_warnings():
        # What is to be said of the number of workers, or of functions in Python, was said of the user's own loader.
        warnings.simplefilter("ignore", UserWarning)
        return Loader(dataset, **arguments)
