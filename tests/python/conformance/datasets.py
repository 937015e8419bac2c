"""The datasets of these tests, in a module of their own so that they can be pickled."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


def flat(loader: Iterable[Any]) -> list[int]:
    """All values of all batches of numbers, in the order in which they came."""
    return [int(value) for batch in loader for value in batch]


class Numbers(Dataset[Any]):
    """Each sample is its own index."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if not -self.count <= index < self.count:
            raise IndexError(f"no sample {index} among {self.count}")
        return index


class Listed(Dataset[Any]):
    """Samples that were made beforehand; `keys` are whatever the list or dict takes."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, key: Any) -> Any:
        return self.samples[key]


class Computed(Numbers):
    """Each sample is a function of its index."""

    def __init__(self, count: int, function: Callable[[int], Any]) -> None:
        super().__init__(count)
        self.function = function

    def __getitem__(self, index: int) -> Any:
        return self.function(super().__getitem__(index))


class Raising(Numbers):
    """One of the samples raises."""

    def __init__(self, count: int, at: int, make_error: Callable[[], BaseException]) -> None:
        super().__init__(count)
        self.at = at
        self.make_error = make_error

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            raise self.make_error()
        return super().__getitem__(index)


class Sleeping(Numbers):
    """Some of the samples take a while."""

    def __init__(self, count: int, seconds: dict[int, float]) -> None:
        super().__init__(count)
        self.seconds = seconds

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds.get(index, 0.0))
        return super().__getitem__(index)


class Places(Numbers):
    """Which process and worker prepared a sample; each takes a moment."""

    def __init__(self, count: int, seconds: float = 0.02) -> None:
        super().__init__(count)
        self.seconds = seconds

    def __getitem__(self, index: int) -> dict[str, int]:
        time.sleep(self.seconds)
        info = get_worker_info()
        return {
            "index": super().__getitem__(index),
            "pid": os.getpid(),
            "worker": -1 if info is None else info.id,
            "workers": 0 if info is None else info.num_workers,
            "seed": -1 if info is None else info.seed,
            "own_copy": info is not None and info.dataset is self,
            "threads": torch.get_num_threads(),
        }


class Meeting(Places):
    """As many samples as there are workers wait for each other, so that each of the workers has had one."""

    def __init__(self, count: int, workers: int, apart: int = 2) -> None:
        super().__init__(count, 0.0)
        #: The first of the samples of each batch, for a loader that gives every worker batches of its own.
        self.first = range(0, apart * workers, apart)
        self.barrier = multiprocessing.get_context("fork").Barrier(max(1, workers))

    def __getitem__(self, index: int) -> dict[str, int]:
        if index in self.first:
            self.barrier.wait(60)
        return super().__getitem__(index)


class Held(Numbers):
    """One of the samples takes until it is let go."""

    def __init__(self, count: int, at: int) -> None:
        super().__init__(count)
        self.at = at
        self.let_go = multiprocessing.get_context("fork").Event()

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            self.let_go.wait(60)
        return super().__getitem__(index)


class Counting(Numbers):
    """Counts its own calls: state that lives as long as the copy of the dataset that is called."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.calls = 0
        self.value = 0

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        self.calls += 1
        return super().__getitem__(index), self.calls, self.value


class Dying(Numbers):
    """One of the samples ends the process that prepares it."""

    def __init__(self, count: int, at: int, way: str, seconds: float = 0.0) -> None:
        super().__init__(count)
        self.at = at
        self.way = way
        self.seconds = seconds

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            time.sleep(self.seconds)
            if self.way == "sys.exit":
                sys.exit(3)
            if self.way.startswith("exit"):
                os._exit(int(self.way.removeprefix("exit")))
            os.kill(os.getpid(), getattr(signal, self.way))
            time.sleep(60)
        return super().__getitem__(index)


class Drawing(Numbers):
    """Each sample is drawn from the three global random generators."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = get_worker_info()
        return {
            "index": super().__getitem__(index),
            "worker": -1 if info is None else info.id,
            "seed": -1 if info is None else info.seed,
            "python": random.random(),
            "numpy": float(np.random.random()),
            "torch": float(torch.rand(())),
        }


class Bulk(Numbers):
    """Can prepare several samples at once, and tells how many it was asked for."""

    def __getitems__(self, indices: list[int]) -> list[tuple[int, int]]:
        return [(index, len(indices)) for index in indices]


class BulkIndexed(Numbers):
    """Takes a list of indices for an index: how batches are loaded in bulk with `batch_size=None`."""

    def __getitem__(self, index: Any) -> Any:
        return torch.tensor(index) * 10 if isinstance(index, list) else index


class Locked(Numbers):
    """Holds what cannot be pickled, and is only good in a forked worker: a lock and an open file."""

    def __init__(self, path: str, count: int) -> None:
        super().__init__(count)
        self.lock = threading.Lock()
        self.file = open(path, "rb")  # noqa: SIM115 (held on purpose)

    def __getitem__(self, index: int) -> int:
        with self.lock:
            return int.from_bytes(os.pread(self.file.fileno(), 1, index), "little")


class Stream(IterableDataset[int]):
    """A range that every worker goes through in full."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


class SizedStream(Stream):
    """A stream that says how long it is, rightly or not."""

    def __init__(self, count: int, length: int | None = None) -> None:
        super().__init__(count)
        self.length = count if length is None else length

    def __len__(self) -> int:
        return self.length


class ShardedStream(SizedStream):
    """A stream of which every worker takes its share; the shares may be given, for uneven ones."""

    def __init__(self, count: int, shares: Sequence[int] | None = None) -> None:
        super().__init__(count)
        self.shares = shares

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        if info is None:
            return iter(range(self.count))
        if self.shares is None:
            return iter(range(info.id, self.count, info.num_workers))
        begin = sum(self.shares[: info.id])
        return iter(range(begin, begin + self.shares[info.id]))


class RaisingStream(Stream):
    """Fails after the last of its numbers."""

    def __iter__(self) -> Iterator[int]:
        yield from range(self.count)
        raise ValueError("the stream broke off")


class Point(NamedTuple):
    """A sample with names."""

    x: Any
    y: Any


@dataclass
class Box:
    """A sample of a class that nobody knows how to collate."""

    value: int


class OddError(Exception):
    """Wants two arguments, so it cannot be made from a message."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


class PlainError(Exception):
    """Takes a message, as exceptions do."""
