"""Worker processes: how many, how far ahead they are, how long they live, what they are told and what they know."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import get_worker_info

from . import processes
from .datasets import Counting, Held, Meeting, Numbers, Places, PlainError, Sleeping, Stream, flat
from .expect import raises


def gather(loader: Any, name: str) -> list[int]:
    """One field of all samples."""
    return [int(value) for batch in loader for value in batch[name]]


class Prepared(Numbers):
    """Counts in memory that all processes share how many samples were prepared."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.prepared = multiprocessing.get_context("fork").Value("i", 0)

    def __getitem__(self, index: int) -> Any:
        with self.prepared.get_lock():
            self.prepared.value += 1
        return super().__getitem__(index)


class Drawn:
    """An order that counts how far it has been drawn."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.drawn = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        for index in range(self.count):
            self.drawn += 1
            yield index


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_samples_are_prepared_by_that_many_processes(load: Callable[..., Any], workers: int) -> None:
    pids = set(gather(load(Meeting(32, workers), batch_size=2, num_workers=workers), "pid"))
    if workers == 0:
        assert pids == {os.getpid()}
    else:
        assert len(pids) == workers
        assert os.getpid() not in pids


def test_workers_know_who_they_are(load: Callable[..., Any]) -> None:
    loader = load(Meeting(24, 2), batch_size=2, num_workers=2)
    batches = list(loader)
    assert set(gather(batches, "worker")) == {0, 1}
    assert set(gather(batches, "workers")) == {2}
    assert set(gather(batches, "own_copy")) == {1}
    seeds = {
        (int(w), int(s)) for batch in batches for w, s in zip(batch["worker"], batch["seed"], strict=True)
    }
    assert len(seeds) == 2
    (first, second) = (seed for _, seed in sorted(seeds))
    assert second == first + 1


def test_the_trainer_is_no_worker(load: Callable[..., Any]) -> None:
    loader = load(Places(2))
    assert get_worker_info() is None
    assert gather(loader, "worker") == [-1, -1]
    for _ in load(Places(4), num_workers=1):
        assert get_worker_info() is None


def test_workers_compute_with_one_thread(load: Callable[..., Any]) -> None:
    before = torch.get_num_threads()
    assert set(gather(load(Places(4), num_workers=2), "threads")) == {1}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_the_prefetch_factor_limits_how_far_ahead_workers_are(load: Callable[..., Any], factor: int) -> None:
    sampler, dataset = Drawn(400), Prepared(400)
    iterator = iter(load(dataset, batch_size=2, sampler=sampler, num_workers=2, prefetch_factor=factor))
    for taken in range(1, 6):
        next(iterator)
        time.sleep(0.02)
        assert dataset.prepared.value <= 2 * (taken + factor * 2)
        assert sampler.drawn <= 2 * (taken + factor * 2)
    del iterator


def test_nothing_is_prepared_before_iteration(load: Callable[..., Any]) -> None:
    before = processes.children()
    sampler = Drawn(8)
    loader = load(Numbers(8), batch_size=2, sampler=sampler, num_workers=2)
    assert sampler.drawn == 0
    assert processes.children() == before
    assert flat(loader) == list(range(8))


def test_workers_of_an_epoch_end_with_it(load: Callable[..., Any]) -> None:
    before = processes.children()
    loader = load(Places(8), batch_size=2, num_workers=2)
    first = set(gather(loader, "pid"))
    assert not processes.wait_until_gone(processes.children() - before)
    assert first.isdisjoint(gather(loader, "pid"))


def test_persistent_workers_stay(load: Callable[..., Any]) -> None:
    loader = load(Meeting(16, 2), batch_size=2, num_workers=2, persistent_workers=True)
    epochs = [set(gather(loader, "pid")) for _ in range(3)]
    assert len(epochs[0]) == 2
    assert epochs[0] == epochs[1] == epochs[2]
    assert processes.children() >= epochs[0]
    del loader
    assert not processes.wait_until_gone(epochs[0])


def test_an_iterator_over_workers_that_stay(load: Callable[..., Any], differs: Callable[[str], bool]) -> None:
    loader = load(Numbers(4), batch_size=2, num_workers=1, persistent_workers=True)
    first = iter(loader)
    list(first)
    second = iter(loader)
    assert (second is first) != differs("same_iterator")
    assert flat(second) == [0, 1, 2, 3]


def test_a_dataset_lives_as_long_as_its_worker(load: Callable[..., Any]) -> None:
    def calls(**options: Any) -> list[list[int]]:
        loader = load(Counting(4), batch_size=2, num_workers=1, **options)
        return [[int(value) for batch in loader for value in batch[1]] for _ in range(2)]

    assert calls() == [[1, 2, 3, 4], [1, 2, 3, 4]]
    assert calls(persistent_workers=True) == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_changes_to_the_dataset_reach_new_workers_only(load: Callable[..., Any]) -> None:
    def values(**options: Any) -> list[set[int]]:
        dataset = Counting(4)
        loader = load(dataset, batch_size=2, num_workers=1, **options)
        seen = []
        for value in (1, 2):
            dataset.value = value
            seen.append({int(each) for batch in loader for each in batch[2]})
        return seen

    assert values() == [{1}, {2}]
    assert values(persistent_workers=True) == [{1}, {1}]


def test_worker_init_fn_is_called_once_in_each_worker(load: Callable[..., Any], tmp_path: Path) -> None:
    def note(worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        assert (info.id, info.num_workers) == (worker, 2)
        info.dataset.count = 100  # type: ignore[attr-defined]
        with open(tmp_path / f"{worker}", "a") as file:
            file.write(f"{os.getpid()}\n")

    class Counted(Meeting):
        def __getitem__(self, index: int) -> Any:
            super().__getitem__(index)
            return self.count

    loader = load(Counted(8, 2), batch_size=2, num_workers=2, worker_init_fn=note, persistent_workers=True)
    assert set(flat(loader)) == {100}
    assert set(flat(loader)) == {100}
    notes = [(tmp_path / str(worker)).read_text().split() for worker in (0, 1)]
    assert [len(note) for note in notes] == [1, 1]
    assert notes[0] != notes[1]


def test_worker_init_fn_is_not_called_without_workers(load: Callable[..., Any]) -> None:
    def never(worker: int) -> None:
        raise AssertionError("there is no worker")

    assert flat(load(Numbers(2), worker_init_fn=never)) == [0, 1]


def test_an_exception_in_worker_init_fn_reaches_the_trainer(load: Callable[..., Any]) -> None:
    def broken(worker: int) -> None:
        raise PlainError("no licence for this worker")

    with raises(PlainError, match="no licence for this worker") as caught:
        flat(load(Numbers(8), batch_size=2, num_workers=1, worker_init_fn=broken))
    assert "in DataLoader worker process 0" in str(caught.value)


def test_timeout_limits_the_wait_for_a_batch(load: Callable[..., Any]) -> None:
    dataset = Held(4, 2)
    iterator = iter(load(dataset, batch_size=1, num_workers=1, timeout=3))
    assert next(iterator).tolist() == [0]
    assert next(iterator).tolist() == [1]
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="timed out after 3 seconds"):
        next(iterator)
    assert 2.9 < time.monotonic() - started < 30
    dataset.let_go.set()


def test_timeout_counts_from_batch_to_batch(load: Callable[..., Any]) -> None:
    dataset = Sleeping(8, dict.fromkeys(range(8), 0.4))
    assert flat(load(dataset, batch_size=1, num_workers=1, timeout=3)) == list(range(8))


def test_slow_samples_hold_their_place_in_order(load: Callable[..., Any]) -> None:
    loader = load(Sleeping(12, {0: 0.5, 5: 0.2}), batch_size=2, num_workers=2, in_order=True)
    assert flat(loader) == list(range(12))


def test_without_order_ready_batches_overtake_slow_ones(
    load: Callable[..., Any], differs: Callable[[str], bool]
) -> None:
    dataset = Held(16, 0)
    iterator = iter(load(dataset, batch_size=2, num_workers=2, in_order=False))
    batches = [next(iterator).tolist()]
    dataset.let_go.set()
    batches += [batch.tolist() for batch in iterator]
    if differs("ready_by_sample"):
        assert sorted(flat(batches)) == list(range(16))
    else:
        assert sorted(batches) == [[at, at + 1] for at in range(0, 16, 2)]
    assert 0 not in batches[0]


def test_without_order_the_batches_of_a_batch_sampler_stay_together(load: Callable[..., Any]) -> None:
    drawn = [[0, 1, 2], [3], [4, 5], [6, 7, 8, 9]]
    dataset = Held(10, 0)
    iterator = iter(load(dataset, batch_sampler=drawn, num_workers=2, in_order=False))
    batches = [next(iterator).tolist()]
    dataset.let_go.set()
    batches += [batch.tolist() for batch in iterator]
    assert sorted(batches) == drawn
    assert batches[0] != drawn[0]


def test_without_order_nothing_changes_without_workers(load: Callable[..., Any]) -> None:
    assert flat(load(Numbers(6), batch_size=2, in_order=False)) == list(range(6))


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux tells policies apart")
def test_how_workers_are_scheduled(load: Callable[..., Any], differs: Callable[[str], bool]) -> None:
    class Policies(Numbers):
        def __getitem__(self, index: int) -> int:
            return os.sched_getscheduler(0)

    expected = os.SCHED_BATCH if differs("workers_give_way") else os.sched_getscheduler(0)
    assert set(flat(load(Policies(8), batch_size=2, num_workers=2))) == {expected}

    def choose(worker: int) -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    chosen = load(Policies(8), batch_size=2, num_workers=2, worker_init_fn=choose)
    assert set(flat(chosen)) == {os.SCHED_IDLE}


def test_which_workers_prepare_a_batch(load: Callable[..., Any], differs: Callable[[str], bool]) -> None:
    class Workers(Meeting):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)["worker"]

    shared = differs("batches_of_several_workers")
    loader = load(Workers(64, 2, apart=1 if shared else 16), batch_size=16, num_workers=2)
    batches = [set(batch.tolist()) for batch in loader]
    if shared:
        assert batches[0] == {0, 1}
    else:
        assert batches == [{0}, {1}, {0}, {1}]
    together = load(Workers(64, 2, apart=16), batch_size=16, num_workers=2, collate_fn=set)
    assert all(len(batch) == 1 for batch in together)


def test_what_is_known_of_the_workers(load: Callable[..., Any], differs: Callable[[str], bool]) -> None:
    class Pids(Numbers):
        def __getitem__(self, index: int) -> int:
            return os.getpid()

    for dataset in (Pids(16), Stream(4)):
        iterator = iter(load(dataset, num_workers=2, batch_size=2))
        workers = iterator._workers
        assert len(workers) == 2
        assert all(worker.is_alive() for worker in workers)
        found = {int(pid) for batch in iterator for pid in batch}
        if isinstance(dataset, Pids):
            assert found <= {worker.pid for worker in workers}
        assert hasattr(iterator, "_index_queues") != differs("iterator_internals")
        del iterator
        for worker in workers:
            worker.join(processes.PATIENCE)
            assert worker.exitcode == 0


def test_a_thread_of_the_iterator_pins_batches(
    load: Callable[..., Any], differs: Callable[[str], bool]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where there is no GPU to pin memory for
        iterator = iter(load(Numbers(8), num_workers=1, pin_memory=True))
        next(iterator)
    pins = torch.cuda.is_available() and not differs("pin_memory_thread")
    assert hasattr(iterator, "_pin_memory_thread") == pins
    iterator._shutdown_workers()


def test_workers_can_be_shut_down_by_the_private_name_for_it(load: Callable[..., Any]) -> None:
    for dataset in (Numbers(16), Stream(16)):
        loader = load(dataset, num_workers=2, batch_size=2)
        assert loader._iterator is None
        iterator = iter(loader)
        workers = iterator._workers
        next(iterator)
        iterator._shutdown_workers()
        for worker in workers:
            worker.join(processes.PATIENCE)
            assert not worker.is_alive()
        assert len(list(loader)) == (8 if isinstance(dataset, Numbers) else 16)


def test_a_worker_init_fn_that_is_set_later_counts(load: Callable[..., Any]) -> None:
    class Told(Numbers):
        told = -1

        def __getitem__(self, index: int) -> int:
            return self.told

    dataset = Told(2)
    loader = load(dataset, num_workers=1)
    assert [int(batch) for batch in loader] == [-1, -1]
    loader.worker_init_fn = lambda worker: setattr(dataset, "told", 7)
    assert [int(batch) for batch in loader] == [7, 7]


def test_more_workers_than_cores_are_warned_of(load: Callable[..., Any]) -> None:
    with pytest.warns(UserWarning, match="excessive worker creation might get DataLoader running slow"):
        load(Numbers(2), num_workers=4096)
