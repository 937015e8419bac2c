"""A process of its own for whoever is measured."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any


def seat(take: Callable[..., None] | None = None, *arguments: Any) -> Executor:
    """A process that begins with a call. Started afresh, it has neither threads nor freed memory of anybody else's."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), take, arguments)
