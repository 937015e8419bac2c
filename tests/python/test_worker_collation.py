"""Where batches are made: a user's `collate_fn` runs in the workers, with the same result as without any."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
from sutler._fetch import bulk_getter

torch = pytest.importorskip("torch")
from torch.utils.data import Dataset, StackDataset, Subset  # noqa: E402 - only where torch is installed


class Items(Dataset[Any]):
    """Numbers, some of which raise, and one at which the process ends."""

    def __init__(self, count: int, bad: tuple[int, ...] = (), deadly: int | None = None) -> None:
        self.count = count
        self.bad = bad
        self.deadly = deadly
        self.trainer = os.getpid()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise ValueError(f"item {index} is bad")
        if index == self.deadly and os.getpid() != self.trainer:
            os._exit(3)
        return index


class Noisy(Items):
    """Items with random numbers in them."""

    def __getitem__(self, index: int) -> Any:
        return index, random.random(), float(np.random.random()), float(torch.rand(()))


class NoisyBulk(Noisy):
    """The same, many at a time."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class BadBulk(Items):
    """Many at a time, of which some are bad; a file has a line for each call."""

    calls: Path

    def __getitems__(self, indices: list[int]) -> list[Any]:
        with self.calls.open("a") as calls:
            calls.write(f"{len(indices)}\n")
        return [self[index] for index in indices]


def load(dataset: Any, **options: Any) -> sutler.Loader[Any]:
    if options.get("num_workers"):
        options.setdefault("multiprocessing_context", "fork")
    return sutler.Loader(dataset, **options)


def with_process(samples: list[Any]) -> Any:
    return os.getpid(), samples


def mixed(samples: list[Any]) -> Any:
    """As collate functions that mix the images of a batch do."""
    return samples, random.random(), float(np.random.random()), float(torch.rand(()))


@pytest.mark.parametrize(("batch_size", "calls"), [(4, [4, 1, 1, 1, 1, 2]), (1, [1, 1, 1, 1, 1, 1])])
def test_a_batch_fetched_in_one_call_that_raises_is_fetched_once_more_one_by_one(
    batch_size: int, calls: list[int], tmp_path: Path
) -> None:
    dataset = BadBulk(6, bad=(2,))
    dataset.calls = tmp_path / "calls"
    with load(dataset, batch_size=batch_size, num_workers=1, collate_fn=list, errors="skip") as loader:
        assert [index for batch in loader for index in batch] == [0, 1, 3, 4, 5]
    assert [int(line) for line in dataset.calls.read_text().splitlines()] == calls


@pytest.mark.parametrize("order", ["strict", "ready"])
def test_workers_collate_in_every_order(order: Any) -> None:
    with load(Items(50), batch_size=8, num_workers=2, collate_fn=with_process, order=order) as loader:
        batches = list(loader)
    assert os.getpid() not in {process for process, _ in batches}
    assert sorted(len(samples) for _, samples in batches) == [2, 8, 8, 8, 8, 8, 8]
    found = [sample for _, samples in batches for sample in samples]
    assert sorted(found) == list(range(50))
    assert order == "ready" or found == list(range(50))


def test_batches_of_many_samples() -> None:
    (batch,) = load(Items(1000), batch_size=1000, num_workers=1, collate_fn=list)
    assert batch == list(range(1000))


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_are_left_out_before_collating(workers: int) -> None:
    dataset = Items(9, bad=(0, 4, 6, 7, 8))
    loader = load(dataset, batch_size=3, num_workers=workers, collate_fn=sum, errors="skip", return_ids=True)
    assert [(int(total), ids.tolist()) for total, ids in loader] == [(3, [1, 2]), (8, [3, 5])]
    assert [failure.id for failure in loader.failures()] == [0, 4, 6, 7, 8]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", [None, list])
def test_ids_are_no_sample_among_texts(workers: int, collate: Any) -> None:
    """A batch of texts is a list of them, where one of pairs is a list of its parts."""
    loader = load(["a", "b", "c"], batch_size=2, num_workers=workers, collate_fn=collate, return_ids=True)
    assert [(texts, ids.tolist()) for texts, ids in loader] == [(["a", "b"], [0, 1]), (["c"], [2])]
    pairs = load([("a", 1), ("b", 2)], batch_size=2, num_workers=workers, return_ids=True)
    assert [(list(texts), ids.tolist()) for texts, _, ids in pairs] == [(["a", "b"], [0, 1])]


def test_a_bad_sample_raises_before_anything_is_collated() -> None:
    loader = load(Items(4, bad=(1,)), batch_size=2, num_workers=1, collate_fn=with_process)
    iterator = iter(loader)
    with pytest.raises(ValueError, match="item 1 is bad"):
        next(iterator)
    assert next(iterator)[1] == [2, 3]


def test_what_is_left_after_a_worker_died_is_collated() -> None:
    dataset = Items(8, deadly=2)
    loader = load(dataset, batch_size=4, num_workers=1, collate_fn=with_process, errors="skip")
    batches = [samples for _, samples in loader]
    assert batches == [[0, 1, 3], [4, 5, 6, 7]]
    assert [failure.kind for failure in loader.failures()] == ["worker_lost"]


@pytest.mark.parametrize("dataset", [Noisy(24), NoisyBulk(24), Subset(Noisy(30), range(24))], ids=repr)
@pytest.mark.parametrize("collate", [mixed, None], ids=["own", "default"])
def test_random_numbers_do_not_depend_on_the_workers(dataset: Any, collate: Any) -> None:
    def epoch(workers: int) -> str:
        return repr(list(load(dataset, batch_size=5, shuffle=True, num_workers=workers, collate_fn=collate)))

    without = epoch(0)
    assert epoch(1) == without
    assert epoch(2) == without


def test_random_numbers_of_collating_differ_from_batch_to_batch_and_leave_the_trainers_alone() -> None:
    random.seed(1)
    expected = random.random()
    random.seed(1)
    batches = list(load(Items(8), batch_size=2, collate_fn=mixed))
    assert len({numbers for _, *numbers_ in batches for numbers in numbers_}) == 12
    assert random.random() == expected


def test_samples_are_asked_for_together_where_the_dataset_gains_by_it() -> None:
    assert bulk_getter(Noisy(1)) is None
    assert bulk_getter(NoisyBulk(1)) is not None
    assert bulk_getter(Subset(Noisy(1), [0])) is None
    assert bulk_getter(Subset(Subset(NoisyBulk(1), [0]), [0])) is not None
    assert bulk_getter(StackDataset(Noisy(1), Noisy(1))) is None
    assert bulk_getter(StackDataset(a=Noisy(1), b=NoisyBulk(1))) is not None


@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_is_left_after_the_last_batch_of_an_epoch_even_if_one_raised(workers: int) -> None:
    loader = load(Items(6, bad=(2,)), batch_size=2, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(ValueError, match="item 2 is bad"):
        next(iterator)
    next(iterator)
    state = loader.state_dict()
    assert (state["epoch"], state["consumed"]) == (0, 6)
    with pytest.raises(StopIteration):
        next(iterator)
    assert loader.state_dict()["epoch"] == 1
    resumed = load(Items(6), batch_size=2, num_workers=workers)
    resumed.load_state_dict(state)
    assert list(resumed) == []


def test_figures_without_workers() -> None:
    loader = load(Items(10, bad=(3,)), batch_size=4, errors="skip")
    assert loader.stats()["samples"] == 0
    for _ in range(2):
        list(loader)
    stats = loader.stats()
    assert (stats["samples"], stats["batches"], stats["failed"]) == (18, 6, 2)
    assert 0 < stats["wait_seconds"] <= stats["seconds"]
    assert stats["stalls"]["prep"] == stats["wait_seconds"]
    loader.close()
    assert loader.stats()["samples"] == 18


class Arrays(Items):
    """Samples of 40 KB, each filled with its number; some are five times as long."""

    def __init__(self, count: int, long: tuple[int, ...] = (), **options: Any) -> None:
        super().__init__(count, **options)
        self.long = long

    def __getitem__(self, index: int) -> Any:
        number = super().__getitem__(index)
        return np.full(50_000 if number in self.long else 10_000, number, np.float32)


def in_one(samples: list[Any]) -> Any:
    return {
        "values": torch.from_numpy(np.concatenate(samples)),
        "lengths": [len(sample) for sample in samples],
    }


def check_arrays(batch: Any, numbers: list[int]) -> None:
    assert len(batch["lengths"]) == len(numbers)
    expected = np.repeat(np.asarray(numbers, np.float32), batch["lengths"])
    assert (batch["values"].numpy() == expected).all()


def test_large_batches_lie_in_memory_that_is_used_again() -> None:
    places = []
    with load(Arrays(8 * 40), batch_size=8, collate_fn=in_one, num_workers=2, prefetch_factor=2) as loader:
        for step, batch in enumerate(loader):
            check_arrays(batch, list(range(8 * step, 8 * step + 8)))
            batch["values"] += 1  # the trainer's to do with as it likes
            places.append(batch["values"].data_ptr())
    # Two ahead for each worker and two in hand; the first ones are made before there is such memory.
    assert len(set(places[6:])) <= 6


def test_large_batches_may_be_kept_and_may_differ_in_size() -> None:
    dataset = Arrays(8 * 40, long=(70, 71, 75, 200))
    with load(dataset, batch_size=8, collate_fn=in_one, num_workers=2, persistent_workers=True) as loader:
        kept = list(loader) + list(loader)
    for step, batch in enumerate(kept):
        first = 8 * (step % 40)
        check_arrays(batch, list(range(first, first + 8)))


def test_what_is_left_of_large_batches_after_a_worker_died_is_collated() -> None:
    dataset = Arrays(8 * 20, deadly=101)
    with load(dataset, batch_size=8, collate_fn=in_one, num_workers=2, errors="skip") as loader:
        batches = list(loader)
    for step, batch in enumerate(batches):
        check_arrays(batch, [number for number in range(8 * step, 8 * step + 8) if number != 101])
