"""Numbers and functions in sentences, for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def counted(number: int, noun: str) -> str:
    """``1 sample``, ``1,204 samples``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called in messages and figures."""
    return getattr(function, "__name__", None) or type(function).__name__
