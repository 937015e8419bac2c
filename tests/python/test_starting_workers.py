"""How the workers of a dataset written in Python come about: one after the other, while the first are at work."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import pytest
from sutler import Loader
from sutler._generators import no_fork
from sutler._processes import WorkerPool
from sutler.errors import WorkerStartError

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


def sleep_long(worker: int) -> None:
    time.sleep(60)


@pytest.mark.processes
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_have_not_begun_are_not_waited_for(persistent: bool) -> None:
    """As with Ctrl-C while spawned workers import what they take: they cannot see that they were hung up on."""
    options: dict[str, Any] = {"persistent_workers": persistent, "output": "numpy"}
    loader = Loader(Moments(8), 4, num_workers=2, worker_init_fn=sleep_long, **options)
    iterator: Any = iter(loader)
    workers = iterator._workers
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 4.0
    assert all(not worker.is_alive() for worker in workers)


@pytest.mark.processes
def test_a_timeout_tells_that_a_worker_has_not_begun() -> None:
    with (
        Loader(Moments(8), 4, num_workers=1, worker_init_fn=sleep_long, timeout=1, output="numpy") as loader,
        pytest.raises(
            RuntimeError, match=r"timed out after 1 seconds; worker 0 \(pid \d+\) has not begun yet$"
        ),
    ):
        list(loader)


@pytest.mark.processes
def test_a_worker_that_was_forked_while_a_generator_was_locked_ends_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread of the trainer that is just drawing has its lock, and the worker has a copy that nobody unlocks."""
    monkeypatch.setattr("sutler._worker.SEED_SECONDS", 0.5)
    drawing, done = threading.Event(), threading.Event()

    def draw() -> None:
        with np.random.get_bit_generator().lock:  # type: ignore[attr-defined]  # a documented function
            drawing.set()
            done.wait()

    thread = threading.Thread(target=draw)
    with Loader(Moments(8), 4, num_workers=1, multiprocessing_context="fork", output="numpy") as loader:
        thread.start()
        drawing.wait()
        with pytest.raises(
            WorkerStartError, match="threads that draw random numbers while workers are forked"
        ):
            list(loader)
        done.set()
        thread.join()
        assert sorted(np.concatenate(list(loader))[:, 2]) == list(range(8))


def test_nobody_forks_while_another_thread_is_at_pytorchs_generator() -> None:
    there, left = threading.Event(), []

    def stay() -> None:
        with no_fork:
            there.set()
            time.sleep(0.3)
            left.append(time.monotonic())

    thread = threading.Thread(target=stay)
    thread.start()
    there.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if no_fork.acquire(blocking=False) else 1)
    assert left
    assert left[0] <= time.monotonic()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
