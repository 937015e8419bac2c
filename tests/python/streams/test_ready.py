"""`in_order=False`: batches as they get ready, none lost, none twice, and an exact resume all the same."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sutler
import torch

from .datasets import WORKERS, Itself, Plain, StatefulDataset, StatefulIterator, make, numbers, share


def by_worker(batches: list[list[int]], workers: int) -> list[list[list[int]]]:
    """What each worker delivered, in the order it came in: a number tells whose it is."""
    return [
        [batch for batch in batches if batch[0] % max(1, workers) == worker]
        for worker in range(max(1, workers))
    ]


class Uneven(Plain):
    """Worker 0 takes its time over every sample."""

    def __iter__(self) -> Iterator[int]:
        info = sutler.get_worker_info()
        for number in share(self.count):
            if info is not None and info.id == 0:
                time.sleep(0.01)
            yield number


class UnevenStateful(StatefulDataset):
    """The same, and remembers how far it has come."""

    def __iter__(self) -> Iterator[int]:
        info = sutler.get_worker_info()
        for number in super().__iter__():
            if info is not None and info.id == 0:
                time.sleep(0.01)
            yield number


@pytest.mark.parametrize("option", [{"in_order": False}, {"order": "ready"}], ids=str)
def test_either_argument_says_it(option: dict[str, Any]) -> None:
    loader = make(Plain(4), 0, **option)
    assert (loader.in_order, loader.order) == (False, "ready")
    strict = make(Plain(4), 0)
    assert (strict.in_order, strict.order) == (True, "strict")
    with pytest.raises(ValueError, match="shares the samples of native datasets"):
        make(Plain(4), 0, order="shared")


class Gated(Plain):
    """Worker 0 has nothing to give before the gate is opened."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.gate = multiprocessing.get_context("fork").Event()

    def __iter__(self) -> Iterator[int]:
        for number in share(self.count):
            if number == 0:
                self.gate.wait(60)
            yield number


def test_no_batch_waits_behind_a_slow_workers() -> None:
    dataset = Gated(30)
    whole = sorted(numbers(make(Plain(30), 3)))
    others = sum(batch[0] % 3 != 0 for batch in whole)
    iterator = iter(make(dataset, 3, order="ready", multiprocessing_context="fork"))
    found = numbers([next(iterator) for _ in range(others)])
    dataset.gate.set()
    found += numbers(iterator)
    assert all(batch[0] % 3 != 0 for batch in found[:others]), "somebody waited for worker 0"
    assert sorted(found) == whole


class Begun(Plain):
    """Tells everybody how many samples each worker has begun with."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.begun = multiprocessing.get_context("fork").Array("i", 2)

    def __iter__(self) -> Iterator[int]:
        for number in share(self.count):
            self.begun[number % 2] += 1
            yield number


def test_a_quick_worker_does_not_crowd_the_others_out() -> None:
    """Where both are always ready, both are served in turn."""
    dataset = Begun(60)
    owners: list[int] = []
    for batch in make(dataset, 2, order="ready", batch_size=1, multiprocessing_context="fork"):
        owners.append(int(batch) % 2)
        if len(owners) <= 40:
            # A worker that is two samples on has sent the one between.
            deadline = time.monotonic() + 60
            while any(dataset.begun[worker] < owners.count(worker) + 2 for worker in (0, 1)):
                assert time.monotonic() < deadline, "the workers do not go on"
                time.sleep(0.001)
    assert all(one != other for one, other in itertools.pairwise(owners[:40])), owners


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", [Uneven, UnevenStateful, StatefulIterator, Itself])
def test_resume_from_every_batch_delivers_the_exact_rest(kind: type[Any], workers: int) -> None:
    reference = by_worker(numbers(make(kind(13), workers)), workers)
    states, found = [], []
    with make(kind(13), workers, order="ready") as loader:
        states.append(loader.state_dict())
        for batch in loader:
            found.append(batch.tolist())
            states.append(loader.state_dict())
    assert by_worker(found, workers) == reference
    for step, state in enumerate(states):
        with make(kind(13), workers, order="ready") as resumed:
            resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
            rest = numbers(resumed)
        # Whichever worker was first: each goes on after what was delivered from it, and nothing else.
        assert by_worker(found[:step] + rest, workers) == reference, f"from batch {step}"


def test_either_order_takes_up_the_others_states() -> None:
    reference = by_worker(numbers(make(Plain(20), 3)), 3)
    for first, second in (("ready", "strict"), ("strict", "ready")):
        with make(Plain(20), 3, order=first) as loader:
            iterator = iter(loader)
            found = numbers([next(iterator) for _ in range(4)])
            state = loader.state_dict()
            del iterator
        with make(Plain(20), 3, order=second) as resumed:
            resumed.load_state_dict(state)
            assert by_worker(found + numbers(resumed), 3) == reference


@pytest.mark.parametrize("device", [None, "cpu"])
def test_persistent_workers_and_epochs_that_were_left(device: str | None) -> None:
    loader = make(Uneven(20), 2, order="ready", persistent_workers=True, device=device)
    whole = sorted(numbers(loader))
    for _ in range(3):
        next(iter(loader))
        assert sorted(numbers(loader)) == whole
    loader.close()


class HalfBroken(Plain):
    """Worker 1 fails at its third sample, or is killed there."""

    def __init__(self, count: int, kill: bool) -> None:
        super().__init__(count)
        self.kill = kill

    def __iter__(self) -> Iterator[int]:
        for step, number in enumerate(share(self.count)):
            if number % 2 == 1 and step == 2:
                if self.kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise KeyError("no such shard")
            yield number


def test_the_others_go_on_after_an_exception() -> None:
    iterator = iter(make(HalfBroken(20, kill=False), 2, order="ready"))
    found, caught = [], 0
    while True:
        try:
            found.append(next(iterator).tolist())
        except KeyError:
            caught += 1
        except StopIteration:
            break
    assert caught == 1
    assert by_worker(found, 2) == [[[0, 2], [4, 6], [8, 10], [12, 14], [16, 18]], [[1, 3]]]


@pytest.mark.processes
def test_a_killed_worker_is_an_error_once_its_batches_are_used_up() -> None:
    iterator = iter(make(HalfBroken(2000, kill=True), 2, order="ready"))
    found: list[list[int]] = []
    with pytest.raises(sutler.WorkerError, match="SIGKILL") as caught:
        found.extend(batch.tolist() for batch in iterator)
    assert by_worker(found, 2)[1] == [[1, 3]]
    assert caught.value.path == "stream of worker 1"
    del iterator, caught


class OnlyGated(Gated):
    """Worker 1 has nothing."""

    def __iter__(self) -> Iterator[int]:
        return iter(()) if sutler.get_worker_info().id == 1 else super().__iter__()


def test_timeout_is_for_any_batch_to_come() -> None:
    dataset = OnlyGated(1)
    iterator = iter(make(dataset, 2, order="ready", timeout=0.3, multiprocessing_context="fork"))
    with pytest.raises(RuntimeError, match=r"timed out after 0\.3 seconds"):
        next(iterator)
    dataset.gate.set()
    del iterator


def test_tensors_keep_their_contents() -> None:
    class Filled(Plain):
        def __iter__(self) -> Iterator[Any]:
            for number in share(self.count):
                yield torch.full((300, 300), float(number))

    kept = list(make(Filled(30), 3, order="ready", batch_size=1))
    assert all(bool((batch == batch[0, 0, 0]).all()) for batch in kept)
    assert sorted(int(batch[0, 0, 0]) for batch in kept) == [
        number for number in range(30) if number % 3 != 1 or number < 24
    ]
