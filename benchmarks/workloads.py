"""Whole workloads with slow samples beside an emulated accelerator: speech with a heavy step, photos small and large.

One in five clips goes through an artificial heavy step; one in ten photos has 20 megapixels instead of 0.2. The
accelerator is a pause of fixed length for each batch, chosen so that the work of all samples would keep the cores
busy for `--load` of the time: whoever loses no time keeps the accelerator busy all the time. Contenders have the same
samples, the same transforms and as many workers, and each delivers every sample once per epoch. Then the same with
none and with all of the samples slow, where nobody can gain anything and nobody should lose.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.images import say
from benchmarks.outcome import Outcome
from benchmarks.seat import seat
from benchmarks.slow_items import Epoch, percentile
from benchmarks.worker import ContenderError
from benchmarks.workload_data import Mix, Photos, Speech, make_photos

#: How many samples are slow in the mix that a workload is about.
SLOW_SHARES = {"speech": 0.2, "photos": 0.1}
#: How far apart equals may be.
PARITY = 0.03


@dataclass(frozen=True)
class Contender:
    """A loader, how it orders batches, and whether it takes the folder itself instead of the dataset in Python."""

    title: str
    module: str
    name: str
    in_order: bool
    native: bool = False


CONTENDERS = {
    "torch": Contender("torch", "torch.utils.data", "DataLoader", True),
    "torch-unordered": Contender("torch, in_order=False", "torch.utils.data", "DataLoader", False),
    "sutler": Contender("Sutler", "sutler", "Loader", True),
    "sutler-ready": Contender('Sutler, order="ready"', "sutler", "Loader", False),
    "sutler-native": Contender("Sutler, native", "sutler", "Loader", True, native=True),
    "sutler-native-ready": Contender('Sutler, native, order="ready"', "sutler", "Loader", False, native=True),
}


@dataclass(frozen=True)
class Workload:
    """Samples and who asks for them."""

    kind: str
    mix: Mix
    folder: str
    batch_size: int
    workers: int
    heavy_ms: float

    def dataset(self) -> Any:
        """The samples, as a dataset written in Python."""
        if self.kind == "speech":
            return Speech(Path(self.folder), self.mix, self.heavy_ms)
        return Photos(Path(self.folder))

    def step_seconds(self, load: float) -> float:
        """The accelerator's time for a batch, by what samples cost in this process."""
        dataset = self.dataset()
        slow = self.mix.slow
        at_once = min(self.workers, len(os.sched_getaffinity(0)))
        total = 0.0
        for part in (sorted(slow), sorted(set(range(self.mix.samples)) - slow)):
            costs = []
            for index in part[:8]:
                begun = time.thread_time()
                dataset[index]
                costs.append(time.thread_time() - begun)
            total += len(part) * report.median(costs or [0.0])
        return total / self.mix.samples * self.batch_size / at_once / load


#: The loader of this process. Only the seat of a contender has one.
_loader: dict[str, Any] = {}


def _take_seat(name: str, workload: Workload) -> None:
    """Makes a contender's loader in the process that it has for itself."""
    contender = CONTENDERS[name]
    module = __import__(contender.module, fromlist=[contender.name])
    common: dict[str, Any] = {
        "batch_size": workload.batch_size,
        "shuffle": True,
        "num_workers": workload.workers,
        "in_order": contender.in_order,
    }
    if contender.native:
        import sutler
        from sutler import transforms as T  # noqa: N812 (the name that torchvision's users expect)

        transform = T.Compose(
            [
                T.RandomResizedCrop(224),
                T.RandomHorizontalFlip(),
                T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )
        dataset: Any = sutler.ImageFolder(workload.folder, transform=transform, progress=False)
        _loader[name] = sutler.Loader(dataset, **common, return_ids=True)
    else:
        _loader[name] = getattr(module, contender.name)(
            workload.dataset(), **common, persistent_workers=True, multiprocessing_context="fork"
        )


def _run_epoch(name: str, workload: Workload, step: float) -> Epoch:
    """Takes all batches of an epoch; the accelerator is busy for a while after each."""
    seen: list[int] = []
    waits: list[float] = []
    started = asked = time.perf_counter()
    for batch in _loader[name]:
        waits.append(time.perf_counter() - asked)
        seen.extend(batch[-1 if CONTENDERS[name].native else 0].tolist())
        time.sleep(step)
        asked = time.perf_counter()
    total = time.perf_counter() - started
    if sorted(seen) != list(range(workload.mix.samples)):
        raise ContenderError(
            f"{CONTENDERS[name].title} delivered {len(seen):,} samples, {len(set(seen)):,} of them different, "
            f"instead of each of {workload.mix.samples:,} once"
        )
    return Epoch(total, waits[0], waits[1:])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workloads", nargs="+", choices=list(SLOW_SHARES), default=list(SLOW_SHARES))
    parser.add_argument(
        "--speech", type=Path, metavar="FOLDER", help="WAV files of speech; needed for that workload"
    )
    parser.add_argument("--samples", type=int, default=640)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--heavy-ms", type=float, default=60.0, help="what the heavy step of a clip takes")
    parser.add_argument("--load", type=float, default=0.9, help="how much of the cores' time the work takes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-parity", action="store_true", help="leave out the mixes with none and all slow")
    parser.add_argument(
        "--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), help="all by default"
    )


def measure(arguments: argparse.Namespace) -> Outcome:
    if "speech" in arguments.workloads and arguments.speech is None:
        raise FileNotFoundError(
            "the workload of speech needs recordings: pass a folder of WAV files as --speech, or "
            "--workloads photos to go without"
        )
    parts: list[str] = []
    raw: dict[str, Any] = {"benchmark": "workloads", "load": arguments.load, "workloads": []}
    for kind in arguments.workloads:
        for share in [SLOW_SHARES[kind], *([] if arguments.no_parity else [0.0, 1.0])]:
            with tempfile.TemporaryDirectory(prefix="sutler-workload-") as made:
                workload = _workload(arguments, kind, share, Path(made))
                step = workload.step_seconds(arguments.load)
                epochs = _compare(arguments, workload, step)
            parts.append(_summary(workload, step, epochs))
            measured = {name: [asdict(epoch) for epoch in each] for name, each in epochs.items()}
            settings = asdict(workload) | {"folder": "", "step_seconds": step}
            raw["workloads"].append(settings | {"contenders": measured})
    return Outcome("\n\n".join(parts), raw, Path.cwd())


def _workload(arguments: argparse.Namespace, kind: str, share: float, made: Path) -> Workload:
    # All slow is several times the work; a fifth of the samples says as much.
    samples = arguments.samples if share < 1 else max(4 * arguments.batch_size, arguments.samples // 5)
    mix = Mix(samples, share)
    folder = arguments.speech if kind == "speech" else made
    if kind == "photos":
        say(f"making {mix.samples:,} photos, {len(mix.slow):,} of them large")
        make_photos(made, mix)
    return Workload(kind, mix, str(folder), arguments.batch_size, arguments.workers, arguments.heavy_ms)


def _compare(arguments: argparse.Namespace, workload: Workload, step: float) -> dict[str, list[Epoch]]:
    """Rounds of one epoch for each contender, after one to warm up; who begins changes from round to round."""
    names = [
        name for name in arguments.contenders if workload.kind == "photos" or not CONTENDERS[name].native
    ]
    epochs: dict[str, list[Epoch]] = {name: [] for name in names}
    with ExitStack() as stack:
        seats = {name: stack.enter_context(seat(_take_seat, name, workload)) for name in names}
        for number in range(-1, arguments.rounds):
            say(
                f"{workload.kind}, {workload.mix.slow_share:.0%} slow: "
                + ("warming up" if number < 0 else f"round {number + 1}")
            )
            begin = max(number, 0) % len(names)
            for name in names[begin:] + names[:begin]:
                epoch = seats[name].submit(_run_epoch, name, workload, step).result()
                if number >= 0:
                    epochs[name].append(epoch)
    return epochs


def _use(workload: Workload, step: float, epoch: Epoch) -> float:
    """The share of the time after the first batch in which the accelerator was busy."""
    batches = len(epoch.waits) + 1
    return batches * step / (batches * step + sum(epoch.waits))


def _summary(workload: Workload, step: float, epochs: dict[str, list[Epoch]]) -> str:
    head = (
        f"{workload.kind}: {workload.mix.samples:,} samples, {len(workload.mix.slow):,} of them slow; batches of "
        f"{workload.batch_size}, {workload.workers} workers, a step of {step * 1000:.1f} ms; "
        f"{min(map(len, epochs.values()))} interleaved rounds, every sample once\n"
    )
    rows = []
    for name, measured in epochs.items():
        totals = [epoch.total for epoch in measured]
        waits = [wait for epoch in measured for wait in epoch.waits]
        rows.append(
            [
                CONTENDERS[name].title,
                f"{report.median(totals):.2f} s",
                report.spread(totals, 2),
                f"{report.median([_use(workload, step, epoch) for epoch in measured]):.1%}",
                f"{percentile(waits, 0.99) * 1000:,.0f} ms",
            ]
        )
    header = ["", "epoch", "min..max", "accelerator busy", "wait p99"]
    return "\n".join([head, report.table(header, rows), *_verdicts(workload, epochs)])


def _verdicts(workload: Workload, epochs: dict[str, list[Epoch]]) -> list[str]:
    """Sutler's epochs against the best peer's, round by round."""
    peers = {name: each for name, each in epochs.items() if CONTENDERS[name].module != "sutler"}
    if not peers:
        return []
    best = min(peers, key=lambda name: report.median([epoch.total for epoch in peers[name]]))
    theirs = [epoch.total for epoch in peers[best]]
    lines = [""]
    equal = workload.mix.slow_share in (0.0, 1.0)
    for name in (name for name in epochs if name not in peers):
        reached = report.median(report.ratios([epoch.total for epoch in epochs[name]], theirs))
        bound = 1 + PARITY if equal else 1.0
        verdict = "reached" if reached <= bound else f"missed by {reached - bound:.0%}"
        lines.append(
            f"target: {CONTENDERS[name].title} ≤ {bound:g} × {CONTENDERS[best].title}: {reached:.2f}, {verdict}"
        )
    return lines
