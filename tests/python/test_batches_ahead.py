"""How many batches are prepared ahead: more where the trainer waits for want of them, unless somebody chose."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sutler
from sutler import Loader

SAMPLES = 60


class Uneven:
    """Every tenth sample takes 40 ms, the others nothing."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        if index % 10 == 9:
            time.sleep(0.04)
        return np.array([index])


class Counting:
    """All samples in order, and how many were drawn."""

    def __init__(self) -> None:
        self.drawn = 0

    def __iter__(self) -> Iterator[int]:
        for index in range(SAMPLES):
            self.drawn += 1
            yield index


def numbers(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in np.asarray(batch).ravel()]


def make(**arguments: Any) -> Loader[Any]:
    return Loader(Uneven(), num_workers=2, output="numpy", **arguments)


@pytest.mark.parametrize("order", ["strict", "ready"])
def test_they_become_more_where_slow_samples_are_waited_for(order: Any) -> None:
    with make(order=order, lateness=0, persistent_workers=True) as loader:
        assert (loader.prefetch_factor, loader.stats()["batches_ahead"]) == (2, 4)
        assert sorted(numbers(loader)) == list(range(SAMPLES))
        first = loader.stats()["batches_ahead"]
        assert 4 < first <= 16
        assert sorted(numbers(loader)) == list(range(SAMPLES))
        assert first <= loader.stats()["batches_ahead"] <= 16, "what was found is kept"


@pytest.mark.parametrize("order", ["strict", "ready"])
def test_a_number_that_was_chosen_is_never_exceeded(order: Any) -> None:
    sampler = Counting()
    with make(sampler=sampler, prefetch_factor=2, order=order, lateness=0) as loader:
        for taken, _ in enumerate(loader, 1):
            assert sampler.drawn <= taken + 4
        assert loader.stats()["batches_ahead"] == 4


def test_a_sampler_is_drawn_as_far_ahead_and_a_state_counts_what_was_delivered() -> None:
    sampler, most = Counting(), 0
    with make(sampler=sampler) as loader:
        taken = []
        for batch in loader:
            taken += numbers([batch])
            most = max(most, sampler.drawn - len(taken))
            assert most <= loader.stats()["batches_ahead"]
            if len(taken) == 35:
                state = loader.state_dict()
                break
        assert most > 4, "it was drawn no further than in the beginning"
    with make(sampler=Counting()) as loader:
        loader.load_state_dict(state)
        assert taken + numbers(loader) == list(range(SAMPLES))


def test_native_batches_have_the_memory_that_is_told(augmented: sutler.ImageFolder) -> None:
    grows, fixed = Loader(augmented, 2, num_workers=2), Loader(augmented, 2, num_workers=2, prefetch_factor=2)
    for loader in (grows, fixed):
        next(iter(loader))
    assert fixed.stats()["batches_ahead"] == 2
    each = fixed.stats()["memory_bytes"] // 4
    assert grows.stats()["memory_bytes"] == each * (grows.stats()["batches_ahead"] + 2)


def test_nothing_is_prepared_ahead_by_the_trainer_itself() -> None:
    with Loader(Uneven(), num_workers=0, output="numpy") as loader:
        assert numbers(loader) == list(range(SAMPLES))
        assert loader.stats()["batches_ahead"] == 0
