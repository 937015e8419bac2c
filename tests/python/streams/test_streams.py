"""Iterable datasets: exact resume from every batch, memory that stays, and nothing left behind."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
import torch
from sutler import _processes

from .datasets import WORKERS, Itself, Plain, StatefulDataset, StatefulIterator, make, numbers, share


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", [Plain, StatefulDataset, StatefulIterator, Itself])
def test_resume_from_every_batch_delivers_the_exact_rest(kind: type[Any], workers: int) -> None:
    with make(kind(19), workers) as loader:
        whole = numbers(loader)
    assert sorted(number for batch in whole for number in batch) == [
        n for n in range(19) if workers != 3 or n % 3 != 1 or n < 13
    ]
    states = []
    with make(kind(19), workers) as loader:
        states.append(loader.state_dict())
        for _ in loader:
            states.append(loader.state_dict())
        after = loader.state_dict()
    assert len(states) == len(whole) + 1
    for step, state in enumerate(states):
        with make(kind(19), workers) as resumed:
            resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
            assert numbers(resumed) == whole[step:], f"from batch {step}"
            assert resumed.state_dict()["epoch"] == 1
    with make(kind(19), workers) as resumed:
        resumed.load_state_dict(after)
        assert resumed.state_dict()["epoch"] == 1
        assert numbers(resumed) == whole


@pytest.mark.parametrize("workers", WORKERS)
def test_a_resumed_epoch_can_be_saved_and_resumed_again(workers: int) -> None:
    whole = numbers(make(StatefulIterator(20), workers))
    found: list[list[int]] = []
    state = None
    while len(found) < len(whole):
        loader = make(StatefulIterator(20), workers, persistent_workers=workers > 0)
        if state is not None:
            loader.load_state_dict(state)
        found += numbers([next(iter(loader))])
        state = loader.state_dict()
        loader.close()
    assert found == whole


def test_the_state_of_a_plain_stream_is_json() -> None:
    with make(Plain(9), 2) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        del iterator
    assert json.loads(json.dumps(state)) == state
    assert state["progress"]["turn"] == 1
    assert [worker["samples"] for worker in state["progress"]["workers"]] == [2, 0]


def test_a_plain_stream_may_be_resumed_with_another_batch_size() -> None:
    with make(Plain(10), 1) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with make(Plain(10), 1, batch_size=5) as resumed:
        resumed.load_state_dict(state)
        assert numbers(resumed) == [[2, 3, 4, 5, 6], [7, 8, 9]]


def test_a_rank_has_no_effect_and_says_so() -> None:
    with pytest.warns(UserWarning, match="every rank gets all that Plain yields"):
        loader = sutler.Loader(Plain(4), 2, num_workers=0, rank=1, world_size=2)
    assert numbers(loader) == [[0, 1], [2, 3]]


def test_states_that_do_not_fit_are_refused_with_both_sides() -> None:
    with make(Plain(9), 2) as loader:
        state = loader.state_dict()
    with pytest.raises(ValueError, match="saved with num_workers=2, this loader has num_workers=3"):
        make(Plain(9), 3).load_state_dict(state)
    with pytest.raises(ValueError, match=r"stream .*Plain, this loader's is .*Itself"):
        make(Itself(9), 2).load_state_dict(state)
    with pytest.raises(ValueError, match="is a stream"):
        make(Plain(9), 2).load_state_dict(sutler.Loader(list(range(4))).state_dict())
    with pytest.raises(ValueError, match="damaged"):
        make(Plain(9), 2).load_state_dict({**state, "progress": {"turn": 5, "workers": []}})
    with pytest.raises(ValueError, match="no progress"):
        make(Plain(9), 2).load_state_dict({key: state[key] for key in state if key != "progress"})


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_became_too_short_is_an_error(workers: int) -> None:
    with make(Plain(9), workers) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = loader.state_dict()
        del iterator
    with make(Plain(4), workers) as resumed:
        resumed.load_state_dict(state)
        with pytest.raises(ValueError, match="after 6 samples of this stream, which now ends after 4"):
            list(resumed)


class Images(Plain):
    """Large samples: each is filled with its number."""

    def __iter__(self) -> Iterator[Any]:
        for number in share(self.count):
            yield torch.full((400, 400), float(number)), np.full(3, number)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_batches_that_are_kept_keep_their_contents(device: str | None) -> None:
    batches = list(make(Images(40), 2, device=device))
    gc.collect()
    assert sum(len(batch[1]) for batch in batches) == 37
    for images, labels in batches:
        assert images.shape[1:] == (400, 400)
        for image, label in zip(images, labels, strict=True):
            assert bool((image == float(label[0])).all())
    batches[0][0].add_(1)  # a batch is the trainer's own


def test_no_descriptors_are_left_open() -> None:
    def count() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    numbers(make(Plain(6), 1))
    before = count()
    for persistent in (False, True):
        loader = make(Images(12), 2, persistent_workers=persistent)
        for _ in range(2):
            list(loader)
            next(iter(loader))
        loader.close()
    assert count() <= before


class Endless(Plain):
    """Counts up, not too fast."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            time.sleep(0.005)
            yield self.count
            self.count += 1


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_can_be_left_while_batches_are_on_their_way(
    device: str | None, persistent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_processes, "END_SECONDS", 60.0)  # on a busy machine workers may need more than usual
    options = {"persistent_workers": persistent, "multiprocessing_context": "fork"}
    loader = make(Endless(0), 2, device=device, **options)
    workers: set[Any] = set()
    for _ in range(3):
        for number, batch in enumerate(loader):
            assert int(batch[1]) == int(batch[0]) + 1
            if number == 3:
                workers.update(multiprocessing.active_children())
                break
    loader.close()
    assert [worker.exitcode for worker in workers] == [0] * (2 if persistent else 6), "some had to be killed"


class Held(Plain):
    """Comes to its third sample when it is let go."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.let_go = multiprocessing.get_context("fork").Event()

    def __iter__(self) -> Iterator[int]:
        for number in share(self.count):
            if number == 2:
                self.let_go.wait(60)
            yield number


def test_timeout() -> None:
    dataset = Held(4)
    iterator = iter(make(dataset, 1, timeout=3, multiprocessing_context="fork"))
    assert next(iterator).tolist() == [0, 1]
    with pytest.raises(RuntimeError, match="DataLoader timed out after 3 seconds"):
        next(iterator)
    dataset.let_go.set()
    del iterator


class Dying(Plain):
    """Ends its process after four samples."""

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count):
            if number == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            yield number


@pytest.mark.processes
@pytest.mark.parametrize("persistent", [False, True])
def test_a_killed_worker_is_an_error_at_once(persistent: bool) -> None:
    loader = make(Dying(8), 1, persistent_workers=persistent)
    for _ in range(2):  # and does not spoil the next epoch
        iterator = iter(loader)
        pid = multiprocessing.active_children()[0].pid
        assert numbers([next(iterator), next(iterator)]) == [[0, 1], [2, 3]]
        with pytest.raises(
            sutler.errors.WorkerError, match=rf"pid {pid}\) was killed by signal 9 \(SIGKILL\)"
        ) as caught:
            next(iterator)
        assert caught.value.sample == 4
        del iterator, caught
        gc.collect()
    loader.close()


class Broken(Plain):
    """Fails in the middle."""

    def __iter__(self) -> Iterator[int]:
        yield from range(3)
        raise KeyError("no such shard")


def test_an_exception_keeps_its_class_and_traceback() -> None:
    iterator = iter(make(Broken(5), 1))
    next(iterator)
    with pytest.raises(KeyError, match=r"(?s)in DataLoader worker (process|thread) 0.*no such shard"):
        next(iterator)
    assert list(iterator) == []  # the generator has ended, and with it the epoch
    del iterator


@pytest.mark.parametrize("workers", [0, 2])
def test_our_own_arguments_that_streams_cannot_serve(workers: int) -> None:
    with pytest.raises(ValueError, match="have no indices"):
        make(Plain(4), workers, return_ids=True)
    with pytest.raises(ValueError, match="errors='skip'"):
        make(Plain(4), workers, errors="skip")
    with pytest.raises(ValueError, match="Catch the error inside the stream"):
        make(Plain(4), workers, errors=sutler.Errors(max=3))
    with pytest.raises(TypeError, match="has neither"):
        sutler.Loader(object())


def test_workers_that_are_not_forked() -> None:
    loader = make(Plain(8), 1, multiprocessing_context="spawn")
    assert numbers(loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_two_epochs_at_once_do_not_mix() -> None:
    loader = make(Plain(8), 2, persistent_workers=True)
    assert [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)] == [
        (batch, batch) for batch in numbers(loader)
    ]
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        iter(loader)


def test_persistent_workers_stay_and_forget_an_epoch_that_was_left() -> None:
    loader = make(Plain(30), 2, persistent_workers=True)
    whole = numbers(loader)
    pids = {process.pid for process in multiprocessing.active_children()}
    for _ in range(3):
        next(iter(loader))
        assert numbers(loader) == whole
    assert {process.pid for process in multiprocessing.active_children()} == pids
    del loader


@pytest.mark.parametrize("workers", WORKERS)
def test_figures_count_every_epoch(workers: int) -> None:
    loader = make(Plain(19), workers)
    delivered = [numbers(loader) for _ in range(2)]
    stats = loader.stats()
    assert stats["batches"] == sum(map(len, delivered))
    assert stats["samples"] == sum(len(batch) for epoch in delivered for batch in epoch)
    assert 0 < stats["wait_seconds"] <= stats["seconds"]
    assert stats["workers"] == workers
    assert repr(loader).startswith("Loader(Plain of ? samples, batch_size=2")


def test_output_without_pytorch() -> None:
    for workers in (0, 1):
        batches = list(make(Plain(3), workers, output="numpy"))
        assert [type(batch) for batch in batches] == [np.ndarray] * 2
        assert list(make(Plain(3), workers, output="numpy", batch_size=None)) == [0, 1, 2]


def test_a_forked_child_goes_on_where_its_parent_was() -> None:
    iterator = iter(make(Plain(12), 2))
    whole = numbers(make(Plain(12), 2))
    assert next(iterator).tolist() == whole[0]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps(numbers(iterator)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert json.loads(pipe.read()) == whole[1:]
    os.waitpid(child, 0)
    assert numbers(iterator) == whole[1:]


@pytest.mark.processes
def test_workers_end_with_a_trainer_that_is_killed(
    run_script: Callable[..., subprocess.CompletedProcess[str]],
    wait_until_gone: Callable[[list[int]], list[int]],
    tmp_path: Path,
) -> None:
    done = run_script(
        """
import os, signal, sutler, sys

class Endless:
    def __iter__(self):
        while True:
            yield 1

def note(worker):
    open(f"{sys.argv[1]}/{worker}.pid", "w").write(str(os.getpid()))

loader = sutler.Loader(Endless(), batch_size=2, num_workers=2, output="numpy", worker_init_fn=note)
iterator = iter(loader)
next(iterator), next(iterator)
print(*(open(f"{sys.argv[1]}/{worker}.pid").read() for worker in range(2)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""",
        tmp_path,
        check=False,
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert wait_until_gone(pids) == [], "worker processes outlive the trainer"
