"""Copies of a loader, deep ones and pickled ones, go on to the epoch that it would go on to."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import sutler
from sutler import Loader


def pickled(loader: Any) -> Any:
    return pickle.loads(pickle.dumps(loader))


both_ways = pytest.mark.parametrize("way", [copy.deepcopy, pickled])


def ids_of(loader: Loader) -> list[list[int]]:
    return [batch[-1].tolist() for batch in loader]


def loader_of(dataset: Any, **arguments: Any) -> Loader:
    defaults: dict[str, Any] = {"batch_size": 6, "shuffle": True, "num_workers": 2, "seed": 4}
    return Loader(dataset, return_ids=True, output="numpy", **defaults | arguments)


@both_ways
def test_a_copy_begins_with_the_next_epoch(augmented: sutler.ImageFolder, way: Callable[[Any], Any]) -> None:
    loader = loader_of(augmented)
    list(loader)
    copied = way(loader)
    assert ids_of(copied) == ids_of(loader)
    loader.set_epoch(7)
    copied = way(loader)
    assert copied.state_dict() == loader.state_dict()
    assert ids_of(copied) == ids_of(loader)
    assert loader.state_dict()["epoch"] == 8


@both_ways
@pytest.mark.parametrize("order", ["strict", "ready"])
def test_a_copy_goes_on_from_a_state_that_was_loaded(way: Callable[[Any], Any], order: Any) -> None:
    arguments: dict[str, Any] = {"order": order, "num_workers": 0}
    first = loader_of(range(40), **arguments)
    next(iter(first))
    loader = loader_of(range(40), **arguments)
    loader.load_state_dict(first.state_dict())
    copied = way(loader)
    assert ids_of(copied) == ids_of(loader)
    assert ids_of(copied) == ids_of(loader)  # and the epoch after that


@both_ways
def test_a_copy_keeps_what_was_asked_for(way: Callable[[Any], Any]) -> None:
    loader = loader_of(range(40), rank=1, world_size=2, num_workers="auto", errors=sutler.Errors(max=3))
    loader.drop_last_of_mine = True
    copied = way(loader)
    assert (copied.rank, copied.world_size, copied.drop_last_of_mine) == (1, 2, True)
    assert copied._auto_workers == loader._auto_workers
    assert copied.errors == loader.errors
    assert ids_of(copied) == ids_of(loader)


@both_ways
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", "thread"])
def test_a_copy_starts_its_workers_in_the_same_way(way: Callable[[Any], Any], method: str) -> None:
    context = method if method == "thread" else multiprocessing.get_context(method)
    copied = way(loader_of(range(6), num_workers=1, multiprocessing_context=context))
    assert type(copied.multiprocessing_context) is type(context)
    assert sorted(ids_of(copied)[0]) == list(range(6))


def ids_there(loader: Loader, answers: Any) -> None:
    answers.send(ids_of(loader))


def test_a_loader_can_be_sent_to_another_process(augmented: sutler.ImageFolder) -> None:
    loader = loader_of(augmented)
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=ids_there, args=(loader, there))
    process.start()
    answer = here.recv()
    process.join()
    assert answer == ids_of(loader)


@both_ways
def test_a_copy_has_a_sampler_of_its_own(way: Callable[[Any], Any]) -> None:
    data = pytest.importorskip("torch.utils.data")
    loader = loader_of(range(40), shuffle=None, sampler=data.DistributedSampler(range(40), 2, 1))
    copied = way(loader)
    copied.set_epoch(3)
    assert copied.sampler.epoch == 3
    assert loader.sampler.epoch == 0
    assert ids_of(copied) != ids_of(loader)
