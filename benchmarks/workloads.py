"""Whole workloads with slow samples beside an emulated accelerator: scans, speech with a heavy step, mixed photos.

Four in ten crops of a scan are placed over something labelled, which takes long to find; one in five clips goes
through an artificial heavy step; one in ten photos has 20 megapixels instead of 0.2. The accelerator is a pause of
fixed length for each batch, chosen so that the work of all samples takes `--load` of the time of all cores: whoever
loses no time keeps the accelerator busy all the time. The work is what a sample takes of processors through torch's
loader, collation and transport included, with all workers at it.

Then the same with none and with all of the samples slow and no accelerator: nobody can gain anything by putting slow
samples off there, and nobody should lose. Contenders have the same samples, the same transforms and as many workers,
and each delivers every sample once per epoch, which is checked.

An epoch starts with nothing prepared. `busy` is the accelerator's share of the time from the first batch on, so what a
loader has prepared by then helps it: at most two batches for each worker, or eight of a loader that has found two too
few in the epoch to warm up, so epochs should have many times as many. The time of an epoch has all of it, the wait for
the first batch included. With `--epochs` a turn has several, one right after the other as in a training: then Sutler
begins the next one while the last batches of this one are served (`overlap_epochs=True`), and only the first begins
with nothing.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.images import say
from benchmarks.outcome import Outcome
from benchmarks.seat import seat
from benchmarks.turns import in_turn
from benchmarks.worker import ContenderError
from benchmarks.workload_data import Mix, find_clips, list_clips, list_photos, make_photos
from benchmarks.workload_feeds import (
    CONTENDERS,
    Kind,
    Turn,
    Workload,
    cpu_seconds_per_sample,
    leave_place,
    missing,
    run_turn,
    take_place,
)
from benchmarks.workload_report import summary
from benchmarks.workload_volumes import list_volumes, prepare

#: How many samples are slow in the mix that a workload is about.
SLOW_SHARES: dict[Kind, float] = {"volumes": 0.4, "speech": 0.2, "photos": 0.1}
#: Samples in a batch: so few that an epoch has many batches for each worker. MLPerf has two scans in one, too.
BATCH_SIZES: dict[Kind, int] = {"volumes": 2, "speech": 8, "photos": 4}
#: Batches for each worker to find out what a sample takes. Which crops of scans are slow is drawn anew each time, and a
#: large photo takes so long that all workers are at work only in the middle, so it takes many to know the mean.
WEIGHED: dict[Kind, int] = {"volumes": 12, "speech": 6, "photos": 12}
#: Batches for each worker in epochs without a step, at least. As many for each: those who hand out whole batches would
#: wait for the few workers that get one more.
ROUNDS_OF_BATCHES_MIN = 3
#: Epochs without a step say as much in less time.
PARITY_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workloads", nargs="+", choices=list(SLOW_SHARES), default=list(SLOW_SHARES))
    parser.add_argument(
        "--speech", type=Path, metavar="FOLDER", help="WAV files of speech; needed for that workload"
    )
    parser.add_argument(
        "--volumes",
        type=Path,
        metavar="FOLDER",
        help="NAME_seg.nii.gz files of labels; needed for that workload",
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="about what an epoch should take")
    parser.add_argument("--epochs", type=int, default=1, help="so many of them in a row")
    parser.add_argument("--samples", type=int, help="so many in an epoch instead")
    parser.add_argument("--batch-size", type=int, help="instead of 2 scans, 8 clips or 4 photos")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--heavy-ms", type=float, default=60.0, help="what the heavy step of a clip takes")
    parser.add_argument("--side", type=int, default=128, help="of the crops of scans")
    parser.add_argument("--load", type=float, default=0.9, help="how much of the cores' time the work takes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--mixes",
        nargs="+",
        choices=["mixed", "none", "all"],
        default=["mixed", "none", "all"],
        help="how many samples are slow",
    )
    parser.add_argument(
        "--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), help="all by default"
    )


def measure(arguments: argparse.Namespace) -> Outcome:
    for kind, what in (
        ("speech", "recordings: pass a folder of WAV files"),
        ("volumes", "labels of scans: pass a folder"),
    ):
        if kind in arguments.workloads and getattr(arguments, kind) is None:
            raise FileNotFoundError(
                f"the workload `{kind}` needs {what} as --{kind}, or name the others after --workloads"
            )
    parts: list[str] = []
    raw: dict[str, Any] = {"benchmark": "workloads", "load": arguments.load, "workloads": []}
    with tempfile.TemporaryDirectory(prefix="sutler-workload-") as scratch, ExitStack() as stack:
        seats = {name: stack.enter_context(seat()) for name in arguments.contenders}
        scales = stack.enter_context(seat())
        for kind in arguments.workloads:
            source = _source(arguments, kind, Path(scratch) / kind)
            for share in _shares(arguments, kind):
                with tempfile.TemporaryDirectory(dir=scratch) as listed:
                    measured = _measure_mix(arguments, kind, share, source, Path(listed), seats, scales)
                parts.append(measured.pop("summary"))
                say(f"\n{parts[-1]}\n")  # who is interrupted has what was measured so far
                raw["workloads"].append(measured)
    return Outcome("\n\n".join(parts), raw, Path.cwd())


def _shares(arguments: argparse.Namespace, kind: Kind) -> list[float]:
    shares = {"mixed": SLOW_SHARES[kind], "none": 0.0, "all": 1.0}
    return [shares[mix] for mix in arguments.mixes]


def _source(arguments: argparse.Namespace, kind: Kind, scratch: Path) -> Path:
    """Where the files of a workload are that its samples are listed from."""
    if kind == "speech":
        folder: Path = arguments.speech
        find_clips(folder)  # rather now than in the midst of everything
        return folder
    say(f"making {kind}")
    if kind == "volumes":
        return prepare(arguments.volumes, scratch, arguments.side)
    make_photos(scratch)
    return scratch


def _list(kind: Kind, source: Path, folder: Path, mix: Mix) -> Path:
    """A folder with the samples of a mix."""
    if kind == "speech":
        list_clips(source, folder, mix)
    elif kind == "volumes":
        list_volumes(source, folder, mix.samples)
    else:
        list_photos(source, folder, mix)
    return folder


def _measure_mix(
    arguments: argparse.Namespace,
    kind: Kind,
    share: float,
    source: Path,
    scratch: Path,
    seats: dict[str, Executor],
    scales: Executor,
) -> dict[str, Any]:
    """All contenders on one mix: what they measured, and what to say about it."""
    batch_size = arguments.batch_size or BATCH_SIZES[kind]
    few = Mix(WEIGHED[kind] * batch_size * arguments.workers, share)
    weighed = Workload(
        kind,
        few,
        str(_list(kind, source, scratch / "few", few)),
        batch_size,
        arguments.workers,
        arguments.heavy_ms,
        arguments.side,
    )
    say(f"{kind}, {share:.0%} slow: what a sample takes")
    cost = scales.submit(cpu_seconds_per_sample, weighed).result()
    work = cost * batch_size / weighed.at_once
    step = work / arguments.load if 0 < share < 1 else 0.0
    if step:
        batches = max(4, round(arguments.seconds / step))
    else:
        rounds = round(arguments.seconds * PARITY_SECONDS / work / arguments.workers)
        batches = max(ROUNDS_OF_BATCHES_MIN, rounds) * arguments.workers
    mix = Mix(arguments.samples or batches * batch_size, share)
    workload = replace(weighed, mix=mix, folder=str(_list(kind, source, scratch / "all", mix)))
    left_out: dict[str, list[str]] = {}
    names = []
    for name in seats:
        if reason := missing(name, kind):
            left_out.setdefault(reason, []).append(CONTENDERS[name].title)
        else:
            names.append(name)
    if not names:
        raise ContenderError(f"nobody is left for the workload `{kind}`: {'; '.join(left_out)}")
    turns = _take_turns(names, seats, workload, step, arguments.epochs, arguments.rounds)
    notes = [
        f"Left out: {'; '.join(titles)}. {reason[0].upper()}{reason[1:]}."
        for reason, titles in left_out.items()
    ]
    return {
        "summary": summary(workload, cost, step, arguments.epochs, turns, notes),
        **asdict(workload),
        "folder": "",
        "cpu_seconds_per_sample": cost,
        "step_seconds": step,
        "epochs": arguments.epochs,
        "contenders": {name: [asdict(turn) for turn in each] for name, each in turns.items()},
    }


def _take_turns(
    names: Sequence[str],
    seats: dict[str, Executor],
    workload: Workload,
    step: float,
    epochs: int,
    rounds: int,
) -> dict[str, list[Turn]]:
    """Rounds of some epochs for each contender, after one to warm up; who begins changes from round to round."""
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    # All at once: most of it is importing, which is nobody's to be measured.
    for each in [seats[name].submit(take_place, name, workload) for name in names]:
        each.result()
    for number in range(-1, rounds):
        told = "warming up" if number < 0 else f"round {number + 1} of {rounds}"
        say(f"{workload.kind}, {workload.mix.slow_share:.0%} slow, {workload.mix.samples:,} samples: {told}")
        for name in in_turn(names, max(number, 0)):
            turn = seats[name].submit(run_turn, name, workload, step, epochs if number >= 0 else 1).result()
            if number >= 0:
                turns[name].append(turn)
    for each in [seats[name].submit(leave_place, name) for name in names]:
        each.result()
    return turns
