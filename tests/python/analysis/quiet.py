"""A turn on the processors whenever it is due, for tests whose truth is a matter of milliseconds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Goes before everybody else on this machine, and workers that are started meanwhile with it.

    What is measured are pauses, so hardly anything is taken from anybody. Where that is not allowed and the machine is
    busy, nothing can be said, and the test is skipped.
    """
    before = os.sched_getscheduler(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))
    except PermissionError:
        if os.getloadavg()[0] > 0.5 * len(os.sched_getaffinity(0)):
            pytest.skip("the machine is busy, and this process may not go before others")
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, os.sched_param(0))


def skip_if_busy() -> None:
    """Skips a test that found its milliseconds elsewhere, if others have wanted the processors as well."""
    if os.getloadavg()[0] > len(os.sched_getaffinity(0)):
        pytest.skip("the machine has more to do than it has processors, which is where the time went")
