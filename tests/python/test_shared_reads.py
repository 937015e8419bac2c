"""Jobs in processes of their own that share an agent: how often storage is read, and in which order they are served.

Speeds are forced, so that nothing here depends on how busy the machine is. `python -m benchmarks reads` does the same
with more samples and in more cases.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from benchmarks import reads
from benchmarks.paced import PacedJob, run_rounds
from benchmarks.reads import Case, Dataset
from benchmarks.serving import serving

#: Enough that what a job has on its way (five batches) is 1 % of the dataset.
SAMPLES, BATCH_SIZE = 1500, 3


@pytest.fixture(scope="module")
def pictures() -> Iterator[Dataset]:
    with reads.tiny_pictures(SAMPLES) as dataset:
        yield dataset


@pytest.mark.parametrize(
    "case",
    [
        Case("equal", (1, 1, 1), 0.2),
        Case("one twice as fast", (2, 1)),
        Case("one joins", (1, 1), joins=1),
        Case("one is killed", (1, 1, 1), killed=1),
    ],
    ids=lambda case: case.title,
)
def test_storage_is_read_once_for_all(pictures: Dataset, case: Case) -> None:
    arguments = argparse.Namespace(batch_size=BATCH_SIZE, window=0.02, epochs=2, threads=2)
    counted = reads.count(case, pictures, arguments, random.Random(1))
    present = len(counted.speeds)
    # Each has had the steps of two epochs and of what went before; every epoch was checked to have every sample once.
    assert len(counted.epochs) == present
    assert min(counted.epochs) >= 2
    assert counted.served == pytest.approx(2 * SAMPLES * sum(counted.speeds), rel=0.03)
    assert counted.kept == pytest.approx(case.kept, abs=0.01)
    # Less than the least would mean that somebody got what nobody read: at most what the window held.
    assert 0.95 < counted.excess <= reads.TARGET
    # The kernel saw the agent read as much as it says.
    assert counted.reads_by_bytes == pytest.approx(counted.reads, rel=0.02)


def test_the_count_can_fail(pictures: Dataset) -> None:
    """Where a batch is many times the window, jobs share less, and the count shows it."""
    arguments = argparse.Namespace(batch_size=250, window=0.0, epochs=2, threads=2)
    counted = reads.count(Case("no window", (1, 1, 1)), pictures, arguments, random.Random(1))
    assert counted.excess > reads.TARGET
    assert counted.let_go > 0


def octiles(values: np.ndarray) -> np.ndarray:
    return values * 8 // len(values)


def test_the_order_within_an_epoch_is_a_shuffle(pictures: Dataset) -> None:
    with (
        serving("--threads", 2, "--memory", round(SAMPLES * (0.2 * 4116 + 16))) as agent,
        ExitStack() as stack,
    ):
        jobs = []
        for seed in range(2):
            job = PacedJob(pictures.root, agent.socket, seed=seed, batch_size=BATCH_SIZE, size=24)
            stack.callback(job.end)
            jobs.append(job)
            run_rounds(jobs, 200)
        run_rounds(jobs, 1600)
        orders = [np.array(order) for job in jobs for order in job.orders()]
        served = agent.status()["shared"]["pools"][0]["served"]
    assert served["taken"] > SAMPLES
    assert served["prepared_pinned"] > SAMPLES // 10
    assert len(orders) >= 6
    for order in orders:
        # Where a sample is listed says nothing about where it comes: 49 degrees of freedom, five deviations.
        counts = np.zeros((8, 8))
        np.add.at(counts, (octiles(np.arange(SAMPLES)), octiles(order)), 1)
        expected = SAMPLES / 64
        assert ((counts - expected) ** 2 / expected).sum() < 49 + 5 * np.sqrt(2 * 49)
        # Nor does the sample before it.
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 5 / np.sqrt(SAMPLES)
    # No job is served as another, and no epoch as another.
    assert len({order.tobytes() for order in orders}) == len(orders)
