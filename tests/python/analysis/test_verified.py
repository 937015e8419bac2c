"""Predictions that were tried say how well the others are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sutler
from sutler.analysis import what_ifs
from sutler.analysis.model import Findings, WhatIf
from sutler.analysis.page import render_page
from sutler.analysis.wording import number

from tests.python.analysis.examples import findings


def known(value: float) -> dict[str, float]:
    return {"value": value, "low": 0.98 * value, "high": 1.02 * value}


def facts() -> dict[str, Any]:
    """A loader of eight workers that waits for storage."""
    return {
        "samples": 10_000,
        "sample_bytes": 1e5,
        "kept_bytes": 1e5,
        "cache_bytes": 0.0,
        "workers": 8,
        "cores": 8,
        "ahead": None,
        "ingest": known(400.0),
        "prepare": known(200.0),
        "prepare_alone": known(25.0),
        "work_s": None,
        "recall": known(1e5),
        "storage": known(100.0),
        "read_s": None,
        "hand_over": None,
        "measured": known(100.0),
        "stalls": {"fetch": 0.5, "prep": 0.25, "transport": 0.0, "trainer": 0.25},
        "memory_bytes": 1e10,
    }


def half_cached_gave(part: float) -> tuple[dict[str, Any], what_ifs.Questions, what_ifs.Questions]:
    """Facts, and questions before and after a run with half of the dataset cached gave so much of the prediction."""
    found, before = facts(), what_ifs.table(facts())
    middle = before["cache"][4]
    tried = replace(middle, verified=part * middle.predicted.value)
    questions = before | {"cache": (*before["cache"][:4], tried, *before["cache"][5:])}
    found["missed"] = {"cache": what_ifs.missed_by(questions["cache"])}
    return found, before, what_ifs.doubted(found, questions, 0.0, {})


def test_what_a_run_was_off_by_is_the_least_error_of_its_axis() -> None:
    _, before, after = half_cached_gave(0.8)
    tried = after["cache"][4]
    assert tried.verified is not None
    assert tried.predicted == before["cache"][4].predicted
    for old, new in zip(before["cache"], after["cache"], strict=True):
        assert new.predicted.value == old.predicted.value
        if new.verified is None and not new.now:
            assert new.predicted.error >= 0.25 - 1e-6 > old.predicted.error
    # What is as it is now was measured, and other axes were not tried.
    assert after["cache"][0] == before["cache"][0]
    assert {axis: after[axis] for axis in after if axis != "cache"} == {
        axis: before[axis] for axis in before if axis != "cache"
    }


def test_a_prediction_that_was_met_changes_nothing() -> None:
    _, before, after = half_cached_gave(0.999)
    assert [point.predicted for point in after["cache"]] == [point.predicted for point in before["cache"]]


def test_other_questions_and_reports_say_so_as_well() -> None:
    found, _, after = half_cached_gave(0.8)
    shown: Findings = replace(findings(), facts=found, what_if=after)
    report = sutler.Report(shown)
    assert report.what_if(cache="300MB").predicted.error >= 0.25 - 1e-6
    assert report.what_if(cores=4).predicted.error < 0.25
    assert "± 25.0 %" in str(report)
    assert sutler.Report(Findings.from_json(report.to_json())).findings == shown
    other: WhatIf = after["cache"][2]
    assert f"{number(other.predicted.low)} to {number(other.predicted.high)}" in render_page(shown)


def test_what_is_recommended_is_among_the_questions() -> None:
    questions = what_ifs.table(facts(), amounts={"workers": 11, "cache_bytes": 3.3e8})
    assert 11 in [point.value for point in questions["cores"]]
    assert 3.3e8 in [point.value for point in questions["cache"]]
    beyond = what_ifs.table(facts(), amounts={"cores": 100, "cache_bytes": 9e9})
    assert 100 in [point.value for point in beyond["cores"]]
    assert max(point.value for point in beyond["cache"]) == 1e9, "no more than the dataset takes"
