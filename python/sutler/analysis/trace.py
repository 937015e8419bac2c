"""A timeline in the trace-event format that Chrome's tracing came with, and that Perfetto opens.

The trainer has a track and so has each worker. On the trainer's are its steps and its waits, each wait with what it was
for inside; on a worker's are the samples it prepared, stage by stage. An arrow goes from the sample that was finished
last in a batch to the wait it ended. A counter shows how many finished batches were there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sutler.analysis.model import BatchTimes
from sutler.analysis.places import naming

#: The trainer's track; worker n has n + 1.
TRAINER = 0

#: The stages of a sample in the order it goes through them.
STAGES = ("fetch", "decode", "augment")

#: What a wait may be for, in the order in which a batch meets it.
WAITS = ("fetch", "prep", "transport")

#: Shorter slices than this many nanoseconds are left out: a viewer shows nothing of them.
SHORTEST = 1_000


def trace_of(timeline: dict[str, Any], *, rank: int = 0) -> dict[str, Any]:
    """The trace of what `Loader.timeline` told, as data for JSON."""
    batches, samples = timeline["batches"], timeline["samples"]
    events = [
        *_names(rank, {sample["worker"] for sample in samples}),
        *_trainer(rank, batches),
        *_workers(rank, samples),
        *_arrows(rank, batches, samples),
    ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"program": "sutler", "rank": rank, "began_unix_seconds": timeline["began"]},
    }


def timeline_of_batches(batches: Sequence[BatchTimes]) -> dict[str, Any]:
    """A timeline of the batches that an analysis kept, in the shape of `Loader.timeline`: without samples."""
    rows = []
    previous: float | None = None
    for each in batches:
        row: dict[str, Any] = {
            "batch": each.batch,
            "samples": 0,
            "requested": each.asked,
            "answered": each.received,
            "trainer": 0.0 if previous is None else each.asked - previous,
            "ready_batches": each.ready or 0,
        }
        rows.append(
            row | {cause: each.received - each.asked if cause == each.cause else 0.0 for cause in WAITS}
        )
        previous = each.received
    return {"began": 0.0, "batches": rows, "samples": [], "quantiles": {}}


def write_trace(path: str | os.PathLike[str], timeline: dict[str, Any], *, rank: int = 0) -> None:
    """Writes the trace of what `Loader.timeline` told to a file."""
    with naming(path), open(path, "w", encoding="utf-8") as file:
        json.dump(trace_of(timeline, rank=rank), file, separators=(",", ":"), allow_nan=False)


def _nanos(seconds: float) -> int:
    return round(seconds * 1e9)


def _event(phase: str, rank: int, track: int, name: str, nanos: int, **more: Any) -> dict[str, Any]:
    """An event; the format counts in microseconds."""
    return {"ph": phase, "pid": rank, "tid": track, "name": name, "ts": nanos / 1000, **more}


def _slice(
    rank: int, track: int, name: str, category: str, begin: int, end: int, **arguments: Any
) -> dict[str, Any]:
    return _event("X", rank, track, name, begin, dur=(end - begin) / 1000, cat=category, args=arguments)


def _names(rank: int, workers: Iterable[int]) -> Iterator[dict[str, Any]]:
    def say(about: str, track: int, **arguments: Any) -> dict[str, Any]:
        return {"ph": "M", "pid": rank, "tid": track, "name": about, "args": arguments}

    yield say("process_name", TRAINER, name=f"sutler, rank {rank}")
    yield say("thread_name", TRAINER, name="trainer")
    yield say("thread_sort_index", TRAINER, sort_index=0)
    for worker in sorted(workers):
        yield say("thread_name", worker + 1, name=f"worker {worker}")
        yield say("thread_sort_index", worker + 1, sort_index=worker + 1)


def _trainer(rank: int, batches: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        asked, had = _nanos(batch["requested"]), _nanos(batch["answered"])
        trained = _nanos(batch["trainer"])
        if trained >= SHORTEST:
            yield _slice(rank, TRAINER, "train", "trainer", asked - trained, asked)
        number = batch["batch"]
        yield _event("C", rank, TRAINER, "finished batches", asked, args={"batches": batch["ready_batches"]})
        yield _event("i", rank, TRAINER, f"batch {number} has come", had, s="t", cat="batch")
        if had - asked < SHORTEST:
            continue
        yield _slice(rank, TRAINER, f"wait for batch {number}", "wait", asked, had, samples=batch["samples"])
        # How much was for what is known, not when: the parts are laid end to end.
        begin = asked
        for cause in WAITS:
            end = min(had, begin + _nanos(batch[cause]))
            if end - begin >= SHORTEST:
                yield _slice(rank, TRAINER, f"for {cause}", cause, begin, end)
            begin = end


def _stages(sample: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    """The stages that a sample went through: name, beginning and end."""
    begin = _nanos(sample["begun"])
    for stage in STAGES:
        end = begin + _nanos(sample[stage])
        if end - begin >= SHORTEST:
            yield stage, begin, end
        begin = end


def _workers(rank: int, samples: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, sample in enumerate(samples):
        track = sample["worker"] + 1
        about = {"sample": sample["sample"], "batch": sample["batch"]}
        if sample["put_aside"]:
            # It was worked at in several stretches, by whoever had time: a track of its own, beside those of workers.
            one = {"cat": "put aside", "id": number, "args": about}
            yield _event("b", rank, track, "slow sample", _nanos(sample["begun"]), **one)
            yield _event("e", rank, track, "slow sample", _nanos(sample["finished"]), **one)
            continue
        for stage, begin, end in _stages(sample):
            yield _slice(rank, track, stage, stage, begin, end, **about)


def _arrows(
    rank: int, batches: list[dict[str, Any]], samples: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """From the last stage of each batch's last sample to the wait that it ended."""
    # An epoch's batches are numbered from 0, so one number comes by again: the last that was finished before belongs.
    by_batch: dict[int, list[tuple[int, int, int]]] = {}
    for sample in samples:
        stages = list(_stages(sample))
        if stages and not sample["put_aside"]:
            _, begin, end = stages[-1]
            by_batch.setdefault(sample["batch"], []).append((end, begin, sample["worker"]))
    for number, batch in enumerate(batches):
        asked, had = _nanos(batch["requested"]), _nanos(batch["answered"])
        finished = [each for each in by_batch.get(batch["batch"], []) if asked < each[0] <= had]
        if not finished or had - asked < SHORTEST:
            continue
        _, begin, worker = max(finished)
        flow = {"id": number, "cat": "batch"}
        yield _event("s", rank, worker + 1, "last sample", begin, **flow)
        yield _event("f", rank, TRAINER, "last sample", max(asked, begin), bp="e", **flow)
