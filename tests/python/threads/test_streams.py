"""Streams in worker threads: each goes through a copy of its own."""

from __future__ import annotations

import os
import pickle
import random
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sutler
import torch
from sutler import _threads

from tests.python.streams.datasets import Itself, Plain, StatefulDataset, StatefulIterator, numbers

from .conftest import worker_threads


def make(dataset: Any, **options: Any) -> sutler.Loader:
    given: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "multiprocessing_context": "thread"} | options
    return sutler.Loader(dataset, **given)


@pytest.mark.parametrize("kind", [Plain, StatefulDataset, StatefulIterator, Itself])
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_are_those_of_worker_processes(kind: type[Any], persistent: bool) -> None:
    epochs = {}
    for context in ("thread", "fork"):
        with make(kind(19), multiprocessing_context=context, persistent_workers=persistent) as loader:
            epochs[context] = [numbers(loader) for _ in range(2)]
            assert len(worker_threads()) == (2 if persistent and context == "thread" else 0)
    assert epochs["thread"] == epochs["fork"]


@pytest.mark.parametrize("kind", [Plain, StatefulDataset, StatefulIterator, Itself])
def test_resume_from_every_batch_delivers_the_exact_rest(kind: type[Any]) -> None:
    whole, states = [], []
    with make(kind(19)) as loader:
        for batch in loader:
            whole.append(batch.tolist())
            states.append(loader.state_dict())
    for step, state in enumerate(states[:-1], 1):
        with make(kind(19)) as resumed:
            resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
            assert numbers(resumed) == whole[step:], f"from batch {step}"


class Drawing(StatefulIterator):
    """Draws from the worker's own generators: when it begins, and for each sample."""

    def __iter__(self) -> Any:
        rng = sutler.get_worker_info().rng
        start = rng.random_generator.random()
        for _ in range(self.count):
            yield start, float(rng.numpy_generator.random()), torch.rand(1, generator=rng.torch_generator)


@pytest.mark.parametrize("context", ["thread", "fork"])
def test_a_workers_own_generators_go_on_where_they_were(context: str) -> None:
    def values(batches: Any) -> list[Any]:
        return [[column.tolist() for column in batch] for batch in batches]

    states = []
    with make(Drawing(6), multiprocessing_context=context) as loader:
        whole = []
        for batch in loader:
            whole += values([batch])
            states.append(loader.state_dict())
    assert len({str(batch) for batch in whole}) == 6  # no worker has another's numbers
    with make(Drawing(6), multiprocessing_context=context) as resumed:
        resumed.load_state_dict(states[2])
        assert values(resumed) == whole[3:]


def test_the_trainers_own_random_numbers_are_left_alone() -> None:
    with make(Drawing(6)) as loader:
        iterator = iter(loader)
        next(iterator)
        before = random.getstate(), torch.default_generator.get_state()
        list(iterator)
    assert random.getstate() == before[0]
    assert torch.equal(torch.default_generator.get_state(), before[1])


class Configured(Plain):
    """Yields what `worker_init_fn` has set in this worker's copy, as PyTorch's documentation shows."""

    start = end = 0

    def __iter__(self) -> Iterator[int]:
        time.sleep(0.01)  # for the other to be configured as well
        yield from range(self.start, self.end)


def configure(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    dataset: Any = info.dataset
    dataset.start, dataset.end = 5 * worker, 5 * worker + 5


def test_a_worker_can_be_configured_through_its_copy() -> None:
    dataset = Configured(10)
    with make(dataset, worker_init_fn=configure) as loader:
        found = sorted(number for batch in numbers(loader) for number in batch)
    assert found == list(range(10))
    assert (dataset.start, dataset.end) == (0, 0)


def test_a_stream_that_cannot_be_copied_says_what_to_do() -> None:
    class Locked(Plain):
        def __init__(self) -> None:
            super().__init__(3)
            self.lock = threading.Lock()

    with make(Locked()) as loader, pytest.raises(TypeError, match=r"Locked cannot be copied .*__deepcopy__"):
        next(iter(loader))


def test_batches_are_handed_over_as_they_are() -> None:
    made: list[Any] = []

    def collate(samples: list[int]) -> Any:
        made.append((samples, threading.Lock()))  # nothing could pickle this
        return made[-1]

    with make(Plain(8), collate_fn=collate, num_workers=1) as loader:
        found = list(loader)
    assert len(found) == 4
    assert all(batch is original for batch, original in zip(found, made, strict=True))


def test_exceptions_keep_their_type_and_traceback_and_the_epoch_goes_on() -> None:
    class LocalError(Exception):
        pass

    class Bad(Itself):
        def __next__(self) -> int:
            number = super().__next__()
            if number == 4:
                raise LocalError("no sample 4")
            return number

    with make(Bad(12), num_workers=1) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1]
        assert next(iterator).tolist() == [2, 3]
        with pytest.raises(LocalError, match="Caught LocalError in DataLoader worker thread 0"):
            next(iterator)
        assert [number for batch in numbers(iterator) for number in batch] == list(range(5, 12))


def test_a_stream_that_ends_its_worker_is_reported() -> None:
    class Leaving(Plain):
        def __iter__(self) -> Iterator[int]:
            yield 1
            yield 2
            sys.exit("enough")

    with make(Leaving(9), num_workers=1) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [1, 2]
        with pytest.raises(sutler.WorkerError, match="ended by SystemExit: enough"):
            next(iterator)


def test_a_timeout_names_the_worker_and_a_ready_worker_is_not_held_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_threads, "END_SECONDS", 0.1)
    go = threading.Event()

    class Slow(Plain):
        def __iter__(self) -> Iterator[int]:
            info = sutler.get_worker_info()
            if info.id == 0:
                assert go.wait(30)
            yield from range(info.id * 10, info.id * 10 + 4)

        def __deepcopy__(self, _: Any) -> Slow:
            return type(self)(self.count)

    with make(Slow(4), order="ready", timeout=3) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [10, 11]
        assert next(iterator).tolist() == [12, 13]
        with pytest.raises(RuntimeError, match="timed out after 3 seconds; worker thread 0 is at its stream"):
            next(iterator)
        go.set()
        assert numbers(iterator) == [[0, 1], [2, 3]]


def test_without_a_gil_workers_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Whose(Plain):
        def __iter__(self) -> Iterator[int]:
            yield os.getpid()

    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    for context, here in ((None, True), ("fork", False)):
        with make(Whose(1), multiprocessing_context=context) as loader:
            assert {batch.item() == os.getpid() for batch in loader} == {here}
