"""What a signal's handler raises while the trainer waits for a batch, as Ctrl-C does in a notebook, loses nothing."""

from __future__ import annotations

import os
import signal
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
