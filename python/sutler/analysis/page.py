"""A report as one page of HTML: nothing is loaded from anywhere, and nothing in it runs.

It opens without a network, prints, and can be read without seeing the plots: each has a sentence that says what it
shows and a table of the same figures. Light or dark is the reader's choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from sutler.analysis.drawing import hatchings, swatch
from sutler.analysis.model import (
    CAUSES,
    RATE_MEANINGS,
    Accelerator,
    BatchTimes,
    Findings,
    Rate,
    Recommendation,
    StageTimes,
    Stalls,
    WhatIf,
)
from sutler.analysis.plots import (
    rate_plot,
    shown_batches,
    stage_plot,
    stall_bar,
    timeline_plot,
    utilisation_meter,
)
from sutler.analysis.svg import Element, Node, Verbatim
from sutler.analysis.what_if_plots import what_if_plot
from sutler.analysis.what_ifs import named, resource_name
from sutler.analysis.wording import (
    AXIS_NAMES,
    CAUSE_NAMES,
    NO_LIMIT,
    about,
    busy,
    duration,
    number,
    percent,
    proof,
    rate,
    size,
    spread,
)

#: Nothing may be loaded, run or sent from the page, even if something slipped through.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_page(findings: Findings) -> str:
    """The page as text."""
    sections = [
        _verdict(findings),
        *([_warnings(findings.warnings)] if findings.warnings else []),
        _stalls(findings.stalls),
        *([_accelerator(findings.accelerator)] if findings.accelerator else []),
        *([_rates(list(findings.rates.values()))] if findings.rates else []),
        *([_what_ifs(findings)] if any(findings.what_if.values()) else []),
        *([_stages(findings.stages)] if findings.stages else []),
        *([_timeline(findings.timeline)] if findings.timeline else []),
        _subject(findings),
    ]
    title = f"Where the time goes: {findings.subject.dataset}"
    style = resources.files("sutler.analysis").joinpath("page.css").read_text(encoding="utf-8")
    head = Element(
        "head",
        Element("meta", charset="utf-8"),
        Element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        Element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        Element("meta", name="generator", content="sutler analyze"),
        Element("title", title),
        Element("style", Verbatim(style)),
    )
    body = Element(
        "body",
        Element("a", "To the report", href="#report", class_="skip"),
        hatchings(),
        Element("header", Element("h1", title), _contents(sections)),
        Element("main", *sections, id="report"),
        Element("footer", _footer(findings)),
    )
    return f"<!doctype html>\n{Element('html', head, body, lang='en')}\n"


def _section(name: str, title: str, *children: Node, class_: str | None = None) -> Element:
    heading = Element("h2", title, id=f"{name}-title")
    return Element("section", heading, *children, id=name, aria_labelledby=f"{name}-title", class_=class_)


def _contents(sections: Sequence[Element]) -> Element:
    items = []
    for section in sections:
        heading = section.children[0]
        assert isinstance(heading, Element)
        items.append(Element("li", Element("a", *heading.children, href=f"#{section.attributes['id']}")))
    return Element("nav", Element("ul", *items), aria_label="Sections")


def _plot(caption: str, drawing: Element, table: Element, *, long: bool = False) -> Element:
    """A drawing with the same figures as a table below it."""
    # What may be wider than the window scrolls by itself, and whoever has only a keyboard must be able to go there.
    seen = Element("div", drawing, class_="scroll", tabindex=0, role="group", aria_label=f"Plot: {caption}")
    class_ = "scroll long" if long else "scroll"
    told = Element("div", table, class_=class_, tabindex=0, role="group", aria_label=f"Table: {caption}")
    details = Element(
        "details", Element("summary", "The same as a table"), told, class_="on-screen" if long else None
    )
    return Element("figure", Element("figcaption", caption), seen, details)


def _table(caption: str, columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[Node]]) -> Element:
    """A table; columns of figures are aligned to the right, and the first cell of a row names it."""
    class_ = ["figure" if figures else None for _, figures in columns]
    head = [
        Element("th", name, scope="col", class_=kind) for (name, _), kind in zip(columns, class_, strict=True)
    ]
    body = [
        Element(
            "tr",
            Element("th", row[0], scope="row", class_=class_[0]),
            *(Element("td", cell, class_=kind) for cell, kind in zip(row[1:], class_[1:], strict=True)),
        )
        for row in rows
    ]
    return Element(
        "table", Element("caption", caption), Element("thead", Element("tr", *head)), Element("tbody", *body)
    )


def _tile(name: str, value: str, more: str = "") -> Element:
    shown = Element("dd", value)
    if more:
        shown.add(" ", Element("small", more))
    return Element("div", Element("dt", name), shown)


def _verdict(findings: Findings) -> Element:
    measured, recommendation = findings.measured, findings.recommendation
    tiles = Element(
        "dl",
        _tile("The trainer gets", rate(measured.value), spread(measured)),
        _tile("It waits", percent(findings.stalls.waiting), "of its time"),
        _tile("What binds", resource_name(recommendation.binding, findings.facts)),
        class_="tiles",
    )
    if recommendation.gain > 1.005:
        tiles.add(
            _tile(
                "To be gained",
                f"× {recommendation.gain:.2f}",
                "tried" if recommendation.tried else "predicted",
            )
        )
    return _section("verdict", "Verdict", tiles, *_recommended(recommendation))


def _recommended(recommendation: Recommendation) -> list[Node]:
    nodes: list[Node] = [Element("p", recommendation.text)]
    if recommendation.code:
        code = Element("code", recommendation.code)
        nodes.append(Element("pre", code, tabindex=0, role="group", aria_label="Code to paste"))
    return nodes


def _warnings(warnings: Sequence[str]) -> Element:
    listed = Element("ul", *(Element("li", warning) for warning in warnings))
    return _section("warnings", "What to keep in mind", listed, class_="warnings")


def _legend(causes: Sequence[str]) -> Element:
    items = [Element("li", swatch(cause), f"{cause}: {CAUSE_NAMES[cause]}") for cause in causes]
    return Element("ul", *items, class_="key")


def _stalls(stalls: Stalls) -> Element:
    caption = "The trainer's time by what it went to"
    rows: list[list[Node]] = [
        [cause, CAUSE_NAMES[cause], percent(getattr(stalls, cause))] for cause in CAUSES
    ]
    columns = [("part", False), ("the trainer was", False), ("share of the time", True)]
    plot = _plot(caption, stall_bar(stalls), _table(caption, columns, rows))
    return _section("stalls", "Where the trainer's time goes", plot, _legend(CAUSES))


def _accelerator(accelerator: Accelerator) -> Element:
    words = f"{busy(accelerator)} "
    verdict: Node = ""
    if accelerator.passed is not None and accelerator.pass_line is not None:
        verdict = Element(
            "span",
            f"{'Passed' if accelerator.passed else 'Not passed'}: {percent(accelerator.pass_line)} are needed.",
            class_="good" if accelerator.passed else "bad",
        )
    source = [Element("p", f"Step time: {accelerator.source}", class_="soft")] if accelerator.source else []
    caption = "How busy the accelerator is"
    row: list[Node] = [
        accelerator.name,
        percent(accelerator.utilisation),
        "–" if accelerator.pass_line is None else percent(accelerator.pass_line),
    ]
    columns = [("accelerator", False), ("busy", True), ("pass line", True)]
    plot = _plot(caption, utilisation_meter(accelerator), _table(caption, columns, [row]))
    return _section("accelerator", "Accelerator", Element("p", words, verdict), plot, *source)


def _rates(rates: Sequence[Rate]) -> Element:
    caption = "What each part of the pipeline can do alone"
    rows: list[list[Node]] = []
    for each in rates:
        value = each.samples_per_s
        interval = "–" if value.value >= NO_LIMIT else f"{number(value.low)} to {number(value.high)}"
        read = "–" if each.bytes_read is None else size(each.bytes_read)
        rows.append(
            [
                each.name,
                RATE_MEANINGS.get(each.name, ""),
                rate(value.value).removesuffix("/s"),
                interval,
                number(each.passes),
                number(each.samples),
                read,
                proof(each.proven),
            ]
        )
    columns = [
        ("rate", False),
        ("what it is", False),
        ("samples/s", True),
        ("95 % interval", True),
        ("passes", True),
        ("samples", True),
        ("bytes read", True),
        ("proof", False),
    ]
    notes = [Element("li", f"{each.name}: {each.note}") for each in rates if each.note]
    listed = [Element("ul", *notes)] if notes else []
    plot = _plot(caption, rate_plot(rates), _table(caption, columns, rows))
    return _section("rates", "Rates", plot, *listed)


def _what_ifs(findings: Findings) -> Element:
    limit = findings.rates["G"].samples_per_s if "G" in findings.rates else None
    section = _section("what-if", "What if")
    section.add(
        Element(
            "p",
            "Predicted samples per second if one thing were different and all else as it is. The band is where the "
            "prediction is expected to lie, the diamond is what was measured, and squares are runs that were made to "
            "verify a prediction; what they were off by widens the band.",
            class_="soft",
        )
    )
    for axis, points in findings.what_if.items():
        if points:
            shown = named(points, findings.facts)
            by = "without one of the transforms" if axis == "without" else f"by {AXIS_NAMES[axis][1]}"
            caption = f"Samples per second {by}"
            drawing = what_if_plot(axis, shown, findings.measured, limit)
            section.add(
                Element("h3", AXIS_NAMES[axis][0]), _plot(caption, drawing, _what_if_table(axis, shown))
            )
    return section


def _what_if_table(axis: str, points: Sequence[WhatIf]) -> Element:
    rows: list[list[Node]] = []
    for point in points:
        value = point.predicted
        rows.append(
            [
                point.label + (" (now)" if point.now else ""),
                number(value.value),
                f"{number(value.low)} to {number(value.high)}",
                point.bound_by,
                "–" if point.verified is None else number(point.verified),
                "–" if point.miss is None else f"{100 * point.miss:+.1f} %",
            ]
        )
    columns = [
        (AXIS_NAMES[axis][1], False),
        ("predicted", True),
        ("expected range", True),
        ("bound by", False),
        ("run", True),
        ("off by", True),
    ]
    return _table("Predicted samples per second", columns, rows)


def _stages(stages: Sequence[StageTimes]) -> Element:
    caption = "Time per sample in each stage; bands hold 98, 80 and 40 of 100 samples"
    rows: list[list[Node]] = [
        [
            stage.name,
            number(stage.count),
            *(duration(each) for each in (stage.mean, stage.p50, stage.p95, stage.p99)),
        ]
        for stage in stages
    ]
    names = ("samples", "mean", "p50", "p95", "p99")
    columns = [("stage", False), *((name, True) for name in names)]
    return _section("stages", "Stages", _plot(caption, stage_plot(stages), _table(caption, columns, rows)))


def _timeline(timeline: Sequence[BatchTimes]) -> Element:
    shown = shown_batches(timeline)
    caption = "Each batch: how long it was waited for, on top of how long it was trained on"
    if len(shown) < len(timeline):
        caption += f"; the last {len(shown)} of {number(len(timeline))}"
    rows: list[list[Node]] = [
        [
            str(each.batch),
            duration(each.asked),
            duration(each.received - each.asked),
            each.cause or "–",
            duration(each.trained - each.received),
            "–" if each.ready is None else str(each.ready),
        ]
        for each in shown
    ]
    columns = [
        ("batch", False),
        ("asked for at", True),
        ("waited", True),
        ("for", False),
        ("step", True),
        ("ready", True),
    ]
    plot = _plot(caption, timeline_plot(timeline), _table(caption, columns, rows), long=True)
    causes = [cause for cause in CAUSES if cause == "trainer" or any(each.cause == cause for each in shown)]
    return _section("timeline", "Batch by batch", plot, _legend(causes))


def _subject(findings: Findings) -> Element:
    rows: list[list[Node]] = [[name, value] for name, value in about(findings.subject)]
    table = _table("Dataset, loader and machine", [("property", False), ("value", False)], rows)
    held = Element(
        "div", table, class_="scroll", tabindex=0, role="group", aria_label="Table: what was analysed"
    )
    return _section("subject", "What was analysed", held)


def _footer(findings: Findings) -> str:
    return f"Made by sutler analyze in {duration(findings.seconds)}; report format {findings.schema_version}."
