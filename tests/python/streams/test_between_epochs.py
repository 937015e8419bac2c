"""Streams that keep something from one pass to the next: states have it, and unused iterators leave it alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sutler
import torch

from .datasets import Itself, Lasting, Pending, Plain, StatefulDataset, StatefulIterator, make, numbers

#: Workers, and whether they stay: those who go through the same copy of a stream in every pass.
STAYING = [(0, False), (2, True)]
READERS = [*STAYING, (2, False)]
PASSES = 3


class Passes:
    """Keeps its pass and its position in itself, and goes on from there whenever it is opened."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.done = 0
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        info = sutler.get_worker_info()
        while self.position < self.count:
            self.position += 1
            yield 1000 * (info.id if info else 0) + 100 * self.done + self.position - 1
        self.done += 1
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done, self.position = state["done"], state["position"]


class EveryOther(Passes):
    """Has something to read in every other pass only."""

    def __iter__(self) -> Iterator[int]:
        if self.done % 2 == 1:
            self.done += 1
            return
        yield from super().__iter__()


class ToldEpoch(StatefulDataset):
    """Knows its epoch, which is in its state, too."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        for number in super().__iter__():
            yield 100 * self.epoch + number

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.epoch = state["epoch"]


def train(
    loader: Any, start: int = 0, stop: tuple[int, int | None] | None = None, *, tells: bool = False
) -> tuple[list[list[Any]], tuple[int, Any] | None]:
    """The batches of each pass; and after a number of them, or after the loop, the pass to go on with and a state."""
    found: list[list[Any]] = [[] for _ in range(PASSES)]
    for epoch in range(start, PASSES):
        if tells:
            loader.set_epoch(epoch)
        for batch in loader:
            found[epoch].append(batch.tolist())
            if stop == (epoch, len(found[epoch])):
                return found, (epoch, loader.state_dict())
        if stop == (epoch, None):
            return found, (epoch + 1, loader.state_dict())
    return found, None


@pytest.mark.parametrize("count", [8, 7])  # with the second, readers come to their end with the last batch
@pytest.mark.parametrize(
    ("kind", "workers", "persistent"),
    [
        (Passes, 2, False),
        *(
            (kind, *readers)
            for kind in (Passes, EveryOther, StatefulDataset, Pending, StatefulIterator, Itself, ToldEpoch)
            for readers in STAYING
        ),
    ],
)
def test_resume_in_and_between_passes(kind: type[Any], count: int, workers: int, persistent: bool) -> None:
    def loader() -> Any:
        return make(kind(count), workers, batch_size=2, persistent_workers=persistent)

    tells = kind is ToldEpoch
    with loader() as first:
        whole, _ = train(first, tells=tells)
    stops = [(epoch, step) for epoch in (0, 1) for step in {1, len(whole[epoch])} if whole[epoch]]
    for stop in [*stops, (0, None), (1, None)]:
        with loader() as first:
            begun, saved = train(first, stop=stop, tells=tells)
        assert saved is not None
        with loader() as resumed:
            resumed.load_state_dict(saved[1])
            rest, _ = train(resumed, saved[0], tells=tells)
        assert [one + other for one, other in zip(begun, rest, strict=True)] == whole, f"from {stop}"


@pytest.mark.parametrize(("workers", "persistent"), STAYING)
@pytest.mark.parametrize("kind", [Pending, Lasting, StatefulDataset])
def test_what_only_goes_on_inside_a_pass_begins_anew_after_one(
    kind: type[Any], workers: int, persistent: bool
) -> None:
    def loader() -> Any:
        return make(kind(7), workers, batch_size=2, persistent_workers=persistent)

    with loader() as first:
        whole = numbers(first)
        assert whole
        state = first.state_dict()
    with loader() as resumed:
        resumed.load_state_dict(state)
        assert numbers(resumed) == whole


class Drawing(Pending):
    """Draws what it yields, and an offset for each pass, from a generator of the process that its state has."""

    def __iter__(self) -> Iterator[Any]:
        offset = float(torch.randint(1000, ()))
        for _ in super().__iter__():
            yield offset + float(torch.rand(()))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"generator": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        torch.set_rng_state(state["generator"])


# Threads have the process's generator in common.
@pytest.mark.parametrize(
    ("workers", "persistent"), [(0, False), pytest.param(2, True, marks=pytest.mark.processes)]
)
def test_a_pass_that_is_opened_again_draws_what_it_would_have(workers: int, persistent: bool) -> None:
    def loader() -> Any:
        return make(Drawing(7), workers, batch_size=2, persistent_workers=persistent)

    torch.manual_seed(1)
    with loader() as first:
        list(first)
        state = first.state_dict()
        expected = numbers(first)
    torch.manual_seed(2)
    with loader() as resumed:
        resumed.load_state_dict(state)
        assert numbers(resumed) == expected


@pytest.mark.parametrize(("workers", "persistent"), STAYING)
def test_a_state_that_was_loaded_at_the_end_of_a_pass_can_be_saved_again(
    workers: int, persistent: bool
) -> None:
    def loader() -> Any:
        return make(Passes(7), workers, batch_size=2, persistent_workers=persistent)

    with loader() as first:
        whole, _ = train(first)
    with loader() as first:
        _, saved = train(first, stop=(0, len(whole[0])))
    assert saved is not None
    with loader() as second:
        second.load_state_dict(saved[1])
        assert numbers(second) == []
        again = second.state_dict()
    with loader() as third:
        third.load_state_dict(again)
        assert train(third, 1)[0][1:] == whole[1:]


@pytest.mark.processes
def test_random_numbers_of_workers_that_stay_go_on_between_epochs() -> None:
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "batch_size": 2}
    with sutler.Loader(Rolling(), **options) as loader:
        first = [batch.tolist() for batch in loader]
        state = json.loads(json.dumps(loader.state_dict()))
        whole, _ = train(loader, 1)
    with sutler.Loader(Rolling(), **options) as resumed:
        resumed.load_state_dict(state)
        assert train(resumed, 1)[0] == whole
    assert whole[1] != first


class Rolling(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Draws its samples, as seeded workers do."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(4):
            yield torch.rand(())


@pytest.mark.processes
@pytest.mark.parametrize(("workers", "persistent"), [(1, False), (2, False), (2, True)])
def test_epochs_after_a_resumed_one_draw_from_the_generator_what_they_would_have(
    workers: int, persistent: bool
) -> None:
    def loader() -> Any:
        return sutler.Loader(
            Rolling(),
            batch_size=2,
            num_workers=workers,
            persistent_workers=persistent,
            generator=torch.Generator().manual_seed(9),
        )

    with loader() as first:
        whole, _ = train(first)
    assert whole[0] != whole[1]
    for stop in [(0, 1), (0, len(whole[0])), (0, None), (1, 1), (1, None)]:
        with loader() as first:
            begun, saved = train(first, stop=stop)
        assert saved is not None
        with loader() as resumed:
            resumed.load_state_dict(json.loads(json.dumps(saved[1])))
            rest, _ = train(resumed, saved[0])
        assert [one + other for one, other in zip(begun, rest, strict=True)] == whole, f"from {stop}"


def test_an_epoch_that_is_told_after_a_state_was_loaded_is_not_told_otherwise() -> None:
    dataset = ToldEpoch(6)
    with make(dataset, 0) as loader:
        loader.set_epoch(0)
        numbers(loader)
        state = loader.state_dict()
    resumed = ToldEpoch(6)
    with make(resumed, 0) as loader:
        loader.load_state_dict(state)
        loader.set_epoch(1)
        assert numbers(loader) == [[100, 101], [102, 103], [104, 105]]


def leave(loader: Any, epoch: int, batches: int) -> list[Any]:
    """The first batches of an epoch, which is left with the last of them, as a trainer does that counts them."""
    loader.set_epoch(epoch)
    iterator = iter(loader)
    return [next(iterator).tolist() for _ in range(batches)]


@pytest.mark.parametrize(("workers", "persistent"), STAYING)
@pytest.mark.parametrize("count", [8, 7])
@pytest.mark.parametrize("batches", [4, 8])
def test_an_epoch_that_was_left_stays_so_where_the_next_is_chosen_after_a_state_was_loaded(
    count: int, batches: int, workers: int, persistent: bool
) -> None:
    batches = min(batches, 4 * max(1, workers))
    with make(Passes(count), workers, persistent_workers=persistent) as loader:
        leave(loader, 0, batches)
        state = loader.state_dict()
        loader.set_epoch(1)
        expected = numbers(loader)
        after = numbers(loader)
    with make(Passes(count), workers, persistent_workers=persistent) as resumed:
        resumed.load_state_dict(state)
        resumed.set_epoch(1)
        assert [numbers(resumed), numbers(resumed)] == [expected, after]


class Opened(Plain):
    """Counts how often it was opened, at once and not with the first sample."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.opened = 0

    def __iter__(self) -> Iterator[int]:
        self.opened += 1
        return iter(range(self.opened * 100, self.opened * 100 + self.count))


@pytest.mark.parametrize(("workers", "persistent"), READERS)
@pytest.mark.parametrize("kind", [Passes, Opened])
def test_an_iterator_that_is_not_asked_for_a_batch_takes_nothing_from_the_stream(
    kind: type[Any], workers: int, persistent: bool
) -> None:
    def loader() -> Any:
        return make(kind(6), workers, persistent_workers=persistent)

    with loader() as plain:
        whole = [numbers(plain) for _ in range(2)]
    with loader() as checked:
        found = []
        for _ in range(2):
            for _ in range(2):
                iterator = iter(checked)
                time.sleep(0.2)  # long enough for workers to read something, if they did
                del iterator
            found.append(numbers(checked))
    assert found == whole


@pytest.mark.processes
def test_an_iterator_that_is_made_within_an_epoch_leaves_its_workers_to_the_next() -> None:
    with make(Passes(6), 2, persistent_workers=True) as plain:
        whole = [numbers(plain) for _ in range(2)]
    with make(Passes(6), 2, persistent_workers=True) as checked:
        first = iter(checked)
        found = [next(first).tolist()]
        iter(checked)
        assert [found + numbers(first), numbers(checked)] == whole


@pytest.mark.processes
def test_workers_that_stay_are_started_with_the_iterator() -> None:
    with make(Passes(6), 2, persistent_workers=True) as loader:
        iterator: Any = iter(loader)
        started = [process.pid for process in iterator._workers]
        assert len(started) == 2
        next(iterator)
        assert [process.pid for process in iterator._workers] == started
        del iterator


@pytest.mark.parametrize("workers", [0, 2])
def test_a_closed_loader_makes_no_iterators(workers: int) -> None:
    loader = make(Passes(6), workers, persistent_workers=workers > 0)
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        iter(loader)


@pytest.mark.processes
def test_a_state_that_raises_between_passes_is_heard_of() -> None:
    loader = make(Secretive(6), 1, persistent_workers=True)
    with loader, pytest.raises(LookupError, match="no state to tell"):
        numbers(loader)


class Secretive(Passes):
    """Has a state inside a pass only."""

    def state_dict(self) -> dict[str, int]:
        if self.position == 0:
            raise LookupError("no state to tell")
        return super().state_dict()
