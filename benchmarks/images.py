"""Images per second through Sutler, its bare loop and its peers, taking turns on equal threads.

An uncounted epoch warms each of them up and fills the page cache. Then each has one epoch per round; the one that
begins changes from round to round. Ratios are taken within a round, and their median is reported.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack, closing
from dataclasses import asdict

from benchmarks import report
from benchmarks.contenders import CONTENDERS, Epoch, Settings, missing
from benchmarks.outcome import Outcome
from benchmarks.photos import Photos, photo_tree
from benchmarks.turns import in_turn
from benchmarks.worker import Worker, check_delivered

#: What Sutler's rate divided by another's should at least be; DALI counts with the better of its two pipelines.
TARGETS = {"torch-pil": 3.0, "torch-v2": 2.0, "dali": 1.5, "bare": 0.85}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pipeline", choices=["train", "eval"], default="train")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="one per usable core by default"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument(
        "--repeat", type=int, default=1, help="list each photo this often, for a long enough epoch"
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=[name for name in CONTENDERS if name != "sutler"],
        default=[name for name in CONTENDERS if name != "sutler"],
        help="whom to compare with; all by default",
    )


def measure(arguments: argparse.Namespace) -> Outcome:
    with photo_tree(arguments.data, repeat=arguments.repeat) as photos:
        settings = Settings(
            str(photos.root), arguments.pipeline, batch_size=arguments.batch_size, threads=arguments.threads
        )
        measured = take_turns(["sutler", *arguments.peers], settings, arguments.rounds)
        check_delivered(measured.epochs, photos.samples)
        return Outcome(measured.summary(photos), measured.raw(photos), photos.root.parent)


class Measured:
    """The epochs of all contenders, by round."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.notes: list[str] = []
        #: From before construction to the first batch in hand, per contender; the bare loop has none.
        self.first_batch: dict[str, float] = {}
        self.epochs: dict[str, list[Epoch]] = {}

    def rates(self, name: str) -> list[float]:
        return [epoch.per_second for epoch in self.epochs[name]]

    def ratios(self, name: str) -> list[float]:
        return report.ratios(self.rates("sutler"), self.rates(name))

    def summary(self, photos: Photos) -> str:
        settings = self.settings
        head = (
            f"images, {settings.pipeline} pipeline: {photos.description}\n"
            f"{settings.threads} threads or workers each, batches of {settings.batch_size}, "
            f"{len(self.epochs['sutler'])} interleaved rounds, page cache warm, every sample delivered\n"
        )
        rows = []
        for name in self.epochs:
            rates, ratios = self.rates(name), self.ratios(name)
            first = self.first_batch.get(name)
            rows.append(
                [
                    CONTENDERS[name].title,
                    f"{report.median(rates):,.0f}",
                    report.spread(rates),
                    "" if name == "sutler" else f"{report.median(ratios):.2f}",
                    "" if name == "sutler" else report.spread(ratios, 2),
                    "" if first is None else f"{first:.2f} s",
                ]
            )
        header = ["", "img/s", "min..max", "Sutler / it", "min..max", "first batch"]
        return "\n".join([head, report.table(header, rows), "", *self.verdicts(), *self.notes]).rstrip()

    def verdicts(self) -> list[str]:
        """Each target beside what was reached."""
        lines = []
        for target_name, target in TARGETS.items():
            name = self.best_of(target_name)
            if name is None:
                continue
            reached = report.median(self.ratios(name))
            verdict = "reached" if reached >= target else f"missed by {1 - reached / target:.0%}"
            lines.append(f"target ≥ {target:g} × {CONTENDERS[name].title}: {reached:.2f}, {verdict}")
        return lines

    def best_of(self, name: str) -> str | None:
        """The contender itself, or the faster of those whose names begin with its."""
        variants = [each for each in self.epochs if each == name or each.startswith(f"{name}-")]
        return max(variants, key=lambda each: report.median(self.rates(each)), default=None)

    def raw(self, photos: Photos) -> dict[str, object]:
        return {
            "benchmark": "images",
            "data": photos.description,
            "settings": {key: value for key, value in asdict(self.settings).items() if key != "root"},
            "notes": self.notes,
            "contenders": {
                name: {
                    "per_s": self.rates(name),
                    "per_s_median": report.median(self.rates(name)),
                    "sutler_ratio": self.ratios(name),
                    "sutler_ratio_median": report.median(self.ratios(name)),
                    "first_batch_s": self.first_batch.get(name),
                    "epochs": [asdict(epoch) for epoch in epochs],
                }
                for name, epochs in self.epochs.items()
            },
        }


def take_turns(names: list[str], settings: Settings, rounds: int) -> Measured:
    """Warms all contenders up and measures them in rounds."""
    measured = Measured(settings)
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in names:
            reason = missing(name, settings.pipeline)
            if reason is not None:
                measured.notes.append(reason)
                continue
            say(f"warming up {CONTENDERS[name].title}")
            worker = stack.enter_context(closing(Worker(name, settings)))
            epoch = worker.epoch(0)
            workers[name] = worker
            if epoch.first_batch_seconds:
                measured.first_batch[name] = worker.construction_seconds + epoch.first_batch_seconds
        measured.epochs = {name: [] for name in workers}
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for name in in_turn(workers, number):
                measured.epochs[name].append(workers[name].epoch(number + 1))
    return measured


def say(text: str) -> None:
    """Tells whoever waits how far it is."""
    print(text, file=sys.stderr, flush=True)
