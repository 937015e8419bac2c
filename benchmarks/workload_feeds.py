"""Those who feed the emulated accelerator in the workloads, each in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from benchmarks import process_tree
from benchmarks.contenders.base import MEAN, STD
from benchmarks.worker import ContenderError
from benchmarks.workload_data import Mix, Photos, Speech, heavy_steps
from benchmarks.workload_volumes import Volumes

Kind = Literal["volumes", "speech", "photos"]


@dataclass(frozen=True)
class Contender:
    """A loader, how it orders batches, and of whose making the samples are."""

    title: str
    #: `torch` and `sutler` take the dataset in Python; `native` and `dali` have operators of their own.
    family: Literal["torch", "sutler", "native", "dali"]
    in_order: bool = True

    @property
    def is_ours(self) -> bool:
        return self.family in ("sutler", "native")


CONTENDERS = {
    "torch": Contender("torch", "torch"),
    "torch-unordered": Contender("torch, in_order=False", "torch", in_order=False),
    "dali": Contender("DALI CPU", "dali"),
    "sutler": Contender("Sutler", "sutler"),
    "sutler-ready": Contender('Sutler, order="ready"', "sutler", in_order=False),
    "sutler-native": Contender("Sutler, native", "native"),
    "sutler-native-ready": Contender('Sutler, native, order="ready"', "native", in_order=False),
}


def missing(name: str, kind: Kind) -> str | None:
    """Why a contender has no part in a workload, as the end of a sentence; None when it has."""
    family = CONTENDERS[name].family
    if kind == "speech" and family == "dali":
        return "the heavy step is a function in Python, which its threads could run but one at a time"
    if family == "dali":
        try:
            found = importlib.util.find_spec("nvidia.dali") is not None
        except ModuleNotFoundError:
            found = False  # not even the package around it
        if not found:
            return "`nvidia.dali` is not installed here; `make bench` installs it"
    return None


@dataclass(frozen=True)
class Workload:
    """Samples and who asks for them."""

    kind: Kind
    mix: Mix
    folder: str
    batch_size: int
    workers: int
    #: What the heavy step of a clip takes.
    heavy_ms: float
    #: The side of the crops of volumes.
    side: int

    @property
    def at_once(self) -> int:
        """How many samples can be prepared at the same time."""
        return min(self.workers, len(os.sched_getaffinity(0)))

    def dataset(self) -> Any:
        """The samples, as a dataset written in Python."""
        if self.kind == "speech":
            return Speech(Path(self.folder), self.heavy_ms)
        if self.kind == "volumes":
            return Volumes(Path(self.folder), self.mix.slow_share, self.side)
        return Photos(Path(self.folder))

    def native(self) -> Any:
        """The samples, as a dataset of Sutler's with its own transforms."""
        import sutler
        from sutler import transforms as T  # noqa: N812 (the name that torchvision's users expect)

        if self.kind == "volumes":
            chain = [
                T.RandBalancedCrop(self.side, oversampling=self.mix.slow_share),
                T.RandFlip(p=1 / 3),
                T.Cast("float32", "uint8"),
                T.RandomBrightness(factor=0.3, p=0.1),
                T.GaussianNoise(mean=0.0, std=0.1, p=0.1),
            ]
            return sutler.VolumeFolder(self.folder, transform=T.Compose(chain), progress=False)
        if self.kind == "speech":
            functions = [T.Lambda(function) for function in heavy_steps(self.heavy_ms)]
            return sutler.AudioFolder(self.folder, transform=T.Compose(functions), progress=False)
        transform = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)])
        return sutler.ImageFolder(self.folder, transform=transform, progress=False)


class Feed(Protocol):
    """A loader: the numbers of the samples in each batch of an epoch."""

    def __iter__(self) -> Iterator[list[int]]: ...

    def close(self) -> None: ...


class LoaderFeed:
    """A loader of torch's or Sutler's; one field of its batches holds the numbers of their samples."""

    def __init__(self, loader: Any, numbers: int) -> None:
        self.loader = loader
        self._numbers = numbers

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.loader:
            yield batch[self._numbers].tolist()

    def close(self) -> None:
        if hasattr(self.loader, "close"):
            self.loader.close()
        self.loader = None  # torch's workers end with it


def make_feed(name: str, workload: Workload) -> Feed:
    """A contender's loader."""
    import torch

    torch.set_num_threads(1)
    contender = CONTENDERS[name]
    if contender.family == "dali":
        from benchmarks.workload_dali import DaliFeed

        return DaliFeed(
            workload.kind,
            Path(workload.folder),
            workload.batch_size,
            workload.workers,
            workload.side,
            workload.mix.slow_share,
        )
    common: dict[str, Any] = {
        "batch_size": workload.batch_size,
        "shuffle": True,
        "num_workers": workload.workers,
        "in_order": contender.in_order,
    }
    stay: dict[str, Any] = {"persistent_workers": True, "multiprocessing_context": "fork"}
    if contender.family == "native":
        import sutler

        if workload.kind == "speech":  # functions in Python run in worker processes
            common |= stay
        return LoaderFeed(sutler.Loader(workload.native(), **common, return_ids=True), -1)
    if contender.family == "sutler":
        import sutler

        return LoaderFeed(sutler.Loader(workload.dataset(), **common, **stay), 0)
    from torch.utils.data import DataLoader

    return LoaderFeed(DataLoader(workload.dataset(), **common, **stay), 0)


@dataclass
class Turn:
    """One epoch or several, one right after the other, as the accelerator saw them, in seconds."""

    total: float
    first_batch: float
    #: For every batch after the first.
    waits: list[float]
    #: The share of slow samples in batches: `slow_share` of Sutler's figures, since the loader was made.
    slow_share: dict[str, Any] = field(default_factory=dict)

    def busy(self, step: float) -> float:
        """The share of the time after the first batch in which the accelerator was busy."""
        working = (len(self.waits) + 1) * step
        return working / (working + sum(self.waits))

    def busy_later(self, step: float) -> float:
        """The same without the first quarter of the batches: once slow samples have had time to be begun early."""
        waits = self.waits[(len(self.waits) + 1) // 4 :]
        working = (len(waits) + 1) * step
        return working / (working + sum(waits))


#: The loader of this process. Only the seat of a contender has one.
_feeds: dict[str, Feed] = {}


def take_place(name: str, workload: Workload) -> None:
    """Makes a contender's loader for a workload, in the process that it has for itself, and ends its last one."""
    leave_place(name)
    _feeds[name] = make_feed(name, workload)


def leave_place(name: str) -> None:
    """Ends a contender's loader with its workers, so that they are in nobody's way."""
    if name in _feeds:
        _feeds.pop(name).close()


def run_turn(name: str, workload: Workload, step: float, epochs: int) -> Turn:
    """Takes all batches of so many epochs; the accelerator is busy for a while after each."""
    feed = _feeds[name]
    ours = feed.loader if isinstance(feed, LoaderFeed) and CONTENDERS[name].is_ours else None
    waits: list[float] = []
    started = asked = time.perf_counter()
    for epoch in range(epochs):
        if ours is not None:
            # Never into the turn of the next contender.
            ours.overlap_epochs = epoch + 1 < epochs
        seen: list[int] = []
        for numbers in feed:
            waits.append(
                round(time.perf_counter() - asked, 6)
            )  # a microsecond, which is all that a clock tells
            seen += numbers
            if step:
                time.sleep(step)
            asked = time.perf_counter()
        if sorted(seen) != list(range(workload.mix.samples)):
            raise ContenderError(
                f"{CONTENDERS[name].title} delivered {len(seen):,} samples, {len(set(seen)):,} of them different, "
                f"instead of each of {workload.mix.samples:,} once"
            )
    total = time.perf_counter() - started
    return Turn(total, waits[0], waits[1:], ours.stats()["slow_share"] if ours is not None else {})


def cpu_seconds_per_sample(workload: Workload) -> float:
    """The processor time of a sample through torch's loader, which all workers have at the same time.

    That of trainer and workers: collation and transport are part of what has to fit the cores.
    """
    with closing(make_feed("torch", workload)) as feed:
        for _ in feed:  # workers start, files get into the page cache
            pass
        before = process_tree.cpu_seconds(os.getpid())
        for _ in feed:
            pass
        used = process_tree.cpu_seconds(os.getpid()) - before
    # The kernel counts in ticks; less than one is not nothing.
    return max(used, process_tree.TICK_SECONDS) / workload.mix.samples
