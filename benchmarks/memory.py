"""The memory that Sutler holds after each of many epochs: it should stop growing.

The first epochs fill the batch memory and the buffers of the threads, so the slope is taken over the rest.
"""

from __future__ import annotations

import argparse
import os
import statistics
from contextlib import closing

from benchmarks import report
from benchmarks.contenders import Settings, missing
from benchmarks.outcome import Outcome
from benchmarks.photos import photo_tree
from benchmarks.worker import ContenderError, Worker

#: Epochs at the beginning that the slope leaves out.
EPOCHS_SETTLING = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=4)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch-size", type=int, default=64)


def measure(arguments: argparse.Namespace) -> Outcome:
    reason = missing("sutler", "train")
    if reason is not None:
        raise ContenderError(reason)
    with photo_tree(arguments.data, repeat=arguments.repeat) as photos:
        settings = Settings(str(photos.root), batch_size=arguments.batch_size, threads=arguments.threads)
        with closing(Worker("sutler", settings)) as worker:
            before = worker.resident_bytes()
            after = []
            for number in range(arguments.epochs):
                worker.epoch(number)
                after.append(worker.resident_bytes())
            arena = worker.facts()["arena_bytes"]
        settled = after[min(EPOCHS_SETTLING, len(after) - 1) :]
        slope = statistics.linear_regression(range(len(settled)), settled).slope if len(settled) > 1 else 0.0
        growth = settled[-1] - settled[0]
        rows = [[str(number), report.mebibytes(held)] for number, held in enumerate(after)]
        head = (
            f"memory: {photos.description}, {settings.threads} threads, batches of {settings.batch_size}\n"
            f"before the first epoch {report.mebibytes(before)} (Python, torch and the listing); "
            f"batch memory {report.mebibytes(arena)}\n"
        )
        summary = "\n".join(
            [
                head,
                report.table(["epoch", "resident after it"], rows),
                "",
                report.sparkline(after),
                f"from epoch {len(after) - len(settled)} on: {growth / 2**20:+.2f} MiB in all, "
                f"{slope / 2**10:+.1f} KiB per epoch",
            ]
        )
        raw = {
            "benchmark": "memory",
            "data": photos.description,
            "before_bytes": before,
            "arena_bytes": arena,
            "resident_bytes": after,
            "slope_bytes_per_epoch": slope,
        }
        return Outcome(summary, raw, photos.root.parent)
