"""Who is measured after whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Contender = TypeVar("Contender")


def in_turn(contenders: Iterable[Contender], number: int) -> list[Contender]:
    """All contenders in the order of a round.

    Another one begins in the next, so that none is always the first; and every other round goes backwards, so that
    none always comes after the same one, which may leave the machine otherwise than it found it.
    """
    order = list(contenders)
    begin = number % len(order) if order else 0
    if number % 2:
        return order[begin::-1] + order[:begin:-1]
    return order[begin:] + order[:begin]
