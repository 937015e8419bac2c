"""A report in a terminal: no wider than that, and nothing in it that a terminal would obey."""

from __future__ import annotations

import dataclasses
import io

import pytest
from sutler.analysis.terminal import render_text, show

from tests.python.analysis.examples import findings, hostile


@pytest.mark.parametrize("width", [50, 60, 80, 100, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = render_text(findings(), width=width)
    code = findings().recommendation.code
    longest = max(len(line) for line in text.splitlines() if code not in line)
    assert longest <= width
    for word in ("fetch", "46.2 %", "1,004/s", "Storage binds", "p99", "24 GiB", code):
        assert word in text


def test_workers_that_mostly_wait_are_not_called_processors() -> None:
    found = findings()
    assert "%  processors\n" in render_text(found)
    waiting = {**found.facts, "work_s": 1e-6, "prepare": {"value": 100.0}, "prepare_alone": None}
    text = render_text(dataclasses.replace(found, facts=waiting))
    assert "%  processors\n" not in text
    assert "%  workers\n" in text


def test_colours_are_for_terminals() -> None:
    assert "\x1b[31m" in render_text(findings(), colour=True)
    assert "\x1b" not in render_text(findings())


def test_nothing_that_a_terminal_obeys() -> None:
    text = render_text(hostile())
    assert all(each.isprintable() or each == "\n" for each in text)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_where_it_goes_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def shown(file: io.StringIO) -> str:
        show(findings(), file)
        return file.getvalue()

    assert "\x1b[" in shown(Terminal())
    assert shown(io.StringIO()) == render_text(findings()), "memory takes every character"
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in shown(Terminal())


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_will_do(encoding: str) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    show(findings(), file)
    file.flush()
    assert "fetch" in raw.getvalue().decode(encoding)


def test_a_report_is_printed_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    show(findings())
    assert "Where the trainer's time goes" in capsys.readouterr().out
