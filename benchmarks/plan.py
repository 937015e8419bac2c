"""How well the planner predicts: throughput of caches with several splits, predicted and measured side by side.

A set-up is a pipeline, a storage, a budget, a number of threads and of jobs, and perhaps an accelerator that takes
its time. Each is profiled and planned for as `Cache(split="auto")` does it, and then measured with the planned split,
with fixed ones and without a cache. The epoch that fills a cache is not counted. Then come rounds: a profile, and
some epochs of each split in turn. What disturbs a round disturbs both of its sides, so the error of a prediction is
the median of the errors in the rounds, and a prediction the median of the predictions. The planned split is measured
twice in every round, by two feeds that know nothing of each other: what differs between them is noise. Files are read
past the page cache, so that storage is storage; slow storage is emulated by a rate that all threads share. Its rates,
and those of the accelerator, are parts of what the threads can prepare, so that the same set-ups mean the same on a
large machine. The published model's predictions from the same profiles stand beside ours.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.images import say
from benchmarks.outcome import Outcome
from benchmarks.photos import find_photos, photo_tree
from benchmarks.plan_feeds import SET_UPS, STORAGE, Feed, Scene, SetUp, open_dataset, open_feed
from benchmarks.plan_report import NO_CACHE, Measured, Point, summary, verdict
from benchmarks.turns import in_turn

#: Encoded, decoded, augmented. A single job may have an augmented sample only once, and several have the window for it,
#: so that no share of it is tried.
SPLITS = ("100-0-0", "75-25-0", "50-50-0", "25-75-0", "0-100-0")

#: Samples for every thread: with all threads at it an epoch takes a good tenth of a second.
SAMPLES_PER_THREAD = 160


def add_arguments(parser: argparse.ArgumentParser) -> None:
    numbers = range(1, len(SET_UPS) + 1)
    parser.add_argument(
        "--set-ups", type=int, nargs="+", choices=numbers, default=list(numbers), metavar="NUMBER"
    )
    parser.add_argument("--size", type=int, default=224, help="height and width of the result")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch-size", type=int, help="by default four samples per thread, and at least 16")
    parser.add_argument("--time", type=float, default=1.5, help="seconds for each profile")
    parser.add_argument(
        "--epochs-time",
        type=float,
        default=0.35,
        help="seconds for the epochs of a split in a round, at least",
    )


def measure(arguments: argparse.Namespace) -> Outcome:
    started = time.perf_counter()
    set_ups = [SET_UPS[number - 1] for number in arguments.set_ups]
    results: list[Measured] = []
    with ExitStack() as stack:
        trees = {
            single: stack.enter_context(_tree(arguments, 1 if single else arguments.threads))
            for single in sorted({set_up.single for set_up in set_ups})
        }
        for number, set_up in enumerate(set_ups):
            say(
                f"set-up {number + 1} of {len(set_ups)} at {time.perf_counter() - started:.0f} s: {set_up.pipeline}"
            )
            results.append(_measure(set_up, trees[set_up.single].root, arguments))
        descriptions = "; ".join(sorted({tree.description for tree in trees.values()}))
        figures = verdict(results)
        raw = {
            "benchmark": "plan",
            "data": descriptions,
            "threads": arguments.threads,
            "seconds": time.perf_counter() - started,
            "set_ups": [asdict(result) for result in results],
            "verdict": figures,
        }
        head = (
            f"plan: {descriptions}; up to {arguments.threads} threads, batches of {_batch_size(arguments)}, "
            f"{arguments.rounds} interleaved rounds after the first epoch, {raw['seconds']:.0f} s in all\n"
        )
        folder = next(iter(trees.values())).root.parent
        return Outcome("\n".join([head, summary(results, figures)]), raw, folder)


def _tree(arguments: argparse.Namespace, threads: int) -> Any:
    photos = 0 if arguments.data is None else len(find_photos(arguments.data))
    return photo_tree(arguments.data, samples=max(photos, SAMPLES_PER_THREAD * threads))


def _batch_size(arguments: argparse.Namespace) -> int:
    return int(arguments.batch_size or max(16, 4 * arguments.threads))


def _profile(dataset: Any, threads: int, jobs: int, seconds: float) -> dict[str, Any]:
    import sutler

    return sutler.plan(dataset, memory=1, num_workers=threads, jobs=jobs, time=seconds).profile


def _scene(set_up: SetUp, root: Path, arguments: argparse.Namespace) -> tuple[Scene, float]:
    """The set-up on this machine, and what its device ingests in all."""
    from sutler.testing import throttled

    dataset = open_dataset(root, set_up.pipeline, arguments.size)
    threads = 1 if set_up.single else arguments.threads
    profile = _profile(dataset, threads, 1, arguments.time)
    work = sum(profile[name] for name in ("recall_s", "decode_s", "augment_s", "copy_s"))
    prepared_per_s = threads / work
    storage = STORAGE[set_up.storage]
    rate = (
        None if storage is None else round(storage * prepared_per_s * profile["encoded_bytes"] / 1e6, 1) * 1e6
    )
    device = float("inf") if set_up.device is None else round(set_up.device * prepared_per_s)
    batch_size = _batch_size(arguments)
    scene = Scene(
        dataset=dataset if rate is None else throttled(dataset, rate),
        threads=threads,
        batch_size=batch_size,
        memory=int(set_up.memory_share * profile["decoded_bytes"] * len(dataset)),
        jobs=set_up.jobs,
        step=set_up.jobs * batch_size / device,
        storage_rate=rate,
    )
    return scene, device


def _measure(set_up: SetUp, root: Path, arguments: argparse.Namespace) -> Measured:
    from sutler import _sutler

    scene, device = _scene(set_up, root, arguments)

    def profile() -> dict[str, Any]:
        found = _profile(scene.dataset, scene.threads, scene.jobs, arguments.time)
        return found if set_up.device is None else found | {"device_samples_per_s": device}

    first = profile()
    best = json.loads(_sutler.choose_split(json.dumps(first), scene.memory))
    chosen = f"{best['encoded']}-{best['decoded']}-0"
    splits = [NO_CACHE, *SPLITS, *({chosen} - set(SPLITS))]
    points = [Point(split, chosen=split == chosen) for split in splits]
    points.append(Point(chosen, chosen=True, repeated=True))
    with ExitStack() as stack:
        scene.speed_up()
        feeds: list[Feed] = []
        for point in points:
            feeds.append(open_feed(scene, None if point.split == NO_CACHE else point.split))
            stack.callback(feeds[-1].close)
        scene.slow_down()
        for number in range(arguments.rounds):
            _predict(json.dumps(profile()), scene.memory, points)
            order = list(zip(points, feeds, strict=True))
            # The planned split and its repetition are at opposite ends of an order that turns from round to round.
            for point, feed in in_turn(order, number * len(order) // arguments.rounds):
                point.measured_rounds.append(feed.rate(arguments.epochs_time))
    return Measured(
        pipeline=set_up.pipeline,
        storage_mbps=None if scene.storage_rate is None else scene.storage_rate / 1e6,
        memory_share=set_up.memory_share,
        memory_bytes=scene.memory,
        threads=scene.threads,
        jobs=scene.jobs,
        device_samples_per_s=None if set_up.device is None else device,
        profile=first,
        points=points,
    )


def _predict(profile: str, memory: int, points: list[Point]) -> None:
    """What both models say of every point by this profile."""
    from sutler import _sutler

    with_cache = json.loads(_sutler.compare_plans(profile, memory)[0])
    # A budget in which not a single sample fits.
    without = json.loads(_sutler.compare_plans(profile, 1)[0])
    for point in points:
        answers = without if point.split == NO_CACHE else with_cache
        split = SPLITS[0] if point.split == NO_CACHE else point.split
        ours = next(each for each in answers["splits"] if each["split"] == split)
        theirs = next(each for each in answers["published"]["splits"] if each["split"] == split)
        point.predicted_rounds.append(ours["predicted"])
        point.published_rounds.append(theirs["predicted"])
        point.bound_by = ours["bound_by"]
