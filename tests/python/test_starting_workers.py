"""How the workers of a dataset written in Python come about: one after the other, while the first are at work."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest
from sutler import Loader
from sutler._processes import WorkerPool

#: What starting a worker takes here, beside what it really takes.
STARTING = 0.2


class Moments:
    """Tells who prepared a sample, and when."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        moment = time.monotonic()
        time.sleep(0.01)
        return np.array([moment, os.getpid(), index])


class Unpicklable(Moments):
    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.held = lambda: None


@pytest.mark.processes
@pytest.mark.parametrize(
    "options", [{}, {"order": "ready"}, {"sampler": range(48)}, {"collate_fn": np.stack}], ids=str
)
def test_samples_are_prepared_while_workers_are_still_started(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    start = WorkerPool.start

    def start_slowly(pool: WorkerPool, worker: int, *state: Any) -> int:
        if worker > 0:
            time.sleep(STARTING)
        return start(pool, worker, *state)

    monkeypatch.setattr(WorkerPool, "start", start_slowly)
    with Loader(Moments(48), 4, num_workers=3, output="numpy", **options) as loader:
        began = time.monotonic()
        iterator = iter(loader)
        all_started = time.monotonic()
        rows = np.concatenate(list(iterator))
    assert all_started - began >= 2 * STARTING
    assert rows[:, 0].min() < all_started - STARTING
    assert len(set(rows[:, 1])) == 3, "each worker gets samples, the last one, too"
    assert sorted(rows[:, 2]) == list(range(48))


@pytest.mark.processes
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_epoch_that_was_interrupted_while_workers_were_started_can_be_begun_again(
    monkeypatch: pytest.MonkeyPatch, failing: int, persistent: bool
) -> None:
    start = WorkerPool.start

    def interrupted(pool: WorkerPool, worker: int, *state: Any) -> int:
        if worker == failing:
            raise KeyboardInterrupt
        return start(pool, worker, *state)

    with Loader(Moments(12), 4, num_workers=3, persistent_workers=persistent, output="numpy") as loader:
        with monkeypatch.context() as patched:
            patched.setattr(WorkerPool, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                iter(loader)
        for _ in range(2):
            assert sorted(np.concatenate(list(loader))[:, 2]) == list(range(12))


@pytest.mark.processes
@pytest.mark.parametrize("persistent", [False, True])
def test_a_dataset_that_cannot_be_sent_to_workers_is_said_to_be_one_each_time(persistent: bool) -> None:
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "spawn", "output": "numpy"}
    with Loader(Unpicklable(8), 4, persistent_workers=persistent, **options) as loader:
        for _ in range(2):
            with pytest.raises(AttributeError, match="pickle"):
                list(loader)


@pytest.mark.processes
def test_a_sampler_that_raises_while_workers_are_to_come_is_heard_of() -> None:
    def broken() -> Any:
        yield from range(6)
        raise LookupError("no seventh")

    class Broken:
        def __iter__(self) -> Any:
            return broken()

    with (
        Loader(Moments(8), 2, sampler=Broken(), num_workers=4, output="numpy") as loader,
        pytest.raises(LookupError, match="no seventh"),
    ):
        list(loader)
