"""PyTorch's own `DataLoader` on the bench."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

from sutler.analysis.benches import (
    Batches,
    Bench,
    Config,
    Probe,
    check_stream,
    without_moving,
    without_transform,
)
from sutler.analysis.files import WatchingWorker, with_files


@contextlib.contextmanager
def _said_before() -> Iterator[None]:
    """Keeps PyTorch from saying what it thinks of the number of workers: it has said so of the user's own loader."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


class TorchProbe(Probe):
    """A `DataLoader` over a few batches, whose workers stay."""

    #: Known once it is made, as it is given the list that it draws from.
    loader: Any

    def _iterate(self) -> Iterator[Any]:
        with _said_before():
            return iter(self.loader)

    def close(self) -> None:
        """Ends its workers."""
        iterator = getattr(self.loader, "_iterator", None)
        shut_down = getattr(iterator, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()
        self.loader = None


class TorchBench(Bench):
    """A `torch.utils.data.DataLoader` as it is, over other batches."""

    whole_batches = True

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.dataset = loader.dataset
        self.collate_fn = loader.collate_fn
        from torch.utils.data import IterableDataset

        self._streams = isinstance(loader.dataset, IterableDataset)
        self.kind = "torch"
        place = getattr(loader.dataset, "root", None)
        self.name = f"{type(loader.dataset).__name__} {place}" if place else type(loader.dataset).__name__
        self.workers = loader.num_workers
        self.ready = not getattr(loader, "in_order", True)
        self.reorders = hasattr(loader, "in_order")
        self.stay = loader.persistent_workers
        self.batch_size = loader.batch_size or 1

    @property
    def is_stream(self) -> bool:
        """Whether the dataset can only be gone through from its beginning."""
        return self._streams

    def draw(self, count: int) -> Batches:
        """The first batches as the user's loader would draw them."""
        if self._streams:
            check_stream(self.dataset, self.workers)
            return []
        # The loader's own generator is not to notice, so copies of its samplers are drawn from.
        if self.loader.batch_sampler is not None:
            sampler = without_moving(self.loader.batch_sampler, self.loader.dataset)
            drawn = [list(batch) for batch in itertools.islice(iter(sampler), count)]
        else:
            sampler = without_moving(self.loader.sampler, self.loader.dataset)
            drawn = [[index] for index in itertools.islice(iter(sampler), count)]
        if self.loader.batch_size is None:  # somebody else decides
            self.batch_size = max((len(batch) for batch in drawn), default=1)
        return drawn

    def open(self, batches: Batches, config: Config) -> TorchProbe:
        """A loader over these batches."""
        import torch
        from torch.utils.data import DataLoader

        loader = self.loader
        dataset = self.dataset
        if config.without is not None:
            dataset = without_transform(dataset, config.without)
        if config.ready is not None:
            dataset = config.ready
        workers = self.workers if config.workers is None else config.workers
        arguments: dict[str, Any] = {
            "num_workers": workers,
            "collate_fn": self.collate_fn,
            "pin_memory": loader.pin_memory,
            "timeout": loader.timeout if workers else 0,
            "worker_init_fn": loader.worker_init_fn,
            "persistent_workers": workers > 0,
            # Workers' seeds are drawn from it, and not from the generator that the user's own batches are drawn from.
            "generator": torch.Generator(),
        }
        if workers:
            arguments["prefetch_factor"] = loader.prefetch_factor or 2
            arguments["multiprocessing_context"] = loader.multiprocessing_context
            if self.ready or config.out_of_order:
                arguments["in_order"] = False
        if config.watched:
            arguments |= {
                "collate_fn": with_files,
                "worker_init_fn": WatchingWorker(loader.worker_init_fn),
                "pin_memory": False,
            }
        if self._streams:
            probe = TorchProbe([])
            arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        elif loader.batch_sampler is None or config.watched:
            probe = TorchProbe([index for batch in batches for index in batch])
            arguments |= {"batch_size": None, "sampler": probe.order}
        else:
            probe = TorchProbe(batches)
            arguments["batch_sampler"] = probe.order
        with _said_before():
            probe.loader = DataLoader(dataset, **arguments)
        return probe
