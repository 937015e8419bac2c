"""Samples' own random numbers, and the trainer's, which go on as if there were none."""

from __future__ import annotations

import os
import random
import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sutler import _seeding
from sutler._seeding import generators_kept, seeded


def draw() -> tuple[float, ...]:
    """Numbers of every generator; the second of a pair of Gaussians is kept by each of them for the next call."""
    return (
        random.gauss(0, 1),
        float(np.random.standard_normal()),
        float(torch.randn((), dtype=torch.float64)),
    )


@pytest.fixture
def trainers() -> list[tuple[float, ...]]:
    """What the trainer draws next, if nothing interferes."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    draw()
    expected = [draw() for _ in range(4)]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    draw()
    return expected


def drawn(seed: int) -> tuple[float, ...]:
    with seeded(seed):
        return draw()


def test_a_run_of_samples_draws_what_each_of_them_draws_alone(trainers: list[Any]) -> None:
    alone = [drawn(seed) for seed in (5, 6, 5)]
    with generators_kept():
        assert [drawn(seed) for seed in (5, 6, 5)] == alone
    assert [draw() for _ in trainers] == trainers


def test_the_trainers_numbers_go_on_where_a_sample_raises(trainers: list[Any]) -> None:
    def fail() -> None:
        with generators_kept(), seeded(5):
            draw()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [draw() for _ in trainers] == trainers


def test_a_sample_goes_on_where_it_was_after_one_that_was_made_for_it(trainers: list[Any]) -> None:
    with seeded(5):
        expected = draw(), draw()
    with generators_kept(), seeded(5):
        first = draw()
        drawn(6)
        with generators_kept():
            drawn(7), drawn(8)
        assert (first, draw()) == expected
    assert [draw() for _ in trainers] == trainers


def test_states_are_read_once_for_a_run_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read = np.random.get_state

    def counted() -> Any:
        reads.append(1)
        return read()

    monkeypatch.setattr(np.random, "get_state", counted)
    with generators_kept():
        for seed in range(10):
            drawn(seed)
    assert len(reads) == 1
    drawn(3), drawn(4)
    assert len(reads) == 3


def test_a_library_that_a_sample_imports_is_put_back_too(
    monkeypatch: pytest.MonkeyPatch, trainers: list[Any]
) -> None:
    with generators_kept():
        with monkeypatch.context() as before_the_import:
            before_the_import.delitem(sys.modules, "torch")
            with seeded(5):
                random.random()
        drawn(6)
    assert [draw() for _ in trainers] == trainers


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with generators_kept():
            inside.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # to fork beside a thread is what this is about
            child = os.fork()
        if child == 0:
            free = _seeding._alone.acquire(timeout=10)
            os._exit(0 if free and _seeding._kept is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        done.set()
        holder.join()
