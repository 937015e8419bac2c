"""Random numbers that streams draw go on after a resume as they would have."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sutler
import torch
from sutler import _generators

from .datasets import Plain, make, share


def draw() -> list[float]:
    """A number of each generator; normal ones, of which generators keep a second one for later."""
    return [random.gauss(0, 1), float(np.random.standard_normal()), float(torch.randn(()))]


class Drawing(Plain):
    """Draws when it begins and for each sample."""

    def __iter__(self) -> Iterator[Any]:
        offset = random.random()
        for number in share(self.count):
            yield [number + offset, *draw()]


class ShuffleBuffer(Plain):
    """What comes next depends on all that was drawn before."""

    def __iter__(self) -> Iterator[Any]:
        buffer: list[int] = []
        for number in share(self.count):
            buffer.append(number)
            if len(buffer) == 4:
                yield [buffer.pop(random.randrange(4)), *draw()]
        while buffer:
            yield [buffer.pop(int(torch.randint(len(buffer), ()))), *draw()]


class Remembering(Plain):
    """Has a state of its own, which says nothing of random numbers."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.done = 0
        self.resumed = False

    def __iter__(self) -> Iterator[Any]:
        if not self.resumed:
            self.done = 0
        self.resumed = False
        for number in share(self.count)[self.done :]:
            self.done += 1
            yield [number, *draw()]

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]
        self.resumed = True


class Calm(Plain):
    """Draws nothing."""

    def __iter__(self) -> Iterator[Any]:
        for number in share(self.count):
            yield [float(number)]


def drawing_collate(samples: list[list[float]]) -> list[list[float]]:
    """Draws, too: that is not replayed."""
    return [[*sample, *draw()] for sample in samples]


def collation(kind: type[Any]) -> Any:
    """A replay draws what the stream drew, so nobody else may draw between what decides the order of a buffer."""
    return list if kind is ShuffleBuffer else drawing_collate


def seed_numpy(worker: int) -> None:
    np.random.seed(1000 + worker)


@pytest.mark.processes
@pytest.mark.parametrize(
    "options", [{"num_workers": 1}, {"num_workers": 3, "worker_init_fn": seed_numpy}], ids=str
)
@pytest.mark.parametrize("kind", [Drawing, ShuffleBuffer, Remembering])
def test_random_numbers_go_on_in_workers(kind: type[Any], options: dict[str, Any]) -> None:
    options = {"batch_size": 3, "collate_fn": collation(kind), **options}
    states: list[Any] = []
    with sutler.Loader(kind(14), **options) as loader:
        whole = []
        iterator = iter(loader)
        states.append(loader.state_dict())
        for batch in iterator:
            whole.append(batch)
            states.append(json.loads(json.dumps(loader.state_dict())))
    for step, state in enumerate(states[:-1]):
        torch.manual_seed(step)  # seeds that are drawn anew would be others
        with sutler.Loader(kind(14), **options) as resumed:
            resumed.load_state_dict(state)
            assert list(resumed) == whole[step:], f"from batch {step}"


@pytest.mark.processes
def test_random_numbers_go_on_in_later_epochs_of_workers_that_stay() -> None:
    options: dict[str, Any] = {
        "batch_size": 2,
        "num_workers": 2,
        "persistent_workers": True,
        "collate_fn": list,
    }
    with sutler.Loader(ShuffleBuffer(8), **options) as loader:
        first = list(loader)
        next(iter(loader))  # an epoch that was left: what was read ahead was drawn all the same
        iterator = iter(loader)
        loader.set_epoch(2)  # so that a checkpoint no longer belongs to the epoch that was left
        states, second = [loader.state_dict()], []
        for batch in iterator:
            second.append(batch)
            states.append(loader.state_dict())
    assert first != second
    for step, state in enumerate(states):
        with sutler.Loader(ShuffleBuffer(8), **options) as resumed:
            list(resumed)  # its workers stay, and have drawn other numbers
            resumed.load_state_dict(state)
            assert list(resumed) == second[step:], f"from batch {step}"


@pytest.mark.parametrize("kind", [Drawing, ShuffleBuffer, Remembering])
def test_without_workers_the_trainers_generators_are_the_trainers_to_save(kind: type[Any]) -> None:
    options: dict[str, Any] = {"batch_size": 3, "collate_fn": collation(kind)}
    names = ["python", "numpy", "torch"]
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    moments, whole = [], []
    loader = sutler.Loader(kind(14), **options)
    for batch in loader:
        whole.append(batch)
        moments.append((json.loads(json.dumps(loader.state_dict())), _generators.save(names)))
    for step, (state, generators) in enumerate(moments, start=1):
        random.seed(step)
        np.random.seed(step)
        torch.manual_seed(step)
        resumed = sutler.Loader(kind(14), **options)
        _generators.restore(generators)
        resumed.load_state_dict(state)
        rest = []
        for batch in resumed:
            rest.append(batch)
            again = resumed.state_dict()
        assert rest == whole[step:], f"from batch {step}"
        if rest:
            assert again["progress"]["workers"] == moments[-1][0]["progress"]["workers"]


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
def test_going_on_with_a_stream_leaves_the_trainers_numbers_alone(workers: int) -> None:
    loader = sutler.Loader(Drawing(9), batch_size=2, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    del iterator
    resumed = sutler.Loader(Drawing(9), batch_size=2, num_workers=workers)
    resumed.load_state_dict(state)
    before = _generators.marks()
    iterator = iter(resumed)
    assert _generators.moved(before) == []
    del iterator


def test_the_state_of_a_stream_that_draws_nothing_is_small() -> None:
    with make(Calm(20), 2, batch_size=2) as loader:
        for _ in loader:
            assert len(json.dumps(loader.state_dict())) < 600


@pytest.mark.parametrize("name", ["python", "numpy", "torch"])
def test_generators_come_back_as_they_were(name: str) -> None:
    for _ in range(3):
        draw()
        saved = _generators.save([name])
        before = _generators.marks()
        expected = draw()
        assert name in _generators.moved(before)
        _generators.restore(saved)
        index = ["python", "numpy", "torch"].index(name)
        assert draw()[index] == expected[index]


def test_a_numpy_generator_of_another_kind_is_left_alone() -> None:
    numpy_random: Any = np.random
    own = numpy_random.get_bit_generator()
    try:
        numpy_random.set_bit_generator(np.random.PCG64(1))
        assert "numpy" not in _generators.marks()
    finally:
        numpy_random.set_bit_generator(own)


class Restoring(Plain):
    """Its iterators keep a generator of the process in their state, and put it back themselves."""

    def __iter__(self) -> Any:
        return Restored(self.count)


class Restored:
    def __init__(self, count: int) -> None:
        self.left = count

    def __iter__(self) -> Restored:
        return self

    def __next__(self) -> float:
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        return float(torch.rand(()))

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left, "generator": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = state["left"]
        torch.set_rng_state(state["generator"])


class RestoringItself(Restored):
    """The same as a dataset that is its own iterator."""


# Threads have the process's generator in common.
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.processes)])
@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("kind", [Restoring, RestoringItself])
def test_a_generator_that_a_stream_puts_back_itself_stays_there(
    kind: type[Any], taken: int, workers: int
) -> None:
    def loader() -> Any:
        return make(kind(10), workers, batch_size=2)

    torch.manual_seed(1)
    with loader() as first:
        batches = iter(first)
        for _ in range(taken):
            next(batches)
        state = first.state_dict()
        expected = [batch.tolist() for batch in batches]
    torch.manual_seed(2)
    with loader() as resumed:
        resumed.load_state_dict(state)
        assert [batch.tolist() for batch in resumed] == expected


def test_a_state_from_before_the_first_batch_tells_a_dataset_where_it_began() -> None:
    dataset = RestoringItself(6)
    torch.manual_seed(1)
    first = make(dataset, 0)
    batches = iter(first)
    state = first.state_dict()
    expected = [batch.tolist() for batch in batches]
    assert len(expected) == 3
    again = make(dataset, 0)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == expected
