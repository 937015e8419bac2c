"""Which samples come, in which order: the default orders, samplers and batch samplers."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import sutler
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from .datasets import BulkIndexed, Computed, Listed, Numbers, flat
from .expect import raises


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Endless:
    """An order without end; whoever draws much more of it than it delivers is told so."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __iter__(self) -> Iterator[int]:
        for drawn in range(self.most):
            yield drawn % 10
        raise AssertionError(f"{self.most} indices were drawn from an order without end")


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_samples_come_in_order(load: Callable[..., Any], workers: int, batch_size: int) -> None:
    batches = [batch.tolist() for batch in load(Numbers(21), batch_size=batch_size, num_workers=workers)]
    assert batches == [list(range(21))[at : at + batch_size] for at in range(0, 21, batch_size)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_incomplete_last_batch_is_dropped_on_request(load: Callable[..., Any], workers: int) -> None:
    loader = load(Numbers(10), batch_size=4, drop_last=True, num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_batch_size_samples_come_singly(load: Callable[..., Any], workers: int) -> None:
    assert list(load(Numbers(5), batch_size=None, num_workers=workers)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_empty_dataset_has_an_empty_epoch(load: Callable[..., Any], workers: int) -> None:
    assert list(load(Numbers(0), batch_size=4, num_workers=workers)) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffling_keeps_every_sample_and_changes_each_epoch(load: Callable[..., Any], workers: int) -> None:
    loader = load(Numbers(50), batch_size=8, shuffle=True, num_workers=workers)
    first, second = flat(loader), flat(loader)
    assert sorted(first) == sorted(second) == list(range(50))
    assert len({tuple(first), tuple(second), tuple(range(50))}) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_a_generator_decides_the_order(load: Callable[..., Any], workers: int) -> None:
    def epochs(seed: int) -> list[list[int]]:
        loader = load(Numbers(30), batch_size=8, shuffle=True, num_workers=workers, generator=generator(seed))
        return [flat(loader), flat(loader)]

    assert epochs(1) == epochs(1)
    assert epochs(1) != epochs(2)


def test_what_shuffling_is_drawn_from(load: Callable[..., Any], differs: Callable[[str], bool]) -> None:
    def order(seed: int) -> list[int]:
        torch.manual_seed(seed)
        return flat(load(Numbers(30), batch_size=8, shuffle=True))

    assert order(1) == order(1)
    if differs("shuffle_order"):
        assert order(1) == order(2)
        loader = load(Numbers(30), batch_size=8, shuffle=True, generator=generator(1))
        first = flat(loader)
        loader.set_epoch(0)
        assert flat(loader) == first
    else:
        assert order(1) != order(2)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "sampler", [[3, 1, 1, 4], (3, 1, 1, 4), torch.tensor([3, 1, 1, 4]), iter([3, 1, 1, 4])], ids=type
)
def test_a_sampler_is_any_iterable_of_indices(load: Callable[..., Any], sampler: Any, workers: int) -> None:
    if isinstance(sampler, Iterator):
        sampler = iter([3, 1, 1, 4])  # the parameter is used up by the first test that has it
    assert flat(load(Numbers(5), batch_size=3, sampler=sampler, num_workers=workers)) == [3, 1, 1, 4]


def test_what_kind_of_index_reaches_the_dataset(
    load: Callable[..., Any], differs: Callable[[str], bool]
) -> None:
    for drawn in (torch.tensor(1), np.int64(1)):
        (kinds,) = load(Computed(2, lambda index: type(index).__name__), sampler=[drawn])
        assert kinds == ["int" if differs("indices_are_ints") else type(drawn).__name__]
    for workers in (0, 1):
        loader = load(
            Listed(torch.arange(5)), sampler=[torch.tensor([3]), torch.tensor([3])], num_workers=workers
        )
        assert [batch.tolist() for batch in loader] == [[[3]], [[3]]]


def test_negative_indices_reach_the_dataset(load: Callable[..., Any]) -> None:
    for workers in (0, 1):
        assert flat(load(Numbers(5), batch_size=2, sampler=[-1, -2], num_workers=workers)) == [-1, -2]


def test_keys_need_not_be_numbers(load: Callable[..., Any]) -> None:
    words = Listed({"one": 1, "two": 2, "three": 3})
    for workers in (0, 1):
        loader = load(words, batch_size=2, sampler=["three", "one"], num_workers=workers)
        assert [batch.tolist() for batch in loader] == [[3, 1]]
    pairs = Listed({("a", 1): 1, ("b", 2): 2})
    loader = load(pairs, batch_sampler=[[("b", 2), ("a", 1)]])
    assert [batch.tolist() for batch in loader] == [[2, 1]]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_without_end_is_drawn_as_it_is_needed(load: Callable[..., Any], workers: int) -> None:
    for options in (
        {"sampler": Endless(2000), "batch_size": 4},
        {"batch_sampler": BatchSampler(Endless(2000), 4, drop_last=False)},
    ):
        loader = load(Numbers(10), num_workers=workers, **options)
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
        del iterator


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_sampler_decides_the_batches(load: Callable[..., Any], workers: int) -> None:
    batches = [[5, 4], [0], [1, 2, 3]]
    assert [
        batch.tolist() for batch in load(Numbers(6), batch_sampler=batches, num_workers=workers)
    ] == batches
    sampler = BatchSampler(SequentialSampler(range(7)), 3, drop_last=True)
    loader = load(Numbers(7), batch_sampler=sampler, num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_empty_batch(load: Callable[..., Any], differs: Callable[[str], bool], workers: int) -> None:
    loader = load(Numbers(4), batch_sampler=[[1], [], [2]], collate_fn=list, num_workers=workers)
    if differs("empty_batches"):
        with pytest.raises(ValueError, match="batch 1 of the batch sampler is empty"):
            list(loader)
    else:
        assert list(loader) == [[1], [], [2]]


def test_batches_of_tuples_and_of_tensors(load: Callable[..., Any]) -> None:
    loader = load(Numbers(6), batch_sampler=[(5, 4), torch.tensor([0])])
    assert [batch.tolist() for batch in loader] == [[5, 4], [0]]


def test_samplers_are_asked_anew_in_each_epoch(load: Callable[..., Any]) -> None:
    class Rotating:
        epochs = 0

        def __iter__(self) -> Iterator[int]:
            self.epochs += 1
            return iter([self.epochs, 0])

    loader = load(Numbers(9), batch_size=2, sampler=Rotating())
    assert [flat(loader) for _ in range(3)] == [[1, 0], [2, 0], [3, 0]]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_can_be_loaded_in_bulk(load: Callable[..., Any], workers: int) -> None:
    sampler = BatchSampler(SequentialSampler(range(5)), 2, drop_last=False)
    loader = load(BulkIndexed(5), batch_size=None, sampler=sampler, num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[0, 10], [20, 30], [40]]


@pytest.mark.parametrize("workers", [0, 2])
def test_pytorchs_samplers(load: Callable[..., Any], workers: int) -> None:
    makers: list[Callable[[], Any]] = [
        lambda: SequentialSampler(range(20)),
        lambda: RandomSampler(range(20), generator=generator(1)),
        lambda: RandomSampler(range(20), replacement=True, num_samples=33, generator=generator(1)),
        lambda: SubsetRandomSampler([2, 3, 5, 7, 11], generator=generator(1)),
        lambda: WeightedRandomSampler([0.0, 1.0, 3.0], 40, generator=generator(1)),
    ]
    for make in makers:
        loader = load(Numbers(20), batch_size=8, sampler=make(), num_workers=workers)
        expected = list(make())
        assert flat(loader) == expected
        assert len(loader) == -(-len(expected) // 8)


def test_weights_are_respected(load: Callable[..., Any]) -> None:
    sampler = WeightedRandomSampler([0.0, 1.0, 9.0], 500, generator=generator(1))
    counts = Counter(flat(load(Numbers(3), batch_size=50, sampler=sampler)))
    assert counts[0] == 0
    assert 5 < counts[2] / counts[1] < 15


def test_ranks_share_an_epoch_and_set_epoch_reshuffles_it(load: Callable[..., Any]) -> None:
    def epochs(rank: int) -> list[list[int]]:
        sampler: DistributedSampler[int] = DistributedSampler(
            Numbers(20), num_replicas=2, rank=rank, shuffle=True, seed=5
        )
        loader = load(Numbers(20), batch_size=4, sampler=sampler)
        seen = []
        for epoch in (0, 1, 1):
            sampler.set_epoch(epoch)
            seen.append(flat(loader))
        return seen

    first, second = epochs(0), epochs(1)
    for ours, theirs in zip(first, second, strict=True):
        assert sorted(ours + theirs) == list(range(20))
    assert first[0] != first[1]
    assert first[1] == first[2]


def test_ranks_may_be_padded_or_cut_to_equal_lengths(load: Callable[..., Any]) -> None:
    for drop_last, length in ((False, 11), (True, 10)):
        for rank in (0, 1):
            sampler: DistributedSampler[int] = DistributedSampler(
                Numbers(21), num_replicas=2, rank=rank, shuffle=False, drop_last=drop_last
            )
            loader = load(Numbers(21), batch_size=4, sampler=sampler)
            assert flat(loader) == list(sampler)
            assert len(flat(loader)) == length
            assert len(loader) == 3


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("in_batches", [False, True])
def test_what_a_sampler_draws_from_pytorch_s_generator_is_what_it_draws_for_pytorch(
    load: Callable[..., Any], workers: int, own: bool, in_batches: bool
) -> None:
    def draw(make: Callable[..., Any]) -> list[int]:
        torch.manual_seed(3)
        data = Numbers(12)
        options: dict[str, Any] = {"generator": generator(5)} if own else {}
        if in_batches:
            options["batch_sampler"] = BatchSampler(RandomSampler(data), 4, False)
        else:
            options |= {"sampler": RandomSampler(data), "batch_size": 4}
        loader = make(data, num_workers=workers, **options)
        return flat(loader) + flat(loader) + [int(torch.randint(1000, ()))]

    assert draw(load) == draw(torch.utils.data.DataLoader)


class Calling:
    """What a sampler draws are functions, and the dataset calls them."""

    def __getitem__(self, key: Callable[[], Any]) -> Any:
        return key()


def test_keys_need_not_be_picklable_without_workers(load: Callable[..., Any]) -> None:
    keys: list[Any] = [lambda: 1, lambda: 2, lambda: 3]
    loader = load(Calling(), batch_size=2, sampler=[*keys, keys[0]])
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [[1, 2], [3, 1]]
    loader = load(Calling(), batch_sampler=[keys[:2], keys[2:]], collate_fn=list)
    assert list(loader) == [[1, 2], [3]]
    assert list(load(Calling(), batch_size=None, sampler=keys)) == [1, 2, 3]


@pytest.mark.parametrize("named", ["sampler", "batch_sampler"])
def test_keys_that_workers_cannot_be_told(
    load: Callable[..., Any],
    differs: Callable[[str], bool],
    named: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    says_so = differs("unpicklable_keys")
    keys: list[Any] = [lambda: 1, lambda: 2]
    drawn = keys if named == "sampler" else [keys]
    loader = load(Calling(), **{named: drawn}, num_workers=1, timeout=0 if says_so else 3)
    if says_so:
        for _ in range(2):
            with raises(TypeError, match=r"the sampler drew <function .*cannot be pickled.*num_workers=0"):
                list(loader)
    else:
        with raises(RuntimeError, match="timed out"):
            list(loader)
    capfd.readouterr()  # the trainer's feeder thread prints a traceback


def test_keys_that_cannot_be_pickled_have_random_numbers_of_their_own() -> None:
    keys: list[Any] = [lambda: float(torch.rand(())) for _ in range(3)]
    loader = sutler.Loader(Calling(), batch_size=2, sampler=[*keys, keys[0]])
    values = [value for batch in loader for value in batch.tolist()]
    assert len(set(values)) == 4
    again = sutler.Loader(Calling(), batch_size=2, sampler=[*keys, keys[0]])
    first = next(iter(again)).tolist()
    resumed = sutler.Loader(Calling(), batch_size=2, sampler=[*keys, keys[0]])
    resumed.load_state_dict(again.state_dict())
    assert first + [value for batch in resumed for value in batch.tolist()] == values


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [2**31, 2**32 - 1, 2**32, sys.maxsize])
def test_a_batch_size_that_stands_for_everything(
    load: Callable[..., Any], batch_size: int, workers: int
) -> None:
    everything = list(range(5))
    for options in ({}, {"sampler": everything}, {"in_order": False}):
        loader = load(Numbers(5), batch_size=batch_size, num_workers=workers, **options)
        assert [sorted(batch.tolist()) for batch in loader] == [everything]
        assert len(loader) == 1
        assert loader.batch_size == batch_size
    growing = list(range(5))
    loader = load(growing, batch_size=batch_size, num_workers=workers)
    assert [batch.tolist() for batch in loader] == [growing]
    growing += [5, 6]
    assert [batch.tolist() for batch in loader] == [growing]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_is_never_full_is_left_out(workers: int) -> None:
    """PyTorch's sampler makes a list of so many iterators first, which takes all memory there is."""
    loader = sutler.Loader(Numbers(5), batch_size=sys.maxsize, num_workers=workers, drop_last=True)
    assert list(loader) == []
    assert len(loader) == 0


def same_orders(one: Any, other: Any) -> bool:
    return flat(one) == flat(other)


def test_loaders_that_are_made_alike(load: Callable[..., Any], differs: Callable[[str], bool]) -> None:
    def make(**options: Any) -> Any:
        return load(Numbers(100), batch_size=5, shuffle=True, **options)

    same = differs("loaders_made_alike")
    assert same_orders(make(), make()) == same
    shared = torch.Generator().manual_seed(3)
    assert same_orders(make(generator=shared), make(generator=shared)) == same
    loader = make(generator=shared)
    shared.manual_seed(3)
    first = flat(loader)
    shared.manual_seed(3)
    assert (flat(loader) == first) == (not same)
    if not same:
        return
    anew = make()
    anew.set_epoch(1)
    before = make()
    list(before)
    assert same_orders(before, anew)
    assert not same_orders(make(), make(seed=1))


class TestIteratedTogether:
    """Loaders that nobody gave a seed, and pairs that are as they should be."""

    def warns(self, *loaders: Any) -> bool:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                list(zip(*loaders, strict=False))
        found = [warning for warning in caught if warning.category is sutler.SameOrderWarning]
        assert len(found) <= 1, "once is enough"
        assert all(
            "seed=1" in str(warning.message) or "generator" in str(warning.message) for warning in found
        )
        assert all(warning.filename == __file__ for warning in found)
        return bool(found)

    def make(self, length: int = 20, **options: Any) -> Any:
        return sutler.Loader(Numbers(length), **{"batch_size": 5, "shuffle": True} | options)

    @pytest.mark.parametrize("workers", [0, 1])
    def test_the_same_order_is_warned_of(self, workers: int) -> None:
        assert self.warns(self.make(num_workers=workers), self.make(num_workers=workers))

    def test_a_shared_generator_is_warned_of(self) -> None:
        shared = torch.Generator().manual_seed(3)
        assert self.warns(self.make(generator=shared), self.make(generator=shared))

    def test_others_are_not(self) -> None:
        same = self.make()
        assert not self.warns(self.make(), self.make(seed=1))
        assert not self.warns(self.make(seed=2), self.make(seed=2)), "somebody chose that"
        assert not self.warns(self.make(), self.make(21))
        assert not self.warns(self.make(), self.make(shuffle=False))
        assert not self.warns(same, sutler.Loader(same.dataset, batch_size=5, shuffle=True)), "one dataset"
        assert not self.warns(self.make(rank=0, world_size=2), self.make(rank=1, world_size=2))
        for loader in (self.make(), self.make()):  # one after the other
            assert not self.warns(loader)
        later = self.make()
        later.set_epoch(5)
        assert not self.warns(self.make(), later)
