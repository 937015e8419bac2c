"""Ctrl-C, where it would come at a bad moment: between a thing that was begun and a note of it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def interrupts_put_off() -> Iterator[None]:
    """Ctrl-C waits until the end: a worker that was started, and that nobody has noted yet, would stay for ever.

    Blocking the signal in this thread would not do: another thread gets it then, and Python's handler runs in the main
    one all the same. In any other than that no handler ever runs.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[-1])
