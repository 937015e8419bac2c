"""Datasets that are streams: `IterableDataset`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data import IterableDataset, get_worker_info

from .datasets import RaisingStream, ShardedStream, SizedStream, Stream, flat
from .expect import raises


def shard(worker: int) -> None:
    """Cuts the stream of a worker to its share, as the documentation shows."""
    info = get_worker_info()
    assert info is not None
    dataset: Any = info.dataset
    share = math.ceil(dataset.count / info.num_workers)
    dataset.start = worker * share
    dataset.count = min(dataset.count, dataset.start + share)


class Section(IterableDataset[int]):
    """A stream from somewhere to somewhere."""

    def __init__(self, count: int) -> None:
        self.start = 0
        self.count = count

    def __iter__(self) -> Any:
        return iter(range(self.start, self.count))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_comes_in_its_own_order(load: Callable[..., Any], workers: int) -> None:
    loader = load(Stream(7), batch_size=3, num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("workers", [0, 1])
def test_drop_last_and_no_batches(load: Callable[..., Any], workers: int) -> None:
    loader = load(Stream(7), batch_size=3, drop_last=True, num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]
    assert list(load(Stream(3), batch_size=None, num_workers=workers)) == [0, 1, 2]
    assert list(load(Stream(0), batch_size=3, num_workers=workers)) == []


def test_the_length_is_that_of_the_dataset(load: Callable[..., Any]) -> None:
    assert len(load(SizedStream(7), batch_size=3)) == 3
    assert len(load(SizedStream(7), batch_size=3, drop_last=True)) == 2
    assert len(load(SizedStream(7), batch_size=None)) == 7
    assert len(load(SizedStream(7), batch_size=3, num_workers=2)) == 3
    with pytest.raises(TypeError, match=r"has no len\(\)"):
        len(load(Stream(7), batch_size=3))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_longer_than_it_said_is_warned_about(load: Callable[..., Any], workers: int) -> None:
    loader = load(SizedStream(5, length=3), batch_size=1, num_workers=workers)
    assert len(loader) == 3
    with pytest.warns(UserWarning, match="was reported to be 3") as warned:
        assert flat(loader) == [0, 1, 2, 3, 4]
    assert any("4 samples have been fetched" in str(each.message) for each in warned)


def test_a_stream_as_long_as_it_said_is_not(load: Callable[..., Any]) -> None:
    loader = load(SizedStream(5), batch_size=2)
    assert len(loader) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert flat(loader) == [0, 1, 2, 3, 4]


def test_every_worker_has_the_whole_stream(load: Callable[..., Any]) -> None:
    batches = [batch.tolist() for batch in load(Stream(4), batch_size=2, num_workers=2)]
    assert batches == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_workers_share_a_stream_that_looks_at_who_they_are(load: Callable[..., Any]) -> None:
    batches = [batch.tolist() for batch in load(ShardedStream(8), batch_size=2, num_workers=2)]
    assert batches == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_workers_share_a_stream_that_worker_init_fn_cuts(load: Callable[..., Any]) -> None:
    for persistent in (False, True):
        loader = load(Section(7), num_workers=2, worker_init_fn=shard, persistent_workers=persistent)
        assert flat(loader) == [0, 4, 1, 5, 2, 6, 3]


@pytest.mark.parametrize("shares", [(5, 1), (0, 6), (1, 5), (6, 0)], ids=str)
def test_uneven_shares(load: Callable[..., Any], shares: tuple[int, int]) -> None:
    loader = load(ShardedStream(6, shares), batch_size=2, num_workers=2)
    batches = [batch.tolist() for batch in loader]
    assert sorted(value for batch in batches for value in batch) == list(range(6))
    assert len(batches) == sum(-(-share // 2) for share in shares)


def test_drop_last_drops_in_every_worker(load: Callable[..., Any]) -> None:
    loader = load(ShardedStream(10, (5, 5)), batch_size=2, drop_last=True, num_workers=2)
    assert len(loader) == 5
    assert sorted(flat(loader)) == [0, 1, 2, 3, 5, 6, 7, 8]


def test_persistent_workers_begin_a_stream_anew(load: Callable[..., Any]) -> None:
    loader = load(ShardedStream(8), batch_size=2, num_workers=2, persistent_workers=True)
    assert [sorted(flat(loader)) for _ in range(3)] == [list(range(8))] * 3


def test_an_endless_stream_can_be_left(load: Callable[..., Any]) -> None:
    class Endless(IterableDataset[int]):
        def __iter__(self) -> Any:
            number = 0
            while True:
                yield number
                number += 1

    for workers in (0, 1):
        iterator = iter(load(Endless(), batch_size=2, num_workers=workers))
        assert [next(iterator).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
        del iterator


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_breaks_off(load: Callable[..., Any], workers: int) -> None:
    iterator = iter(load(RaisingStream(3), batch_size=2, num_workers=workers))
    assert next(iterator).tolist() == [0, 1]
    with raises(ValueError, match="the stream broke off"):
        next(iterator)
    del iterator


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"shuffle": True},
            "expected unspecified shuffle option, but got shuffle=True",
        ),
        (
            {"sampler": [0]},
            "expected unspecified sampler option, but got sampler=",
        ),
        (
            {"batch_sampler": [[0]]},
            "expected unspecified batch_sampler option, but got batch_sampler=",
        ),
    ],
    ids=["shuffle", "sampler", "batch_sampler"],
)
def test_a_stream_cannot_be_reordered(
    load: Callable[..., Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"DataLoader with IterableDataset: {message}"):
        load(Stream(4), **options)
    assert flat(load(Stream(4), shuffle=False)) == [0, 1, 2, 3]
