"""How far the analyser's what-ifs are off: each is predicted from one run, then built and measured.

Storage is held to a rate, so that what binds is known; trainers are emulated. Each case is analysed with `verify=True`:
caches of a quarter, half and three quarters of the dataset, fewer and more workers, slower and, where it is held back,
faster storage. The cases of PyTorch's `DataLoader` read through a disk that is slow where the page cache does not help,
and their samples take a while that is not spent on a processor, so that more workers than cores can be tried. All
cases are pauses, and go before everybody else on the machine where they may, so they can be run on a busy one.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sutler
from sutler import transforms as T  # noqa: N812 - as users write it
from sutler.analysis.model import WhatIf
from sutler.testing import SlowDisk, make_photos

from benchmarks import machine, report
from benchmarks.images import say
from benchmarks.outcome import Outcome

#: A prediction may be off by this fraction of what was measured.
TARGET = 0.05
#: Of which so many should be right.
POINTS_MIN = 12


@dataclass(frozen=True)
class Case:
    """A loader, in milliseconds for each sample."""

    title: str
    kind: str
    workers: int
    fetch: float
    step: float
    prep: float = 0.0
    #: The part of the dataset that the loader keeps.
    cached: float = 0.0


CASES = [
    Case("storage binds", "sutler", 4, fetch=6, step=1),
    Case("storage binds, a quarter cached", "sutler", 4, fetch=8, step=2, cached=0.25),
    Case("storage and trainer", "sutler", 4, fetch=6, step=3),
    Case("the trainer binds", "sutler", 4, fetch=3, step=6),
    Case("storage and preparation", "torch", 4, fetch=8, step=2, prep=16),
    Case("preparation binds", "torch", 2, fetch=2, step=2, prep=16),
]

BATCH = 8


#: The bytes of a file on average; they differ as those of photographs do, from half of it to three halves.
FILE_BYTES = 40_000


class SlowSamples:
    """Files on a slow disk that take a while to prepare, the larger the longer."""

    def __init__(self, root: Path, disk: SlowDisk, seconds: float) -> None:
        self.samples = [(str(path), 0) for path in sorted(root.iterdir())]
        self._disk = disk
        self._seconds = seconds

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        content = self._disk.read(self.samples[index][0])
        time.sleep(self._seconds * len(content) / FILE_BYTES)
        return np.frombuffer(content[:1024], np.uint8).copy(), index


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The benchmark's own arguments."""
    parser.add_argument("--samples", type=int, default=384, help="samples in the dataset")
    parser.add_argument(
        "--time", type=float, default=10.0, help="seconds of each analysis, not of the runs that verify it"
    )
    parser.add_argument("--cases", type=int, default=len(CASES), help="how many of the cases to run")


def measure(arguments: argparse.Namespace) -> Outcome:
    """Analyses every case and verifies what was predicted."""
    points: list[tuple[Case, WhatIf]] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_photos(root / "photos", arguments.samples, 4)
        (root / "files").mkdir()
        for number in range(arguments.samples):
            random = np.random.default_rng(number)
            content = random.bytes(int(FILE_BYTES * random.uniform(0.5, 1.5)))
            (root / "files" / f"{number:05}").write_bytes(content)
        for case in CASES[: arguments.cases]:
            say(case.title)
            found = _analyse(case, root, arguments.time)
            points += [
                (case, point)
                for axis in ("cache", "cores", "storage_mbps")
                for point in found.findings.what_if.get(axis, ())
                if point.verified is not None
            ]
        raw = {"points": [asdict(case) | asdict(point) | {"miss": point.miss} for case, point in points]}
        return Outcome(_summary(points), raw, root)


def _analyse(case: Case, root: Path, seconds: float) -> sutler.Report:
    # Delays are pauses here, so others lose nothing; and on a busy machine they stay what they are.
    with machine.going_first(), _loader(case, root) as (loader, mbps):
        return sutler.analyze(loader, case.step * BATCH / 1e3, verify=True, time=seconds, storage_mbps=mbps)


@contextmanager
def _loader(case: Case, root: Path) -> Iterator[tuple[Any, float | None]]:
    if case.kind == "torch":
        from torch.utils.data import DataLoader

        disk = SlowDisk(FILE_BYTES / (case.fetch / 1e3))
        dataset: Any = SlowSamples(root / "files", disk, case.prep / 1e3)
        yield DataLoader(dataset, BATCH, num_workers=case.workers), None
        return
    photos = sutler.ImageFolder(root / "photos", T.Compose([T.Resize((32, 32)), T.ToDtype("float32")]))
    sizes = [Path(path).stat().st_size for path, _ in photos.samples]
    blocks = sum(-(-size // 4096) * 4116 for size in sizes)
    cache = int(case.cached * blocks) + (64 << 10) if case.cached else None
    with sutler.Loader(photos, BATCH, shuffle=True, num_workers=case.workers, cache=cache) as loader:
        yield loader, sum(sizes) / len(sizes) / (case.fetch / 1e3) / 1e6


def _summary(points: list[tuple[Case, WhatIf]]) -> str:
    rows = []
    right = 0
    for case, point in points:
        miss = point.miss or 0.0
        right += abs(miss) <= TARGET
        rows.append(
            [
                f"{case.kind}: {case.title}",
                point.label,
                f"{point.predicted.value:.1f} ± {point.predicted.error:.0%}",
                f"{point.verified:.1f}",
                f"{miss:+.1%}",
            ]
        )
    table = report.table(["case", "what if", "predicted/s", "measured/s", "off by"], rows)
    verdict = f"{right} of {len(points)} what-ifs are within {TARGET:.0%} of what was measured (wanted: {POINTS_MIN})."
    return f"{table}\n\n{verdict}"
