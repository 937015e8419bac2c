"""Who is measured after whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Contender = TypeVar("Contender")


def in_turn(contenders: Iterable[Contender], number: int) -> list[Contender]:
    """All contenders in the order of a round: another one begins in the next, so that none is always the first."""
    order = list(contenders)
    begin = number % len(order) if order else 0
    return order[begin:] + order[:begin]
