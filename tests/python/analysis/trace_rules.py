"""The rules of the trace-event format, as far as its viewers depend on them."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

#: What metadata events may name, and which argument they have.
METADATA = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}

Slices = dict[tuple[int, int], list[tuple[float, float]]]


def check_trace(trace: Any) -> None:
    """Fails unless a viewer would show all of the trace as it is meant."""
    assert isinstance(trace, dict)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events = trace["traceEvents"]
    assert isinstance(events, list)
    for event in events:
        check_event(event)
    slices: Slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for track in slices.values():
        check_nesting(track)
    check_flows(events, slices)
    check_stretches(events)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(slices) <= named, "every track has a name"


def check_event(event: dict[str, Any]) -> None:
    assert isinstance(event["name"], str)
    assert event["name"]
    assert isinstance(event["pid"], int)
    assert isinstance(event["tid"], int)
    phase = event["ph"]
    assert phase in "XMiCsfbe", event
    if phase == "M":
        assert set(event["args"]) == {METADATA[event["name"]]}
        return
    assert isinstance(event["ts"], int | float)
    assert math.isfinite(event["ts"])
    if phase == "X":
        assert event["dur"] >= 0
        assert isinstance(event["args"], dict)
    elif phase == "i":
        assert event["s"] in ("g", "p", "t")
    elif phase == "C":
        assert event["args"]
        assert all(isinstance(value, int | float) for value in event["args"].values())
    else:
        assert isinstance(event["id"], int | str)
        assert event["cat"]
    if phase == "f":
        assert event["bp"] == "e", "an arrow ends at the slice around it, not at the next one"


def check_nesting(track: list[tuple[float, float]]) -> None:
    """Slices of one track lie inside each other or beside each other."""
    open_until: list[float] = []
    tolerance = 0.002  # microseconds: what is left of nanoseconds in a float
    for begin, end in sorted(track, key=lambda each: (each[0], -each[1])):
        while open_until and open_until[-1] <= begin + tolerance:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + tolerance, (begin, end, open_until)
        open_until.append(end)


def check_flows(events: list[dict[str, Any]], slices: Slices) -> None:
    """Every arrow has a beginning and an end, in that order, each inside a slice of its track."""
    flows: dict[Any, dict[str, dict[str, Any]]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            ends = flows[event["cat"], event["id"], event["name"]]
            assert event["ph"] not in ends
            ends[event["ph"]] = event
            track = slices[event["pid"], event["tid"]]
            assert any(begin <= event["ts"] <= end for begin, end in track), event
    for ends in flows.values():
        assert set(ends) == {"s", "f"}
        assert ends["s"]["ts"] <= ends["f"]["ts"]


def check_stretches(events: list[dict[str, Any]]) -> None:
    """What is told outside of tracks has a beginning and an end."""
    open_since: dict[Any, float] = {}
    for event in events:
        key = (event.get("cat"), event.get("id"), event["name"])
        if event["ph"] == "b":
            assert key not in open_since
            open_since[key] = event["ts"]
        elif event["ph"] == "e":
            assert open_since.pop(key) <= event["ts"]
    assert not open_since
