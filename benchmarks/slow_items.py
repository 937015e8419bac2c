"""How much a few slow items hold up a Python dataset: batches that wait for one, and workers that idle meanwhile.

A twentieth of the items takes twenty times as long as the others. An item sleeps, as one that waits for storage, or
burns processor time, as one that decodes. No loader can finish before all that work, shared evenly by all workers, is
done: the bound. Contenders have the same items in the same order and one epoch per round; the one that begins changes
from round to round. Worker processes stay between epochs.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.images import say
from benchmarks.outcome import Outcome
from benchmarks.seat import seat
from benchmarks.turns import in_turn
from benchmarks.worker import ContenderError


@dataclass(frozen=True)
class Contender:
    """A loader's class and whether it keeps to the order."""

    title: str
    module: str
    name: str
    in_order: bool


CONTENDERS = {
    "sutler": Contender("Sutler", "sutler", "Loader", True),
    "sutler-unordered": Contender("Sutler, in_order=False", "sutler", "Loader", False),
    "torch": Contender("torch", "torch.utils.data", "DataLoader", True),
    "torch-unordered": Contender("torch, in_order=False", "torch.utils.data", "DataLoader", False),
}

#: Whose epochs Sutler's should not exceed, with or without order.
PEER = "torch-unordered"


@dataclass(frozen=True)
class Settings:
    """The items and who asks for them."""

    work: str
    samples: int
    batch_size: int
    workers: int
    fast_ms: float
    slow_ms: float
    slow_share: float
    step_ms: float

    @property
    def slow(self) -> frozenset[int]:
        """The slow items: as many as the share says, at places that are the same in every run."""
        return frozenset(random.Random(0).sample(range(self.samples), round(self.samples * self.slow_share)))

    @property
    def bound_seconds(self) -> float:
        """The least time for all items: no worker idle, and no worker waiting for a core where items burn."""
        at_once = self.workers
        if self.work == "burn":
            at_once = min(at_once, len(os.sched_getaffinity(0)))
        slow = len(self.slow)
        total = slow * self.slow_ms + (self.samples - slow) * self.fast_ms
        return max(total / at_once, self.slow_ms if slow else 0.0) / 1000


class Items:
    """A map-style dataset whose items are their own indices and take their time."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.slow = settings.slow

    def __len__(self) -> int:
        return self.settings.samples

    def __getitem__(self, index: int) -> int:
        seconds = (self.settings.slow_ms if index in self.slow else self.settings.fast_ms) / 1000
        if self.settings.work == "sleep":
            time.sleep(seconds)
        else:
            # Processor time, not wall time: an item stays as much work when its core is shared.
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                pass
        return index


@dataclass
class Epoch:
    """An epoch as the trainer saw it, in seconds."""

    total: float
    first_batch: float
    #: For every batch after the first.
    waits: list[float]


#: The loaders of this process. Only the seat of a contender has any, and only its own.
_loaders: dict[str, Any] = {}


def _take_seat(name: str, settings: Settings) -> None:
    """Makes a contender's loader in the process that it has for itself."""
    contender = CONTENDERS[name]
    module = __import__(contender.module, fromlist=[contender.name])
    _loaders[name] = getattr(module, contender.name)(
        Items(settings),
        batch_size=settings.batch_size,
        num_workers=settings.workers,
        persistent_workers=True,
        multiprocessing_context="fork",
        in_order=contender.in_order,
    )


def _run_epoch(name: str, settings: Settings) -> Epoch:
    """Takes all batches of an epoch, with a pause after each for the trainer's step."""
    seen: list[int] = []
    waits: list[float] = []
    started = asked = time.perf_counter()
    for batch in _loaders[name]:
        waits.append(time.perf_counter() - asked)
        seen.extend(batch.tolist())
        time.sleep(settings.step_ms / 1000)
        asked = time.perf_counter()
    total = time.perf_counter() - started
    if sorted(seen) != list(range(settings.samples)):
        raise ContenderError(
            f"{CONTENDERS[name].title} delivered {len(seen):,} items, {len(set(seen)):,} of them different, "
            f"instead of each of {settings.samples:,} once"
        )
    return Epoch(total, waits[0], waits[1:])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--work", choices=["sleep", "burn"], default="sleep", help="what an item does")
    parser.add_argument("--samples", type=int, default=1280)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--fast-ms", type=float, default=20.0, help="what most items take")
    parser.add_argument("--slow-ms", type=float, default=400.0, help="what slow items take")
    parser.add_argument("--slow-share", type=float, default=0.05, help="how many of the items are slow")
    parser.add_argument("--step-ms", type=float, default=0.0, help="the trainer's pause after each batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), help="all by default"
    )


def measure(arguments: argparse.Namespace) -> Outcome:
    settings = Settings(**{name: getattr(arguments, name) for name in Settings.__dataclass_fields__})
    warm_up: dict[str, Epoch] = {}
    epochs: dict[str, list[Epoch]] = {name: [] for name in arguments.contenders}
    with ExitStack() as stack:
        seats = {name: stack.enter_context(seat(_take_seat, name, settings)) for name in arguments.contenders}
        for name, executor in seats.items():
            say(f"warming up {CONTENDERS[name].title}")
            warm_up[name] = executor.submit(_run_epoch, name, settings).result()
        for number in range(arguments.rounds):
            say(f"round {number + 1} of {arguments.rounds}")
            for name in in_turn(seats, number):
                epochs[name].append(seats[name].submit(_run_epoch, name, settings).result())
    raw = {
        "benchmark": "slow-items",
        "settings": asdict(settings) | {"bound_seconds": settings.bound_seconds},
        "contenders": {
            name: {"warm_up": asdict(warm_up[name]), "epochs": [asdict(epoch) for epoch in measured]}
            for name, measured in epochs.items()
        },
    }
    return Outcome(_summary(settings, warm_up, epochs), raw, Path.cwd())


def _summary(settings: Settings, warm_up: dict[str, Epoch], epochs: dict[str, list[Epoch]]) -> str:
    slow = len(settings.slow)
    rounds = min(len(measured) for measured in epochs.values())
    head = (
        f"slow items: {settings.samples - slow:,} items {settings.work} for {settings.fast_ms:g} ms, {slow:,} for "
        f"{settings.slow_ms:g} ms; batches of {settings.batch_size}, {settings.workers} workers, "
        f"a step of {settings.step_ms:g} ms\n"
        f"bound: {settings.bound_seconds:.2f} s for the work alone; {rounds} interleaved rounds, every item once\n"
    )
    rows = []
    for name, measured in epochs.items():
        totals = [epoch.total for epoch in measured]
        ratios = [total / settings.bound_seconds for total in totals]
        waits = [wait for epoch in measured for wait in epoch.waits]
        rows.append(
            [
                CONTENDERS[name].title,
                f"{report.median(totals):.2f} s",
                report.spread(totals, 2),
                f"{report.median(ratios):.2f}",
                _milliseconds(percentile(waits, 0.5)),
                _milliseconds(percentile(waits, 0.99)),
                _milliseconds(report.median([epoch.first_batch for epoch in measured])),
                _milliseconds(warm_up[name].first_batch),
            ]
        )
    header = [
        "",
        "epoch",
        "min..max",
        "epoch / bound",
        "wait p50",
        "wait p99",
        "first batch",
        "with new workers",
    ]
    return "\n".join([head, report.table(header, rows), *_verdicts(epochs)])


def _verdicts(epochs: dict[str, list[Epoch]]) -> list[str]:
    """The target beside what was reached, where both of its sides were measured."""
    if PEER not in epochs:
        return []
    lines = [""]
    theirs = [epoch.total for epoch in epochs[PEER]]
    for name in epochs:
        if CONTENDERS[name].module == "sutler":
            reached = report.median(report.ratios([epoch.total for epoch in epochs[name]], theirs))
            verdict = "reached" if reached <= 1 else f"missed by {reached - 1:.0%}"
            lines.append(
                f"target: {CONTENDERS[name].title} ≤ 1 × {CONTENDERS[PEER].title}: {reached:.2f}, {verdict}"
            )
    return lines


def percentile(values: Iterable[float], share: float) -> float:
    """The least value that this share of all values does not exceed; 0 where there is none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"
