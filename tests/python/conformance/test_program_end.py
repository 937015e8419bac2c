"""Programs that end, or are ended, while an epoch is under way."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from . import processes


def run(loader_class: Any, body: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a fresh interpreter that knows `Loader`, `Places` and `children`."""
    name = loader_class.__name__
    script = (
        f"from {loader_class.__module__} import {name} as Loader\n"
        "from conformance.datasets import Places\n"
        "from conformance.processes import children\n"
        "import os, signal, sys\n" + textwrap.dedent(body)
    )
    tests = str(Path(__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {[tests, *sys.path]!r}\n{script}"],
        capture_output=True,
        text=True,
        timeout=processes.PATIENCE,
        check=False,
    )


def test_a_program_may_end_in_the_middle_of_an_epoch(loader_class: Any) -> None:
    done = run(
        loader_class,
        """
        options = {"batch_size": 2, "num_workers": 1, "multiprocessing_context": "fork"}
        loaders = [Loader(Places(1000), **options), Loader(Places(1000), persistent_workers=True, **options)]
        iterators = [iter(loader) for loader in loaders]
        for iterator in iterators:
            next(iterator)
        print(*children())
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert not processes.wait_until_gone(pids)


def test_workers_end_when_the_trainer_is_killed(loader_class: Any) -> None:
    done = run(
        loader_class,
        """
        iterator = iter(Loader(Places(1000), batch_size=2, num_workers=2, multiprocessing_context="fork"))
        next(iterator)
        print(*children(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert not processes.wait_until_gone(pids)
