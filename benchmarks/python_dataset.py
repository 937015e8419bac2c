"""A dataset written in Python, decoded by Pillow, through Sutler and PyTorch's loader with as many worker processes.

Both get torchvision's ``ImageFolder`` as it is; with ``--rows``, PyTorch's ``TensorDataset`` of so many rows instead,
whose samples take microseconds, so that handing them over is most of the work. An uncounted epoch warms each up; then
each has one epoch and one fresh start per round, and the one that begins changes from round to round. Processor time is
that of the trainer and all its workers; the first batch is that of a new loader, workers not yet started.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import process_tree, report
from benchmarks.contenders import Settings
from benchmarks.images import say
from benchmarks.outcome import Outcome
from benchmarks.photos import photo_tree
from benchmarks.seat import seat
from benchmarks.turns import in_turn
from benchmarks.worker import check_delivered

#: The loaders, by the module and the name of their class.
CONTENDERS = {"sutler": ("sutler", "Loader"), "torch": ("torch.utils.data", "DataLoader")}
TITLES = {"sutler": "Sutler", "torch": "torch"}

#: Numbers in a row of a tensor.
ROW_VALUES = 16


@dataclass
class Measured:
    """What one contender needed in one round."""

    samples: int
    label_sum: int
    seconds: float
    #: Of the trainer and its workers.
    cpu_seconds: float
    #: From before the construction of a loader to its first batch.
    first_batch: float

    @property
    def per_second(self) -> float:
        return self.samples / self.seconds

    @property
    def cpu_ms(self) -> float:
        return 1000 * self.cpu_seconds / self.samples


#: What compares two contenders: in words, the figure, whether more is better, and how it is written.
FIGURES: list[tuple[str, Callable[[Measured], float], bool, str]] = [
    ("samples per second", lambda each: each.per_second, True, "{:,.0f}"),
    ("CPU per sample", lambda each: each.cpu_ms, False, "{:.2f} ms"),
    ("first batch", lambda each: 1000 * each.first_batch, False, "{:,.0f} ms"),
]

#: How a loader of this process is made, and one whose workers stay. Only the seat of a contender has any.
_makers: dict[str, Callable[[], Any]] = {}
_loaders: dict[str, Any] = {}


def _dataset(settings: Settings, rows: int) -> Any:
    import torch

    if rows == 0:
        from benchmarks.contenders.torch_loader import pil_dataset

        return pil_dataset(settings)
    values = torch.arange(rows * ROW_VALUES, dtype=torch.float32).reshape(rows, ROW_VALUES)
    return torch.utils.data.TensorDataset(values, torch.arange(rows))


def _take_seat(name: str, settings: Settings, rows: int) -> None:
    """Gets ready in the process that a contender has for itself; imports are not counted."""
    import torch

    torch.set_num_threads(1)
    module, attribute = CONTENDERS[name]
    loader = getattr(__import__(module, fromlist=[attribute]), attribute)
    dataset = _dataset(settings, rows)

    def make() -> Any:
        return loader(
            dataset,
            batch_size=settings.batch_size,
            shuffle=settings.shuffle,
            num_workers=settings.threads,
            persistent_workers=True,
            multiprocessing_context="fork",
        )

    _makers[name] = make
    _loaders[name] = make()
    for _ in _loaders[name]:
        pass


def _run_round(name: str) -> Measured:
    """An epoch, and then the first batch of a new loader."""
    samples = label_sum = 0
    cpu, started = process_tree.cpu_seconds(os.getpid()), time.perf_counter()
    for _, labels in _loaders[name]:
        samples += len(labels)
        label_sum += int(labels.sum())
    seconds = time.perf_counter() - started
    cpu = process_tree.cpu_seconds(os.getpid()) - cpu
    started = time.perf_counter()
    iterator = iter(_makers[name]())
    next(iterator)
    first_batch = time.perf_counter() - started
    del iterator  # and its workers, before anybody else has a turn
    # The kernel counts in ticks; less than one is not nothing.
    return Measured(samples, label_sum, seconds, max(cpu, process_tree.TICK_SECONDS), first_batch)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pipeline", choices=["train", "eval"], default="train")
    parser.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="one per usable core by default"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument(
        "--repeat", type=int, default=4, help="list each photo this often, for a long enough epoch"
    )
    parser.add_argument("--rows", type=int, default=0, help="so many rows of a tensor instead of photos")


def measure(arguments: argparse.Namespace) -> Outcome:
    with ExitStack() as stack:
        if arguments.rows:
            samples, root, what = arguments.rows, Path.cwd(), f"{arguments.rows:,} rows of a TensorDataset"
            described = f"{what}, {ROW_VALUES} numbers each"
        else:
            photos = stack.enter_context(photo_tree(arguments.data, repeat=arguments.repeat))
            samples, root, described = photos.samples, photos.root, photos.description
            what = f"{arguments.pipeline} pipeline on Pillow's images: {described}"
        settings = Settings(
            str(root), arguments.pipeline, batch_size=arguments.batch_size, threads=arguments.workers
        )
        seats = {
            name: stack.enter_context(seat(_take_seat, name, settings, arguments.rows)) for name in CONTENDERS
        }
        rounds: dict[str, list[Measured]] = {name: [] for name in CONTENDERS}
        for number in range(arguments.rounds):
            say(f"round {number + 1} of {arguments.rounds}")
            for name in in_turn(CONTENDERS, number):
                rounds[name].append(seats[name].submit(_run_round, name).result())
        check_delivered(rounds, samples)
        raw = {
            "benchmark": "python-dataset",
            "data": described,
            "settings": {name: value for name, value in asdict(settings).items() if name != "root"},
            "contenders": {name: [asdict(each) for each in measured] for name, measured in rounds.items()},
        }
        return Outcome(_summary(settings, what, rounds), raw, root.parent)


def _summary(settings: Settings, what: str, rounds: dict[str, list[Measured]]) -> str:
    head = (
        f"Python dataset, {what}\n"
        f"{settings.threads} worker processes each, batches of {settings.batch_size}, "
        f"{len(rounds['sutler'])} interleaved rounds, page cache warm, every sample delivered\n"
    )
    rows, verdicts = [], []
    for title, figure, more_is_better, form in FIGURES:
        ours, theirs = ([figure(each) for each in rounds[name]] for name in ("sutler", "torch"))
        ratios = report.ratios(ours, theirs)
        reached = report.median(ratios)
        rows.append(
            [
                title,
                form.format(report.median(ours)),
                form.format(report.median(theirs)),
                f"{reached:.2f}",
                report.spread(ratios, 2),
            ]
        )
        met = reached >= 1 if more_is_better else reached <= 1
        sign = "≥" if more_is_better else "≤"
        verdict = "reached" if met else f"missed by {abs(reached - 1):.0%}"
        verdicts.append(f"target: {title} {sign} 1 × torch: {reached:.2f}, {verdict}")
    header = ["", TITLES["sutler"], TITLES["torch"], "Sutler / torch", "min..max"]
    return "\n".join([head, report.table(header, rows), "", *verdicts])
