"""Datasets that are streams: `IterableDataset`."""

from __future__ import annotations

import itertools
import math
import multiprocessing
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


@pytest.mark.parametrize("shuffle", [None, False, 0])
def test_a_stream_need_not_be_told_that_it_is_not_shuffled(load: Callable[..., Any], shuffle: Any) -> None:
    assert flat(load(Stream(3), shuffle=shuffle)) == [0, 1, 2]
    with pytest.raises(ValueError, match="expected unspecified shuffle option, but got shuffle=1"):
        load(Stream(3), shuffle=1)


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


def test_the_warning_counts_what_it_says(load: Callable[..., Any], differs: Callable[[str], bool]) -> None:
    """Both workers go through all five samples, in batches of two: ten samples, and only six batches."""
    loader = load(SizedStream(5), batch_size=2, num_workers=2)
    assert len(loader) == 3
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert len(list(loader)) == 6
    found = [each for each in warned if "samples have been fetched" in str(each.message)]
    if differs("length_warning"):
        assert "but 10 samples" in str(found[-1].message)
        assert len(found) == 4, "with every batch after the fifth sample"
    else:
        assert "but 6 samples" in str(found[0].message)
        assert len(found) == 1
    assert {each.filename for each in found} == {__file__}, "it points to where the batch was asked for"


def test_nobody_is_warned_who_did_not_ask_for_the_length(load: Callable[..., Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert flat(load(SizedStream(5, length=3))) == [0, 1, 2, 3, 4]


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


class Introspective(IterableDataset[Any]):
    """Yields what its worker knows of itself."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        assert info is not None
        yield info.id, info.num_workers, info.seed - info.id, info.dataset is self


def test_a_stream_knows_its_worker(load: Callable[..., Any]) -> None:
    loader = load(Introspective(), batch_size=None, num_workers=2, persistent_workers=True)
    first, second = list(loader), list(loader)
    assert first == second, "workers that stay are the same in every epoch"
    assert [(worker, workers, own) for worker, workers, _, own in first] == [(0, 2, True), (1, 2, True)]
    assert len({base for _, _, base, _ in first}) == 1, "all seeds come from one"


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


@pytest.mark.parametrize("persistent", [False, True])
def test_a_part_of_an_endless_stream_again_and_again(load: Callable[..., Any], persistent: bool) -> None:
    class Counting(IterableDataset[int]):
        def __iter__(self) -> Any:
            info = get_worker_info()
            assert info is not None
            return itertools.count(info.id, info.num_workers)

    loader = load(Counting(), batch_size=2, num_workers=2, persistent_workers=persistent)
    for _ in range(2):
        part = [batch.tolist() for batch in itertools.islice(loader, 3)]
        assert part == [[0, 2], [1, 3], [4, 6]]
        for batch in loader:
            if 7 in batch:
                break
    del loader


@pytest.mark.parametrize("shares", [(0, 0), (0, 3), (3, 0)], ids=str)
def test_workers_that_have_nothing(load: Callable[..., Any], shares: tuple[int, int]) -> None:
    loader = load(ShardedStream(3, shares), batch_size=2, num_workers=2, persistent_workers=True)
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == ([[0, 1], [2]] if sum(shares) else [])


class Pausing:
    """An iterator that says it has ended, and has more when it is asked again."""

    def __init__(self) -> None:
        self.asked = 0

    def __iter__(self) -> Pausing:
        return self

    def __next__(self) -> int:
        self.asked += 1
        if self.asked == 4:
            raise StopIteration
        return self.asked


class PausingStream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return Pausing()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_said_it_has_ended_is_not_asked_again(load: Callable[..., Any], workers: int) -> None:
    iterator = iter(load(PausingStream(), batch_size=2, num_workers=workers))
    assert [batch.tolist() for batch in iterator] == [[1, 2], [3]]
    assert next(iterator, None) is None
    assert list(load(PausingStream(), batch_size=None, num_workers=workers)) == [1, 2, 3]


def refuse_four(number: int) -> int:
    if number == 4:
        raise ValueError("four is missing")
    return number


class Stumbling(IterableDataset[int]):
    """Raises once, and goes on when it is asked again: `map` is no generator."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        step = 1 if info is None else info.num_workers
        return map(refuse_four, range(0 if info is None else info.id, 10, step))


def go_on(iterator: Any, count: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(count):
        try:
            batch = next(iterator, None)
            found.append(batch if batch is None else batch.tolist())
        except ValueError as error:
            found.append(type(error).__name__)
    return found


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_raised_can_be_gone_on_with(load: Callable[..., Any], workers: int) -> None:
    iterator = iter(load(Stumbling(), batch_size=3, num_workers=workers))
    # The batch that was being made is lost, and what was in it.
    assert go_on(iterator, 5) == [[0, 1, 2], "ValueError", [5, 6, 7], [8, 9], None]
    del iterator


def test_other_workers_go_on_when_one_raised(load: Callable[..., Any]) -> None:
    iterator = iter(load(Stumbling(), batch_size=2, num_workers=2))
    assert go_on(iterator, 7) == [[0, 2], [1, 3], "ValueError", [5, 7], [6, 8], [9], None]
    del iterator


@pytest.mark.parametrize("workers", [0, 1])
def test_a_generator_that_raised_has_ended(load: Callable[..., Any], workers: int) -> None:
    iterator = iter(load(RaisingStream(3), batch_size=2, num_workers=workers))
    assert go_on(iterator, 4) == [[0, 1], "ValueError", None, None]
    del iterator


class Gated(ShardedStream):
    """Worker 0 has nothing to give before the gate is opened."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.gate = multiprocessing.get_context("fork").Event()

    def __iter__(self) -> Any:
        info = get_worker_info()
        if info is not None and info.id == 0:
            self.gate.wait(20)
        return super().__iter__()


def test_without_order_no_batch_waits_for_a_slow_worker(load: Callable[..., Any]) -> None:
    dataset = Gated(12)
    iterator = iter(load(dataset, batch_size=2, num_workers=2, in_order=False))
    first = [next(iterator).tolist() for _ in range(3)]
    assert first == [[1, 3], [5, 7], [9, 11]]
    dataset.gate.set()
    assert [batch.tolist() for batch in iterator] == [[0, 2], [4, 6], [8, 10]]


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


class Plain:
    """What only can be gone through, without PyTorch's class for it."""

    def __iter__(self) -> Any:
        return iter(range(4))


def test_a_stream_of_another_class(load: Callable[..., Any], differs: Callable[[str], bool]) -> None:
    if differs("streams_of_any_class"):
        assert flat(load(Plain(), batch_size=3)) == [0, 1, 2, 3]
    else:
        with pytest.raises(TypeError, match=r"has no len\(\)"):
            list(load(Plain(), batch_size=3))
