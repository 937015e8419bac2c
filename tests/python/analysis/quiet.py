"""A turn on the processors whenever it is due, for tests whose truth is a matter of milliseconds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from benchmarks.machine import going_first


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Goes before everybody else on this machine, and workers that are started meanwhile with it.

    What is measured are pauses, so hardly anything is taken from anybody. Where that is not allowed and the machine is
    busy, nothing can be said, and the test is skipped.
    """
    with going_first() as allowed:
        if not allowed and os.getloadavg()[0] > 0.5 * len(os.sched_getaffinity(0)):
            pytest.skip("the machine is busy, and this process may not go before others")
        yield


def skip_if_busy() -> None:
    """Skips a test that found its milliseconds elsewhere, if others have wanted the processors as well."""
    if os.getloadavg()[0] > len(os.sched_getaffinity(0)):
        pytest.skip("the machine has more to do than it has processors, which is where the time went")
