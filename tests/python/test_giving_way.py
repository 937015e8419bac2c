"""Workers never take the trainer's core by waking up: the trainer, which has the batch, goes on first."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import sutler
from sutler import Loader

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux tells them apart")


class Policies:
    """A sample is the policy that the process or thread which prepares it has."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return os.sched_getscheduler(0)


def policies_of_threads() -> dict[str, set[int]]:
    """The policies of this process's threads, by their names without numbers."""
    found: dict[str, set[int]] = {}
    for task in Path("/proc/self/task").iterdir():
        name = (task / "comm").read_text().strip().rstrip("0123456789")
        found.setdefault(name, set()).add(os.sched_getscheduler(int(task.name)))
    return found


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_worker_processes_give_way(method: str) -> None:
    before = os.sched_getscheduler(0)
    loader = Loader(Policies(), batch_size=4, num_workers=2, multiprocessing_context=method)
    assert {int(policy) for batch in loader for policy in batch} == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) == before, "the trainer is as it was"


def test_threads_of_the_engine_give_way(photos: Path) -> None:
    before = os.sched_getscheduler(0)
    loader = Loader(sutler.ImageFolder(photos), batch_size=None, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    deadline = time.monotonic() + 60
    while policies_of_threads()["sutler-"] != {os.SCHED_BATCH}:  # one of them may not have run yet
        assert time.monotonic() < deadline, policies_of_threads()
        time.sleep(0.01)
    assert os.sched_getscheduler(0) == before, "the trainer is as it was"
    loader.close()


def test_without_workers_nothing_changes() -> None:
    before = os.sched_getscheduler(0)
    assert {int(policy) for batch in Loader(Policies(), batch_size=4) for policy in batch} == {before}
    assert os.sched_getscheduler(0) == before


def test_a_policy_that_was_chosen_is_kept() -> None:
    code = """
        import os

        from test_giving_way import Policies

        from sutler import Loader

        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        loader = Loader(Policies(), batch_size=4, num_workers=1)
        print({int(policy) for batch in loader for policy in batch} == {os.SCHED_IDLE})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "True", done.stderr
