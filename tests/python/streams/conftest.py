"""Every test of streams must leave as many processes as it found."""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import time
from collections.abc import Iterator

import pytest

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["*.py"]


@pytest.fixture(autouse=True)
def no_processes_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 60
    while multiprocessing.active_children():
        assert time.monotonic() < deadline, "worker processes outlive the loader"
        gc.collect()
        time.sleep(0.02)
