"""What the analyser attributes is what was injected: every share within three points of the truth.

A few configurations run by default; ``SUTLER_ALL_SHARES=1`` runs all of them. A trainer that waits for a processor
waits for something that nobody injected, so these tests go before everybody else, and one that is disturbed all the
same is measured again.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sutler
from sutler.analysis.model import CAUSES

from tests.python.analysis.injected import (
    BATCH,
    Delays,
    InjectedDataset,
    native_loader,
    preparation_ms,
    write_files,
    write_photos,
)
from tests.python.analysis.quiet import skip_if_busy, undisturbed

#: How far a share may be off.
POINTS = 0.03
#: What a loader may do of its own for a sample that a function of the user's pauses for; far below what is injected.
OWN_WORK_MS_MAX = 2.0
#: How often a measurement is repeated before it counts as it is.
ATTEMPTS = 6

#: Loader, workers, delays in milliseconds a sample. In the comments: what binds.
ALL = [
    # the trainer alone
    ("torch", 0, Delays(1, 1, 10)),
    ("torch", 2, Delays(4, 4, 16)),
    ("python", 2, Delays(2, 2, 8)),
    ("native", 2, Delays(1, 0, 8)),
    # storage alone
    ("torch", 0, Delays(8, 1, 2)),
    ("torch", 4, Delays(16, 4, 4)),
    ("python", 4, Delays(8, 2, 2)),
    ("native", 4, Delays(8, 0, 2)),
    # preparation alone
    ("torch", 0, Delays(1, 8, 2)),
    ("torch", 2, Delays(1, 12, 2)),
    ("python", 2, Delays(1, 12, 2)),
    ("python", 0, Delays(1, 8, 2)),
    # storage and preparation
    ("torch", 0, Delays(4, 4, 2)),
    ("torch", 4, Delays(8, 16, 2)),
    ("torch", 4, Delays(10, 24, 3)),
    ("python", 0, Delays(4, 4, 2)),
    ("python", 4, Delays(8, 16, 2)),
    ("python", 4, Delays(10, 24, 3)),
    ("native", 4, Delays(18, 6, 6)),
    # all three in equal parts, and two of them in unequal ones
    ("torch", 0, Delays(4, 4, 4)),
    ("python", 0, Delays(6, 3, 3)),
    ("python", 4, Delays(12, 32, 4)),
    ("native", 4, Delays(14, 3, 6)),
    ("torch", 2, Delays(18, 12, 6)),
]
#: One of each kind of loader, and of each bottleneck.
QUICK = (4, 11, 16, 18, 19)

RUN_ALL = os.environ.get("SUTLER_ALL_SHARES", "") not in ("", "0")
CHOSEN = ALL if RUN_ALL else [ALL[place] for place in QUICK]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("injected") / "files")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"))


def analyse(
    kind: str, workers: int, delays: Delays, files: Path, photos: Path
) -> tuple[sutler.Report, dict[str, float]]:
    """What the analyser says, and what is true."""
    step = delays.step * BATCH / 1e3
    seconds = 4.0 if RUN_ALL else 1.5
    if kind == "native":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sutler.PythonTransformWarning)
            loader, mbps = native_loader(photos, delays, workers)
        with loader:
            real = replace(delays, prep=preparation_ms(loader))
            own = real.prep - delays.prep
            assert 0 <= own < OWN_WORK_MS_MAX, f"the loader's own work took {own:.2f} ms a sample"
            report = sutler.analyze(loader, step, 14, time=seconds, storage_mbps=mbps)
            return report, real.shares(workers, prepared_by_trainer=True)
    with dataset_loader(kind, workers, InjectedDataset(files, delays)) as loader:
        report = sutler.analyze(loader, step, 14, time=seconds)
    return report, true_shares(kind, workers, delays, files)


@contextmanager
def dataset_loader(kind: str, workers: int, dataset: Any) -> Iterator[Any]:
    """A loader of a dataset written in Python: PyTorch's, or ours."""
    if kind == "torch":
        data = pytest.importorskip("torch.utils.data")
        yield data.DataLoader(dataset, BATCH, num_workers=workers, persistent_workers=workers > 0)
        return
    context = "fork" if workers else None
    with sutler.Loader(dataset, BATCH, num_workers=workers, multiprocessing_context=context) as ours:
        yield ours


def true_shares(kind: str, workers: int, delays: Delays, files: Path) -> dict[str, float]:
    """What the delays make of a trainer's time, and what the loader does itself, which is in nobody's delays.

    A trainer that has no workers, or never waits for them, does that between its steps, and it is the wait for batches
    that are ready. Otherwise workers do it beside their samples, which take so much longer.
    """
    shares = delays.shares(workers)
    by_trainer = workers == 0 or shares["trainer"] == 1.0
    dataset: Any = InjectedDataset(files, replace(delays, fetch=0, prep=0 if by_trainer else delays.prep))
    if by_trainer:
        dataset = [dataset[index] for index in range(len(dataset))]
    with dataset_loader(kind, workers, dataset) as loader:
        each = preparation_ms(loader, delays.step if by_trainer else 0.0, workers)
    own = each - delays.step if by_trainer else each * workers - delays.prep
    assert 0 <= own < OWN_WORK_MS_MAX, f"the loader's own work took {own:.2f} ms a sample"
    if not by_trainer:
        return replace(delays, prep=delays.prep + own).shares(workers)
    injected_ms = delays.step / shares["trainer"]
    shares = {cause: share * injected_ms / (injected_ms + own) for cause, share in shares.items()}
    return shares | {"transport": own / (injected_ms + own)}


@pytest.mark.parametrize(("kind", "workers", "delays"), CHOSEN, ids=str)
def test_every_share_is_within_three_points(
    kind: str, workers: int, delays: Delays, files: Path, photos: Path
) -> None:
    for attempt in range(ATTEMPTS):
        with undisturbed():
            report, truth = analyse(kind, workers, delays, files, photos)
        found = {cause: getattr(report.stalls, cause) for cause in CAUSES}
        miss = max(abs(found[cause] - truth[cause]) for cause in CAUSES)
        if miss <= POINTS or attempt == ATTEMPTS - 1:
            break
    print(f"{kind} {workers} {delays}: off by {miss:.3f}; found {found}")
    if miss > POINTS:
        skip_if_busy()
    assert miss <= POINTS, f"off by {miss:.3f}: {found} is not {truth}; {report.warnings}"
