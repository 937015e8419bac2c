"""Traces that Perfetto and Chrome open: valid by the format's rules, on every path that batches take."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import sutler
from sutler import Loader
from sutler.analysis.trace import timeline_of_batches, trace_of

from tests.python.agent.serving import Agent
from tests.python.analysis.examples import findings
from tests.python.analysis.test_accounting import IN_TRAINER, Slow, SlowStream, lambdas, native
from tests.python.analysis.trace_rules import check_nesting, check_trace


def traced(loader: Loader, path: Path) -> dict[str, Any]:
    for _ in range(2):
        for _ in loader:
            time.sleep(0.003)
    loader.trace(path)
    loader.close()
    trace: dict[str, Any] = json.loads(path.read_text())
    check_trace(trace)
    return trace


def named(trace: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event.get("cat") == category and event["ph"] == "X"]


def test_native_threads(photos: Path, tmp_path: Path) -> None:
    loader = native(photos, num_workers=2)
    samples, batches = len(loader.dataset), len(loader)
    trace = traced(loader, tmp_path / "trace.json")
    decoded = named(trace, "decode")
    assert len({(event["args"]["sample"], event["ts"]) for event in decoded}) == 2 * samples
    assert {event["tid"] for event in decoded} <= {1, 2}
    assert len([event for event in trace["traceEvents"] if event["ph"] == "i"]) == 2 * batches
    waits = named(trace, "wait")
    assert waits, "the first batch at least is waited for"
    inner = [
        event
        for cause in ("fetch", "prep", "transport")
        for event in named(trace, cause)
        if event["tid"] == 0
    ]
    assert sum(event["dur"] for event in inner) == pytest.approx(
        sum(event["dur"] for event in waits), rel=0.02
    )
    assert any(event["ph"] == "s" for event in trace["traceEvents"])


@pytest.mark.parametrize("dataset", [Slow(0.002, 24), SlowStream(0.002, 24)], ids=["map-style", "stream"])
@pytest.mark.parametrize("workers", [0, 2])
def test_datasets_written_in_python(dataset: Any, workers: int, tmp_path: Path) -> None:
    trace = traced(Loader(dataset, 4, num_workers=workers, output="numpy"), tmp_path / "trace.json")
    assert named(trace, "wait")
    assert named(trace, "trainer")
    in_workers = named(trace, "decode")
    assert bool(in_workers) == (workers == 2 and isinstance(dataset, Slow))


def test_functions_in_the_trainers_process(photos: Path, tmp_path: Path) -> None:
    trace = traced(lambdas(photos, **IN_TRAINER), tmp_path / "trace.json")
    own = [event for event in named(trace, "prep") if event["tid"] == 0]
    assert sum(event["dur"] for event in own) >= 2 * 0.005 * 1e6 * len(sutler.ImageFolder(photos))


def test_a_device(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    traced(native(photos, num_workers=2, output="torch", device="cpu"), tmp_path / "trace.json")


def test_an_agent(photos: Path, tmp_path: Path) -> None:
    agent = Agent(tmp_path / "agent.sock")
    try:
        trace = traced(native(photos, agent=agent.socket), tmp_path / "trace.json")
    finally:
        agent.stop()
    assert named(trace, "wait")
    assert not named(trace, "decode"), "the samples are the agent's"


def test_a_loader_that_has_done_nothing(augmented: sutler.ImageFolder, tmp_path: Path) -> None:
    Loader(augmented, 4, output="numpy", rank=1, world_size=2).trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    check_trace(trace)
    assert trace["otherData"]["rank"] == 1


def test_the_batches_of_a_report() -> None:
    trace = trace_of(timeline_of_batches(findings().timeline))
    check_trace(trace)
    assert len(named(trace, "wait")) == 90
    assert {event["name"] for event in named(trace, "fetch")} == {"for fetch"}


def test_a_sample_that_made_room_for_others() -> None:
    sample = {
        "sample": 3,
        "batch": 0,
        "worker": 0,
        "begun": 0.1,
        "fetch": 0.01,
        "decode": 0.2,
        "augment": 0.0,
    }
    beside = sample | {"sample": 4, "begun": 0.15, "finished": 0.37, "put_aside": False}
    timeline = timeline_of_batches(findings(batches=3).timeline)
    timeline["samples"] = [sample | {"finished": 0.9, "put_aside": True}, beside]
    trace = trace_of(timeline)
    check_trace(trace)
    assert [event["ph"] for event in trace["traceEvents"] if event["name"] == "slow sample"] == ["b", "e"]
    assert {event["args"]["sample"] for event in named(trace, "decode")} == {4}


def test_the_rules_find_what_is_wrong() -> None:
    with pytest.raises(AssertionError):
        check_nesting([(0.0, 10.0), (5.0, 15.0)])
    trace = trace_of(timeline_of_batches(findings().timeline))
    trace["traceEvents"].append({"ph": "s", "pid": 0, "tid": 0, "name": "x", "cat": "x", "id": 1, "ts": 1.0})
    with pytest.raises(AssertionError):
        check_trace(trace)
