"""Questions of the kind "what if there were more memory?", asked of `sutler_core::analyse` and answered as data."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from sutler import _sutler
from sutler.analysis.model import Interval, WhatIf
from sutler.analysis.passes import plain
from sutler.cache import read_size

#: By axis.
Questions = dict[str, tuple[WhatIf, ...]]


def mostly_waits(facts: Mapping[str, Any]) -> bool:
    """Whether workers spend most of their time waiting for something that is neither storage nor a processor.

    Examples:
        >>> mostly_waits({"work_s": 0.001, "prepare_alone": {"value": 100.0}, "prepare": {"value": 200.0}})
        True
        >>> mostly_waits({"work_s": None, "prepare_alone": None, "prepare": {"value": 200.0}}), mostly_waits({})
        (False, False)
    """
    alone = facts.get("prepare_alone") or facts.get("prepare")
    work_s = facts.get("work_s")
    return bool(alone and work_s and work_s * alone["value"] < _sutler.MOSTLY_WAITING)


def resource_name(resource: str, facts: Mapping[str, Any]) -> str:
    """What binds, as people read it: workers that mostly wait are no processors.

    Examples:
        >>> waiting = {"work_s": 0.001, "prepare": {"value": 100.0}}
        >>> [resource_name(each, waiting) for each in ("processors", "storage")]
        ['workers', 'storage']
    """
    return "workers" if resource == "processors" and mostly_waits(facts) else resource


def named(points: Iterable[WhatIf], facts: Mapping[str, Any]) -> list[WhatIf]:
    """The same answers, with what would bind called as people read it."""
    return [dataclasses.replace(point, bound_by=resource_name(point.bound_by, facts)) for point in points]


def change_of(changes: dict[str, Any]) -> dict[str, Any]:
    """The change as the core reads it.

    Raises:
        ValueError: A value is no amount of its axis.
    """
    change: dict[str, Any] = {}
    for axis, value in changes.items():
        if axis == "cache":
            # No cache at all is something to ask about, too.
            change["cache_bytes"] = float(read_size(value)) if value else 0.0
        elif axis == "storage_mbps":
            _check_positive(axis, value)
            change["storage_bytes_per_s"] = value * 1e6
        else:
            least = 0 if axis == "remote" else 1
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
                raise ValueError(f"what_if: {axis} should be a whole number from {least} on, got {value!r}")
            change[axis] = value
    return change


def _check_positive(axis: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"what_if: {axis} should be a positive number, got {value!r}")


def predict(facts: dict[str, Any], change: dict[str, Any]) -> tuple[Interval, str]:
    """Samples per second that the trainer would get, and what would bind."""
    outlook = json.loads(_sutler.predict_rate(json.dumps(facts), json.dumps(change)))
    known = outlook["samples_per_s"]
    return Interval(known["value"], known["low"], known["high"]), outlook["bound_by"]


def ask(facts: dict[str, Any], axis: str, value: Any, *, label: str = "", now: bool = False) -> WhatIf:
    """One question on one axis; what is as it is ``now`` is no change."""
    predicted, bound_by = predict(facts, {} if now else change_of({axis: value}))
    return WhatIf(axis, float(value), label or label_of(axis, value), predicted, bound_by, now)


def label_of(axis: str, value: Any) -> str:
    """A value as a person reads it."""
    if axis == "cache":
        return size_label(float(value))
    if axis == "storage_mbps":
        return f"{value:,.0f} MB/s" if value >= 10 else f"{value:.2g} MB/s"
    words = {
        "cores": ("worker", "workers"),
        "remote": ("further machine", "further machines"),
        "jobs": ("job", "jobs"),
    }
    one, many = words[axis]
    return f"{value} {one if value == 1 else many}"


def size_label(count: float) -> str:
    """Bytes in the unit that suits them."""
    if count < 1024:
        return f"{count:.0f} B"
    unit = min(4, int(math.log(count, 1024)))
    return f"{count / 1024**unit:.1f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def table(
    facts: dict[str, Any], cache_given: float = 0.0, amounts: Mapping[str, float] | None = None
) -> Questions:
    """The questions that everybody has; of a loader whose cache was given so many bytes.

    Args:
        facts: What was measured.
        cache_given: The budget of its cache, which may be more than the dataset takes.
        amounts: What is recommended, in figures, so that this is among them.
    """
    found: Questions = {}
    amounts = amounts or {}
    everything = facts["samples"] * facts["kept_bytes"]
    if facts["storage"] is not None:
        present = facts["cache_bytes"]
        sizes = {everything * part / 8 for part in range(9)} | {present}
        if recommended := amounts.get("cache_bytes"):
            # What is more than the dataset takes keeps no more of it.
            sizes.add(min(recommended, everything))
        found["cache"] = tuple(
            ask(facts, "cache", int(size), label=_kept(cache_given, size), now=True)
            if size == present
            else ask(facts, "cache", int(size))
            for size in sorted(sizes)
            # One that is all but the present one tells nothing.
            if size == present or abs(size - present) > everything / 100
        )
        rate = facts["storage"]["value"] * facts["sample_bytes"] / 1e6
        found["storage_mbps"] = tuple(
            ask(facts, "storage_mbps", rate * factor, now=factor == 1) for factor in (0.25, 0.5, 1, 2, 4, 8)
        )
    workers, cores = facts["workers"], facts["cores"]
    recommended_workers = int(amounts.get("workers", amounts.get("cores", 1)))
    counts = {1, 2, 4, 8, 16, 32, 64, max(1, workers), recommended_workers}
    most = max(8, 4 * max(workers, cores), recommended_workers)
    found["cores"] = tuple(
        # So many cores with a worker on each; as many workers as now are those of now, on the cores of now.
        ask(facts, "cores", count, now=count == workers)
        for count in sorted(counts)
        if count <= most
    )
    found["remote"] = tuple(ask(facts, "remote", count, now=count == 0) for count in (0, 1, 2, 4))
    found["jobs"] = tuple(ask(facts, "jobs", count, now=count == 1) for count in (1, 2, 4, 8))
    return found


def _kept(given: float, used: float) -> str:
    """A cache as it was given, and what of it there is use for: a dataset may be smaller."""
    label = size_label(given)
    return label if used >= 0.99 * given else f"{label}, {size_label(used)} used"


def missed_by(points: Iterable[WhatIf]) -> float:
    """What predictions that were tried were off by at the most; 0 where none was.

    As a part of the run or of the prediction, whichever is more: reports show the one, and state errors of the other.

    Examples:
        >>> known = Interval(100.0, 95.0, 105.0)
        >>> tried = [WhatIf("cores", count, "", known, "", verified=run) for count, run in [(1, 98.0), (2, 80.0)]]
        >>> missed_by(tried), missed_by([])
        (0.25, 0.0)
    """
    ratios = [point.verified / point.predicted.value for point in points if point.verified]
    return round(max((max(ratio, 1 / ratio) - 1 for ratio in ratios), default=0.0), 6)


def doubted(
    facts: dict[str, Any], questions: Questions, cache_given: float, amounts: Mapping[str, float]
) -> Questions:
    """The same questions when the facts say what was missed: those that were tried as they were, the others anew."""
    tried = {
        (axis, point.value): point
        for axis, points in questions.items()
        for point in points
        if point.verified is not None
    }
    return {
        axis: tuple(tried.get((axis, point.value), point) for point in points)
        for axis, points in table(facts, cache_given, amounts).items()
        if axis in questions
    }


def left_out(facts: dict[str, Any], place: int, name: str, prepare: Interval) -> WhatIf:
    """What leaving out a transform would bring, from what is prepared without it.

    Nothing is prepared faster with one more transform. Where it seems so, that is chance, as the interval shows.
    """
    present = facts["prepare"]["value"]
    prepare = Interval(max(prepare.value, present), prepare.low, max(prepare.high, present))
    predicted, bound_by = predict(facts, {"prepare": plain(prepare)})
    return WhatIf("without", float(place), name, predicted, bound_by)
