"""Storage as it is found behind datasets written in Python: one that takes turns, and one that is only far away."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import sutler
from sutler.analysis.analyzing import bench_for
from sutler.analysis.measuring import Measurement
from sutler.analysis.passes import NO_STEP, Series
from sutler.analysis.storing import storage_from_passes

from tests.python.analysis.injected import BATCH, Delays, FarDataset, InjectedDataset, write_files
from tests.python.analysis.quiet import skip_if_busy, undisturbed

#: Milliseconds: a worker mostly waits for storage, and the trainer for the workers.
DELAYS = Delays(fetch=20, prep=4, step=1)
#: Two workers hardly meet at a disk, as each prepares for as long as it reads.
EVEN = Delays(fetch=12, prep=12, step=1)
#: How often a measurement is repeated before it counts as it is.
ATTEMPTS = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("storing") / "files")


def analyse(whose: str, dataset: Any, delays: Delays) -> sutler.Report:
    step = delays.step * BATCH / 1e3
    with undisturbed():
        if whose == "torch":
            data = pytest.importorskip("torch.utils.data")
            return sutler.analyze(data.DataLoader(dataset, BATCH, num_workers=2), step, 14, time=4)
        with sutler.Loader(dataset, BATCH, num_workers=2, multiprocessing_context="fork") as loader:
            return sutler.analyze(loader, step, 14, time=4)


@pytest.mark.parametrize(
    ("whose", "delays"), [("sutler", DELAYS), ("torch", DELAYS), ("sutler", EVEN), ("torch", EVEN)], ids=str
)
def test_more_workers_get_more_of_storage_that_is_only_far_away(
    whose: str, delays: Delays, files: Path
) -> None:
    for _attempt in range(ATTEMPTS):
        found = analyse(whose, FarDataset(files, delays), delays)
        read_ms = 1e3 * (found.findings.facts["read_s"] or 0.0)
        gain = gain_by_workers(found)
        if 0.85 < read_ms / delays.fetch < 1.3 and 1.6 < gain < 2.3:
            break
    else:
        skip_if_busy()
    assert 0.85 < read_ms / delays.fetch < 1.3
    assert 1.6 < gain < 2.3
    assert found.stalls.fetch > 0.2
    assert "num_workers=" in found.recommendation.code
    if delays == DELAYS:  # else reading and preparing take as long, and either may be named
        assert found.recommendation.binding == "storage"
        assert "how long a read takes" in found.recommendation.text


def test_workers_that_were_held_up_a_little_make_no_queue_of_storage_that_is_only_far_away(
    files: Path,
) -> None:
    dataset = FarDataset(files, DELAYS)
    with (
        undisturbed(),
        sutler.Loader(dataset, BATCH, num_workers=2, multiprocessing_context="fork") as loader,
    ):
        facts = sutler.analyze(loader, 0.001, 14, time=1).findings.facts | {"read_s": None, "storage": None}
        measurement = Measurement(
            bench_for(loader), NO_STEP, batches_max=14, seconds=1.0, storage_bytes_per_s=None
        )
        # A tenth less than what two workers get that wait for reads and for nothing else.
        reached = 0.9 * 2 / (DELAYS.fetch / 1e3 + 1 / facts["prepare_alone"]["value"])
        cold = Series()
        for part in (0.99, 1.0, 1.01):
            cold.add(part / reached, BATCH, 0)
        storage_from_passes(measurement, facts, {}, cold)
    assert facts["read_s"] is not None
    # Such a queue would let through little more than they got.
    assert facts["storage"]["value"] > 3 * reached


@pytest.mark.parametrize(("delays", "gain_max"), [(DELAYS, 1.1), (EVEN, 1.5)], ids=str)
def test_more_workers_get_little_of_storage_that_takes_turns(
    delays: Delays, gain_max: float, files: Path
) -> None:
    for _attempt in range(ATTEMPTS):
        found = analyse("sutler", InjectedDataset(files, delays), delays)
        if found.findings.facts["read_s"] is None and gain_by_workers(found) < gain_max:
            break
    else:
        skip_if_busy()
    assert found.findings.facts["read_s"] is None
    assert gain_by_workers(found) < gain_max


def test_recommended_code_can_be_pasted_where_two_things_are_recommended_at_once(files: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    dataset: Any = InjectedDataset(files, Delays(fetch=10, prep=10, step=0.5))
    for _attempt in range(ATTEMPTS):
        with undisturbed():
            found = sutler.analyze(
                data.DataLoader(dataset, BATCH, num_workers=2), 0.5 * BATCH / 1e3, 14, time=2
            )
        code = found.recommendation.code
        if "num_workers=" in code and "cache=" in code:
            break
    else:
        skip_if_busy()
    assert "num_workers=" in code
    assert "cache=" in code
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call)
    assert {"num_workers", "persistent_workers", "cache"} == {keyword.arg for keyword in call.keywords}


def gain_by_workers(report: sutler.Report) -> float:
    """How many times as much twice as many workers would get."""
    return report.what_if(cores=4).predicted.value / report.findings.measured.value
