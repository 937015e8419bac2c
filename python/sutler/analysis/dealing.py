"""Samples dealt out so that a few batches stand for all.

A pass looks at a hundred samples or so, and not at the first and the last of them. Photographs differ in size by two
fifths of their mean, so of samples that come as they are drawn such a part may well be larger or smaller than it
should be by some percent, and what is read of them, too. Dealt out evenly, any stretch of them has large and small
ones, and those that a cache keeps, in the same proportions as all of them.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable
from typing import Any

_GOLDEN_RATIO = (5**0.5 - 1) / 2

#: By which fraction the weight of representative samples may be off.
CLOSE = 1e-4


def evenly(kinds: Iterable[list[Any]], weight: Callable[[Any], float]) -> list[Any]:
    """All samples, in an order of which any stretch has as much of each kind, light and heavy ones, as any other.

    Examples:
        >>> evenly([[1, 2, 3, 4, 5, 6, 7, 8]], float)
        [1, 6, 3, 8, 5, 2, 7, 4]
        >>> evenly([[10, 20], [1, 2, 3, 4]], float)
        [10, 1, 3, 20, 2, 4]
    """
    places: list[tuple[float, Any]] = []
    for samples in kinds:
        # Multiples of the golden ratio, taken modulo 1, fall evenly into any interval.
        places += [
            (rank * _GOLDEN_RATIO % 1.0, sample) for rank, sample in enumerate(sorted(samples, key=weight))
        ]
    return [sample for _, sample in sorted(places, key=lambda place: place[0])]


def representative(samples: list[Any], count: int, weight: Callable[[Any], float]) -> list[Any]:
    """So many of the samples, light and heavy ones, which are together as heavy as so many of them should be.

    Examples:
        >>> sorted(representative([3, 4, 5, 6, 7, 8, 9, 10], 4, float))
        [3, 5, 8, 10]
    """
    order = evenly([samples], weight)
    chosen, others = order[:count], sorted(order[count:], key=weight)
    wanted = sum(map(weight, order)) * count / len(order)
    # One sample may be as heavy as many others, so it matters whether it is among them. The exchange of two that comes
    # closest to what is missing is made until none comes closer.
    while others and abs(missing := wanted - sum(map(weight, chosen))) > CLOSE * wanted:
        weights = [weight(other) for other in others]
        exchanges = (
            (abs(missing - weights[at] + weight(sample)), place, at)
            for place, sample in enumerate(chosen)
            for at in _nearest(weights, weight(sample) + missing)
        )
        left, place, at = min(exchanges)
        if left >= abs(missing):
            break
        sample, other = chosen[place], others.pop(at)
        chosen[place] = other
        bisect.insort(others, sample, key=weight)
    return chosen


def _nearest(ascending: list[float], value: float) -> range:
    """Where the values on both sides of one stand."""
    place = bisect.bisect(ascending, value)
    return range(max(0, place - 1), min(len(ascending), place + 1))


def in_batches(samples: Iterable[Any], sizes: Iterable[int]) -> list[list[Any]]:
    """The same samples in batches of these sizes, as far as they go.

    Examples:
        >>> in_batches("abcde", [2, 4, 4])
        [['a', 'b'], ['c', 'd', 'e']]
    """
    dealt = iter(samples)
    return [batch for size in sizes if (batch := list(itertools.islice(dealt, size)))]
