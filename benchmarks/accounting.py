"""What it costs that every loader keeps figures of itself, against what its samples cost.

The figures cannot be switched off, so the calls that keep them are timed by themselves, in the worst case: a trainer
that waits for each of its batches. What a sample costs is the processor time of an epoch, with all its threads and
processes, divided by the samples. Processor time is the same on a busy machine, more or less; rounds take turns.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import sutler
from sutler import _sutler
from sutler.analysis.proof import processor_seconds

from benchmarks import report
from benchmarks.contenders.base import Settings
from benchmarks.images import say
from benchmarks.outcome import Outcome
from benchmarks.photos import photo_tree

#: The part of a sample's processor time that keeping figures may take.
TARGET = 0.01
#: A sample that is read at all is read for this long, which is how the figures of a wait are split.
FETCH_SECONDS = 30e-6
#: Processor time is counted in hundredths of a second, so this much of it is known to a hundredth.
SECONDS_MIN = 1.0


class Small:
    """The least that a dataset written in Python does: a few numbers, made anew."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        return np.full(16, index, np.float32)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, default=2048, help="samples in an epoch")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)


def measure(arguments: argparse.Namespace) -> Outcome:
    with photo_tree(arguments.data, samples=arguments.samples) as photos:
        loaders = {
            "photos, training at 224": (_photos(photos.root, arguments, 224), FETCH_SECONDS),
            "photos, training at 32": (_photos(photos.root, arguments, 32), FETCH_SECONDS),
            "16 numbers from a worker process": (_small(arguments), 0.0),
        }
        work: dict[str, list[float]] = {name: [] for name in loaders}
        book: dict[str, list[tuple[float, float]]] = {name: [] for name in loaders}
        try:
            for number in range(arguments.rounds):
                say(f"round {number + 1} of {arguments.rounds}")
                for name, (loader, fetch) in loaders.items():
                    work[name].append(_work(loader, arguments.samples))
                    book[name].append(_sutler.book_cost(fetch=fetch))
        finally:
            for loader, _ in loaders.values():
                loader.close()
        raw = {
            "benchmark": "accounting",
            "data": photos.description,
            "work_s": work,
            "book_s": book,
            "shares": {name: _share(work[name], book[name]) for name in work},
        }
        return Outcome(_summary(work, book), raw, photos.root.parent)


def _photos(root: Path, arguments: argparse.Namespace, size: int) -> sutler.Loader[Any]:
    from benchmarks.contenders.sutler_loader import pipeline

    dataset = sutler.ImageFolder(root, pipeline(Settings(str(root), size=size)), progress=False)
    return sutler.Loader(
        dataset, arguments.batch_size, shuffle=True, num_workers=arguments.threads, output="numpy"
    )


def _small(arguments: argparse.Namespace) -> sutler.Loader[Any]:
    return sutler.Loader(
        Small(arguments.samples), arguments.batch_size, num_workers=1, persistent_workers=True, output="numpy"
    )


def _work(loader: sutler.Loader[Any], samples: int) -> float:
    """Seconds of processors that a sample takes: of as many epochs as it takes to know it to a hundredth."""
    for batch in loader:  # workers are started, and files found in the page cache from now on
        del batch
    begun, epochs, spent = processor_seconds(), 0, 0.0
    while spent < SECONDS_MIN:
        for batch in loader:
            del batch
        epochs += 1
        spent = processor_seconds() - begun
    return spent / epochs / samples


def _share(work: list[float], book: list[tuple[float, float]]) -> float:
    """The part of the work that is the book's, with the cheapest round of each: others had a turn in the rest."""
    return min(worker + consumer for worker, consumer in book) / min(work)


def _summary(work: dict[str, list[float]], book: dict[str, list[tuple[float, float]]]) -> str:
    rows = []
    for name in work:
        worker, consumer = min(book[name], key=sum)
        rows.append(
            [
                name,
                f"{min(work[name]) * 1e6:,.1f} µs",
                f"{worker * 1e9:.0f} ns",
                f"{consumer * 1e9:.0f} ns",
                f"{_share(work[name], book[name]):.2%}",
            ]
        )
    header = ["a sample of", "processor time", "of it the clock", "of it the record", "for figures"]
    lines = []
    for name in work:
        share = _share(work[name], book[name])
        verdict = "reached" if share <= TARGET else f"missed by {share - TARGET:.2%}"
        lines.append(f"target: figures take ≤ {TARGET:.0%} of {name}: {share:.2%}, {verdict}")
    return "\n".join([report.table(header, rows), "", *lines])
