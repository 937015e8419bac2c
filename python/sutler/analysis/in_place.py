"""What a loader wrote down while it was measured, joined to what the analysis saw from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sutler.analysis.model import BatchTimes

#: Waits shorter than this many seconds are none: a look at the clock and a lock take as long.
NO_WAIT = 1e-5

#: What a wait may be for.
WAITS = ("fetch", "prep", "transport")


def of_latest(timeline: dict[str, Any], count: int) -> dict[str, Any]:
    """The part of what `Loader.timeline` told that is about the latest so many batches."""
    batches = timeline["batches"]
    latest, earlier = batches[-count:] if count else [], batches[:-count] if count else batches
    begun = earlier[-1]["answered"] if earlier else 0.0
    samples = [sample for sample in timeline["samples"] if sample["begun"] >= begun]
    return timeline | {"batches": latest, "samples": samples}


def with_causes(times: Sequence[BatchTimes], timeline: dict[str, Any]) -> tuple[BatchTimes, ...]:
    """The batches of a pass, with what most of each wait was for and how many finished ones there were.

    The pass must be the latest that the loader made; of one that is longer than what a loader keeps, the last batches
    are told.
    """
    rows = of_latest(timeline, len(times))["batches"]
    first = len(times) - len(rows)
    return (*times[:first], *(_with_cause(each, row) for each, row in zip(times[first:], rows, strict=True)))


def _with_cause(times: BatchTimes, row: dict[str, Any]) -> BatchTimes:
    waited = sum(row[cause] for cause in WAITS)
    cause = max(WAITS, key=lambda each: float(row[each])) if waited > NO_WAIT else None
    return replace(times, cause=cause, ready=row["ready_batches"])
