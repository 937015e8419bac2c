"""Figures as text: medians, spreads and tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """One ratio per round: what disturbs a round disturbs both of its sides, and cancels."""
    return [above / below for above, below in zip(numerators, denominators, strict=True)]


def spread(values: Sequence[float], digits: int = 0) -> str:
    return f"{min(values):,.{digits}f}..{max(values):,.{digits}f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be: the first to the left, the others, which hold figures, to the right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    ruled = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in ruled
    )


def sparkline(values: Sequence[float]) -> str:
    """One bar per value, from the least to the largest."""
    low, high = min(values), max(values)
    if high == low:
        return _BARS[0] * len(values)
    return "".join(_BARS[round((value - low) / (high - low) * (len(_BARS) - 1))] for value in values)


def mebibytes(count: float) -> str:
    return f"{count / 2**20:,.1f} MiB"
