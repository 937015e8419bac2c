"""Where a value lies on an axis, and at which round values the axis is labelled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """An axis from one value to another, over a stretch of the drawing."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The place of a value; one beyond an end of the axis is at that end."""
        low, high, value = (self._warp(each) for each in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.begin + (self.end - self.begin) * min(1.0, max(0.0, share))

    def _warp(self, value: float) -> float:
        return math.log10(max(value, self.low)) if self.logarithmic else value

    def ticks(self, most: int = 6) -> list[float]:
        """Round values from end to end."""
        if self.logarithmic:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            # Where powers of ten are few, their parts have room between them.
            parts = (1.0, 2.0, 5.0) if math.log10(self.high / self.low) < most / 3 else (1.0,)
            marks = [part * 10.0**power for power in range(first, last + 1) for part in parts]
            return [mark for mark in marks if self.low <= mark <= self.high]
        step = round_step(self.high - self.low, most)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [count * step for count in range(first, last + 1)]


def round_step(length: float, most: int) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that cuts a length into at most so many parts.

    Examples:
        >>> [round_step(each, 6) for each in (1.0, 11.0, 12000.0)]
        [0.2, 2.0, 2000.0]
    """
    if not length > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(length / most))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power * most >= length * (1 - 1e-9))


def upper_end(values: Sequence[float], most: int = 5) -> float:
    """A round value that all of some values lie below."""
    highest = max([*values, 0.0])
    step = round_step(highest, most)
    return step * max(1, math.ceil(highest / step - 1e-9))
