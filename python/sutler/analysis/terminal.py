"""A report as text for a terminal: as wide as that is, in colours where it shows them, and plain elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

from sutler.analysis.model import CAUSES, RATE_MEANINGS, Findings, WhatIf
from sutler.analysis.what_ifs import named
from sutler.analysis.wording import (
    AXIS_NAMES,
    CAUSE_NAMES,
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

#: The width where nobody says how wide the terminal is.
WIDTH = 80

#: A narrower text than this could not hold a table.
NARROWEST = 50

#: The colours of the causes, as terminals number them.
_COLOURS = {"fetch": "31", "prep": "34", "transport": "35", "trainer": "32"}


def show(findings: Findings, file: TextIO | None = None) -> None:
    """Prints a report as it suits where it goes: in colours only on a terminal, unless ``NO_COLOR`` is set."""
    file = file or sys.stdout
    terminal = file.isatty()
    width = shutil.get_terminal_size((WIDTH, 24)).columns if terminal else WIDTH
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    text = render_text(findings, width=width, colour=colour)
    encoding = file.encoding or "utf-8"  # memory takes every character
    file.write(text.encode(encoding, "replace").decode(encoding))


def render_text(findings: Findings, *, width: int = WIDTH, colour: bool = False) -> str:
    """The report as text of at most so many columns."""
    width = max(width, NARROWEST)
    parts = [
        _heading("What was analysed"),
        _pairs(about(findings.subject), width),
        _heading("Where the trainer's time goes"),
        _bars(findings, width, colour),
        _heading("Rates"),
        _rates(findings, width),
    ]
    if findings.accelerator is not None:
        parts += [_heading("Accelerator"), _accelerator(findings, width)]
    if findings.stages:
        parts += [_heading("Stages, time per sample"), _stages(findings, width)]
    for axis, points in findings.what_if.items():
        if points:
            table = _what_if(axis, named(points, findings.facts), width)
            parts += [_heading(f"What if: {AXIS_NAMES[axis][0].lower()}"), table]
    if findings.warnings:
        parts.append(_heading("What to keep in mind"))
        parts += [_paragraph(f"- {warning}", width, hanging=2) for warning in findings.warnings]
    parts += [_heading("Recommendation"), _paragraph(findings.recommendation.text, width)]
    if findings.recommendation.code:
        parts.append(
            "\n" + "".join(f"    {_clean(line)}\n" for line in findings.recommendation.code.splitlines())
        )
    return "".join(parts).lstrip("\n")


def _heading(text: str) -> str:
    return f"\n{text}\n{'-' * len(text)}\n"


def _clean(text: str) -> str:
    """Text without what a terminal would obey: file names may hold anything."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _paragraph(text: str, width: int, hanging: int = 0) -> str:
    lines = textwrap.wrap(_clean(text), width, subsequent_indent=" " * hanging)
    return "".join(f"{line}\n" for line in lines)


def _pairs(pairs: Sequence[tuple[str, str]], width: int) -> str:
    longest = max(len(name) for name, _ in pairs)
    lines = []
    for name, value in pairs:
        wrapped = textwrap.wrap(_clean(value), max(10, width - longest - 2)) or [""]
        lines.append(f"{name:<{longest}}  {wrapped[0]}\n")
        lines += [f"{'':<{longest}}  {line}\n" for line in wrapped[1:]]
    return "".join(lines)


def _bars(findings: Findings, width: int, colour: bool) -> str:
    lines = []
    room = max(8, width - 21)
    for cause in CAUSES:
        share = getattr(findings.stalls, cause)
        full = round(share * room)
        bar = "█" * full
        painted = f"\x1b[{_COLOURS[cause]}m{bar}\x1b[0m" if colour and bar else bar
        lines.append(f"{cause:<9}  {percent(share):>7}  {painted}".rstrip() + "\n")
    measured = findings.measured
    waiting = percent(findings.stalls.waiting)
    told = f"The trainer gets {rate(measured.value)} ({spread(measured)}) and waits {waiting} of its time."
    most = max(CAUSES[:3], key=lambda cause: float(getattr(findings.stalls, cause)))
    if getattr(findings.stalls, most) > 0.01:
        told += f" Most of that is {CAUSE_NAMES[most]}."
    return "".join(lines) + _paragraph(told, width)


def _rates(findings: Findings, width: int) -> str:
    rows = []
    for name, each in findings.rates.items():
        read = "–" if each.bytes_read is None else size(each.bytes_read)
        value = each.samples_per_s
        rows.append(
            [name, rate(value.value), spread(value), read, proof(each.proven), RATE_MEANINGS.get(name, "")]
        )
    table = _table(["", "samples", "", "read", "proof", "what it is"], rows, width, right={1, 2, 3})
    notes = [
        _paragraph(f"{each.name}: {each.note}", width, hanging=3)
        for each in findings.rates.values()
        if each.note
    ]
    return table + "".join(notes)


def _accelerator(findings: Findings, width: int) -> str:
    accelerator = findings.accelerator
    if accelerator is None:
        return ""
    told = busy(accelerator)
    if accelerator.pass_line is not None:
        verdict = "That passes" if accelerator.passed else "That does not pass"
        told += f" {verdict}: {percent(accelerator.pass_line)} are needed."
    return _paragraph(told, width)


def _stages(findings: Findings, width: int) -> str:
    rows = [
        [
            stage.name,
            number(stage.count),
            *(duration(each) for each in (stage.mean, stage.p50, stage.p95, stage.p99)),
        ]
        for stage in findings.stages
    ]
    return _table(["", "samples", "mean", "p50", "p95", "p99"], rows, width, right={1, 2, 3, 4, 5})


def _what_if(axis: str, points: Sequence[WhatIf], width: int) -> str:
    verified = any(point.verified is not None for point in points)
    rows = []
    for point in points:
        row = [
            # In front, where a narrow terminal cuts nothing off.
            ("now: " if point.now else "") + point.label,
            rate(point.predicted.value),
            spread(point.predicted),
            point.bound_by,
        ]
        if verified:
            row += [
                "" if point.verified is None else rate(point.verified),
                "" if point.miss is None else f"{100 * point.miss:+.1f} %",
            ]
        rows.append(row)
    names = [AXIS_NAMES[axis][1], "predicted", "", "bound by"] + (["run", "off by"] if verified else [])
    return _table(names, rows, width, right={1, 2, 4, 5})


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], width: int, right: set[int]) -> str:
    """A table whose last or first column of words is cut where the terminal is too narrow for it."""
    cells = [[_clean(cell) for cell in row] for row in (names, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(names))]
    while sum(widths) + 2 * (len(widths) - 1) > width:
        # The widest column gives way, one character at a time; figures are never wide enough for it to be theirs.
        widest = max(range(len(widths)), key=lambda column: widths[column])
        if widths[widest] <= 6:
            break
        widths[widest] -= 1
    lines = []
    for row in cells:
        shown = []
        for column, cell in enumerate(row):
            room = widths[column]
            cell = cell if len(cell) <= room else f"{cell[: room - 1]}…"
            shown.append(f"{cell:>{room}}" if column in right else f"{cell:<{room}}")
        lines.append("  ".join(shown).rstrip() + "\n")
    return "".join(lines)
