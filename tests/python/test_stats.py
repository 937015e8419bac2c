"""Figures that count what happened."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sutler
import torch
from sutler import Loader
from sutler import transforms as T  # noqa: N812 - as users write it
from sutler.analysis.stragglers import straggling_workers

KEYS = {
    "samples",
    "batches",
    "seconds",
    "wait_seconds",
    "stalls",
    "served",
    "storage_reads",
    "storage_bytes",
    "reads_per_sample",
    "unique_fraction",
    "stages",
    "workers",
    "batches_ahead",
    "memory_bytes",
}


def test_every_key_is_there_before_and_after(augmented: sutler.ImageFolder) -> None:
    loader = Loader(augmented, 8, output="numpy")
    before = loader.stats()
    assert set(before) >= KEYS
    assert before["samples"] == before["seconds"] == 0
    list(loader)
    after = loader.stats()
    assert set(after) == set(before)
    assert set(after["stalls"]) == {"fetch", "prep", "transport", "trainer"}
    assert set(after["served"]) == {"encoded", "decoded", "augmented", "storage"}
    assert set(after["stages"]) == {"fetch", "decode", "augment"}


def test_counts_are_exact(augmented: sutler.ImageFolder) -> None:
    loader = Loader(augmented, 8, True, num_workers=3, output="numpy")
    for _ in range(3):
        list(loader)
    stats = loader.stats()
    size = sum(Path(path).stat().st_size for path, _ in augmented.samples)
    assert (stats["samples"], stats["batches"], stats["failed"]) == (123, 18, 0)
    assert (stats["storage_reads"], stats["storage_bytes"]) == (123, 3 * size)
    assert stats["served"] == {"encoded": 0, "decoded": 0, "augmented": 0, "storage": 123}
    assert stats["reads_per_sample"] == 1.0
    assert stats["unique_fraction"] == 1.0
    assert stats["workers"] == 3
    assert stats["memory_bytes"] >= 8 * 24 * 24 * 3
    for stage in stats["stages"].values():
        assert stage["count"] == 123
        assert 0 <= stage["p50"] <= stage["p99"]
        assert 0 < stage["mean"] < 1


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_the_parts_of_the_time_add_up(photos: Path, threads: int) -> None:
    # Longer than the interval at which a waiting consumer looks for signals, so that waits are cut in pieces.
    slow = T.Compose([T.Resize(500), T.GaussianBlur(9), T.CenterCrop(16)])
    loader = Loader(sutler.ImageFolder(photos, slow), 20, num_workers=threads, output="numpy")
    list(loader)  # from here on all threads are there
    before = loader.stats()
    started = time.perf_counter()
    trained = 0.0
    for _ in range(2):
        for _ in loader:
            began = time.perf_counter()
            time.sleep(0.05)
            trained += time.perf_counter() - began
    wall = time.perf_counter() - started
    stats = loader.stats()
    assert sum(stats["stalls"].values()) == pytest.approx(stats["seconds"], rel=0.01)
    waited = sum(stats["stalls"][part] for part in ("fetch", "prep", "transport"))
    assert waited == pytest.approx(stats["wait_seconds"], rel=0.01)
    # A busy machine may take the processor away between our look at the clock and the engine's.
    assert stats["seconds"] - before["seconds"] == pytest.approx(wall, rel=0.05, abs=0.2)
    assert trained <= stats["stalls"]["trainer"] < trained + 0.3 * stats["wait_seconds"] + 0.5
    assert stats["stalls"]["prep"] > 0.5 * stats["wait_seconds"], "blurring is what takes the time here"


@pytest.mark.parametrize("threads", [0, 2])
def test_what_a_sampler_takes_to_begin_is_waited_for(augmented: sutler.ImageFolder, threads: int) -> None:
    class SlowToBegin:
        def __iter__(self) -> Iterator[int]:
            time.sleep(0.3)
            return iter(range(16))

    loader = Loader(augmented, 4, sampler=SlowToBegin(), num_workers=threads, output="numpy")
    list(loader)
    stats = loader.stats()
    assert stats["stalls"]["prep"] >= 0.3
    assert stats["wait_seconds"] >= 0.3
    assert sum(stats["stalls"].values()) == pytest.approx(stats["seconds"])


def test_a_trainer_that_is_slow_waits_for_nothing(augmented: sutler.ImageFolder) -> None:
    loader = Loader(augmented, 8, num_workers=2, output="numpy")
    iterator = iter(loader)
    next(iterator)  # which has to be waited for
    before = loader.stats()
    for _ in iterator:
        time.sleep(0.1)
    after = loader.stats()
    trained = after["stalls"]["trainer"] - before["stalls"]["trainer"]
    assert trained > 0.8 * (after["seconds"] - before["seconds"])


def test_the_share_of_slow_samples_shows_where_they_were() -> None:
    class Naps:
        def __len__(self) -> int:
            return 80

        def __getitem__(self, index: int) -> int:
            time.sleep(0.06 if index >= 40 and index % 4 == 0 else 0.005)
            return index

    loader = Loader(Naps(), 8, num_workers=1, multiprocessing_context="fork")
    assert loader.stats()["slow_share"] == {
        "threshold": 0.0,
        "mean": 0.0,
        "series": [],
        "batches_per_point": 1,
    }
    list(loader)
    share = loader.stats()["slow_share"]
    # A busy machine may make some of the others slow.
    assert share["batches_per_point"] == 1
    assert len(share["series"]) == 10
    assert 0.01 <= share["threshold"] <= 0.06
    assert all(point >= 0.25 for point in share["series"][5:])
    assert share["mean"] >= 10 / 80


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_times_are_under_the_worker_s_own_number(slow: int) -> None:
    class OneIsSlow:
        def __len__(self) -> int:
            return 400

        def __getitem__(self, index: int) -> int:
            info = torch.utils.data.get_worker_info()
            assert info is not None
            time.sleep(0.01 if info.id == slow else 0.001)
            return int(info.id)

    with sutler.Loader(OneIsSlow(), 4, num_workers=3) as loader:
        served = [int(worker) for batch in loader for worker in batch]
        stats, timeline = loader.stats(), loader.timeline()
    assert [times["samples"] for times in stats["worker_times"]] == [
        served.count(worker) for worker in range(3)
    ]
    assert [each.number for each in straggling_workers(stats)] == [slow]
    assert {entry["sample"]: entry["worker"] for entry in timeline["samples"]} == dict(enumerate(served))
