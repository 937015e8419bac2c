"""What it takes to get batches of an iterable dataset from worker processes to the trainer.

Samples are made once, so that an epoch is collation and transport alone: large float and byte images, small vectors,
and dictionaries with strings. Contenders run one epoch of a case after the other, and the one that begins changes from
round to round. Worker processes stay between epochs; the trainer reads one value of each batch and lets go of it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
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

CONTENDERS = {"sutler": ("sutler", "Loader"), "torch": ("torch.utils.data", "DataLoader")}


@dataclass(frozen=True)
class Case:
    """Samples of one kind, and how many batches of them make an epoch."""

    title: str
    batch_size: int
    batches: int
    #: Bytes of a batch's tensors, to tell a rate.
    batch_bytes: int


CASES = {
    "floats": Case("64 images of 3 x 224 x 224 floats", 64, 60, 64 * 3 * 224 * 224 * 4),
    "bytes": Case("64 images of 3 x 224 x 224 bytes", 64, 120, 64 * 3 * 224 * 224),
    "edge": Case("32 images of 3 x 112 x 112 floats", 32, 120, 32 * 3 * 112 * 112 * 4),
    "vectors": Case("32 vectors of 16 floats", 32, 600, 32 * 16 * 4),
    "dicts": Case("32 dictionaries of 128 tokens, a text and a number", 32, 600, 32 * (128 + 1) * 8),
}


def _sample(case: str) -> Any:
    import torch

    generator = torch.Generator().manual_seed(0)
    if case == "dicts":
        tokens = torch.randint(50_000, (128,), generator=generator)
        return {"tokens": tokens, "text": "a sentence of about forty characters or so", "label": 7}
    if case == "bytes":
        return torch.randint(256, (3, 224, 224), dtype=torch.uint8, generator=generator)
    shape = {"floats": (3, 224, 224), "edge": (3, 112, 112), "vectors": (16,)}[case]
    return torch.rand(shape, generator=generator)


def _dataset(case: str, samples: int) -> Any:
    from torch.utils.data import IterableDataset, get_worker_info

    class Repeated(IterableDataset[Any]):
        def __init__(self) -> None:
            self.sample = _sample(case)

        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            for _ in range(samples // (1 if info is None else info.num_workers)):
                yield self.sample

    return Repeated()


#: The loaders of this process, by contender and case. Only the seat of a contender has any.
_loaders: dict[tuple[str, str], Any] = {}


def _take_seat(name: str, cases: list[str], workers: int, share: float) -> None:
    module, loader = CONTENDERS[name]
    make = getattr(__import__(module, fromlist=[loader]), loader)
    for case in cases:
        _loaders[name, case] = make(
            _dataset(case, _batches(case, workers, share) * CASES[case].batch_size),
            batch_size=CASES[case].batch_size,
            num_workers=workers,
            persistent_workers=True,
            multiprocessing_context="fork",
        )


def _batches(case: str, workers: int, share: float) -> int:
    """The batches of an epoch, as many from each worker."""
    return max(1, round(CASES[case].batches * share / workers)) * workers


def _run_epoch(name: str, case: str) -> tuple[float, int]:
    started = time.perf_counter()
    batches = 0
    for batch in _loaders[name, case]:
        tensor = batch["tokens"] if isinstance(batch, dict) else batch
        tensor.view(-1)[-1].item()
        batches += 1
    return time.perf_counter() - started, batches


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--share", type=float, default=1.0, help="how much of each epoch to run")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), help="all by default")


def measure(arguments: argparse.Namespace) -> Outcome:
    seconds: dict[str, dict[str, list[float]]] = {
        case: {name: [] for name in CONTENDERS} for case in arguments.cases
    }
    with ExitStack() as stack:
        settings = (arguments.cases, arguments.workers, arguments.share)
        seats = {name: stack.enter_context(seat(_take_seat, name, *settings)) for name in CONTENDERS}
        for number in range(arguments.rounds + 1):
            say(f"round {number} of {arguments.rounds}" if number else "warming up")
            for case in arguments.cases:
                for name in in_turn(seats, number):
                    taken, batches = seats[name].submit(_run_epoch, name, case).result()
                    expected = _batches(case, arguments.workers, arguments.share)
                    if batches != expected:
                        raise ContenderError(f"{name} delivered {batches} batches of {case}, not {expected}")
                    if number:
                        seconds[case][name].append(taken)
    raw = {
        "benchmark": "streams",
        "settings": {
            "workers": arguments.workers,
            "rounds": arguments.rounds,
            "share": arguments.share,
            "cases": {case: asdict(CASES[case]) for case in arguments.cases},
        },
        "seconds": seconds,
    }
    return Outcome(_summary(arguments, seconds), raw, Path.cwd())


def _summary(arguments: argparse.Namespace, seconds: dict[str, dict[str, list[float]]]) -> str:
    head = (
        f"streams: an iterable dataset whose samples cost nothing, {arguments.workers} workers, {arguments.rounds} "
        "interleaved rounds; milliseconds per batch, median (min..max)\n"
    )
    rows = []
    for case, found in seconds.items():
        batches = _batches(case, arguments.workers, arguments.share)
        each = {name: [1000 * taken / batches for taken in times] for name, times in found.items()}
        ratio = report.median(report.ratios(found["torch"], found["sutler"]))
        rate = CASES[case].batch_bytes / report.median(each["sutler"]) / 1e6
        rows.append(
            [
                CASES[case].title,
                *(f"{report.median(each[name]):.3f} ({report.spread(each[name], 3)})" for name in CONTENDERS),
                f"{ratio:.2f}",
                f"{rate:.2f} GB/s",
            ]
        )
    return "\n".join([head, report.table(["", *CONTENDERS, "torch / sutler", "sutler moves"], rows)])
