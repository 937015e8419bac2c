"""The datasets that `torch.utils.data` has to put others together, and `__getitems__`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import ChainDataset, ConcatDataset, StackDataset, Subset, TensorDataset, random_split

from .datasets import Bulk, Numbers, Stream, flat


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
