"""What was found, as plots inside the page: no script, no font and no file from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from sutler.analysis.drawing import (
    WIDTH,
    across,
    dot,
    drawing,
    filled,
    line,
    text,
    upwards,
    value_axis,
    whisker,
)
from sutler.analysis.model import CAUSES, Accelerator, BatchTimes, Rate, StageTimes, Stalls
from sutler.analysis.scales import Scale, upper_end
from sutler.analysis.svg import Element
from sutler.analysis.wording import NO_LIMIT, duration, percent, rate

#: Batches that a timeline shows at most: more columns than this could not be told apart.
BATCHES_SHOWN = 240

#: Pairs of quantiles between which the times of a stage are drawn, the widest first, each darker than the one before.
_BANDS = ((0.01, 0.99), (0.1, 0.9), (0.3, 0.7))


def stall_bar(stalls: Stalls) -> Element:
    """The trainer's time as one bar, cut by what it went to."""
    shares = [(cause, float(getattr(stalls, cause))) for cause in CAUSES]
    told = ", ".join(f"{cause} {percent(share)}" for cause, share in shares)
    drawn = drawing(70, f"Of the trainer's time: {told}.")
    x = 0.0
    for cause, share in shares:
        width = WIDTH * share
        drawn.add(filled(cause, x, 2, width, 42, f"{cause}: {percent(share)}"))
        if width > 100:
            drawn.add(text(x + width / 2, 62, f"{cause} {percent(share)}", anchor="middle"))
        elif width > 46:
            drawn.add(text(x + width / 2, 62, percent(share), anchor="middle"))
        x += width
    return drawn


def rate_plot(rates: Sequence[Rate]) -> Element:
    """Each rate as a dot on a common axis, with the interval it lies in."""
    rates = [each for each in rates if each.samples_per_s.value < NO_LIMIT]
    values = [each.samples_per_s for each in rates]
    row, left, right = 32.0, 36.0, WIDTH - 90
    height = row * len(rates) + 46
    x = value_axis([value.low for value in values], [value.high for value in values], left, right)
    told = "; ".join(f"{each.name} {rate(each.samples_per_s.value)}" for each in rates)
    drawn = drawing(height, f"Rates in samples per second: {told}.")
    name = "samples per second" + (", logarithmic" if x.logarithmic else "")
    drawn.add(*across(x, height - 38, name))
    for index, each in enumerate(rates):
        y = row * index + 20
        value = each.samples_per_s
        at = x.at(value.value)
        drawn.add(text(8, y + 5, each.name, class_="label strong"), line(x.begin, y, at, y, "stem"))
        drawn.add(whisker(x.at(value.low), x.at(value.high), y))
        drawn.add(dot(at, y, f"{each.name}: {rate(value.value)}", radius=5))
        drawn.add(text(x.at(value.high) + 12, y + 5, rate(value.value)))
    return drawn


def stage_plot(stages: Sequence[StageTimes]) -> Element:
    """How the times of each stage are spread, on one logarithmic axis."""
    row, left, right = 54.0, 90.0, WIDTH - 20
    height = row * len(stages) + 44
    edges = [edge for stage in stages for edge in _edges(stage) if edge > 0]
    least, most = min(edges, default=1e-6), max(edges, default=1e-3)
    x = Scale(least / 1.3, max(most, 2 * least) * 1.3, left, right, logarithmic=True)
    told = "; ".join(
        f"{stage.name}: median {duration(stage.p50)}, 95 of 100 below {duration(stage.p95)}, "
        f"99 of 100 below {duration(stage.p99)}"
        for stage in stages
    )
    drawn = drawing(height, f"Time per sample in each stage. {told}.")
    drawn.add(*across(x, height - 40, "time per sample, logarithmic", duration))
    for index, stage in enumerate(stages):
        y = row * index + 24
        drawn.add(text(left - 12, y + 5, stage.name, anchor="end", class_="label strong"))
        drawn.add(*_spread(stage, x, y))
    return drawn


def _edges(stage: StageTimes) -> list[float]:
    known = dict(stage.quantiles)
    return [
        stage.p50,
        stage.p95,
        stage.p99,
        *(known[each] for pair in _BANDS for each in pair if each in known),
    ]


def _spread(stage: StageTimes, x: Scale, y: float) -> list[Element]:
    drawn = []
    known = dict(stage.quantiles)
    for level, (low, high) in enumerate(_BANDS):
        if low in known and high in known:
            begin, end = x.at(known[low]), x.at(known[high])
            title = f"{percent(high - low)} of the samples: {duration(known[low])} to {duration(known[high])}"
            drawn.append(
                Element(
                    "rect",
                    Element("title", title),
                    x=begin,
                    y=y - 9,
                    width=max(end - begin, 1.0),
                    height=18,
                    class_=f"spread-{level}",
                )
            )
    for name, value in (("p50", stage.p50), ("p95", stage.p95), ("p99", stage.p99)):
        at = x.at(value)
        drawn.append(line(at, y - 12, at, y + 12, f"quantile {name}"))
    # Where two lie close together the words would cover each other; then the later one is left to the table.
    last = -1e9
    for name, value in (("p50", stage.p50), ("p95", stage.p95), ("p99", stage.p99)):
        at = x.at(value)
        if at - last > 84:
            drawn.append(text(at, y + 25, f"{name} {duration(value)}", anchor="middle", class_="tick"))
            last = at
    return drawn


def shown_batches(timeline: Sequence[BatchTimes]) -> Sequence[BatchTimes]:
    """The batches that a timeline shows: the last ones, where there are too many."""
    return timeline[-BATCHES_SHOWN:]


def timeline_plot(timeline: Sequence[BatchTimes]) -> Element:
    """Each batch as a column: how long it was waited for, by what for, on top of how long it was trained on."""
    batches = shown_batches(timeline)
    left, right, top, bottom = 62.0, WIDTH - 10, 12.0, 200.0
    waits = [max(0.0, each.received - each.asked) for each in batches]
    steps = [max(0.0, each.trained - each.received) for each in batches]
    y = Scale(0.0, upper_end([wait + step for wait, step in zip(waits, steps, strict=True)]), bottom, top)
    known = [each.ready for each in batches if each.ready is not None]
    height = bottom + (96 if known else 40)
    waited, slowest = sum(waits), max(range(len(batches)), key=lambda index: waits[index])
    label = (
        f"{len(batches)} batches. They were waited for {duration(waited)} in all, the longest time for batch "
        f"{batches[slowest].batch}: {duration(waits[slowest])}."
    )
    drawn = drawing(height, label, *upwards(y, left, right, duration))
    width = (right - left) / len(batches)
    gap = min(1.5, width / 5)
    for index, each in enumerate(batches):
        x, wide = left + index * width, width - gap
        step, whole = steps[index], waits[index] + steps[index]
        title = f"batch {each.batch}: step {duration(step)}"
        drawn.add(filled("trainer", x, y.at(step), wide, bottom - y.at(step), title))
        cause = each.cause or "unknown"
        title = f"batch {each.batch}: waited {duration(waits[index])}" + (
            f" for {each.cause}" if each.cause else ""
        )
        drawn.add(filled(cause, x, y.at(whole), wide, y.at(step) - y.at(whole), title))
    drawn.add(line(left, bottom, right, bottom, "base"))
    if known:
        drawn.add(*_ready(batches, left, width, bottom + 12, bottom + 52))
    first, last = batches[0].batch, batches[-1].batch
    drawn.add(
        text((left + right) / 2, height - 6, f"batches {first} to {last}", anchor="middle", class_="axis")
    )
    return drawn


def _ready(
    batches: Sequence[BatchTimes], left: float, width: float, top: float, bottom: float
) -> list[Element]:
    """How many finished batches there were each time one was asked for, as steps below the columns."""
    most = max(1, *(each.ready or 0 for each in batches))
    y = Scale(0.0, float(most), bottom, top)
    path = f"M{left:.1f} {bottom:.1f}"
    for index, each in enumerate(batches):
        path += f" V{y.at(each.ready or 0):.1f} H{left + (index + 1) * width:.1f}"
    path += f" V{bottom:.1f} Z"
    return [
        Element("path", Element("title", "finished batches when one was asked for"), d=path, class_="ready"),
        text(left - 8, top + 8, str(most), anchor="end", class_="tick"),
        text(left - 8, bottom, "0", anchor="end", class_="tick"),
        text(left, bottom + 16, "finished batches when one was asked for", class_="tick"),
    ]


def utilisation_meter(accelerator: Accelerator) -> Element:
    """How busy the accelerator is, with the line it has to reach."""
    x = Scale(0.0, 1.0, 10.0, WIDTH - 10)
    words = f"The accelerator is busy {percent(accelerator.utilisation)} of the time"
    line_at = accelerator.pass_line
    drawn = drawing(58, words + ("." if line_at is None else f"; {percent(line_at)} are needed to pass."))
    drawn.add(Element("rect", x=x.begin, y=8, width=x.end - x.begin, height=20, class_="meter"))
    drawn.add(filled("trainer", x.begin, 8, x.at(accelerator.utilisation) - x.begin, 20, words))
    if line_at is not None:
        drawn.add(line(x.at(line_at), 2, x.at(line_at), 34, "pass-line"))
        drawn.add(text(x.at(line_at), 50, f"pass line {percent(line_at)}", anchor="middle", class_="tick"))
    return drawn
