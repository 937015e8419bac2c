"""`len(loader)`: how many batches an epoch has, where that is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data import BatchSampler, SequentialSampler

from .datasets import Listed, Numbers


class LengthlessSampler:
    """An order that does not know its length."""

    def __iter__(self) -> Any:
        return iter([2, 0, 1])


class LengthlessBatches:
    """Batches that do not know their number."""

    def __iter__(self) -> Any:
        return iter([[2], [0, 1]])


@pytest.mark.parametrize(
    ("samples", "batch_size", "drop_last", "batches"),
    [
        (10, 1, False, 10),
        (10, 3, False, 4),
        (10, 3, True, 3),
        (10, 5, False, 2),
        (10, 5, True, 2),
        (10, 10, True, 1),
        (10, 11, False, 1),
        (10, 11, True, 0),
        (0, 3, False, 0),
        (10, None, False, 10),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_length_is_the_number_of_batches(
    load: Callable[..., Any],
    samples: int,
    batch_size: int | None,
    drop_last: bool,
    batches: int,
    workers: int,
) -> None:
    loader = load(Numbers(samples), batch_size=batch_size, drop_last=drop_last, num_workers=workers)
    assert len(loader) == batches
    if workers == 0 or (samples == 10 and batch_size == 3):
        assert sum(1 for _ in loader) == batches


def test_length_follows_the_sampler(load: Callable[..., Any]) -> None:
    assert len(load(Numbers(10), batch_size=2, sampler=[1, 2, 3])) == 2
    assert len(load(Numbers(10), batch_size=2, sampler=[1, 2, 3], drop_last=True)) == 1
    assert len(load(Numbers(10), batch_size=None, sampler=[1, 2, 3])) == 3


def test_length_follows_the_batch_sampler(load: Callable[..., Any]) -> None:
    assert len(load(Numbers(10), batch_sampler=[[1], [2, 3]])) == 2
    batches = BatchSampler(SequentialSampler(Numbers(10)), 4, drop_last=False)
    assert len(load(Numbers(10), batch_sampler=batches)) == 3


def test_length_is_unknown_where_the_samplers_is(load: Callable[..., Any]) -> None:
    for options in ({"sampler": LengthlessSampler()}, {"batch_sampler": LengthlessBatches()}):
        loader = load(Numbers(3), **options)
        with pytest.raises(TypeError, match=r"has no len\(\)"):
            len(loader)
        assert [int(value) for batch in loader for value in batch] == [2, 0, 1]


def test_length_follows_a_dataset_that_grows(load: Callable[..., Any]) -> None:
    samples = [0, 1]
    loader = load(Listed(samples), batch_size=2)
    assert len(loader) == 1
    samples.extend([2, 3, 4])
    assert len(loader) == 3
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]


def test_a_dataset_without_length_needs_a_sampler(load: Callable[..., Any]) -> None:
    class Squares:
        def __getitem__(self, index: int) -> int:
            return index * index

    loader = load(Squares(), batch_size=2, sampler=[3, 4, 5])
    assert len(loader) == 2
    assert [batch.tolist() for batch in loader] == [[9, 16], [25]]
