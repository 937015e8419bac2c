"""How long a large folder takes to list, and how soon the first batch comes.

Every measurement runs in a fresh process, after its imports. The folder was written just before, so its entries and the
photos behind them are in the page cache: what is measured is the work of the loaders.
"""

from __future__ import annotations

import argparse
import os
from contextlib import closing
from dataclasses import asdict, dataclass

from benchmarks import report
from benchmarks.contenders import CONTENDERS, Settings, missing
from benchmarks.images import say
from benchmarks.outcome import Outcome
from benchmarks.photos import Photos, photo_tree
from benchmarks.worker import Worker

#: Seconds from the loader's construction to its first batch.
TARGET_SECONDS = 0.3
CLASSES_MAX = 1000
CONTENDER_NAMES = ("sutler", "torch-pil", "torch-v2")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)


@dataclass
class Start:
    """The seconds of one start."""

    listing: float
    #: From the end of the listing to the first batch.
    first_batch: float

    @property
    def total(self) -> float:
        return self.listing + self.first_batch


def measure(arguments: argparse.Namespace) -> Outcome:
    classes = max(1, min(CLASSES_MAX, arguments.files // 100))
    say(f"linking {arguments.files:,} files")
    with photo_tree(arguments.data, samples=arguments.files, classes=classes) as photos:
        settings = Settings(str(photos.root), batch_size=arguments.batch_size, threads=arguments.threads)
        notes = [reason for name in CONTENDER_NAMES if (reason := missing(name, "train"))]
        names = [name for name in CONTENDER_NAMES if missing(name, "train") is None]
        starts: dict[str, list[Start]] = {name: [] for name in names}
        # The first round pays for whatever the system has not cached yet, and is not counted.
        for number in range(arguments.rounds + 1):
            say(f"round {number} of {arguments.rounds}" if number else "warming up")
            for name in names:
                start = _start(name, settings)
                if number:
                    starts[name].append(start)
        return Outcome(
            _summary(photos, classes, settings, starts, notes),
            _raw(photos, starts, notes),
            photos.root.parent,
        )


def _start(name: str, settings: Settings) -> Start:
    with closing(Worker(name, settings)) as worker:
        first_batch = worker.construction_seconds - worker.listing_seconds + worker.first_batch()
        return Start(worker.listing_seconds, first_batch)


def _summary(
    photos: Photos, classes: int, settings: Settings, starts: dict[str, list[Start]], notes: list[str]
) -> str:
    head = (
        f"startup: {photos.description} in {classes:,} classes\n"
        f"{settings.threads} threads or workers each, batches of {settings.batch_size}, "
        "fresh processes, page cache warm\n"
    )
    rows = []
    for name, measured in starts.items():
        listing, first, total = (
            [getattr(start, part) for start in measured] for part in ("listing", "first_batch", "total")
        )
        ratios = report.ratios(total, [start.total for start in starts["sutler"]])
        rows.append(
            [
                CONTENDERS[name].title,
                f"{report.median(listing):.3f} s",
                report.spread(listing, 3),
                f"{report.median(first):.3f} s",
                report.spread(first, 3),
                f"{report.median(total):.3f} s",
                "" if name == "sutler" else f"{report.median(ratios):.1f}",
            ]
        )
    header = ["", "listing", "min..max", "then first batch", "min..max", "in all", "it / Sutler"]
    reached = report.median([start.first_batch for start in starts["sutler"]])
    verdict = "reached" if reached <= TARGET_SECONDS else "missed"
    target = f"target: first batch ≤ {TARGET_SECONDS} s after construction: {reached:.3f} s, {verdict}"
    return "\n".join([head, report.table(header, rows), "", target, *notes])


def _raw(photos: Photos, starts: dict[str, list[Start]], notes: list[str]) -> dict[str, object]:
    return {
        "benchmark": "startup",
        "data": photos.description,
        "notes": notes,
        "contenders": {name: [asdict(start) for start in measured] for name, measured in starts.items()},
    }
