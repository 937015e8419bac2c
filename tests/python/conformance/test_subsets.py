"""The datasets that `torch.utils.data` has to put others together, and `__getitems__`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sutler
import torch
from torch.utils.data import ChainDataset, ConcatDataset, StackDataset, Subset, TensorDataset, random_split

from .datasets import Bulk, Numbers, PlainError, Stream, flat
from .expect import raises


@pytest.fixture(params=[0, 2], ids=["main", "workers"])
def workers(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


def test_subset(load: Callable[..., Any], workers: int) -> None:
    loader = load(Subset(Numbers(10), [7, 3, 3, 1]), batch_size=3, num_workers=workers)
    assert flat(loader) == [7, 3, 3, 1]
    assert len(loader) == 2


def test_subset_of_a_subset(load: Callable[..., Any], workers: int) -> None:
    assert flat(load(Subset(Subset(Numbers(10), [7, 3, 1]), [2, 0]), num_workers=workers)) == [1, 7]


def test_concatenation(load: Callable[..., Any], workers: int) -> None:
    loader = load(ConcatDataset([Numbers(3), Numbers(1), Numbers(2)]), batch_size=4, num_workers=workers)
    assert flat(loader) == [0, 1, 2, 0, 0, 1]
    assert len(loader) == 2
    assert flat(load(Numbers(2) + Numbers(3), batch_size=4, num_workers=workers)) == [0, 1, 0, 1, 2]


def test_random_split(load: Callable[..., Any], workers: int) -> None:
    parts = random_split(Numbers(10), [0.7, 0.3], generator=torch.Generator().manual_seed(0))
    seen = [flat(load(part, batch_size=4, shuffle=True, num_workers=workers)) for part in parts]
    assert [len(part) for part in seen] == [7, 3]
    assert sorted(seen[0] + seen[1]) == list(range(10))


def test_tensor_dataset(load: Callable[..., Any], workers: int) -> None:
    dataset = TensorDataset(torch.arange(10).reshape(5, 2), torch.arange(5) * 10)
    batches = list(load(dataset, batch_size=2, num_workers=workers))
    assert [batch[0].tolist() for batch in batches] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9]]]
    assert [batch[1].tolist() for batch in batches] == [[0, 10], [20, 30], [40]]


def test_stack_dataset(load: Callable[..., Any], workers: int) -> None:
    pairs: StackDataset[Any] = StackDataset(Numbers(4), TensorDataset(torch.arange(4) * 10))
    first, second = next(iter(load(pairs, batch_size=3, num_workers=workers)))
    assert first.tolist() == [0, 1, 2]
    assert second[0].tolist() == [0, 10, 20]
    named: StackDataset[Any] = StackDataset(a=Numbers(4), b=Numbers(4))
    batch = next(iter(load(named, batch_size=3, num_workers=workers)))
    assert {key: value.tolist() for key, value in batch.items()} == {"a": [0, 1, 2], "b": [0, 1, 2]}


def test_chained_streams(load: Callable[..., Any]) -> None:
    assert flat(load(ChainDataset([Stream(2), Stream(3)]), batch_size=2)) == [0, 1, 0, 1, 2]


def test_getitems_prepares_several_samples_at_once(load: Callable[..., Any], workers: int) -> None:
    batches = list(load(Bulk(10), batch_size=4, num_workers=workers))
    assert [batch[0].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    asked = [int(count) for batch in batches for count in batch[1]]
    assert asked == [4] * 8 + [2] * 2


def test_getitems_of_a_subset(load: Callable[..., Any], workers: int) -> None:
    loader = load(Subset(Bulk(10), [9, 5, 1]), batch_size=3, num_workers=workers)
    assert [batch[0].tolist() for batch in loader] == [[9, 5, 1]]


def test_getitems_is_not_for_single_samples(load: Callable[..., Any], workers: int) -> None:
    assert list(load(Bulk(3), batch_size=None, num_workers=workers)) == [0, 1, 2]


def ready_batches() -> list[Any]:
    """What `__getitems__` may return for a `collate_fn` that passes it on, besides a list of samples."""
    return [
        lambda indices: (torch.tensor(indices), "two things"),
        torch.tensor,
        np.array,
        lambda indices: {"indices": indices, "count": len(indices), "half": indices[::2]},
        lambda indices: indices[:1],
        lambda indices: {index: index**2 for index in indices},
    ]


@pytest.mark.parametrize("make", ready_batches())
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_is_fetched_ready_is_passed_on(
    load: Callable[..., Any], make: Callable[[list[int]], Any], workers: int
) -> None:
    class Ready(Numbers):
        def __getitems__(self, indices: list[int]) -> Any:
            return make(indices)

    def same(batch: Any) -> Any:
        return {"passed on": batch}

    found = list(load(Ready(5), batch_size=2, num_workers=workers, collate_fn=same))
    assert len(found) == 3
    for batch, indices in zip(found, ([0, 1], [2, 3], [4]), strict=True):
        expected = make(indices)
        assert type(batch["passed on"]) is type(expected)
        assert str(batch["passed on"]) == str(expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_generator_of_samples_can_be_collated(load: Callable[..., Any], workers: int) -> None:
    class Generating(Numbers):
        def __getitems__(self, indices: list[int]) -> Any:
            return (index**2 for index in indices)

    loader = load(Generating(5), batch_size=2, num_workers=workers, collate_fn=list)
    assert list(loader) == [[0, 1], [4, 9], [16]]


class Filtering(Numbers):
    """Leaves some samples out where several are asked for, as datasets with bad records do."""

    def __init__(self, count: int, missing: tuple[int, ...], bad: int | None = None) -> None:
        super().__init__(count)
        self.missing = missing
        self.bad = bad

    def __getitems__(self, indices: list[int]) -> Any:
        if self.bad in indices:
            raise PlainError(f"index {self.bad} is bad")
        return [index for index in indices if index not in self.missing]


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("collate", [None, list], ids=["default", "collate_fn"])
@pytest.mark.parametrize("in_order", [True, False])
def test_getitems_may_leave_samples_out(
    load: Callable[..., Any], workers: int, collate: Any, in_order: bool
) -> None:
    dataset = Filtering(10, missing=(3, 4, 5, 6))
    loader = load(dataset, batch_size=4, num_workers=workers, collate_fn=collate, in_order=in_order)
    for _ in range(2):
        batches = [[int(value) for value in batch] for batch in loader]
        assert (batches if in_order else sorted(batches)) == [[0, 1, 2], [7], [8, 9]]


@pytest.mark.parametrize("workers", [0, 1])
def test_getitems_may_return_more_than_it_was_asked_for(load: Callable[..., Any], workers: int) -> None:
    class Doubling(Numbers):
        def __getitems__(self, indices: list[int]) -> Any:
            return [(value, torch.full((3,), value)) for index in indices for value in (index, -index)]

    for batch_size in (1, 2):
        batches = list(load(Doubling(3), batch_size=batch_size, num_workers=workers))
        assert [value for batch in batches for value in batch[0].tolist()] == [0, 0, 1, -1, 2, -2]
        assert all(batch[1].shape == (len(batch[0]), 3) for batch in batches)


@pytest.mark.parametrize("workers", [0, 1])
def test_getitems_that_leaves_a_whole_batch_out(load: Callable[..., Any], workers: int) -> None:
    """The default collation has nothing to look at; a function of the user's may know what to do."""
    for batch_size, missing in ((2, (2, 3)), (1, (1,))):
        dataset = Filtering(4, missing)
        with raises(IndexError):
            list(load(dataset, batch_size=batch_size, num_workers=workers))
        batches = list(load(dataset, batch_size=batch_size, num_workers=workers, collate_fn=len))
        assert batches == ([2, 0] if batch_size == 2 else [1, 0, 1, 1])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", [None, list], ids=["default", "collate_fn"])
def test_what_getitems_raises_is_raised_though_it_leaves_samples_out(
    load: Callable[..., Any], workers: int, collate: Any
) -> None:
    with raises(PlainError, match="index 2 is bad"):
        list(load(Filtering(4, missing=(0, 1), bad=2), batch_size=4, num_workers=workers, collate_fn=collate))


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_are_missing_have_no_ids(workers: int) -> None:
    dataset = Filtering(8, missing=(3,))
    loader = sutler.Loader(dataset, batch_size=4, num_workers=workers, return_ids=True)
    with pytest.raises(RuntimeError, match="__getitems__ returned 3 samples for 4 indices") as caught:
        list(loader)
    assert "leave return_ids out" in str(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("return_ids", [False, True])
def test_samples_that_are_missing_where_bad_ones_are_left_out(workers: int, return_ids: bool) -> None:
    """With ids they are asked for one by one, so that those which are missing count as bad."""
    dataset = Filtering(8, missing=(3,))
    loader = sutler.Loader(dataset, batch_size=4, num_workers=workers, errors="skip", return_ids=return_ids)
    batches = list(loader)
    values = [batch[0] if return_ids else batch for batch in batches]
    assert [value.tolist() for value in values] == [[0, 1, 2], [4, 5, 6, 7]]
    assert not return_ids or [batch[1].tolist() for batch in batches] == [[0, 1, 2], [4, 5, 6, 7]]
    failures = [(failure.id, failure.reason) for failure in loader.failures()]
    assert [failure for failure, _ in failures] == ([3] if return_ids else [])
    assert all("__getitems__ returned 0 samples for 1 index" in reason for _, reason in failures)


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_are_missing_where_a_state_was_saved(workers: int) -> None:
    """A batch counts as all that was asked for, so that the rest is exact."""
    dataset = Filtering(12, missing=(3, 4, 9))
    loader = sutler.Loader(dataset, batch_size=3, num_workers=workers)
    first = [next(batches).tolist() for batches in [iter(loader)] for _ in range(2)]
    resumed = sutler.Loader(dataset, batch_size=3, num_workers=workers)
    resumed.load_state_dict(loader.state_dict())
    assert first + [batch.tolist() for batch in resumed] == [[0, 1, 2], [5], [6, 7, 8], [10, 11]]


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_getitems_may_return_a_tensor(
    load: Callable[..., Any], differs: Callable[[str], bool], workers: int, shape: tuple[int, ...]
) -> None:
    class Rows(Numbers):
        def __getitems__(self, indices: list[int]) -> Any:
            return torch.stack([torch.full(shape, 10 * index) for index in indices])

    loader = load(Rows(5), batch_size=2, num_workers=workers)
    if differs("tensors_of_getitems"):
        batches = list(loader)
        assert [tuple(batch.shape) for batch in batches] == [(2, *shape), (2, *shape), (1, *shape)]
        assert torch.equal(
            torch.cat(batches), torch.stack([torch.full(shape, 10 * index) for index in range(5)])
        )
    else:
        with raises(TypeError, match="must be tuple of Tensors"):
            list(loader)
