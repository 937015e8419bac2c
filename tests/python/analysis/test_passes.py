"""How the time of an analysis is divided."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from sutler.analysis import passes
from sutler.analysis.doubts import of_noise
from sutler.analysis.passes import PASSES_AT_LEAST, PASSES_MAX, Series, repeat
from sutler.analysis.wording import spread


class Clock:
    """Measurements that take their time, on a clock that nothing else moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(passes, "time", SimpleNamespace(monotonic=lambda: self.now))

    def measure(self, series: Series, seconds: float, *, scattered: bool) -> Callable[[], None]:
        def once() -> None:
            self.now += seconds
            series.add(2.0 if scattered and len(series.values) % 2 else 1.0, 1, 0)

        return once


def test_a_slow_measurement_leaves_the_others_their_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, slow, quick, known = Clock(monkeypatch), Series(), Series(), Series()
    measures = {
        "slow": clock.measure(slow, 8, scattered=True),
        "quick": clock.measure(quick, 1, scattered=True),
        "known": clock.measure(known, 1, scattered=False),
    }
    with caplog.at_level(logging.INFO, "sutler.analysis"):
        repeat(measures, {"slow": slow, "quick": quick, "known": known}, 42)
    assert (len(quick.values), len(known.values)) == (PASSES_MAX, 3)
    # Two passes are its part of the time; what the others left over is for two more, of which the last takes longer.
    assert len(slow.values) == 4
    assert caplog.messages[0] == "slow: pass 1, 1.0 samples/s so far"


def test_however_short_the_time_two_passes_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, slow, quick = Clock(monkeypatch), Series(), Series()
    measures = {
        "slow": clock.measure(slow, 8, scattered=True),
        "quick": clock.measure(quick, 1, scattered=True),
    }
    repeat(measures, {"slow": slow, "quick": quick}, 0.5)
    assert len(slow.values) == len(quick.values) == PASSES_AT_LEAST


def test_a_rate_is_known_as_well_in_a_warning_as_in_the_table() -> None:
    series = Series([0.8, 1.0, 1.3])
    (told,) = of_noise({"preparing alone": series})
    assert f"preparing alone ({spread(series.rate())} after 3 passes)" in told
    assert spread(series.rate()) != spread(series.seconds())
