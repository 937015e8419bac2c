"""One job through a host agent beside the same job with an engine of its own, taking turns on equal threads.

Both deliver the same batches in the same order; what differs is who prepares them and how they come to the trainer.
An uncounted epoch warms each of them up. Then each has one epoch per round; who begins changes from round to round.
*CPU* is the processor time, user and system, of the training process and of the agent.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks import report
from benchmarks.contenders import Epoch, Settings
from benchmarks.images import say
from benchmarks.outcome import Outcome
from benchmarks.photos import photo_tree
from benchmarks.process_tree import TICK_SECONDS, cpu_seconds
from benchmarks.serving import serving
from benchmarks.turns import in_turn
from benchmarks.worker import ContenderError, Worker

#: A job through an agent should be at least this fast, however small its batches are.
TARGET = 0.95
#: The longer side of small photos, and the side of what becomes of them.
SMALL_SIDE, SMALL_SIZE = 160, 128


@dataclass
class Turns:
    """The epochs of both, by round."""

    photos: str
    batch_size: int
    embedded: list[Epoch] = field(default_factory=list)
    through_agent: list[Epoch] = field(default_factory=list)
    #: Processor seconds of the same epochs.
    embedded_cpu: list[float] = field(default_factory=list)
    through_agent_cpu: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return report.ratios(
            [epoch.per_second for epoch in self.through_agent], [epoch.per_second for epoch in self.embedded]
        )

    @property
    def cpu_ratio(self) -> float:
        """Over all rounds, since the kernel counts in ticks; an epoch of a few pictures may take less than one."""
        return sum(self.through_agent_cpu) / max(sum(self.embedded_cpu), TICK_SECONDS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="one per usable core by default"
    )
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 1])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--samples", type=int, default=2048, help="in an epoch of large photos")
    parser.add_argument(
        "--small-samples", type=int, default=16384, help=f"in an epoch of photos of {SMALL_SIDE} pixels"
    )


@contextmanager
def _trees(arguments: argparse.Namespace) -> Iterator[list[tuple[str, Path, int]]]:
    """Large photos and small ones: in words, where, and what size comes out."""
    from sutler.testing import make_photos

    with ExitStack() as stack:
        trees = []
        if arguments.samples:
            large = stack.enter_context(photo_tree(arguments.data, samples=arguments.samples))
            trees.append((f"large: {large.description}", large.root, 224))
        if arguments.small_samples:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sutler-bench-")))
            make_photos(folder, 512, 16, longer_side=SMALL_SIDE)
            small = stack.enter_context(photo_tree(folder, samples=arguments.small_samples))
            trees.append((f"small: {small.description}", small.root, SMALL_SIZE))
        yield trees


def measure(arguments: argparse.Namespace) -> Outcome:
    turns = []
    with _trees(arguments) as trees:
        if not trees:
            raise ContenderError("--samples and --small-samples are both 0, so there is nothing to measure")
        for description, root, size in trees:
            for batch_size in arguments.batch_sizes:
                settings = Settings(str(root), batch_size=batch_size, threads=arguments.threads, size=size)
                turns.append(take_turns(description, settings, arguments.rounds))
        summary = "\n".join(_summary(arguments, turns))
        raw = {"benchmark": "agent", "turns": [asdict(each) for each in turns]}
        return Outcome(summary, raw, trees[0][1].parent)


def take_turns(description: str, settings: Settings, rounds: int) -> Turns:
    turns = Turns(description, settings.batch_size)
    with serving("--threads", settings.threads) as agent, ExitStack() as stack:
        embedded = stack.enter_context(closing(Worker("sutler", settings)))
        attached = stack.enter_context(
            closing(Worker("sutler", dataclasses.replace(settings, agent=agent.socket)))
        )
        sides = [
            (embedded, [embedded.pid], turns.embedded, turns.embedded_cpu),
            (attached, [attached.pid, agent.pid], turns.through_agent, turns.through_agent_cpu),
        ]
        for number in range(rounds + 1):
            say(f"{description.split(':')[0]}, batches of {settings.batch_size}: epoch {number} of {rounds}")
            for worker, pids, epochs, cpu in in_turn(sides, number):
                before = sum(map(cpu_seconds, pids))
                epoch = worker.epoch(number)
                if number:
                    epochs.append(epoch)
                    cpu.append(sum(map(cpu_seconds, pids)) - before)
    for one, other in zip(turns.embedded, turns.through_agent, strict=True):
        if (one.samples, one.label_sum) != (other.samples, other.label_sum):
            raise ContenderError("the agent did not deliver the samples that the embedded loader did")
    return turns


def _summary(arguments: argparse.Namespace, turns: list[Turns]) -> list[str]:
    rows = [
        [
            each.photos.split(":")[0],
            str(each.batch_size),
            f"{report.median([epoch.per_second for epoch in each.embedded]):,.0f}",
            f"{report.median([epoch.per_second for epoch in each.through_agent]):,.0f}",
            f"{report.median(each.ratios):.3f}",
            report.spread(each.ratios, 3),
            f"{each.cpu_ratio:.3f}",
        ]
        for each in turns
    ]
    header = ["photos", "batch", "embedded img/s", "agent img/s", "agent / embedded", "min..max", "CPU"]
    lines = [
        f"agent: one job, {arguments.threads} threads on either side, {arguments.rounds} interleaved rounds",
        *dict.fromkeys(each.photos for each in turns),
        "",
        report.table(header, rows),
        "",
    ]
    for each in turns:
        reached = report.median(each.ratios)
        verdict = "reached" if reached >= TARGET else "missed"
        lines.append(
            f"target: {each.photos.split(':')[0]} photos, batches of {each.batch_size}: "
            f"≥ {TARGET} × embedded: {reached:.3f}, {verdict}"
        )
    return lines
