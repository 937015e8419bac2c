"""How much the times differ that samples take: told by the loader one by one, or else from when batches arrive."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sutler.analysis.model import BatchTimes

#: Which part of the variance passes over the same batches have to have in common, or it is noise.
IN_COMMON_MIN = 0.5


def of_stages(stages: Mapping[str, Any]) -> float:
    """The standard deviation of what a sample takes, in means of it, from what a loader tells of its stages.

    Examples:
        >>> uneven = {"decode": {"mean": 0.012, "quantiles": [(0.0, 0.002), (0.9, 0.002), (0.95, 0.16), (1.0, 0.16)]}}
        >>> round(of_stages(uneven), 1)
        3.3
        >>> of_stages({"decode": {"mean": 0.0, "quantiles": []}})
        0.0
    """
    mean = sum(times["mean"] for times in stages.values())
    variance = sum(_variance(times["quantiles"]) for times in stages.values())
    return math.sqrt(variance) / mean if mean else 0.0


def _variance(quantiles: Sequence[tuple[float, float]]) -> float:
    """Of what is spread evenly between its quantiles."""
    pieces = list(itertools.pairwise(quantiles))
    parts = [(upper - lower, first, last) for (lower, first), (upper, last) in pieces]
    mean = sum(part * (first + last) / 2 for part, first, last in parts)
    squares = sum(part * (first * first + first * last + last * last) / 3 for part, first, last in parts)
    return max(0.0, squares - mean * mean)


def of_batches(passes: Sequence[Sequence[BatchTimes]], team: int, batch_size: float) -> float:
    """The same from passes over the same batches without a step, for loaders that tell nothing of single samples.

    A batch takes what its samples take together, so batches differ by less than samples, and it is known by how much
    less. A ``team`` of workers makes as many batches at the same time, which arrive together: so many in a row are
    compared. What the machine does besides makes a batch take longer once, and its samples make it take longer in every
    pass: only what passes have in common counts.

    Examples:
        >>> def arriving(*seconds):
        ...     ends = list(itertools.accumulate(seconds))
        ...     return [BatchTimes(index, 0.0, end, end) for index, end in enumerate(ends)]
        >>> early, late = arriving(*[1] * 5, 19, *[1] * 14), arriving(*[1] * 15, 19, *[1] * 4)
        >>> round(of_batches([early] * 3, 1, 4), 1), of_batches([early, late], 1, 4)
        (4.2, 0.0)
        >>> of_batches([early], 1, 4), of_batches([early[:2]] * 2, 2, 4)
        (0.0, 0.0)
    """
    count = min(map(len, passes), default=0)
    # The first ones come when workers have got going.
    places = range(team - 1, count - team)
    if len(passes) < 2 or len(places) < 2:
        return 0.0
    together = np.array(
        [[times[place + team].received - times[place].received for place in places] for times in passes],
        dtype=float,
    )
    # Towards the end of a pass workers run out of work, and what is left comes sooner; what comes later has its reason.
    end = together[:, -2 * team :]
    np.maximum(end, np.median(together), out=end)
    shared = np.cov(together)
    in_each = float(np.diag(shared).mean())
    in_common = float(shared[~np.eye(len(passes), dtype=bool)].mean())
    if in_common < IN_COMMON_MIN * in_each or in_each == 0:
        return 0.0
    return math.sqrt(in_common * team * batch_size) / float(together.mean())
