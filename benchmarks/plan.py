"""How well the planner predicts: throughput of caches with several splits, predicted and measured side by side.

A set-up is a pipeline, a storage and a budget. Each is profiled and planned for as `Cache(split="auto")` does it, and
then measured with the planned split, with fixed ones and without a cache. The first epoch of each fills its cache and
is not counted. Then come rounds: a profile, and an epoch of each in turn. What disturbs a round disturbs both of its
sides, so the error of a prediction is the median of the errors in the rounds, and a prediction the median of the
predictions. Files are read past the page cache, so that storage is storage; slow storage is emulated by a rate that all
threads share. The published model's predictions from the same profiles stand beside ours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.images import say
from benchmarks.outcome import Outcome
from benchmarks.photos import photo_tree

#: Encoded, decoded, augmented. A single job may have an augmented sample only once, so that no share of it is tried.
SPLITS = ("100-0-0", "75-25-0", "50-50-0", "25-75-0", "0-100-0")
NO_CACHE = "no cache"

#: What is to be reached.
CORRELATION_MIN = 0.95
ERROR_MAX = 0.10
CHOSEN_MIN = 0.95

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class SetUp:
    """One question to the planner."""

    pipeline: str
    #: Megabytes per second; ``None`` for the storage as it is.
    storage_mbps: float | None
    #: The budget as a part of what all decoded samples would take.
    memory_share: float

    @property
    def title(self) -> str:
        storage = "local" if self.storage_mbps is None else f"{self.storage_mbps:g} MB/s"
        return f"{self.pipeline}, {storage}, {self.memory_share:.0%}"


@dataclass
class Point:
    """What was said of a split, and what it did; in samples per second, by round."""

    split: str
    chosen: bool
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pipelines", nargs="+", choices=["train", "eval"], default=["train", "eval"])
    parser.add_argument(
        "--storage-mbps", type=float, default=25.0, help="the slow storage beside the local one"
    )
    parser.add_argument("--memory", type=float, nargs="+", default=[0.1, 0.3, 0.6], metavar="SHARE")
    parser.add_argument("--size", type=int, default=224, help="height and width of the result")
    parser.add_argument("--repeat", type=int, default=4, help="how often each photo is listed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--time", type=float, default=2.0, help="seconds for each profile")


def measure(arguments: argparse.Namespace) -> Outcome:
    set_ups = [
        SetUp(pipeline, storage, share)
        for pipeline in arguments.pipelines
        for storage in (None, arguments.storage_mbps)
        for share in arguments.memory
    ]
    with photo_tree(arguments.data, repeat=arguments.repeat) as photos:
        results = []
        for number, set_up in enumerate(set_ups):
            say(f"set-up {number + 1} of {len(set_ups)}: {set_up.title}")
            results.append((set_up, *_measure(set_up, photos.root, arguments)))
        head = (
            f"plan: {photos.description}; {arguments.threads} threads, batches of {arguments.batch_size}, "
            f"{arguments.rounds} interleaved rounds after the first epoch\n"
        )
        raw = {
            "benchmark": "plan",
            "data": photos.description,
            "threads": arguments.threads,
            "set_ups": [
                asdict(set_up)
                | {
                    "memory_bytes": memory,
                    "profile": profile,
                    "points": [asdict(point) | {"measured": point.measured} for point in points],
                }
                for set_up, memory, profile, points in results
            ],
        }
        tables = [_table(set_up, points) for set_up, _, _, points in results]
        verdict = _verdict([points for *_, points in results], raw)
        return Outcome("\n".join([head, *tables, verdict]), raw, photos.root.parent)


def _dataset(set_up: SetUp, root: Path, size: int) -> Any:
    import sutler
    from sutler import transforms as T  # noqa: N812 - as users write it
    from sutler.testing import throttled

    operations: list[Any] = (
        [T.RandomResizedCrop(size), T.RandomHorizontalFlip()]
        if set_up.pipeline == "train"
        else [T.Resize(size * 8 // 7), T.CenterCrop(size)]
    )
    transform = T.Compose([*operations, T.Normalize(MEAN, STD)])
    dataset = sutler.ImageFolder(root, transform=transform, io="direct")
    return dataset if set_up.storage_mbps is None else throttled(dataset, set_up.storage_mbps * 1e6)


def _measure(
    set_up: SetUp, root: Path, arguments: argparse.Namespace
) -> tuple[int, dict[str, Any], list[Point]]:
    import sutler
    from sutler import _sutler

    dataset = _dataset(set_up, root, arguments.size)

    def profile() -> dict[str, Any]:
        plan = sutler.plan(dataset, memory=1, num_workers=arguments.threads, time=arguments.time)
        return plan.profile

    first = profile()
    memory = int(set_up.memory_share * first["decoded_bytes"] * len(dataset))
    best = json.loads(_sutler.choose_split(json.dumps(first), memory))
    chosen = f"{best['encoded']}-{best['decoded']}-0"
    splits = [NO_CACHE, *SPLITS, *({chosen} - set(SPLITS))]
    points = {split: Point(split, split == chosen) for split in splits}
    with ExitStack() as stack:
        loaders = {}
        for split in splits:
            loaders[split] = stack.enter_context(
                sutler.Loader(
                    dataset,
                    arguments.batch_size,
                    shuffle=True,
                    num_workers=arguments.threads,
                    output="numpy",
                    cache=None if split == NO_CACHE else sutler.Cache(memory, split),
                )
            )
            _epoch(loaders[split])
        for number in range(arguments.rounds):
            _predict(json.dumps(profile()), memory, points)
            begin = number % len(splits)
            for split in splits[begin:] + splits[:begin]:
                points[split].measured_rounds.append(_epoch(loaders[split]))
    return memory, first, list(points.values())


def _predict(profile: str, memory: int, points: dict[str, Point]) -> None:
    """What both models say of every point by this profile."""
    from sutler import _sutler

    with_cache = json.loads(_sutler.compare_plans(profile, memory)[0])
    # A budget in which not a single sample fits.
    without = json.loads(_sutler.compare_plans(profile, 1)[0])
    for point in points.values():
        answers = without if point.split == NO_CACHE else with_cache
        split = SPLITS[0] if point.split == NO_CACHE else point.split
        ours = next(each for each in answers["splits"] if each["split"] == split)
        theirs = next(each for each in answers["published"]["splits"] if each["split"] == split)
        point.predicted_rounds.append(ours["predicted"])
        point.published_rounds.append(theirs["predicted"])
        point.bound_by = ours["bound_by"]


def _epoch(loader: Any) -> float:
    started = time.perf_counter()
    samples = sum(len(labels) for _, labels in loader)
    return samples / (time.perf_counter() - started)


def _table(set_up: SetUp, points: list[Point]) -> str:
    rows = [
        [
            f"{point.split} (planned)" if point.chosen else point.split,
            f"{point.measured:,.0f}",
            report.spread(point.measured_rounds),
            f"{point.predicted:,.0f}",
            f"{point.error:+.0%}",
            point.bound_by or "",
            f"{point.published:,.0f}",
            f"{point.published_error:+.0%}",
        ]
        for point in points
    ]
    header = [set_up.title, "samples/s", "min..max", "predicted", "error", "bound by", "published", "error"]
    return report.table(header, rows) + "\n"


def _verdict(set_ups: list[list[Point]], raw: dict[str, Any]) -> str:
    points = [point for points in set_ups for point in points]
    measured = [point.measured for point in points]
    figures = {
        name: {
            "correlation": correlation(predicted, measured),
            "mean_error": statistics.mean(abs(error) for error in errors),
        }
        for name, predicted, errors in (
            ("ours", [point.predicted for point in points], [point.error for point in points]),
            ("published", [point.published for point in points], [point.published_error for point in points]),
        )
    }
    chosen = [
        next(point.measured for point in points if point.chosen) / max(point.measured for point in points)
        for points in set_ups
    ]
    raw["verdict"] = figures | {"points": len(points), "chosen_of_best": chosen}
    ours = figures["ours"]
    lines = [
        f"{len(points)} points in {len(set_ups)} set-ups",
        _target("r", ours["correlation"], CORRELATION_MIN, f"{ours['correlation']:.3f}"),
        _target("mean error", -ours["mean_error"], -ERROR_MAX, f"{ours['mean_error']:.1%}"),
        _target("planned split / best measured, worst", min(chosen), CHOSEN_MIN, f"{min(chosen):.3f}"),
        f"planned split / best measured, mean: {statistics.mean(chosen):.3f}",
        f"published model: r {figures['published']['correlation']:.3f}, "
        f"mean error {figures['published']['mean_error']:.1%}",
    ]
    return "\n".join(lines)


def _target(name: str, reached: float, least: float, shown: str) -> str:
    sign = "≤" if least < 0 else "≥"
    return f"target: {name} {sign} {abs(least):g}: {shown}, {'reached' if reached >= least else 'missed'}"


def correlation(one: list[float], other: list[float]) -> float:
    """Pearson's r; 0 where one side does not vary."""
    try:
        return statistics.correlation(one, other)
    except statistics.StatisticsError:
        return 0.0
