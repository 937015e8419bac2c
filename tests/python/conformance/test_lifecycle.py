"""Iterators and loaders come and go: twice, at once, half-way, in threads and in other processes."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest

from . import processes
from .datasets import Numbers, Places, Stream, flat


@pytest.fixture(params=[0, 2], ids=["main", "workers"])
def workers(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


def test_a_loader_can_be_iterated_again(load: Callable[..., Any], workers: int) -> None:
    loader = load(Numbers(9), batch_size=2, num_workers=workers)
    assert [flat(loader) for _ in range(3)] == [list(range(9))] * 3


def test_two_iterators_do_not_disturb_each_other(load: Callable[..., Any], workers: int) -> None:
    loader = load(Numbers(6), batch_size=2, num_workers=workers)
    pairs = [(left.tolist(), right.tolist()) for left, right in zip(loader, loader, strict=True)]
    assert pairs == [([at, at + 1],) * 2 for at in (0, 2, 4)]
    nested = [(int(outer[0]), int(inner[0])) for outer in loader for inner in loader]
    assert nested == [(outer, inner) for outer in (0, 2, 4) for inner in (0, 2, 4)]


def test_two_loaders_share_a_dataset(load: Callable[..., Any], workers: int) -> None:
    dataset = Numbers(6)
    first = load(dataset, batch_size=2, num_workers=workers)
    second = load(dataset, batch_size=3, num_workers=workers)
    assert [len(batch) for pair in zip(first, second, strict=False) for batch in pair] == [2, 3, 2, 3]


def test_an_epoch_that_was_left_can_be_begun_again(load: Callable[..., Any], workers: int) -> None:
    for persistent in {False, workers > 0}:
        loader = load(Numbers(20), batch_size=2, num_workers=workers, persistent_workers=persistent)
        for _ in range(3):
            for batch in loader:
                if int(batch[0]) == 4:
                    break
        assert flat(loader) == list(range(20))
        del loader


def test_an_iterator_ends_and_stays_ended(load: Callable[..., Any], workers: int) -> None:
    iterator = iter(load(Numbers(3), batch_size=2, num_workers=workers))
    assert iter(iterator) is iterator
    assert [int(value) for batch in iterator for value in batch] == [0, 1, 2]
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_an_iterator_outlives_its_loader(load: Callable[..., Any], workers: int) -> None:
    iterator = iter(load(Numbers(8), batch_size=2, num_workers=workers))
    gc.collect()
    assert [int(value) for batch in iterator for value in batch] == list(range(8))


def test_a_deleted_iterator_takes_its_workers_with_it(load: Callable[..., Any]) -> None:
    before = processes.children()
    loader = load(Places(100), batch_size=2, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    ours = processes.children() - before
    assert len(ours) == 2
    del iterator
    assert not processes.wait_until_gone(ours)
    assert len(loader) == 50


def test_an_iterator_in_a_cycle_takes_its_workers_with_it(load: Callable[..., Any]) -> None:
    before = processes.children()
    cycle: list[Any] = [iter(load(Places(100), batch_size=2, num_workers=1))]
    cycle.append(cycle)
    next(cycle[0])
    ours = processes.children() - before
    del cycle
    gc.collect()
    assert not processes.wait_until_gone(ours)


def test_batches_outlive_iterator_and_loader(load: Callable[..., Any], workers: int) -> None:
    loader = load(Numbers(8), batch_size=4, num_workers=workers)
    batches = list(loader)
    del loader
    gc.collect()
    assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_loader_may_be_used_in_a_thread(load: Callable[..., Any], workers: int) -> None:
    seen: list[int] = []
    loader = load(Numbers(8), batch_size=2, num_workers=workers)
    thread = threading.Thread(target=lambda: seen.extend(flat(loader)))
    thread.start()
    thread.join(20)
    assert seen == list(range(8))


def test_a_loader_may_be_used_in_a_forked_process(load: Callable[..., Any], workers: int) -> None:
    loader = load(Numbers(8), batch_size=2, num_workers=workers)
    assert flat(loader) == list(range(8))
    assert processes.in_a_child(lambda: flat(loader)) == list(range(8))
    assert flat(loader) == list(range(8))


def test_a_dataset_may_use_a_loader_of_its_own(load: Callable[..., Any], workers: int) -> None:
    class Sums(Numbers):
        def __getitem__(self, index: int) -> int:
            return sum(flat(load(Numbers(index + 1), batch_size=2)))

    assert flat(load(Sums(5), batch_size=2, num_workers=workers)) == [0, 1, 3, 6, 10]


def test_other_child_processes_are_left_alone(load: Callable[..., Any]) -> None:
    bystander = subprocess.Popen(["sleep", "30"])
    try:
        assert flat(load(Numbers(8), batch_size=2, num_workers=2)) == list(range(8))
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_pools_work_beside_a_loader(load: Callable[..., Any]) -> None:
    iterator = iter(load(Numbers(20), batch_size=2, num_workers=1))
    next(iterator)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
    assert len(list(iterator)) == 9


def pickled(loader: Any) -> Any:
    return pickle.loads(pickle.dumps(loader))


def test_what_cannot_be_pickled_is_named_by_pickle(load: Callable[..., Any]) -> None:
    loader = load(Numbers(4), collate_fn=lambda samples: samples)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(loader)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 2},
        {"batch_size": 3, "drop_last": True, "collate_fn": list},
        {"batch_size": None},
        {"batch_size": 2, "sampler": [3, 1, 0]},
        {"batch_sampler": [[3, 1], [0]]},
    ],
    ids=["plain", "collate_fn", "single", "sampler", "batch_sampler"],
)
def test_copying(
    load: Callable[..., Any], way: Callable[[Any], Any], workers: int, options: dict[str, Any]
) -> None:
    loader = load(Numbers(5), num_workers=workers, **options)
    copied = way(loader)
    assert type(copied) is type(loader)
    assert (copied.dataset is loader.dataset) == (way is copy.copy)
    for name in ("batch_size", "num_workers", "collate_fn", "drop_last", "timeout", "prefetch_factor"):
        assert getattr(copied, name) == getattr(loader, name)
    expected = [str(batch) for batch in loader]
    assert [str(batch) for batch in copied] == expected
    del loader
    assert [str(batch) for batch in copied] == expected


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickled])
def test_copying_a_stream(load: Callable[..., Any], way: Callable[[Any], Any]) -> None:
    for workers in (0, 1):
        assert flat(way(load(Stream(5), batch_size=2, num_workers=workers))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
def test_copying_a_class_of_the_users_own(loader_class: Any, way: Callable[[Any], Any]) -> None:
    class Named(loader_class):
        def __init__(self, name: str) -> None:
            self.first = [name]
            super().__init__(Numbers(4), batch_size=2)
            self.name = name

    copied = way(Named("mine"))
    copied.later = 3
    copied = way(copied)
    assert (copied.first, copied.name, copied.later) == (["mine"], "mine", 3)
    assert flat(copied) == [0, 1, 2, 3]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
def test_copying_while_iterating(load: Callable[..., Any], way: Callable[[Any], Any]) -> None:
    loader = load(Numbers(6), batch_size=2, num_workers=1)
    batches = iter(loader)
    next(batches)
    assert flat(way(loader)) == [0, 1, 2, 3, 4, 5]
    assert flat(batches) == [2, 3, 4, 5]


class Remembering(Numbers):
    """Has a state of its own: how often it was asked for a sample."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.asked = 0

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        return super().__getitem__(index), self.asked

    def state_dict(self) -> dict[str, int]:
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.asked = state["asked"]


def test_workers_ask_copies_of_a_dataset_that_has_a_state_in_turn(
    load: Callable[..., Any], differs: Callable[[str], bool]
) -> None:
    loader = load(Remembering(10), batch_size=2, num_workers=2)
    asked = [batch[1].tolist() for batch in loader]
    assert asked == [[1, 2], [1, 2], [3, 4], [3, 4], [5, 6]]
    if differs("batches_with_states_in_turn"):
        batches = iter(loader)
        next(batches)
        assert loader.state_dict()["dataset_workers"] == {"turn": 1, "states": [{"asked": 2}, None]}
    else:
        assert not hasattr(loader, "state_dict")
