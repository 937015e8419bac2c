"""A worker that dies is an error in the trainer, soon, and never a wait without end."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sutler

from . import processes
from .datasets import Dying, Held, Numbers, Sleeping, flat

#: Seconds until the trainer must know. PyTorch looks every five seconds where the kernel does not tell it, and a busy
#: machine takes its time.
PROMPTLY = 30.0


def dying(way: str) -> Dying:
    """Dies late enough for the batches before to arrive, and yields no tensors, which PyTorch fetches from the dead."""
    return Dying(8, 5, way, seconds=0.2)


class DyingOnCommand(Held):
    """One of the samples ends the process that prepares it, when it is told to."""

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        if index == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return sample


class Outcome(NamedTuple):
    """How a function ended."""

    error: str | None
    is_runtime_error: bool
    message: str
    seconds: float


def outcome(function: Callable[[], Any]) -> Outcome:
    """Calls a function in a process of its own and tells what it raised."""

    def call() -> Outcome:
        started = time.monotonic()
        try:
            function()
        except BaseException as error:
            kind, runtime = type(error).__name__, isinstance(error, RuntimeError)
            return Outcome(kind, runtime, str(error), time.monotonic() - started)
        return Outcome(None, False, "", time.monotonic() - started)

    result: Outcome = processes.in_a_child(call)
    return result


@pytest.mark.parametrize("way", ["SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM", "exit1", "exit0", "sys.exit"])
def test_a_worker_that_dies_is_an_error(
    load: Callable[..., Any],
    differs: Callable[[str], bool],
    way: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    found = outcome(lambda: flat(load(dying(way), batch_size=2, collate_fn=list, num_workers=2)))
    assert found.is_runtime_error
    assert found.error == ("WorkerError" if differs("worker_error") else "RuntimeError")
    assert "worker" in found.message
    assert found.seconds < PROMPTLY
    capfd.readouterr()  # a segmentation fault is also announced by the worker itself


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_that_died_is_replaced_in_the_next_epoch(
    persistent: bool, code: int, tmp_path: Path
) -> None:
    class Once(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 9 and not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                os._exit(code)
            return index

    with sutler.Loader(Once(20), batch_size=2, num_workers=2, persistent_workers=persistent) as loader:
        with pytest.raises(sutler.WorkerError, match="sample 9"):
            flat(loader)
        assert sorted(flat(loader)) == sorted(flat(loader)) == list(range(20))
        if persistent:  # also one that dies between two epochs
            iterator: Any = iter(loader)
            assert sorted(flat(iterator)) == list(range(20))
            worker = iterator._workers[0]
            os.kill(worker.pid, signal.SIGKILL)
            worker.join(processes.PATIENCE)
            assert sorted(flat(loader)) == list(range(20))


@pytest.mark.parametrize("way", ["SIGKILL", "exit1"])
def test_the_error_says_who_died_and_how(load: Callable[..., Any], way: str, tmp_path: Path) -> None:
    def note_pid(worker: int) -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))

    loader = load(dying(way), batch_size=2, collate_fn=list, num_workers=1, worker_init_fn=note_pid)
    found = outcome(lambda: flat(loader))
    assert (tmp_path / "pid").read_text() in found.message
    # PyTorch knows the signal, but says only "exited unexpectedly" where it was waiting for the batch.
    assert "signal" in found.message or "exit" in found.message


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_killed_from_outside_is_an_error(load: Callable[..., Any], persistent: bool) -> None:
    dataset = Sleeping(400, dict.fromkeys(range(400), 0.02))

    def kill_one() -> None:
        options = {"batch_size": 2, "collate_fn": list, "persistent_workers": persistent}
        iterator = iter(load(dataset, num_workers=2, **options))
        next(iterator)
        os.kill(min(processes.children()), signal.SIGKILL)
        list(iterator)

    found = outcome(kill_one)
    assert found.is_runtime_error
    assert "worker" in found.message
    assert found.seconds < PROMPTLY


def test_where_a_death_is_raised(load: Callable[..., Any], differs: Callable[[str], bool]) -> None:
    def train() -> None:
        dataset = DyingOnCommand(8, 1)
        iterator = iter(load(dataset, num_workers=1))
        assert next(iterator).tolist() == [0]
        workers = processes.children()
        gc.disable()
        dataset.let_go.set()
        processes.wait_until_gone(workers, collect=False)
        time.sleep(0.1)  # for the signal of its death to come
        try:
            next(iterator)
        except RuntimeError as error:
            raise RuntimeError(f"after the step: {error}") from None

    found = outcome(train)
    assert found.error == "RuntimeError"
    assert "worker" in found.message
    assert found.message.startswith("after the step") == differs("death_interrupts_the_trainer")


def test_the_next_epoch_has_new_workers(load: Callable[..., Any]) -> None:
    dataset = dying("SIGKILL")
    loader = load(dataset, batch_size=2, collate_fn=list, num_workers=1)

    def twice() -> list[int]:
        with pytest.raises(RuntimeError, match="worker"):
            flat(loader)
        dataset.at = -1
        return flat(loader)

    assert processes.in_a_child(twice) == list(range(8))


def test_a_death_without_workers_is_the_trainers_own(load: Callable[..., Any]) -> None:
    with pytest.raises(SystemExit):
        flat(load(Dying(4, 2, "sys.exit"), batch_size=2))


def test_an_interrupt_reaches_the_trainer(
    load: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C in a terminal goes to the trainer and all workers at once."""

    def interrupt() -> None:
        # Whoever runs the tests in the background may have had Ctrl-C ignored, and children inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        iterator = iter(load(Sleeping(400, dict.fromkeys(range(400), 0.02)), batch_size=2, num_workers=2))
        next(iterator)
        os.killpg(os.getpgrp(), signal.SIGINT)
        list(iterator)

    found = outcome(interrupt)
    assert found.error == "KeyboardInterrupt"
    assert found.seconds < PROMPTLY
    capfd.readouterr()  # a worker that was not at its own code prints a traceback
