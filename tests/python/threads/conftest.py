"""Every test of worker threads must leave none behind, unless it says that one is stuck."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import pytest


def worker_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("sutler-worker-")]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    deadline = time.monotonic() + 60
    while (left := worker_threads()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left == []
