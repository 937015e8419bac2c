"""How often storage is read when several jobs share an agent, against the least there can be.

Jobs are processes of their own over one dataset, with `order="shared"`; they begin at random moments, and steps that
they are given make their speeds what they should be. A case runs until every job is under way and the agent keeps what
it is to keep; then whole epochs are counted.

The least: with a share `c` of the dataset kept in memory and jobs that run at speeds `r`, the fastest needs every
sample that is not kept read anew in each of its epochs, since it never gets a tensor twice. While it is served `max(r)`
samples, all are served `sum(r)`. So no policy reads less than `(1 - c) * max(r) / sum(r)` per sample served, but for
what the window holds when an epoch begins; with `J` equal jobs that is `(1 - c) / J`.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.images import say
from benchmarks.outcome import Outcome
from benchmarks.paced import PacedJob, attached_loader, run_rounds
from benchmarks.serving import Agent, serving
from benchmarks.worker import ContenderError

#: Reads per served sample should be at most this many times the least.
TARGET = 1.05
#: What a picture of this benchmark takes in the agent's cache: a block with its notes; and what its tables take.
_KEPT_BYTES = 4096 + 20
_TABLE_BYTES_PER_SAMPLE = 16
_SIDE = 44


@dataclass(frozen=True)
class Case:
    """Jobs, and what happens to them."""

    title: str
    #: Steps that each job takes in a round.
    speeds: tuple[int, ...]
    #: The share of the dataset that the agent keeps.
    kept: float = 0.0
    #: The job that comes, or is killed, in the middle of the others' epoch, just before counting begins.
    joins: int | None = None
    killed: int | None = None


def equal_cases(jobs: Sequence[int], kept: Sequence[float]) -> list[Case]:
    return [Case(f"{number} equal jobs", (1,) * number, share) for number in jobs for share in kept]


CASES = [
    *equal_cases((2, 3, 4), (0.0, 0.2, 0.5)),
    Case("2 jobs, one twice as fast", (2, 1)),
    Case("2 jobs, one twice as fast", (2, 1), 0.2),
    Case("3 jobs, one twice as fast", (2, 1, 1), 0.2),
    Case("a third joins in mid-epoch", (1, 1, 1), 0.2, joins=2),
    Case("one of three is killed", (1, 1, 1), 0.2, killed=1),
]


@dataclass
class Counted:
    """What a case read and served while it was counted."""

    case: Case
    #: The share of the dataset that was really kept.
    kept: float
    served: int
    #: Samples that the agent decided to read, whoever they were for.
    reads: int
    #: The same from the bytes that the kernel saw it read, divided by the mean size of a file.
    reads_by_bytes: float
    #: What was let go although somebody wanted it, for lack of room.
    let_go: int
    #: Every job's epochs, each with every sample exactly once.
    epochs: list[int] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def speeds(self) -> list[int]:
        """Those of the jobs that are there while it is counted."""
        return [speed for job, speed in enumerate(self.case.speeds) if job != self.case.killed]

    @property
    def least(self) -> float:
        return (1 - self.kept) * max(self.speeds) / sum(self.speeds)

    @property
    def per_sample(self) -> float:
        return self.reads / self.served

    @property
    def excess(self) -> float:
        """Reads as a multiple of the least: by the agent's own count or by the kernel's, whichever is larger."""
        return max(self.reads, self.reads_by_bytes) / self.served / self.least


@dataclass(frozen=True)
class Dataset:
    root: Path
    samples: int
    mean_bytes: float


@contextmanager
def tiny_pictures(samples: int) -> Iterator[Dataset]:
    """Pictures of noise that take a block of a cache each: what is measured here is which are read, not how fast."""
    import numpy as np
    from PIL import Image

    with tempfile.TemporaryDirectory(prefix="sutler-bench-") as scratch:
        root = Path(scratch) / "pictures"
        rng = np.random.default_rng(0)
        for index in range(samples):
            folder = root / f"class_{index % 10}"
            folder.mkdir(parents=True, exist_ok=True)
            values = rng.integers(0, 256, (_SIDE, _SIDE, 3), dtype=np.uint8)
            Image.fromarray(values).save(folder / f"{index:06d}.jpg", quality=85)
        sizes = [path.stat().st_size for path in root.rglob("*.jpg")]
        yield Dataset(root, samples, sum(sizes) / len(sizes))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument(
        "--window", type=float, default=0.02, help="the agent's window, as a share of the dataset"
    )
    parser.add_argument("--epochs", type=int, default=3, help="how many are counted")
    parser.add_argument("--threads", type=int, default=2, help="the agent's")
    parser.add_argument("--rounds", type=int, default=1, help="how often each case is run, with other phases")
    parser.add_argument("--seed", type=int, default=0, help="decides when jobs begin")


def measure(arguments: argparse.Namespace) -> Outcome:
    counted: list[Counted] = []
    with tiny_pictures(arguments.samples) as dataset:
        for number in range(arguments.rounds):
            for case in CASES:
                say(f"round {number + 1} of {arguments.rounds}: {case.title}, {case.kept:.0%} kept")
                seed = f"{arguments.seed} {number} {case}"
                counted.append(count(case, dataset, arguments, random.Random(seed)))
        raw = {
            "benchmark": "reads",
            "cases": [
                {**asdict(each), "per_sample": each.per_sample, "least": each.least, "excess": each.excess}
                for each in counted
            ],
        }
        return Outcome("\n".join(_summary(arguments, counted)), raw, dataset.root.parent)


def count(case: Case, dataset: Dataset, arguments: argparse.Namespace, phases: random.Random) -> Counted:
    """Runs a case and counts its reads over whole epochs."""
    started = time.perf_counter()
    # Of the slowest job, so that every job has whole epochs.
    epoch = -(-dataset.samples // arguments.batch_size)
    words: list[object] = ["--threads", arguments.threads, "--window", arguments.window]
    if case.kept:
        memory = dataset.samples * (case.kept * _KEPT_BYTES + _TABLE_BYTES_PER_SAMPLE)
        words += ["--memory", round(memory)]
    with serving(*words) as agent, ExitStack() as stack:

        def join(number: int) -> PacedJob:
            job = PacedJob(
                dataset.root, agent.socket, seed=number, batch_size=arguments.batch_size, size=_SIDE
            )
            stack.callback(job.end)
            return job

        jobs: dict[int, PacedJob] = {}

        def run(rounds: int) -> None:
            run_rounds(list(jobs.values()), rounds, [case.speeds[number] for number in jobs])

        if case.kept:
            _fill(agent, dataset)
        for number in range(len(case.speeds)):
            if number != case.joins:
                jobs[number] = join(number)
                run(phases.randrange(epoch))
        # An epoch of everybody: until then jobs were fewer.
        run(epoch)
        if case.killed is not None:
            jobs.pop(case.killed).kill()
            _wait_until_gone(agent, len(jobs))
        if case.joins is not None:
            jobs[case.joins] = join(case.joins)
        before = _look(agent)
        run(arguments.epochs * epoch)
        after = _look(agent)
        kept = sum(cache["encoded"]["entries"] for cache in after.caches) / dataset.samples
        if abs(kept - case.kept) > 0.01:
            raise ContenderError(f"the agent keeps {kept:.1%} of the samples instead of {case.kept:.0%}")
        return Counted(
            case,
            kept,
            served=after.served - before.served,
            reads=after.reads - before.reads,
            reads_by_bytes=(after.bytes_read - before.bytes_read) / dataset.mean_bytes,
            let_go=after.let_go - before.let_go,
            epochs=[job.epochs for job in jobs.values()],
            seconds=time.perf_counter() - started,
        )


@dataclass(frozen=True)
class _Books:
    """The agent's books at one moment."""

    served: int
    reads: int
    let_go: int
    bytes_read: int
    caches: list[dict[str, Any]]


def _fill(agent: Agent, dataset: Dataset) -> None:
    """Lets the agent keep what it has room for: the first samples of a shuffled epoch.

    Were it filled by the jobs that are counted, all that is kept would lie in what the first of them went through
    alone, and stay together there for many epochs; what is counted from the middle of one epoch to the middle of
    another would depend on that.
    """
    words: dict[str, Any] = {"seed": 0, "batch_size": 64, "size": _SIDE, "order": "strict"}
    with attached_loader(dataset.root, agent.socket, **words) as loader:
        for _ in loader:
            pass


def _look(agent: Agent) -> _Books:
    """What the agent has done, once it has prepared what its jobs may have ahead."""
    last = None
    while True:
        shared = agent.status()["shared"]
        pools = [pool["served"] for pool in shared["pools"]]
        if pools == last:
            break
        last = pools
        time.sleep(0.05)
    total = {name: sum(pool[name] for pool in pools) for name in pools[0]}
    lines = Path(f"/proc/{agent.pid}/io").read_text().splitlines()
    bytes_read = next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))
    served = total["taken"] + total["prepared_storage"] + total["prepared_pinned"]
    lost = total["let_go"] + total["displaced"]
    return _Books(served, total["prepared_storage"], lost, bytes_read, shared["caches"])


def _wait_until_gone(agent: Agent, jobs: int) -> None:
    """Waits until the agent has noticed that a job has died."""
    deadline = time.monotonic() + 30
    while len(agent.status()["jobs"]) > jobs:
        if time.monotonic() > deadline:
            raise ContenderError("the agent did not notice within 30 s that a job was killed")
        time.sleep(0.01)


def _summary(arguments: argparse.Namespace, counted: list[Counted]) -> list[str]:
    rows = []
    for each in counted:
        rows.append(
            [
                each.case.title,
                f"{each.kept:.1%}",
                f"{each.served:,}",
                f"{each.per_sample:.4f}",
                f"{each.reads_by_bytes / each.served:.4f}",
                f"{each.least:.4f}",
                f"{each.excess:.3f}",
                f"{each.let_go:,}",
            ]
        )
    header = [
        "",
        "kept",
        "served",
        "reads per sample",
        "by bytes read",
        "the least",
        "of the least",
        "no room",
    ]
    worst = max(each.excess for each in counted)
    verdict = "reached" if worst <= TARGET else "missed"
    return [
        f"reads: {arguments.samples:,} pictures, batches of {arguments.batch_size}, a window of "
        f"{arguments.window:.1%}, jobs in processes of their own at random phases; {arguments.epochs} epochs counted\n",
        report.table(header, rows),
        "",
        f"Every job had every sample once in each of its {sum(sum(each.epochs) for each in counted)} epochs.",
        f"target: reads per sample ≤ {TARGET} × the least in every case: at most {worst:.3f}, {verdict}",
    ]
