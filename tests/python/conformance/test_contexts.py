"""How workers are started: forked, spawned, or forked from a server."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import get_worker_info

from . import processes
from .datasets import Drawing, Locked, Numbers, Places, flat
from .expect import raises

UNPICKLABLE = (AttributeError, TypeError, pickle.PicklingError)


def set_count(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.count = 50 + worker  # type: ignore[attr-defined]


def as_sorted_list(batch: list[Any]) -> list[Any]:
    return sorted(batch, key=lambda sample: -int(sample["index"]))


class Farewell:
    """Refers to itself, so that only a search for garbage ends it; makes a file then."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.itself = self

    def __del__(self) -> None:
        self.file.touch()


class Told(Drawing):
    """Also tells what `worker_init_fn` did to it, and leaves some garbage where it is unpickled."""

    def __init__(self, count: int, file: Path) -> None:
        super().__init__(count)
        self.file = file

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        Farewell(self.file)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return super().__getitem__(index) | {"count": self.count}


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_every_start_method_serves_the_same(load: Callable[..., Any], method: str, tmp_path: Path) -> None:
    loader = load(
        Told(4, tmp_path / "farewell"),
        batch_size=2,
        num_workers=1,
        multiprocessing_context=method,
        worker_init_fn=set_count,
        collate_fn=as_sorted_list,
    )
    batches = list(loader)
    assert [[sample["index"] for sample in batch] for batch in batches] == [[1, 0], [3, 2]]
    assert all(sample["worker"] == 0 and sample["count"] == 50 for batch in batches for sample in batch)
    if method == "spawn":  # a new interpreter, which ends as others do; forked processes just stop
        deadline = time.monotonic() + processes.PATIENCE
        while not (tmp_path / "farewell").exists():
            assert time.monotonic() < deadline, "the worker ended without a search for garbage"
            time.sleep(0.02)


def test_threads_can_be_asked_for(load: Callable[..., Any], differs: Callable[[str], bool]) -> None:
    options = {"batch_size": 2, "num_workers": 1, "multiprocessing_context": "thread"}
    if differs("threads_without_a_gil"):
        assert flat(load(Numbers(4), **options)) == [0, 1, 2, 3]
    else:
        with raises(ValueError, match="valid start method"):
            load(Numbers(4), **options)


def test_a_context_object_serves_as_well_as_its_name(load: Callable[..., Any]) -> None:
    context = multiprocessing.get_context("fork")
    assert flat(load(Numbers(4), batch_size=2, num_workers=1, multiprocessing_context=context)) == [
        0,
        1,
        2,
        3,
    ]


@pytest.mark.filterwarnings("ignore:Got pickle error when attempting to start a worker Process")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("option", ["dataset", "worker_init_fn"])
def test_what_a_spawned_worker_needs_must_be_picklable(
    load: Callable[..., Any], tmp_path: Path, option: str
) -> None:
    (tmp_path / "bytes").write_bytes(bytes(range(8)))
    dataset: Any = Locked(str(tmp_path / "bytes"), 8) if option == "dataset" else Numbers(8)
    options = {} if option == "dataset" else {"worker_init_fn": lambda worker: None}
    loader = load(dataset, batch_size=2, num_workers=1, multiprocessing_context="spawn", **options)
    with raises(UNPICKLABLE, match="(?i)pickle"):
        list(loader)


def test_forked_workers_inherit_locks_and_files(load: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(bytes(range(40)))
    dataset = Locked(str(tmp_path / "bytes"), 40)
    assert flat(load(dataset, batch_size=4, num_workers=2)) == list(range(40))
    assert dataset[7] == 7
    dataset.file.close()


def test_forked_workers_inherit_a_held_lock_only_if_it_is_held(
    load: Callable[..., Any], tmp_path: Path
) -> None:
    """The trainer may use the dataset while workers do: each process has its own lock."""
    (tmp_path / "bytes").write_bytes(bytes(range(40)))
    dataset = Locked(str(tmp_path / "bytes"), 40)
    seen = []
    for batch in load(dataset, batch_size=4, num_workers=2):
        with dataset.lock:
            seen.extend(batch.tolist())
    assert seen == list(range(40))
    dataset.file.close()


def test_workers_are_children_of_the_trainer_when_forked(load: Callable[..., Any]) -> None:
    iterator = iter(load(Places(40), num_workers=2))
    next(iterator)
    pids = processes.children()
    assert len(pids) == 2
    assert {int(batch["pid"]) for batch in iterator} <= pids
