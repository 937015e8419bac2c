"""Predictions held against runs: a few of the what-ifs are built and measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from sutler.analysis import what_ifs
from sutler.analysis.benches import Config, Probe
from sutler.analysis.measuring import REPEATS_MAX, ROUNDS_TO_VERIFY, Measurement, Phase
from sutler.analysis.model import Recommendation, WhatIf
from sutler.analysis.passes import NO_STEP, repeat
from sutler.analysis.sutler_bench import UNTHROTTLED
from sutler.analysis.what_ifs import Questions
from sutler.analysis.wording import rate

#: Which parts of the dataset are put into a cache to see what that brings.
CACHED = (0.25, 0.5, 0.75)
#: By which factors storage is slowed down; nobody can make it faster.
SLOWER = (0.25, 0.5)
#: Of the time of an analysis, what each verified configuration may take.
PART = 0.06

#: A machine that gives this much more or less of the same is not the same any more.
DRIFT_MAX = 0.05

#: Whatever was verified.
NOT_TRIED = (
    "Further machines and jobs that share were not tried: an analysis starts no workers on other machines and no "
    "agent. What is said of them is predicted only."
)
HOW_KNOWN = (
    "What the runs of a table were off by is the least error that its other rows state. Rows that were run keep the "
    "error that was stated before."
)


@dataclass(frozen=True)
class Verified:
    """What runs gave."""

    #: Some of the questions with what a run gave, and the others known no better than that was foreseen.
    questions: Questions
    #: What the recommended configuration gave; ``None`` where there is none, or it could not be run.
    recommended: float | None
    #: What the configuration as it is gave, run again before and after the others.
    again: tuple[float, ...]
    #: Sentences, among them what could not be run and why.
    notes: list[str]


def verified(
    measurement: Measurement, facts: dict[str, Any], questions: Questions, advice: Recommendation
) -> Verified:
    """Runs some of the configurations in question, and the recommended one wherever this machine can run it.

    The facts have what was missed afterwards, for whatever else is asked of them.
    """
    notes = [NOT_TRIED, HOW_KNOWN]
    found = dict(questions)
    amounts = advice.amounts
    measured: float = facts["measured"]["value"]
    again = [_as_it_is(measurement, measured)]
    for axis, verify in (("cache", _cache), ("cores", _cores), ("storage_mbps", _storage)):
        if axis in found:
            found[axis] = verify(measurement, facts, found[axis], amounts, notes)
    recommended = _recommended(measurement, facts, found, advice, notes)
    again.append(_as_it_is(measurement, measured))
    notes.append(_run_again(measured, again))
    facts["missed"] = {
        "again": max(max(each / measured, measured / each) - 1 for each in again),
        "cache": what_ifs.missed_by(found.get("cache", ())),
        "cores": what_ifs.missed_by(found.get("cores", ())),
        "storage": what_ifs.missed_by(found.get("storage_mbps", ())),
    }
    doubted = what_ifs.doubted(facts, found, measurement.bench.cache_bytes, amounts)
    return Verified(doubted, recommended, tuple(again), notes)


def _recommended(
    measurement: Measurement,
    facts: dict[str, Any],
    found: Questions,
    advice: Recommendation,
    notes: list[str],
) -> float | None:
    """What the recommended configuration gives: all of its changes at once, unless it is one that was run before."""
    if advice.binding == "order":
        return _in_ready_order(measurement, facts, advice, notes)
    amounts = advice.amounts
    if not amounts:
        return None
    workers, cache_bytes = amounts.get("workers"), amounts.get("cache_bytes")
    if workers is not None and not _enough_for(measurement, int(workers)):
        return None  # which was said where numbers of workers were tried
    if why := _not_here(measurement, facts, amounts):
        notes.append(f"What is recommended was not tried: {why}")
        return None
    if len(amounts) == 1 and (before := _run_before(facts, found, amounts)):
        return before
    expected = what_ifs.predict(facts, dict(amounts))[0].value
    count = None if workers is None else int(workers)
    if cache_bytes is not None:
        kept = min(1.0, cache_bytes / _everything(facts))
        return _rate_cached(measurement, advice.change, expected, kept, count)
    storage = amounts.get("storage_bytes_per_s", measurement.storage)
    return _rate_now(measurement, advice.change, expected, Config(workers=count, storage_bytes_per_s=storage))


def _not_here(measurement: Measurement, facts: dict[str, Any], amounts: Mapping[str, float]) -> str | None:
    """Why a change cannot be made on this machine; ``None`` where it can."""
    if "cores" in amounts:
        return f"it needs {int(amounts['cores']):,} cores, and this machine has {facts['cores']:,}."
    # Where it is held to a rate, the device below is faster.
    if "storage_bytes_per_s" in amounts and measurement.storage is None:
        return (
            "nobody can make storage faster from here. To see what faster storage brings, analyse the dataset where "
            "that is."
        )
    return None


def _run_before(facts: dict[str, Any], found: Questions, amounts: Mapping[str, float]) -> float | None:
    """What a single change gave, if it is in a table and was run for that."""
    ((name, amount),) = amounts.items()
    # A cache that is larger than what the dataset takes keeps no more of it.
    most = {"workers": math.inf, "cache_bytes": _everything(facts)}.get(name, 0.0)
    axis = {"workers": "cores", "cache_bytes": "cache"}.get(name, "")
    points = found.get(axis, ())
    return next((point.verified for point in points if int(point.value) == int(min(amount, most))), None)


def _in_ready_order(
    measurement: Measurement, facts: dict[str, Any], advice: Recommendation, notes: list[str]
) -> float | None:
    """The configuration as it is, with batches of what is ready."""
    if not measurement.bench.reorders:
        notes.append(
            f"What is recommended ({advice.code}) was not tried: the DataLoader of this release of PyTorch has no "
            "in_order. It came with PyTorch 2.6."
        )
        return None
    config = Config(out_of_order=True, storage_bytes_per_s=measurement.storage)
    return _rate_now(measurement, advice.change, facts["measured"]["value"] * advice.gain, config)


def _as_it_is(measurement: Measurement, expected: float) -> float:
    """The configuration of the analysis once more, measured as those that are tried are."""
    return _rate_now(measurement, "as it is", expected, Config(storage_bytes_per_s=measurement.storage))


def _run_again(measured: float, again: list[float]) -> str:
    """What running the same again tells about what the others are off by."""
    given = " and ".join(f"{rate(each)} ({100 * (each / measured - 1):+.1f} %)" for each in again)
    told = f"Run again before and after predictions were tried, the configuration as it is gave {given}."
    if max(abs(each / measured - 1) for each in again) > DRIFT_MAX:
        told += (
            " So this machine is not always as fast, and as much of what predictions are off by may be its doing and "
            "not theirs. No what-if is stated to be known better than that."
        )
    return told


def _rate(
    measurement: Measurement,
    label: str,
    expected: float,
    open_probe: Callable[[ExitStack], Probe],
    prepare: Callable[[], None],
    workers: int | None = None,
) -> float:
    """Samples per second of a configuration, with the step; of one that is expected to reach about so many."""
    repeats = 1
    if measurement.storage is not None:
        # Storage that is held to a rate is as slow the second time, so whole rounds can be counted, for long enough.
        each = sum(measurement.sizes) / expected
        repeats = 1 + min(REPEATS_MAX, math.ceil(measurement.pass_seconds / each))
    with ExitStack() as stack:
        phase = Phase(open_probe(stack), measurement.step, prepare, workers, repeats)
        repeat(
            {label: lambda: measurement.measure(phase)},
            {label: phase.series},
            measurement.seconds * PART,
        )
        return phase.series.rate().value


def _rate_now(measurement: Measurement, label: str, expected: float, config: Config) -> float:
    """The same with as much in the cache as there is now."""
    return _rate(
        measurement,
        label,
        expected,
        lambda stack: measurement.open_as_it_is(stack, config)[0],
        measurement.onto_storage,
        config.workers,
    )


def _everything(facts: dict[str, Any]) -> float:
    """The bytes that all samples take in a cache."""
    return float(facts["samples"] * facts["kept_bytes"])


def _rate_cached(
    measurement: Measurement, label: str, expected: float, kept: float, workers: int | None = None
) -> float:
    """The same with this fraction of the samples in a cache; where there is none of ours, in the page cache."""
    if measurement.keeps:
        config = Config(workers=workers, storage_bytes_per_s=measurement.storage)
        return _rate(
            measurement,
            label,
            expected,
            lambda stack: measurement.open_cached(stack, kept, config),
            measurement.onto_storage,
            workers,
        )
    chosen = measurement.chosen(kept)

    def prepare() -> None:
        measurement.pages.read()
        measurement.pages.keep(chosen)

    return _rate(
        measurement,
        label,
        expected,
        lambda stack: measurement.open_warm(stack, Config(workers=workers)),
        prepare,
        workers,
    )


def _nearest(points: tuple[WhatIf, ...], value: float) -> WhatIf:
    return min(points, key=lambda point: abs(point.value - value))


def _with(
    points: tuple[WhatIf, ...], chosen: Collection[float], run: Callable[[WhatIf], float]
) -> tuple[WhatIf, ...]:
    """The same points, the chosen ones with what a run gave."""
    return tuple(replace(point, verified=run(point)) if point.value in chosen else point for point in points)


def _cache(
    measurement: Measurement,
    facts: dict[str, Any],
    points: tuple[WhatIf, ...],
    amounts: Mapping[str, float],
    notes: list[str],
) -> tuple[WhatIf, ...]:
    everything = _everything(facts)

    def run(point: WhatIf) -> float:
        return _rate_cached(measurement, point.label, point.predicted.value, point.value / everything)

    chosen = {_nearest(points, part * everything).value for part in CACHED}
    if "cache_bytes" in amounts:
        chosen.add(_nearest(points, min(amounts["cache_bytes"], everything)).value)
    return _with(points, chosen, run)


def _cores(
    measurement: Measurement,
    facts: dict[str, Any],
    points: tuple[WhatIf, ...],
    amounts: Mapping[str, float],
    notes: list[str],
) -> tuple[WhatIf, ...]:
    most = max(8, facts["cores"]) if what_ifs.mostly_waits(facts) else facts["cores"]
    recommended = amounts.get("workers")
    if recommended is not None and not _enough_for(measurement, int(recommended)):
        notes.append(
            f"{int(recommended):,} workers, as recommended, were not tried: each makes whole batches, and the "
            f"{len(measurement.sizes):,} batches that were looked at are too few to keep so many of them busy. In an "
            "epoch that is as short they would bring less than predicted."
        )
        recommended = None
    chosen = [
        point for point in points if (point.value <= most or point.value == recommended) and not point.now
    ]
    if not chosen:
        notes.append(
            f"No other number of workers could be tried: there are {facts['cores']} cores, and all are in use."
        )
    # What is recommended first; of the others the next fewer and the next more say the most.
    chosen.sort(key=lambda point: (point.value != recommended, abs(point.value - max(1, facts["workers"]))))

    def run(point: WhatIf) -> float:
        config = Config(workers=int(point.value), storage_bytes_per_s=measurement.storage)
        return _rate_now(measurement, point.label, point.predicted.value, config)

    return _with(points, [point.value for point in chosen[:2]], run)


def _enough_for(measurement: Measurement, workers: int) -> bool:
    """Whether so many workers, each of which makes whole batches, all have some to make that count."""
    rounds = len(measurement.sizes) / workers
    return not measurement.bench.whole_batches or rounds >= ROUNDS_TO_VERIFY


def _storage(
    measurement: Measurement,
    facts: dict[str, Any],
    points: tuple[WhatIf, ...],
    amounts: Mapping[str, float],
    notes: list[str],
) -> tuple[WhatIf, ...]:
    if not measurement.native:
        notes.append(
            "No other storage could be tried: what a dataset written in Python reads cannot be slowed down from here."
        )
        return points
    present = next(point.value for point in points if point.now)
    chosen = {_nearest(points, factor * present).value for factor in SLOWER}
    if measurement.storage is not None:
        # It is held to a rate, so the device below is faster, and twice the rate can be tried as well.
        chosen.add(_nearest(points, 2 * present).value)

    def run(point: WhatIf) -> float:
        config = Config(storage_bytes_per_s=point.value * 1e6)
        return _rate_now(measurement, point.label, point.predicted.value, config)

    return _with(points, chosen, run)


def without_transforms(measurement: Measurement, facts: dict[str, Any]) -> tuple[WhatIf, ...]:
    """What leaving each transform out would bring: what is prepared without it is measured, the rest predicted."""
    found = []
    names = measurement.bench.transforms()
    for place, name in enumerate(names):
        config = Config(without=place, storage_bytes_per_s=UNTHROTTLED if measurement.native else None)
        try:
            with ExitStack() as stack:
                probe = measurement.open_in_memory(stack, config)
                phase = Phase(probe, NO_STEP, measurement.into_memory)
                repeat(
                    {name: lambda phase=phase: measurement.measure(phase)},  # type: ignore[misc]
                    {name: phase.series},
                    measurement.seconds * PART / max(1, len(names)),
                )
        except (TypeError, ValueError, RuntimeError):
            continue  # without it the others cannot be: a crop makes all samples the same size, say
        found.append(what_ifs.left_out(facts, place, name, phase.series.rate()))
    return tuple(found)
