"""Going on after what a stream raised, and with the epoch that it was told."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import sutler

from .datasets import WORKERS, Plain, make, numbers, share


class Stumbling:
    """Not a generator: raises for every fifth number, and goes on behind it when asked again."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return map(self.check, share(self.count))

    def check(self, number: int) -> int:
        if number % 5 == 4:
            raise LookupError(f"{number} is missing")
        return number


def go_through(loader: Any) -> tuple[list[Any], list[Any]]:
    """Batches and the messages of exceptions, as they came; and the states after batches."""
    found: list[Any] = []
    states: list[Any] = []
    iterator = iter(loader)
    while True:
        try:
            found.append(next(iterator).tolist())
            states.append((len(found), loader.state_dict()))
        except LookupError as error:
            found.append(str(error).strip().splitlines()[-1].rpartition(": ")[2])
        except StopIteration:
            return found, states


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("order", ["strict", "ready"])
def test_a_resumed_run_passes_over_what_the_first_went_on_from(workers: int, order: Any) -> None:
    with make(Stumbling(30), workers, order=order) as loader:
        whole, states = go_through(loader)
    assert any(isinstance(each, str) for each in whole)
    for length, state in states:
        with make(Stumbling(30), workers, order=order) as resumed:
            resumed.load_state_dict(state)
            rest, _ = go_through(resumed)
        if order == "strict" and workers < 2:
            assert rest == whole[length:]
        # With several workers an exception that was raised after its worker's last batch comes again.
        delivered = [batch for batch in whole[:length] + rest if isinstance(batch, list)]
        assert sorted(delivered) == sorted(batch for batch in whole if isinstance(batch, list))


class Shuffled(Plain):
    """In an order that follows from the epoch, as Hugging Face's streams have it."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = list(share(self.count))
        random.Random(self.epoch).shuffle(order)
        return iter(order)


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_stream_is_told_the_epoch(workers: int, persistent: bool) -> None:
    def expected(epoch: int) -> list[list[int]]:
        dataset = Shuffled(20)
        dataset.set_epoch(epoch)
        return numbers(make(dataset, workers))

    dataset = Shuffled(20)
    with make(dataset, workers, persistent_workers=persistent) as loader:
        assert numbers(loader) == expected(0)
        for epoch in (5, 2):
            loader.set_epoch(epoch)
            assert dataset.epoch == epoch
            iterator = iter(loader)
            first = next(iterator).tolist()
            state = loader.state_dict()
            assert [first, *numbers(iterator)] == expected(epoch)
            with make(Shuffled(20), workers, persistent_workers=persistent) as resumed:
                resumed.load_state_dict(state)
                assert numbers(resumed) == expected(epoch)[1:]
            del iterator
    assert expected(5) != expected(2)


def test_a_stream_without_set_epoch_is_left_alone() -> None:
    with make(Plain(6), 1) as loader:
        loader.set_epoch(3)
        assert numbers(loader) == [[0, 1], [2, 3], [4, 5]]
        assert loader.state_dict()["epoch"] == 4


def test_a_set_epoch_that_raises_in_a_worker_is_heard_of() -> None:
    class Refusing(Shuffled):
        def set_epoch(self, epoch: int) -> None:
            if sutler.get_worker_info() is not None:
                raise LookupError(f"no epoch {epoch}")

    with make(Refusing(6), 1) as loader:
        loader.set_epoch(3)
        with pytest.raises(LookupError, match="no epoch 3"):
            next(iter(loader))
