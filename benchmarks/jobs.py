"""Several training jobs on one machine: each with its own loader, or all of them through one agent that they share.

Every job is a process of its own and goes over the same photos, with an order and random numbers of its own; together
they have as many workers as `--threads` says, whoever owns them. They begin one after the other, a part of an epoch
apart, and what is counted is the time in which all of them run. Contenders take turns.

The makespan is that of a queue of short jobs, two at a time, from nothing to the last batch of the last one: a
hyper-parameter search.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.contenders.base import Settings
from benchmarks.images import say
from benchmarks.outcome import Outcome
from benchmarks.photos import photo_tree
from benchmarks.serving import serving
from benchmarks.worker import ContenderError

CONTENDERS = {
    "torch": "torch + PIL, a loader each",
    "sutler": "Sutler, a loader each",
    "agent": 'Sutler, one agent, order="shared"',
}
#: Four jobs that share should be this many times as fast as four of PyTorch's.
TARGET_TOGETHER = 3.45
#: A queue of short jobs should take at most this part of PyTorch's time.
TARGET_MAKESPAN = 0.55


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, default=1280, help="samples in an epoch, made by linking")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--threads", type=int, default=4, help="workers of all jobs together")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long all jobs run together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--window", type=float, default=0.02, help="the agent's window, as a share of the dataset"
    )
    parser.add_argument("--queue", type=int, default=12, help="how many short jobs the makespan is taken of")
    parser.add_argument("--queue-epochs", type=int, default=1, help="how many epochs each of those has")


@dataclass
class Ran:
    """What one job did while all of them ran."""

    samples: int
    seconds: float
    #: Samples that were read from storage for it; PyTorch reads every one.
    reads: int


def _loader(name: str, settings: Settings, seed: int, socket: str | None) -> Any:
    if name == "torch":
        import torch
        from torch.utils.data import DataLoader

        from benchmarks.contenders.torch_loader import pil_dataset

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        return DataLoader(
            pil_dataset(settings),
            batch_size=settings.batch_size,
            shuffle=True,
            num_workers=settings.threads,
            persistent_workers=True,
        )
    import sutler

    from benchmarks.contenders.sutler_loader import pipeline

    dataset = sutler.ImageFolder(settings.root, transform=pipeline(settings), progress=False)
    options: dict[str, Any] = {"agent": socket, "order": "shared"} if name == "agent" else {}
    return sutler.Loader(
        dataset,
        batch_size=settings.batch_size,
        shuffle=True,
        num_workers=settings.threads,
        seed=seed,
        **options,
    )


def _reads(loader: Any) -> int:
    return int(loader.stats()["storage_reads"]) if hasattr(loader, "stats") else 0


def run_together(
    name: str, settings: Settings, number: int, socket: str | None, folder: str, seconds: float
) -> Ran:
    """One of several jobs: says when it runs, and counts what comes from when all of them do."""
    loader = _loader(name, settings, number, socket)
    # A part of an epoch apart, as jobs are that were not started together.
    skipped = number * settings.batch_size * 2
    samples, reads_before, started = 0, 0, 0.0
    begin = Path(folder) / "begin"
    while True:
        for _, labels in loader:
            skipped -= len(labels)
            now = time.perf_counter()
            if skipped <= 0 and skipped > -len(labels) * 2:
                (Path(folder) / f"runs-{number}").touch()
            if not started and begin.exists():
                started, reads_before = now, _reads(loader)
            elif started:
                samples += len(labels)
                if now - started >= seconds:
                    reads = samples if name == "torch" else _reads(loader) - reads_before
                    return Ran(samples, now - started, reads)


def run_short(name: str, settings: Settings, number: int, socket: str | None, epochs: int) -> int:
    """A short job, from nothing to its last batch."""
    loader = _loader(name, settings, number, socket)
    return sum(len(labels) for _ in range(epochs) for _, labels in loader)


@contextmanager
def agent_for(name: str, arguments: argparse.Namespace) -> Iterator[str | None]:
    """The agent's socket, where the contender has one."""
    if name != "agent":
        yield None
        return
    with serving("--threads", arguments.threads, "--window", arguments.window) as agent:
        yield agent.socket


def processes(count: int) -> ProcessPoolExecutor:
    """Processes that are started afresh, so that they inherit no threads."""
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1)


def measure_together(name: str, settings: Settings, arguments: argparse.Namespace) -> list[Ran]:
    jobs = arguments.jobs
    with (
        tempfile.TemporaryDirectory() as folder,
        agent_for(name, arguments) as socket,
        processes(jobs) as pool,
    ):
        running = [
            pool.submit(run_together, name, settings, number, socket, folder, arguments.seconds)
            for number in range(jobs)
        ]
        while len(list(Path(folder).glob("runs-*"))) < jobs and not any(job.done() for job in running):
            time.sleep(0.05)
        (Path(folder) / "begin").touch()
        return [job.result() for job in running]


def measure_queue(name: str, settings: Settings, arguments: argparse.Namespace) -> float:
    started = time.perf_counter()
    with agent_for(name, arguments) as socket, processes(2) as pool:
        epochs = arguments.queue_epochs
        running = [
            pool.submit(run_short, name, settings, number, socket, epochs)
            for number in range(arguments.queue)
        ]
        for job in running:
            if job.result() != arguments.samples * epochs:
                raise ContenderError(f"{CONTENDERS[name]} did not serve every sample once")
        return time.perf_counter() - started


def measure(arguments: argparse.Namespace) -> Outcome:
    together: dict[str, list[list[Ran]]] = {name: [] for name in CONTENDERS}
    queues: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    with photo_tree(arguments.data, samples=arguments.samples) as photos:

        def settings(threads: int) -> Settings:
            return Settings(str(photos.root), batch_size=arguments.batch_size, threads=threads, size=224)

        for number in range(arguments.rounds):
            for name in CONTENDERS:
                say(f"round {number + 1} of {arguments.rounds}: {CONTENDERS[name]}, together")
                each = settings(max(1, arguments.threads // arguments.jobs))
                together[name].append(measure_together(name, each, arguments))
        for name in CONTENDERS if arguments.queue else ():
            say(f"{CONTENDERS[name]}, a queue")
            queues[name].append(measure_queue(name, settings(max(1, arguments.threads // 2)), arguments))
        summary = "\n".join(_summary(arguments, photos.description, together, queues))
        raw = {
            "benchmark": "jobs",
            "data": photos.description,
            "together": {
                name: [[asdict(job) for job in jobs] for jobs in rounds] for name, rounds in together.items()
            },
            "queues_seconds": queues,
        }
        return Outcome(summary, raw, photos.root.parent)


def _rate(jobs: list[Ran]) -> float:
    return sum(job.samples / job.seconds for job in jobs)


def _summary(
    arguments: argparse.Namespace,
    description: str,
    together: dict[str, list[list[Ran]]],
    queues: dict[str, list[float]],
) -> list[str]:
    rates = {name: [_rate(jobs) for jobs in rounds] for name, rounds in together.items()}
    rows = []
    for name, title in CONTENDERS.items():
        reads = [
            sum(job.reads for job in jobs) / max(1, sum(job.samples for job in jobs))
            for jobs in together[name]
        ]
        slowest = [min(job.samples / job.seconds for job in jobs) for jobs in together[name]]
        rows.append(
            [
                title,
                f"{report.median(rates[name]):,.0f}",
                report.spread(rates[name], 0),
                f"{report.median(report.ratios(rates[name], rates['torch'])):.2f}",
                f"{report.median(slowest):,.0f}",
                f"{report.median(reads):.3f}",
                f"{report.median(queues[name]):.1f} s" if queues[name] else "",
            ]
        )
    header = ["", "img/s of all jobs", "min..max", "of torch", "slowest job", "reads per sample", "makespan"]
    lines = [
        f"jobs: {arguments.jobs} at a time, {description}, {arguments.threads} workers in all, batches of "
        f"{arguments.batch_size}; {arguments.rounds} interleaved rounds of {arguments.seconds:g} s\n"
        f"makespan: {arguments.queue} jobs of {arguments.queue_epochs} epochs, two at a time\n",
        report.table(header, rows),
        "",
    ]
    reached = report.median(report.ratios(rates["agent"], rates["torch"]))
    verdict = "reached" if reached >= TARGET_TOGETHER else "missed"
    lines.append(f"target: jobs that share ≥ {TARGET_TOGETHER} × torch's: {reached:.2f}, {verdict}")
    if queues["torch"]:
        part = report.median(queues["agent"]) / report.median(queues["torch"])
        verdict = "reached" if part <= TARGET_MAKESPAN else "missed"
        lines.append(f"target: makespan ≤ {TARGET_MAKESPAN} × torch's: {part:.2f}, {verdict}")
    return lines
