"""A dataset written in Python with and without a cache: what a hit saves, and how many samples are missed.

The dataset is a `sutler.PreparedDataset` on Pillow's images: the files are read and decoded (for evaluation also
resized and cropped) in `prepare`, the rest of torchvision's pipeline is in `augment`. One loader has no cache, one has
room for all samples and one for half of them. An uncounted epoch fills the caches; then each has an epoch per round,
and the one that begins changes from round to round. Rates are per second of processor time, that of the trainer and all
its workers. No hit can be faster than `augment`, so that is measured as well: called in a loop, without any loader.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import process_tree, report
from benchmarks.contenders import Settings
from benchmarks.images import say
from benchmarks.outcome import Outcome
from benchmarks.photos import photo_tree
from benchmarks.turns import in_turn
from benchmarks.worker import ContenderError, check_delivered

#: The loaders: what each has in memory.
TITLES = {"none": "no cache", "all": "room for all", "half": "room for half"}


#: How many samples are augmented without a loader.
ALONE_SAMPLES = 256

#: How far the misses may be from what they should be.
TOLERANCE = 0.01


@dataclass
class Measured:
    """One epoch of one loader."""

    samples: int
    label_sum: int
    cpu_seconds: float
    #: Samples whose deterministic part came from the cache.
    hits: int

    @property
    def per_cpu_second(self) -> float:
        return self.samples / self.cpu_seconds


#: The loader of this process, and its samples' hits so far. Only a loader's seat has one.
_loaders: dict[str, Any] = {}


def _dataset(settings: Settings) -> Any:
    import sutler
    from PIL import Image
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    from benchmarks.contenders.base import MEAN, STD

    to_tensor = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    if settings.pipeline == "train":
        before = transforms.Compose([])
        after = transforms.Compose(
            [transforms.RandomResizedCrop(settings.size), transforms.RandomHorizontalFlip(), *to_tensor]
        )
    else:
        before = transforms.Compose(
            [transforms.Resize(settings.shorter_side), transforms.CenterCrop(settings.size)]
        )
        after = transforms.Compose(to_tensor)
    listed = ImageFolder(settings.root).samples

    class Photos(sutler.PreparedDataset):
        def __len__(self) -> int:
            return len(listed)

        def prepare(self, index: int) -> Any:
            path, label = listed[index]
            with Image.open(path) as image:
                return before(image.convert("RGB")), label

        def augment(self, prepared: Any) -> Any:
            image, label = prepared
            return after(image), label

    return Photos()


def _take_seat(settings: Settings, memory: int | None) -> None:
    """Makes a loader in the process that it has for itself, and fills its cache."""
    import sutler
    import torch

    torch.set_num_threads(1)
    loader: Any = sutler.Loader(
        _dataset(settings),
        batch_size=settings.batch_size,
        shuffle=True,
        num_workers=settings.threads,
        persistent_workers=True,
        multiprocessing_context="fork",
        cache=memory,
    )
    for _ in loader:
        pass
    _loaders["own"] = loader


def _run_epoch() -> Measured:
    loader = _loaders["own"]
    before = loader.stats()["served"]["decoded"]
    samples = label_sum = 0
    cpu = process_tree.cpu_seconds(os.getpid())
    for _, labels in loader:
        samples += len(labels)
        label_sum += int(labels.sum())
    cpu = process_tree.cpu_seconds(os.getpid()) - cpu
    hits = loader.stats()["served"]["decoded"] - before
    # The kernel counts in ticks; less than one is not nothing.
    return Measured(samples, label_sum, max(cpu, process_tree.TICK_SECONDS), hits)


def _augment_alone(samples: int) -> float:
    """How many samples `augment` makes per second of processor time, of what is in memory."""
    dataset = _loaders["own"].dataset
    prepared = [dataset.prepare(index) for index in range(min(samples, len(dataset)))]
    started = time.process_time()
    for each in prepared:
        dataset.augment(each)
    return len(prepared) / max(time.process_time() - started, 1e-9)


def _kept() -> dict[str, Any]:
    found: dict[str, Any] = _loaders["own"].stats()["cache"]
    return found


def _seat(settings: Settings, memory: int | None) -> Executor:
    """A process of its own for a loader, started afresh so that it inherits no threads."""
    return ProcessPoolExecutor(
        max_workers=1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_take_seat,
        initargs=(settings, memory),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pipeline", choices=["train", "eval"], default="train")
    parser.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="one per usable core by default"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=2, help="list each photo this often")
    parser.add_argument(
        "--memory-mib", type=int, default=2048, help="the cache that is to have room for all samples"
    )


def measure(arguments: argparse.Namespace) -> Outcome:
    with photo_tree(arguments.data, repeat=arguments.repeat) as photos, ExitStack() as stack:
        settings = Settings(
            str(photos.root), arguments.pipeline, batch_size=arguments.batch_size, threads=arguments.workers
        )
        plenty = arguments.memory_mib << 20
        seats = {"none": stack.enter_context(_seat(settings, None))}
        seats["all"] = stack.enter_context(_seat(settings, plenty))
        filled = seats["all"].submit(_kept).result()
        if filled["decoded"]["entries"] != photos.samples:
            raise ContenderError(
                f"{arguments.memory_mib} MiB have room for {filled['decoded']['entries']} of {photos.samples} samples; "
                "pass a larger --memory-mib"
            )
        seats["half"] = stack.enter_context(_seat(settings, filled["used_bytes"] // 2))
        half = seats["half"].submit(_kept).result()
        rounds: dict[str, list[Measured]] = {name: [] for name in seats}
        alone: list[float] = []
        for number in range(arguments.rounds):
            say(f"round {number + 1} of {arguments.rounds}")
            for name in in_turn(seats, number):
                rounds[name].append(seats[name].submit(_run_epoch).result())
            alone.append(seats["none"].submit(_augment_alone, ALONE_SAMPLES).result())
        check_delivered(rounds, photos.samples)
        head = (
            f"A Python dataset and its cache, {settings.pipeline} pipeline on Pillow's images: {photos.description}\n"
            f"{settings.threads} worker processes each, {len(rounds['none'])} interleaved rounds, page cache warm, "
            f"{filled['decoded']['bytes'] / photos.samples / 1000:.0f} kB kept of each sample\n"
        )
        raw = {
            "benchmark": "python-cache",
            "data": photos.description,
            "settings": {name: value for name, value in asdict(settings).items() if name != "root"},
            "kept": {"all": filled, "half": half},
            "augment_alone": alone,
            "contenders": {name: [asdict(each) for each in measured] for name, measured in rounds.items()},
        }
        summary = _summary(rounds, alone, half["decoded"]["entries"])
        return Outcome(head + summary, raw, photos.root.parent)


def _summary(rounds: dict[str, list[Measured]], alone: list[float], kept: int) -> str:
    without = [each.per_cpu_second for each in rounds["none"]]
    rows = []
    for name, title in TITLES.items():
        rates = [each.per_cpu_second for each in rounds[name]]
        gains = report.ratios(rates, without)
        missed = report.median([1 - each.hits / each.samples for each in rounds[name]])
        rows.append(
            [
                title,
                f"{report.median(rates):,.0f}",
                f"{report.median(gains):.2f}",
                report.spread(gains, 2),
                f"{missed:.1%}",
            ]
        )
    bounds = report.ratios(alone, without)
    rows.append(
        [
            "augment alone",
            f"{report.median(alone):,.0f}",
            f"{report.median(bounds):.2f}",
            report.spread(bounds, 2),
            "",
        ]
    )
    header = ["", "samples per CPU second", "× no cache", "min..max", "missed"]
    samples = rounds["half"][0].samples
    oracle = 1 - kept / samples
    worst = max(abs(1 - each.hits / samples - oracle) for each in rounds["half"])
    verdicts = [
        f"target: misses within {TOLERANCE:.0%} of 1 - c = {oracle:.1%}: {worst:.2%} away at most, "
        f"{'reached' if worst <= TOLERANCE else 'missed'}",
    ]
    return "\n".join(["", report.table(header, rows), "", *verdicts])
