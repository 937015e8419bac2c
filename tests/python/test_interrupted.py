"""What a signal's handler raises while the trainer waits for a batch, as Ctrl-C does in a notebook, loses nothing."""

from __future__ import annotations

import multiprocessing.process
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sutler


class InterruptionError(Exception):
    """What the handler raises: an `Exception`, as a watchdog's would be."""


def interrupt(*_: Any) -> None:
    raise InterruptionError


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


class Signalling:
    """Sends its trainer a signal with some samples, a moment before they are there."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index % 5 == 4:
            time.sleep(0.1)  # the trainer waits by now
            os.kill(os.getppid(), signal.SIGUSR1)
        return index


@pytest.mark.parametrize("order", ["strict", "ready"])
def test_a_batch_that_comes_with_a_signal_is_there_for_whoever_goes_on(order: Any) -> None:
    with sutler.Loader(Signalling(), batch_size=1, num_workers=1, prefetch_factor=1, order=order) as loader:
        batches = iter(loader)
        found: list[int] = []
        interruptions = 0
        while len(found) < 12:
            try:
                found += next(batches).tolist()
            except InterruptionError:
                interruptions += 1
                # A state does not count what was not delivered.
                assert loader.state_dict()["consumed"] == len(found) or order == "ready"
        assert next(batches, None) is None
    assert found == list(range(12))
    assert interruptions == 2


SCRIPT = """
import gc, multiprocessing, os, signal, sys, time
import sutler

kind, interrupted_at = sys.argv[1], int(sys.argv[2])

class Samples:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index >= 40:
            raise IndexError
        return index

class Stream:
    def __iter__(self):
        return iter(range(10))

forks = 0

def interrupt_one():
    global forks
    forks += 1
    if forks == interrupted_at:
        os.kill(os.getpid(), signal.SIGINT)

os.register_at_fork(after_in_parent=interrupt_one)
dataset = Samples() if kind == "map" else Stream()
loader = sutler.Loader(dataset, batch_size=4, num_workers=3, multiprocessing_context="fork")
interruptions = 0
try:
    for batch in loader:
        pass
except KeyboardInterrupt:
    interruptions = 1
batches = sorted(value for batch in loader for value in batch.tolist())
assert batches == sorted(list(range(40)) if kind == "map" else 3 * list(range(10))), batches
loader.close()
del loader
gc.collect()
children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
print(interruptions, len(multiprocessing.active_children()), len(children))
"""


@pytest.mark.parametrize("worker", [1, 2, 3])
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_ctrl_c_while_workers_are_started_leaves_none_of_them(
    run_script: Any, kind: str, worker: int
) -> None:
    done = run_script(SCRIPT, kind, str(worker))
    assert done.stdout.split() == ["1", "0", "0"], done.stderr


class Counting:
    """Its samples tell how many of them were made before, and one of them is interrupted."""

    def __init__(self, interrupted_at: int | None = None) -> None:
        self.calls = 0
        self.interrupted_at = interrupted_at

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        self.calls += 1
        if index == self.interrupted_at:
            raise KeyboardInterrupt
        return 100 * index + self.calls

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


@pytest.mark.parametrize("interrupted_at", [0, 1, 4, 11])
@pytest.mark.parametrize("batch_size", [3, None])
def test_a_state_after_an_interrupted_batch_has_the_dataset_before_it(
    batch_size: int | None, interrupted_at: int
) -> None:
    def as_list(batch: Any) -> Any:
        return batch if batch_size is None else batch.tolist()

    whole = [as_list(batch) for batch in sutler.Loader(Counting(), batch_size=batch_size, num_workers=0)]
    loader = sutler.Loader(Counting(interrupted_at), batch_size=batch_size, num_workers=0)
    served: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        served.extend(as_list(batch) for batch in loader)
    state = loader.state_dict()
    resumed = sutler.Loader(Counting(), batch_size=batch_size, num_workers=0)
    resumed.load_state_dict(state)
    rest = [as_list(batch) for batch in resumed]
    assert whole[: interrupted_at // (batch_size or 1)] + rest == whole


def test_what_cannot_be_saved_is_told_when_a_state_is_wanted() -> None:
    class Unsaved(Counting):
        def state_dict(self) -> dict[str, int]:
            raise ValueError("not now")

    loader = sutler.Loader(Unsaved(interrupted_at=4), batch_size=3, num_workers=0)
    with pytest.raises(KeyboardInterrupt):
        list(loader)
    with pytest.raises(ValueError, match="not now"):
        loader.state_dict()


@pytest.mark.parametrize("context", ["fork", "thread"])
def test_ctrl_c_while_an_epoch_ends_leaves_the_trainer_in_it(
    monkeypatch: pytest.MonkeyPatch, context: Any
) -> None:
    joined = multiprocessing.process.BaseProcess if context == "fork" else threading.Thread
    join = joined.join
    waiting = True

    def interrupt_first(self: Any, timeout: float | None = None) -> None:
        nonlocal waiting
        if waiting and self.name.startswith("sutler-worker"):
            waiting = False
            raise KeyboardInterrupt
        join(self, timeout)

    monkeypatch.setattr(joined, "join", interrupt_first)
    loader = sutler.Loader(range(6), batch_size=3, num_workers=2, multiprocessing_context=context)
    served: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        served.extend(batch.tolist() for batch in loader)
    state = loader.state_dict()
    assert state["epoch"] == 0, "the trainer has not heard of the epoch's end"
    resumed = sutler.Loader(range(6), batch_size=3, num_workers=2, multiprocessing_context=context)
    resumed.load_state_dict(state)
    assert list(resumed) == []
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]
    assert loader.state_dict()["epoch"] == 3
    loader.close()
