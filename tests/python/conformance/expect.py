"""Expecting exceptions without keeping what they passed through."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def raises(
    error: type[BaseException] | tuple[type[BaseException], ...], match: str | None = None
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """As `pytest.raises`, and lets go of the frames that the exception left.

    They hold the iterator, and it them, so its workers would only end with the next garbage collection; PyTorch's then
    take five seconds, since the collector ends the queues to them first.
    """
    with pytest.raises(error, match=match) as caught:
        yield caught
    traceback.clear_frames(caught.value.__traceback__)
