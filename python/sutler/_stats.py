"""What happened in a loader, in numbers; the page "Figures" of the reference explains each."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from sutler._figures import CAUSES
from sutler._function_backend import FunctionBackend
from sutler.errors import Failure

if TYPE_CHECKING:
    from sutler.loader import Loader

#: Where a sample may come from, the nearest last.
FORMS = ("storage", "encoded", "decoded", "augmented")


def figures_of(loader: Loader) -> tuple[dict[str, Any], list[Failure]]:
    """The job's own figures and failures: its last ones once the loader is closed, none yet in a forked child."""
    metrics, failures = figures_of_source(loader)
    if loader.device is not None and metrics:
        # The source's consumer is a thread of ours that copies ahead; it is the trainer's time that counts.
        metrics = metrics | loader._device_figures.waits()
    return _with_workers(metrics, loader._beginning_seconds), failures


def _with_workers(metrics: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Figures in which the trainer waited, besides, for workers to start and to end: for samples to be prepared."""
    if not metrics or not seconds:
        return metrics
    stalls = metrics["stalls"]
    return metrics | {
        "seconds": metrics["seconds"] + seconds,
        "wait_seconds": metrics["wait_seconds"] + seconds,
        "stalls": stalls | {"prep": stalls["prep"] + seconds},
    }


def figures_of_source(loader: Loader) -> tuple[dict[str, Any], list[Failure]]:
    """The same without what the trainer waited for outside of its requests to the source."""
    if loader._streams is not None:
        return loader._streams.figures.metrics(), []
    if loader._in_process():
        return loader._inline.metrics(), loader._inline_failures
    job = loader._room.job
    if job is None or not loader._room.is_here:
        return loader._last_figures
    metrics = json.loads(job.metrics()) | {"cache": loader._backend.cache_figures()}
    failures = [Failure(*fields) for fields in job.failures()]
    if isinstance(loader._backend, FunctionBackend):
        failures = loader._backend.understood(failures)
    selection = loader._selection
    return metrics, failures if selection is None else selection.renamed_failures(failures)


def describe(loader: Loader) -> dict[str, Any]:
    """What `Loader.stats` tells."""
    metrics, _ = figures_of(loader)
    samples = metrics.get("samples", 0)
    fetched = metrics.get("fetched", 0)
    job = None if loader._streams is not None else loader._room.job
    drawing = loader._passes.drawing
    return {
        "samples": samples,
        "batches": metrics.get("batches", 0),
        "failed": metrics.get("failed", 0),
        "warnings": metrics.get("warnings", 0),
        "seconds": metrics.get("seconds", 0.0),
        "wait_seconds": metrics.get("wait_seconds", 0.0),
        "stalls": metrics.get("stalls", dict.fromkeys(CAUSES, 0.0)),
        "served": metrics.get("served", dict.fromkeys(FORMS, 0) | {"storage": samples}),
        "storage_reads": fetched,
        "storage_requests": metrics.get("storage_reads", 0),
        "storage_bytes": metrics.get("storage_bytes", 0),
        "reads_per_sample": fetched / samples if samples else 0.0,
        "unique_fraction": drawing.unique_fraction if drawing else 1.0,
        "cache": metrics["cache"] if "cache" in metrics else _cache_figures(loader),
        "stages": dict(metrics.get("stages", [])),
        "steps": [{"name": name} | times for name, times in metrics.get("steps", [])]
        + loader._function_times.described(),
        "slow_share": metrics.get(
            "slow_share", {"threshold": 0.0, "mean": 0.0, "series": [], "batches_per_point": 1}
        ),
        "ready": metrics.get("ready", []),
        "worker_times": metrics.get("worker_times", []),
        "workers": _workers(loader),
        "agent": _agent(loader),
        "worker_changes": [] if loader._streams is not None else loader._room.worker_changes(),
        "batches_ahead": _batches_ahead(loader) if job is None else job.batches_ahead,
        "memory_bytes": 0 if job is None else job.memory_bytes,
    }


def _cache_figures(loader: Loader) -> dict[str, Any] | None:
    """What the cache holds, if there is one; streams have none."""
    return None if loader._streams is not None else loader._backend.cache_figures()


def _workers(loader: Loader) -> int:
    """How many threads or processes prepare: the agent's, where there is one."""
    if loader._streams is not None:
        return loader.num_workers
    agent = loader._backend.agent
    return loader._room.workers(loader) if agent is None else agent.workers


def _agent(loader: Loader) -> str | None:
    """The socket of the agent that the loader attached to, if it did."""
    agent = None if loader._streams is not None else loader._backend.agent
    return None if agent is None else agent.socket


def _batches_ahead(loader: Loader) -> int:
    """How many batches are prepared ahead in the beginning: none where the trainer does the work itself."""
    return loader._batches_ahead(loader.batch_size or 1) if loader.num_workers > 0 else 0


def no_timeline() -> dict[str, Any]:
    """The timeline of a loader that has done nothing."""
    return {"began": 0.0, "batches": [], "samples": [], "quantiles": {}}


def timeline_of(loader: Loader) -> dict[str, Any]:
    """What `Loader.timeline` tells: that of the last moment once the loader is closed."""
    told = _timeline_of_source(loader)
    if told is None:
        return loader._last_timeline
    batches = told["timeline"]["batches"]
    if loader.device is not None:
        batches = _shifted(loader._device_figures.timeline(), told["age"])
    return {
        "began": time.time() - told["age"],
        "batches": batches,
        "samples": told["timeline"]["samples"],
        "quantiles": dict(told["quantiles"]),
    }


def _timeline_of_source(loader: Loader) -> dict[str, Any] | None:
    if loader._streams is not None:
        return loader._streams.figures.timeline()
    if loader._in_process():
        return loader._inline.timeline()
    job = loader._room.job
    if job is None or not loader._room.is_here:
        return None
    told: dict[str, Any] = json.loads(job.timeline())
    return told


def _shifted(told: dict[str, Any], age: float) -> list[dict[str, Any]]:
    """Batches whose times are to count from another moment."""
    by = age - told["age"]
    moments = ("requested", "ready", "answered")
    return [
        batch | {moment: batch[moment] + by for moment in moments} for batch in told["timeline"]["batches"]
    ]
