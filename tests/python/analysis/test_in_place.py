"""What the loader wrote down, joined to what the analysis saw; and who holds the others up."""

from __future__ import annotations

from typing import Any

import pytest
from sutler.analysis.in_place import of_latest, with_causes
from sutler.analysis.model import BatchTimes
from sutler.analysis.scales import Scale, upper_end
from sutler.analysis.stragglers import straggling_ranks, straggling_workers


def row(number: int, **waits: float) -> dict[str, Any]:
    parts = {"fetch": 0.0, "prep": 0.0, "transport": 0.0} | waits
    return {"batch": number, "requested": float(number), "answered": number + 0.5, "ready_batches": 2} | parts


def timeline(count: int) -> dict[str, Any]:
    batches = [row(number, fetch=0.1, prep=0.3 * (number % 2)) for number in range(count)]
    samples = [{"sample": number, "begun": float(number)} for number in range(count)]
    return {"began": 0.0, "batches": batches, "samples": samples, "quantiles": {}}


def times(count: int) -> list[BatchTimes]:
    return [BatchTimes(number, number, number + 0.5, number + 0.9) for number in range(count)]


def test_the_latest_batches_and_their_samples() -> None:
    latest = of_latest(timeline(10), 3)
    assert [each["batch"] for each in latest["batches"]] == [7, 8, 9]
    # Batch 6 came at 6.5; what was begun before was for earlier ones.
    assert [each["sample"] for each in latest["samples"]] == [7, 8, 9]
    assert of_latest(timeline(3), 3)["samples"] == timeline(3)["samples"]
    assert of_latest(timeline(3), 0)["batches"] == []


def test_a_wait_has_the_cause_of_most_of_it() -> None:
    told = with_causes(times(4), timeline(10))
    assert [each.cause for each in told] == ["fetch", "prep", "fetch", "prep"]
    assert {each.ready for each in told} == {2}
    nothing = with_causes(times(1), {**timeline(0), "batches": [row(0)], "samples": []})
    assert nothing[0].cause is None


def test_a_pass_that_is_longer_than_what_is_kept() -> None:
    told = with_causes(times(5), timeline(2))
    assert [each.cause for each in told] == [None, None, None, "fetch", "prep"]
    assert len(told) == 5


def worker(samples: int, seconds: float) -> dict[str, Any]:
    return {"samples": samples, "fetch": 0.25 * seconds * samples, "prep": 0.75 * seconds * samples}


def test_a_slow_worker_is_named() -> None:
    times = [worker(100, 0.004), worker(40, 0.011), worker(100, 0.005)]
    (found,) = straggling_workers({"worker_times": times})
    assert (found.kind, found.number, found.cause) == ("worker", 1, "prep")
    assert found.factor == pytest.approx(0.011 / 0.0045)
    assert straggling_workers({"worker_times": [worker(100, 0.004), worker(90, 0.005)]}) == []


def test_a_worker_that_has_hardly_begun_is_no_straggler() -> None:
    assert straggling_workers({"worker_times": [worker(100, 0.004), worker(2, 0.5), worker(0, 0.0)]}) == []
    assert straggling_workers({"worker_times": []}) == []


def rank(wait: float, seconds: float = 30.0) -> dict[str, Any]:
    stalls = {"fetch": wait, "prep": 0.0, "transport": 0.0, "trainer": seconds - wait}
    return {"batches": 100, "seconds": seconds, "stalls": stalls}


def test_the_rank_that_waits_holds_up_those_that_seem_to_train() -> None:
    (found,) = straggling_ranks([rank(0.2), rank(0.3), rank(9.0), rank(0.2)])
    assert (found.number, found.cause) == (2, "fetch")
    assert str(found).startswith("rank 2 waits 90 ms per batch, mostly fetch")
    assert straggling_ranks([rank(0.001), rank(0.009)]) == [], "nobody notices a thousandth"


def test_axes_end_and_are_labelled_at_round_values() -> None:
    assert upper_end([870.0, 12.0]) == 1000.0
    assert upper_end([]) == 1.0
    assert Scale(0.0, 1000.0, 0.0, 100.0).ticks() == [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]
    assert Scale(0.0, 10.0, 100.0, 0.0).at(2.5) == 75.0
    wide = Scale(1.0, 1e6, 0.0, 60.0, logarithmic=True)
    assert wide.ticks() == [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6]
    assert wide.at(1000.0) == pytest.approx(30.0)
    assert Scale(20.0, 90.0, 0.0, 1.0, logarithmic=True).ticks() == [20.0, 50.0]
