"""Predictions beside measurements: points, tables, and whether the planner keeps what it promises."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from benchmarks import report

NO_CACHE = "no cache"

#: What is to be reached.
POINTS_MIN = 24
CORRELATION_MIN = 0.95
ERROR_MAX = 0.10
CHOSEN_MIN = 0.95


@dataclass
class Point:
    """What was said of a split, and what it did; in samples per second, by round."""

    split: str
    chosen: bool
    #: Whether it is the planned split once more, to see how far two measurements of the same are apart.
    repeated: bool = False
    measured_rounds: list[float] = field(default_factory=list)
    predicted_rounds: list[float] = field(default_factory=list)
    published_rounds: list[float] = field(default_factory=list)
    bound_by: str | None = None

    @property
    def measured(self) -> float:
        return report.median(self.measured_rounds)

    @property
    def predicted(self) -> float:
        return report.median(self.predicted_rounds)

    @property
    def published(self) -> float:
        return report.median(self.published_rounds)

    @property
    def error(self) -> float:
        return report.median(report.ratios(self.predicted_rounds, self.measured_rounds)) - 1

    @property
    def published_error(self) -> float:
        return report.median(report.ratios(self.published_rounds, self.measured_rounds)) - 1


@dataclass
class Measured:
    """A set-up as it was on this machine, and its points."""

    pipeline: str
    #: ``None`` for the storage as it is.
    storage_mbps: float | None
    #: The budget as a part of what all decoded samples would take, and in bytes.
    memory_share: float
    memory_bytes: int
    threads: int
    jobs: int
    #: What the accelerators of all jobs ingest; ``None`` for no limit.
    device_samples_per_s: float | None
    #: The one that was planned by.
    profile: dict[str, Any]
    points: list[Point]

    @property
    def title(self) -> str:
        storage = "local" if self.storage_mbps is None else f"{self.storage_mbps:g} MB/s"
        parts = [self.pipeline, storage, f"memory {self.memory_share:.0%}"]
        parts.append(f"{self.threads} thread" + "s" * (self.threads > 1))
        if self.device_samples_per_s is not None:
            parts.append(f"device {self.device_samples_per_s:,.0f}/s")
        if self.jobs > 1:
            parts.append(f"{self.jobs} jobs")
        return ", ".join(parts)

    @property
    def single_points(self) -> list[Point]:
        """Every split once."""
        return [point for point in self.points if not point.repeated]

    @property
    def chosen_of_best(self) -> float:
        """What the planned split reaches of the best one, round by round, in the middle; its two feeds count as one."""
        twice = [point.measured_rounds for point in self.points if point.chosen]
        chosen = [statistics.mean(each) for each in zip(*twice, strict=True)]
        others = [point.measured_rounds for point in self.points if not point.chosen]
        return min([1.0, *(report.median(report.ratios(chosen, other)) for other in others)])

    @property
    def noise(self) -> float:
        """How far two measurements of the same split are apart."""
        one, other = (point.measured for point in self.points if point.chosen)
        return abs(one / other - 1)


def correlation(one: list[float], other: list[float]) -> float:
    """Pearson's r; 0 where one side does not vary."""
    try:
        return statistics.correlation(one, other)
    except statistics.StatisticsError:
        return 0.0


def verdict(results: list[Measured]) -> dict[str, Any]:
    """All figures that the targets are about."""
    points = [point for result in results for point in result.single_points]
    measured = [point.measured for point in points]

    def of(predicted: list[float], errors: list[float]) -> dict[str, float]:
        sizes = [abs(error) for error in errors]
        return {
            "correlation": correlation(predicted, measured),
            "mean_error": statistics.mean(sizes),
            "worst_error": max(sizes),
        }

    return {
        "points": len(points),
        "ours": of([point.predicted for point in points], [point.error for point in points]),
        "published": of([point.published for point in points], [point.published_error for point in points]),
        "chosen_of_best": [result.chosen_of_best for result in results],
        "noise": [result.noise for result in results],
    }


def summary(results: list[Measured], figures: dict[str, Any]) -> str:
    """A table for each set-up, one of all set-ups, and the targets."""
    return "\n".join([*map(_table, results), _overview(results), "", _targets(results, figures)])


def _table(result: Measured) -> str:
    rows = [
        [
            point.split + (" (planned)" if point.chosen else "") + (" again" if point.repeated else ""),
            f"{point.measured:,.0f}",
            report.spread(point.measured_rounds),
            f"{point.predicted:,.0f}",
            f"{point.error:+.0%}",
            point.bound_by or "",
            f"{point.published:,.0f}",
            f"{point.published_error:+.0%}",
        ]
        for point in result.points
    ]
    header = [result.title, "samples/s", "min..max", "predicted", "error", "bound by", "published", "error"]
    return report.table(header, rows) + "\n"


def _overview(results: list[Measured]) -> str:
    rows = []
    for result in results:
        points = result.single_points
        best = max(points, key=lambda point: point.measured)
        chosen = next(point for point in points if point.chosen)
        rows.append(
            [
                result.title,
                f"{statistics.mean(abs(point.error) for point in points):.0%}",
                f"{statistics.mean(abs(point.published_error) for point in points):.0%}",
                chosen.split,
                best.split,
                f"{result.chosen_of_best:.3f}",
                f"{result.noise:.1%}",
            ]
        )
    header = ["set-up", "mean error", "published", "planned", "best measured", "planned / best", "noise"]
    return report.table(header, rows)


def _targets(results: list[Measured], figures: dict[str, Any]) -> str:
    ours, published = figures["ours"], figures["published"]
    chosen, noise = figures["chosen_of_best"], figures["noise"]
    lines = [
        _target("points", figures["points"], POINTS_MIN, f"{figures['points']} in {len(results)} set-ups"),
        _target("r", ours["correlation"], CORRELATION_MIN, f"{ours['correlation']:.3f}"),
        _target("mean error", -ours["mean_error"], -ERROR_MAX, f"{ours['mean_error']:.1%}"),
        _target("planned split / best measured, worst", min(chosen), CHOSEN_MIN, f"{min(chosen):.3f}"),
        f"planned split / best measured, mean: {statistics.mean(chosen):.3f}",
        f"noise (the planned split measured twice): {statistics.mean(noise):.1%} on average, {max(noise):.1%} at worst",
        f"worst error of a single point: {ours['worst_error']:.1%}",
        f"published model: r {published['correlation']:.3f}, mean error {published['mean_error']:.1%}",
    ]
    return "\n".join(lines)


def _target(name: str, reached: float, least: float, shown: str) -> str:
    sign = "≤" if least < 0 else "≥"
    return f"target: {name} {sign} {abs(least):g}: {shown}, {'reached' if reached >= least else 'missed'}"
