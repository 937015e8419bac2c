"""Findings to render: one as an analysis makes them, and one in which every text is hostile."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from sutler.analysis.model import (
    Accelerator,
    BatchTimes,
    Findings,
    Interval,
    Rate,
    Recommendation,
    StageTimes,
    Stalls,
    Subject,
    WhatIf,
)

#: Text that ends elements and attributes, runs, loads, and steers terminals.
HOSTILE = (
    "</title></style></script>\"'><script>document.title='owned'</script>"
    "<img src=x onerror=\"document.title='owned'\"><svg onload=\"document.title='owned'\">"
    "]]>&lt;\x1b[2J\x07\x00\udcff\u202e javascript:document.title='owned'"
)


def interval(value: float, error: float = 0.02) -> Interval:
    return Interval(value, value * (1 - error), value * (1 + error))


def _stage(name: str, median: float, sigma: float) -> StageTimes:
    """Times as they are spread in practice: lognormal."""

    def at(deviation: float) -> float:
        return median * math.exp(sigma * deviation)

    deviations = {
        0.01: -2.326, 0.05: -1.645, 0.1: -1.282, 0.3: -0.524, 0.5: 0.0, 0.7: 0.524, 0.9: 1.282, 0.95: 1.645,
        0.99: 2.326, 0.999: 3.09,
    }  # fmt: skip
    quantiles = tuple((fraction, at(deviation)) for fraction, deviation in deviations.items())
    return StageTimes(name, 12_800, at(sigma / 2), at(0.0), at(1.645), at(2.326), quantiles)


def _batches(count: int) -> tuple[BatchTimes, ...]:
    batches, now = [], 0.0
    for number in range(count):
        wait = 0.002 + 0.035 * (number % 7 == 3) + (0.12 if number == 41 else 0.0) + 0.004 * (number % 3)
        step = 0.030 + 0.001 * (number % 2)
        cause = ("fetch", "prep", "fetch", "transport")[number % 4] if number != 41 else "fetch"
        batches.append(BatchTimes(number, now, now + wait, now + wait + step, cause, number % 4))
        now += wait + step
    return tuple(batches)


def findings(*, batches: int = 90) -> Findings:
    """A pipeline that waits for storage half of its time."""
    gib = 2**30
    cache = [
        WhatIf("cache", size * gib, f"{size} GiB", interval(rate, 0.04), bound, size == 8, verified)
        for size, rate, bound, verified in [
            (0, 690.0, "storage", None),
            (4, 820.0, "storage", None),
            (8, 1010.0, "storage", None),
            (16, 1490.0, "storage", 1452.0),
            (24, 1980.0, "processors", None),
            (32, 1990.0, "processors", None),
        ]
    ]
    cores = [
        WhatIf("cores", count, str(count), interval(rate, 0.03), bound, count == 8)
        for count, rate, bound in [
            (2, 560.0, "processors"),
            (4, 980.0, "processors"),
            (8, 1010.0, "storage"),
            (12, 1015.0, "storage"),
            (16, 1015.0, "storage"),
        ]
    ]
    storage = [
        WhatIf("storage_mbps", speed, f"{speed} MB/s", interval(rate, 0.05), bound, speed == 100)
        for speed, rate, bound in [
            (20, 260.0, "storage"),
            (100, 1010.0, "storage"),
            (400, 1980.0, "processors"),
            (1600, 1990.0, "processors"),
        ]
    ]
    without = [
        WhatIf("without", 0, "RandAugment(num_ops=2, magnitude=9)", interval(1010.0, 0.03), "storage"),
        WhatIf("without", 1, "Normalize", interval(1012.0, 0.03), "storage"),
    ]
    rates = {
        "G": Rate("G", interval(2080.0, 0.01), 5, 3200, None, None),
        "P": Rate("P", interval(1985.0, 0.02), 4, 6400, 0, True),
        "F": Rate("F", interval(1005.0, 0.03), 4, 6400, 704_000_000, True),
        "C": Rate("C", interval(61_000.0, 0.06), 3, 6400, 0, True),
        "S": Rate(
            "S", interval(905.0, 0.03), 3, 6400, 704_000_000, False, "the page cache could not be passed by"
        ),
    }
    return Findings(
        subject=Subject(
            kind="native",
            dataset="ImageFolder data/train",
            samples=128_000,
            sample_bytes=110_000.0,
            dataset_bytes=14.1e9,
            batch_size=64,
            workers=8,
            cores=8,
            cache_bytes=8 * gib,
            cached=0.31,
            storage_mbps=100.0,
            memory_bytes=64 * gib,
        ),
        rates=rates,
        stalls=Stalls(fetch=0.462, prep=0.034, transport=0.008, trainer=0.496),
        measured=interval(1004.0, 0.015),
        what_if={
            "cache": tuple(cache),
            "cores": tuple(cores),
            "storage_mbps": tuple(storage),
            "without": tuple(without),
        },
        recommendation=Recommendation(
            text=(
                "Storage binds: it delivers 905 samples per second and the accelerator takes 2,080. The cheapest "
                "change is to keep more samples in memory: with 24 GiB the trainer is predicted to get 1,980 "
                "samples per second, 1.97 times as many as now, and then the processors bind."
            ),
            binding="storage",
            change="a cache of 24 GiB",
            code='loader = sutler.Loader(dataset, batch_size=64, cache="24GiB")',
            gain=1.97,
        ),
        stages=(
            _stage("fetch", 0.0041, 0.6),
            _stage("decode", 0.0032, 0.35),
            _stage("augment", 0.00061, 0.25),
        ),
        timeline=_batches(batches),
        accelerator=Accelerator("resnet50-h100", 0.0308, 64, "MLPerf Storage v2.0", 0.496, 0.9, False),
        warnings=(
            "The dataset (13.1 GiB) is smaller than five times the memory, so later epochs may find it cached.",
        ),
        seconds=41.7,
    )


def hostile() -> Findings:
    """The same with hostile text wherever text can be."""

    def spoil(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            changes = {
                field.name: spoil(getattr(value, field.name))
                for field in dataclasses.fields(value)
                # These are one of a few words each, which no file name can become.
                if field.name not in ("axis", "kind", "cause")
            }
            return dataclasses.replace(value, **changes)
        if isinstance(value, str):
            return HOSTILE
        if isinstance(value, tuple):
            return tuple(spoil(each) for each in value)
        if isinstance(value, dict):
            return {key: spoil(each) for key, each in value.items()}
        return value

    spoiled: Findings = spoil(findings(batches=12))
    return spoiled
