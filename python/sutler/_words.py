"""Numbers in sentences, for people."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """``1 sample``, ``1,204 samples``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
