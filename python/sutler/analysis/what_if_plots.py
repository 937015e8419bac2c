"""What would be, as plots: throughput along an axis, with what is now marked on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sutler.analysis.drawing import (
    LOGARITHMIC_FROM,
    WIDTH,
    across,
    dot,
    drawing,
    line,
    text,
    upwards,
    value_axis,
    whisker,
)
from sutler.analysis.model import Interval, WhatIf
from sutler.analysis.scales import Scale, upper_end
from sutler.analysis.svg import Element
from sutler.analysis.what_ifs import missed_by
from sutler.analysis.wording import AXIS_NAMES, number, rate, size

#: Where the field of a plot begins and ends.
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, WIDTH - 16, 26.0, 236.0


def what_if_plot(axis: str, points: Sequence[WhatIf], measured: Interval, limit: Interval | None) -> Element:
    """Predicted throughput along an axis, with what was measured and what the accelerator takes at most."""
    if axis == "without":
        return _bars(points, measured)
    points = sorted(points, key=lambda point: point.value)
    y = _throughput(points, measured, limit)
    unit, show = _units(axis, [point.value for point in points])
    x = _along([point.value / unit for point in points])
    name = AXIS_NAMES[axis][1]
    told = "; ".join(f"{point.label}: {rate(point.predicted.value)}" for point in points)
    label = f"Predicted samples per second by {name}. {told}. Measured now: {rate(measured.value)}."
    drawn = drawing(_BOTTOM + 46, label, *upwards(y, _LEFT, _RIGHT), *across(x, _BOTTOM, name, show))
    drawn.add(text(_LEFT - 54, 14, "samples per second", class_="axis"))
    if limit is not None and limit.value <= y.high:
        at = y.at(limit.value)
        drawn.add(line(_LEFT, at, _RIGHT, at, "limit"))
        words = f"the accelerator takes {rate(limit.value)}"
        drawn.add(text(_RIGHT - 4, at - 6, words, anchor="end", class_="tick"))
    places = [(x.at(point.value / unit), point) for point in points]
    drawn.add(*_course(places, y))
    for at, point in places:
        title = f"{point.label}: {rate(point.predicted.value)}, bound by {point.bound_by}"
        drawn.add(dot(at, y.at(point.predicted.value), title))
        if point.verified is not None:
            drawn.add(_verified(at, y.at(point.verified), f"{point.label}, run: {rate(point.verified)}"))
    for at, point in places:
        if point.now:
            drawn.add(*_measured(at, y.at(measured.value), measured))
    return drawn


def _throughput(points: Sequence[WhatIf], measured: Interval, limit: Interval | None) -> Scale:
    known = [point.predicted.value for point in points] + [measured.value]
    known += [point.verified for point in points if point.verified is not None]
    # Where little is known a band may go up to anywhere; the line must stay readable.
    highs = [min(point.predicted.high, 1.5 * max(known)) for point in points] + known
    # A line far above all else would press the rest against the axis, and says no more than that it is far.
    if limit is not None and limit.value < 2.5 * max(highs):
        highs.append(1.08 * limit.value)
    return Scale(0.0, upper_end(highs), _BOTTOM, _TOP)


def _units(axis: str, values: Sequence[float]) -> tuple[float, Callable[[float], str]]:
    """What values are counted in, so that the axis has round numbers of it, and how these are shown."""
    if axis != "cache":
        return 1.0, number
    unit = 1.0
    while max(values) >= 1024 * unit:
        unit *= 1024
    return unit, lambda value: size(value * unit)


def _along(values: Sequence[float]) -> Scale:
    low, high = min(values), max(values)
    begin, end = _LEFT + 10, _RIGHT - 14
    if low > 0 and high > LOGARITHMIC_FROM * low:
        return Scale(low, high, begin, end, logarithmic=True)
    if low > 0.5 * high:
        return Scale(low - 0.05 * (high - low or low), high, begin, end)
    return Scale(min(0.0, low), high, begin, end)


def _course(places: Sequence[tuple[float, WhatIf]], y: Scale) -> list[Element]:
    """What is predicted as a line, and the band that it lies in."""
    # What was run keeps the error that was stated before, and all around it has the one that runs have shown. A band
    # that is narrow in just these places would say that more is known there than is.
    missed = missed_by(point for _, point in places)

    def bound(point: WhatIf, stated: float, side: float) -> float:
        shown = point.predicted.value * (1 + side * missed) if point.verified is not None else stated
        return y.at(max(stated, shown) if side > 0 else max(0.0, min(stated, shown)))

    upper = " ".join(f"{at:.1f},{bound(point, point.predicted.high, 1):.1f}" for at, point in places)
    lower = " ".join(
        f"{at:.1f},{bound(point, point.predicted.low, -1):.1f}" for at, point in reversed(places)
    )
    course = " ".join(f"{at:.1f},{y.at(point.predicted.value):.1f}" for at, point in places)
    return [
        Element("polygon", points=f"{upper} {lower}", class_="band"),
        Element("polyline", points=course, class_="course"),
    ]


def _verified(x: float, y: float, title: str) -> Element:
    """A run that was made to see whether a prediction holds."""
    return Element(
        "rect", Element("title", title), x=x - 5, y=y - 5, width=10, height=10, class_="verified-mark"
    )


def _measured(x: float, y: float, measured: Interval) -> list[Element]:
    """What was measured: a diamond, with words on the side where there is room."""
    diamond = Element(
        "path",
        Element("title", f"measured: {rate(measured.value)}"),
        d=f"M{x:.1f} {y - 9:.1f} l9 9 l-9 9 l-9 -9 z",
        class_="measured-mark",
    )
    words = f"measured now: {rate(measured.value)}"
    at_left = x > (_LEFT + _RIGHT) / 2
    # Below the mark, since a line that rises leaves its room there; above it where the axis is too near.
    at = y + 24 if y < _BOTTOM - 40 else y - 16
    beside, anchor = (x - 12, "end") if at_left else (x + 12, "start")
    return [diamond, text(beside, at, words, anchor=anchor, class_="label strong")]


def _bars(points: Sequence[WhatIf], measured: Interval) -> Element:
    """What single changes would bring, each as a bar."""
    left, right, row = 250.0, WIDTH - 80, 30.0
    height = row * len(points) + 48
    highs = [point.predicted.high for point in points] + [measured.high]
    x = value_axis([0.0], highs, left, right)
    told = "; ".join(f"without {point.label}: {rate(point.predicted.value)}" for point in points)
    drawn = drawing(height, f"Predicted samples per second: {told}. Measured now: {rate(measured.value)}.")
    drawn.add(*across(x, height - 40, "samples per second"))
    for index, point in enumerate(points):
        y = row * index + 20
        value = point.predicted
        words = point.label if len(point.label) <= 28 else f"{point.label[:27]}…"
        drawn.add(text(left - 10, y + 5, words, anchor="end"))
        title = Element("title", f"without {point.label}: {rate(value.value)}, bound by {point.bound_by}")
        drawn.add(
            Element(
                "rect", title, x=left, y=y - 8, width=x.at(value.value) - left, height=16, class_="bar-mark"
            )
        )
        drawn.add(whisker(x.at(value.low), x.at(value.high), y))
        drawn.add(text(x.at(value.high) + 8, y + 5, rate(value.value)))
    at = x.at(measured.value)
    drawn.add(line(at, 4, at, height - 40, "measured-line"))
    return drawn
