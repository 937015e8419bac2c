"""What many worker processes cost in memory when a dataset holds much in it: Python objects, or one NumPy array.

Workers are forked, so at first they share the trainer's pages. A page is copied when it is written to, and Python
writes to an object whenever it looks at it (the count of references) or searches for garbage. Memory counts each page
once, however many processes have it; growth is what the epochs add to the trainer's memory, workers included.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import process_tree, report
from benchmarks.images import say
from benchmarks.outcome import Outcome
from benchmarks.python_dataset import CONTENDERS, TITLES
from benchmarks.seat import seat
from benchmarks.turns import in_turn
from benchmarks.worker import ContenderError

#: Entries that one sample reads, so that an epoch reads all of them in little time.
ENTRIES_PER_SAMPLE = 1000


class Objects:
    """A list of paths and labels, as most datasets keep them."""

    def __init__(self, entries: int, touched: int) -> None:
        self.entries = [
            (f"train/class_{number % 1000:04d}/{number:09d}.jpg", number) for number in range(entries)
        ]
        self.touched = touched

    def __len__(self) -> int:
        return len(self.entries) // ENTRIES_PER_SAMPLE

    def __getitem__(self, index: int) -> Any:
        start = index * ENTRIES_PER_SAMPLE
        part = self.entries[start : start + self.touched]
        # Objects that refer to others, as every sample makes some: enough of them, and Python looks for garbage.
        made = [[path, label] for path, label in part]
        return np.int64(len(made)), np.zeros(16, np.float32)


class Arrays(Objects):
    """The same in two arrays: nothing in them has a count of references."""

    def __init__(self, entries: int, touched: int) -> None:
        super().__init__(0, touched)
        self.paths = np.array(
            [f"train/class_{number % 1000:04d}/{number:09d}.jpg" for number in range(entries)]
        )
        self.labels = np.arange(entries)

    def __len__(self) -> int:
        return len(self.labels) // ENTRIES_PER_SAMPLE

    def __getitem__(self, index: int) -> Any:
        start = index * ENTRIES_PER_SAMPLE
        part = slice(start, start + self.touched)
        made = [
            [str(path), int(label)] for path, label in zip(self.paths[part], self.labels[part], strict=True)
        ]
        return np.int64(len(made)), np.zeros(16, np.float32)


#: The datasets, and how many of its entries a sample reads: a list that an epoch goes through, one of which it reads
#: little, as one that draws from a large pool, and arrays.
DATASETS: dict[str, tuple[str, type[Objects], int]] = {
    "objects": ("a list, all of it read", Objects, ENTRIES_PER_SAMPLE),
    "few-objects": ("a list, a hundredth of it read", Objects, ENTRIES_PER_SAMPLE // 100),
    "arrays": ("NumPy arrays, all of them read", Arrays, ENTRIES_PER_SAMPLE),
}


@dataclass
class Growth:
    """Bytes of the trainer and its workers together."""

    before: process_tree.Memory
    first_batch: process_tree.Memory
    after: process_tree.Memory

    @property
    def proportional(self) -> int:
        """What the epoch, its workers included, has added."""
        return self.after.proportional - self.before.proportional

    @property
    def private(self) -> int:
        """What workers have copied, or made, for themselves since the first batch."""
        return self.after.private - self.first_batch.private


def _run_epoch(name: str, dataset_name: str, entries: int, workers: int, epochs: int) -> Growth:
    """The memory before the epochs, at the first batch, and when the last is over and its workers are still there."""
    import torch

    torch.set_num_threads(1)
    _, kind, touched = DATASETS[dataset_name]
    dataset = kind(entries, touched)
    module, attribute = CONTENDERS[name]
    make = getattr(__import__(module, fromlist=[attribute]), attribute)
    loader = make(
        dataset,
        batch_size=16,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    before = process_tree.memory(os.getpid())
    first = before
    for epoch in range(epochs):
        count = 0
        for step, (sizes, _) in enumerate(loader):
            count += int(sizes.sum())
            if epoch == step == 0:
                first = process_tree.memory(os.getpid())
        if count != len(dataset) * touched:
            raise ContenderError(
                f"{TITLES[name]} read {count:,} entries instead of {len(dataset) * touched:,}"
            )
    return Growth(before, first, process_tree.memory(os.getpid()))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--entries", type=int, default=3_000_000, help="how many entries a dataset holds")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--datasets", nargs="+", choices=list(DATASETS), default=list(DATASETS))


def measure(arguments: argparse.Namespace) -> Outcome:
    growths: dict[str, dict[str, list[Growth]]] = {
        dataset: {name: [] for name in CONTENDERS} for dataset in arguments.datasets
    }
    for number in range(arguments.rounds):
        for dataset in arguments.datasets:
            for name in in_turn(CONTENDERS, number):
                say(f"round {number + 1} of {arguments.rounds}: {dataset}, {TITLES[name]}")
                settings = (name, dataset, arguments.entries, arguments.workers, arguments.epochs)
                with seat() as own:
                    growths[dataset][name].append(own.submit(_run_epoch, *settings).result())
    raw = {
        "benchmark": "worker-memory",
        "settings": {
            name: getattr(arguments, name) for name in ("entries", "workers", "epochs", "rounds", "datasets")
        },
        "growths": {
            dataset: {name: [asdict(each) for each in growth] for name, growth in of_dataset.items()}
            for dataset, of_dataset in growths.items()
        },
    }
    return Outcome(_summary(arguments, growths), raw, Path.cwd())


def _summary(arguments: argparse.Namespace, growths: dict[str, dict[str, list[Growth]]]) -> str:
    head = (
        f"worker memory: {arguments.entries:,} entries, {arguments.workers} forked workers, {arguments.epochs} epochs, "
        f"{arguments.rounds} rounds\n"
    )
    rows, verdicts = [], []
    for dataset, of_dataset in growths.items():
        title = DATASETS[dataset][0]
        for name, measured in of_dataset.items():
            rows.append(
                [
                    f"{title}: {TITLES[name]}",
                    report.mebibytes(report.median([each.before.proportional for each in measured])),
                    report.mebibytes(report.median([each.proportional for each in measured])),
                    report.mebibytes(report.median([each.private for each in measured])),
                ]
            )
        ratios = report.ratios(
            *([each.proportional for each in of_dataset[name]] for name in ("sutler", "torch"))
        )
        reached = report.median(ratios)
        verdict = "reached" if reached <= 1 else f"missed by {reached - 1:.0%}"
        verdicts.append(
            f"target: {title}: growth ≤ 1 × torch: {reached:.2f} ({report.spread(ratios, 2)}), {verdict}"
        )
    header = ["", "before", "growth", "private, since the first batch"]
    return "\n".join([head, report.table(header, rows), "", *verdicts])
