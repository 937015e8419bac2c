"""Processes as the kernel lists them, and one to try dangerous things in."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

#: Python's own servants, which start with the first need for them and stay.
SERVANTS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def children() -> set[int]:
    """The ids of this process's living children, without Python's own servants."""
    found: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        try:
            found.update(map(int, listing.read_text().split()))
        except OSError:  # a thread that has just ended
            continue
    return {pid for pid in found if is_alive(pid) and not _is_servant(pid)}


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for yet does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def _is_servant(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return any(servant in command for servant in SERVANTS)


#: Seconds that processes of a busy machine may take to end or to answer. Only those that hang take as long.
PATIENCE = 60.0


def wait_until_gone(pids: Iterable[int], seconds: float = PATIENCE, *, collect: bool = True) -> set[int]:
    """Those of the processes that are still there when time is up.

    What an exception's traceback holds in a cycle goes only when garbage is collected. Without `collect` no finalizer
    runs meanwhile, for it would swallow what a signal's handler raises.
    """
    left = set(pids)
    deadline = time.monotonic() + seconds
    while True:
        left = {pid for pid in left if is_alive(pid)}
        if not left or time.monotonic() > deadline:
            return left
        if collect:
            gc.collect()
        time.sleep(0.02)


def members(group: int) -> set[int]:
    """The living processes of a process group."""
    found: set[int] = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, number = status.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # a process that has just ended
            continue
        if int(number) == group and state not in "ZX":
            found.add(int(status.parent.name))
    return found


def in_a_child(function: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Runs a function in a forked process of its own, returns what it returns, and checks that nothing stays behind.

    For what would disturb the test runner: PyTorch raises a worker's death wherever the main thread happens to be.
    """
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_report, args=(theirs, function))
    child.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            raise TimeoutError(f"there was no answer within {seconds:g} seconds")
        result = ours.recv()
        child.join(seconds)
    finally:
        child.kill()
        child.join()
        left = wait_until_gone(members(child.pid or 0))
        for pid in left:
            with contextlib.suppress(ProcessLookupError):  # it ends after all
                os.kill(pid, signal.SIGKILL)
    assert not left, f"{len(left)} worker processes outlive the loader"
    return result


def _report(connection: Connection, function: Callable[[], Any]) -> None:
    os.setsid()
    faulthandler.disable()  # the test runner's; what dies here dies on purpose
    connection.send(function())
    connection.close()
