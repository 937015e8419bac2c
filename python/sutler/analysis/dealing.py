"""Samples that stand for all: as many of them as a cache would keep, and as heavy as they should be.

A pass looks at a hundred samples or so. Photographs differ in size by two fifths of their mean and more, so of samples
that are chosen blindly a part may well be larger or smaller than it should be by some percent, and what is read of the
others, too. In a dataset of a million that evens out; here it has to be seen to.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any

#: By which fraction the weight of representative samples may be off.
CLOSE = 1e-4
#: Decides which samples they are: the same whenever the same are looked at.
SEED = 0


def representative(samples: list[Any], count: int, weight: Callable[[Any], float]) -> list[Any]:
    """So many of the samples, anywhere among them, which are together as heavy as so many of them should be.

    Examples:
        >>> sum(representative(list(range(1, 101)), 50, float))
        2525
        >>> sorted(representative([3, 4, 5, 6, 7, 8, 9, 10], 8, float))
        [3, 4, 5, 6, 7, 8, 9, 10]
    """
    dealt = shuffled(samples)
    chosen, others = dealt[:count], sorted(dealt[count:], key=weight)
    wanted = sum(map(weight, samples)) * count / max(1, len(samples))
    # One sample may be as heavy as many others, so it matters whether it is among them. The exchange of two that comes
    # closest to what is missing is made until none comes closer.
    while chosen and others and abs(missing := wanted - sum(map(weight, chosen))) > CLOSE * wanted:
        weights = [weight(other) for other in others]
        exchanges = (
            (abs(missing - weights[at] + weight(sample)), place, at)
            for place, sample in enumerate(chosen)
            for at in _nearest(weights, weight(sample) + missing)
        )
        left, place, at = min(exchanges)
        if left >= abs(missing):
            break
        sample, chosen[place] = chosen[place], others.pop(at)
        bisect.insort(others, sample, key=weight)
    return chosen


def _nearest(ascending: list[float], value: float) -> range:
    """Where the values on both sides of one stand."""
    place = bisect.bisect(ascending, value)
    return range(max(0, place - 1), min(len(ascending), place + 1))


def shuffled(samples: Iterable[Any]) -> list[Any]:
    """The same samples in another order, which is always the same."""
    dealt = list(samples)
    random.Random(SEED).shuffle(dealt)
    return dealt


def in_batches(samples: Iterable[Any], sizes: Iterable[int]) -> list[list[Any]]:
    """The same samples in batches of these sizes, as far as they go.

    Examples:
        >>> in_batches("abcde", [2, 4, 4])
        [['a', 'b'], ['c', 'd', 'e']]
    """
    dealt = iter(samples)
    return [batch for size in sizes if (batch := list(itertools.islice(dealt, size)))]
