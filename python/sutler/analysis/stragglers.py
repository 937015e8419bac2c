"""Who holds the others up: workers that take longer over their samples, ranks that wait longer for their batches.

Workers are compared by the time they take per sample, and ranks by the time they *wait* per batch. How long a rank
trains says nothing about it: ranks that are in step wait for the slowest inside their training step, where it looks
like work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

#: From how many times the median of the others on somebody is one.
FACTOR = 1.5

#: Samples of a worker, or batches of a rank, below which its mean says little.
LEAST = 8

#: The part of its time that a rank must wait for the others to notice.
NOTICED = 0.01


@dataclass(frozen=True)
class Straggler:
    """A worker or rank that takes longer than the others."""

    #: ``"worker"`` or ``"rank"``.
    kind: str
    #: Its number.
    number: int
    #: What it takes, per sample or batch, and the median of the others.
    seconds: float
    median: float
    #: What most of it is: ``"fetch"``, ``"prep"`` or ``"transport"``.
    cause: str

    @property
    def factor(self) -> float:
        """How many times the median it takes."""
        return self.seconds / self.median if self.median else float("inf")

    def __str__(self) -> str:
        unit = "sample" if self.kind == "worker" else "batch"
        verb = "takes" if self.kind == "worker" else "waits"
        return (
            f"{self.kind} {self.number} {verb} {self.seconds * 1e3:.3g} ms per {unit}, mostly {self.cause}; "
            f"the others {self.median * 1e3:.3g} ms"
        )


def straggling_workers(stats: Mapping[str, Any]) -> list[Straggler]:
    """The workers of a loader that take longer per sample than the others, from what `Loader.stats` told.

    Examples:
        >>> quick, slow = {"samples": 100, "fetch": 0.1, "prep": 0.2}, {"samples": 40, "fetch": 0.9, "prep": 0.1}
        >>> print(*straggling_workers({"worker_times": [quick, quick, slow]}))
        worker 2 takes 25 ms per sample, mostly fetch; the others 3 ms
    """
    parts = [
        {cause: times[cause] / times["samples"] for cause in ("fetch", "prep")}
        if times["samples"] >= LEAST
        else None
        for times in stats["worker_times"]
    ]
    return _stragglers("worker", parts)


def straggling_ranks(stats: Sequence[Mapping[str, Any]]) -> list[Straggler]:
    """The ranks of a job that wait longer for their batches than the others, from what the loader of each told.

    With `torch.distributed`, ``all_gather_object`` brings the stats of all ranks together.

    Examples:
        >>> def rank(fetch):
        ...     stalls = {"fetch": fetch, "prep": 0.5, "transport": 0.0, "trainer": 20.0 - fetch}
        ...     return {"batches": 100, "seconds": 20.5, "stalls": stalls}
        >>> print(*straggling_ranks([rank(0.5), rank(6.5), rank(0.5), rank(0.4)]))
        rank 1 waits 70 ms per batch, mostly fetch; the others 10 ms
    """
    causes = ("fetch", "prep", "transport")
    parts = [
        {cause: each["stalls"][cause] / each["batches"] for cause in causes}
        if each["batches"] >= LEAST
        else None
        for each in stats
    ]
    found = _stragglers("rank", parts)
    return [
        each
        for each in found
        if each.seconds * stats[each.number]["batches"] > NOTICED * stats[each.number]["seconds"]
    ]


def _stragglers(kind: str, parts: Sequence[Mapping[str, float] | None]) -> list[Straggler]:
    known = {number: part for number, part in enumerate(parts) if part is not None}
    if len(known) < 2:
        return []
    found = []
    for number, part in known.items():
        seconds = sum(part.values())
        middle = median(sum(other.values()) for others, other in known.items() if others != number)
        if seconds > FACTOR * middle:
            cause = max(part, key=lambda cause: part[cause])
            found.append(Straggler(kind, number, seconds, middle, cause))
    return sorted(found, key=lambda each: -each.seconds)
