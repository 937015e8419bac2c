"""The page of a report, looked at with a real browser."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sutler.analysis.model import Findings
from sutler.analysis.page import render_page
from sutler.analysis.svg import Element, escape

from tests.python.analysis.browser import Browser
from tests.python.analysis.examples import HOSTILE, findings, hostile

#: Where pictures are left to be looked at by people, if anywhere.
PICTURES = os.environ.get("SUTLER_SCREENSHOTS")

#: What the page is painted on, and the colour of waiting for storage: in the light and in the dark.
GROUND = {False: (0xFB, 0xFA, 0xF7), True: (0x16, 0x19, 0x1C)}
FETCH = {False: (0xB0, 0x53, 0x2C), True: (0xE5, 0x93, 0x6D)}
TRAINER = {False: (0x3D, 0x7D, 0x4F), True: (0x7D, 0xC0, 0x8F)}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return Browser(tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def seen(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the browser finds in the page, in the light and with room."""
    return browser.audit(written(findings(), tmp_path_factory.mktemp("page")))


def written(found: Findings, folder: Path) -> Path:
    page = folder / "report.html"
    page.write_text(render_page(found), encoding="utf-8")
    return page


def keep(picture: Path, name: str) -> None:
    if PICTURES:
        os.makedirs(PICTURES, exist_ok=True)
        shutil.copy(picture, Path(PICTURES) / name)


def count(image: Any, colour: tuple[int, int, int]) -> int:
    counts: dict[tuple[int, int, int], int] = {each: n for n, each in image.getcolors(1 << 24)}
    return counts.get(colour, 0)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_looks_as_it_should(browser: Browser, tmp_path: Path, dark: bool) -> None:
    page, picture = written(findings(), tmp_path), tmp_path / "page.png"
    image = browser.picture(page, picture, dark=dark, height=4400)
    keep(picture, f"report-{'dark' if dark else 'light'}.png")
    assert image.getpixel((2, 2)) == GROUND[dark]
    # The stall bar alone has more of these than letters could; fetch is hatched, so less of it is plain.
    assert count(image, FETCH[dark]) > 4_000
    assert count(image, TRAINER[dark]) > 20_000


def test_it_can_be_read_by_anybody(seen: dict[str, Any]) -> None:
    check_readable(seen)


def test_it_can_be_read_in_the_dark_and_on_a_small_screen(browser: Browser, tmp_path: Path) -> None:
    audit = browser.audit(written(findings(), tmp_path), dark=True, width=500)
    assert audit["ground"] == f"rgb{GROUND[True]}"
    check_readable(audit)


def check_readable(audit: dict[str, Any]) -> None:
    assert audit["language"] == "en"
    assert audit["faint"] == [], "text stands out from what is behind it by 4.5 at least"
    assert [cause for cause, ratio in audit["marks"] if ratio < 3.0] == []
    assert audit["headings"][0] == 1
    assert audit["headings"].count(1) == 1
    assert all(
        after <= before + 1 for before, after in zip(audit["headings"], audit["headings"][1:], strict=False)
    )
    assert audit["unlabelled"] == 0
    assert audit["drawings"] == audit["figures"] == 9
    assert audit["without_table"] == audit["headless_tables"] == 0
    assert audit["repeated_ids"] == []
    assert audit["dangling"] == 0
    assert audit["unreachable"] == 0, "what scrolls can be reached with the keyboard"
    assert not audit["wider_than_window"]
    assert audit["cut"] == audit["overlapping"] == []


def test_it_needs_nothing_from_elsewhere(seen: dict[str, Any]) -> None:
    assert not re.search(r"https?://|//\w|@import|url\((?!#)", render_page(findings()))
    assert seen["outward"] == 0
    assert seen["loaded"] == []
    assert seen["scripts"] == seen["handlers"] == 0


def test_it_prints(browser: Browser, tmp_path: Path) -> None:
    printed = browser.paper(written(findings(batches=240), tmp_path), tmp_path / "report.pdf")
    pages = len(re.findall(rb"/Type\s*/Page\b", printed))
    assert 3 <= pages <= 9, "the tables of figures are printed, that of each batch is not"


def test_hostile_text_stays_text(browser: Browser, seen: dict[str, Any], tmp_path: Path) -> None:
    # The audited copy is without the policy that would forbid scripts: escaping has to do by itself.
    audit = browser.audit(written(hostile(), tmp_path))
    assert audit["title"].startswith("Where the time goes: </title></style></script>")
    assert audit["scripts"] == audit["handlers"] == audit["outward"] == 0
    assert audit["sections"] == seen["sections"]
    assert not audit["wider_than_window"]


def test_whatever_is_put_into_an_element_is_text() -> None:
    made = str(Element("p", HOSTILE, title=HOSTILE, aria_label="a & b"))
    assert made.count("<") == 2
    assert "\x00" not in made
    assert "\x1b" not in made
    assert "\u202e" not in made, "which would turn round what we say, too"
    assert 'aria-label="a &amp; b"' in made
    assert escape("a<b") == "a&lt;b"


def partial() -> Iterator[tuple[str, Findings]]:
    whole = findings(batches=1)
    yield "one batch", whole
    yield "no rates", dataclasses.replace(whole, rates={}, accelerator=None, warnings=())
    yield "nothing but stalls", dataclasses.replace(whole, rates={}, what_if={}, stages=(), timeline=())
    zero = dataclasses.replace(whole.stalls, fetch=0.0, prep=0.0, transport=0.0, trainer=1.0)
    yield "no wait", dataclasses.replace(whole, stalls=zero)
    one = {axis: points[:1] for axis, points in whole.what_if.items()}
    yield "one point on each axis", dataclasses.replace(whole, what_if=one)
    nothing = {"mean": 0.0, "p50": 0.0, "p95": 0.0, "p99": 0.0, "quantiles": ()}
    flat = tuple(dataclasses.replace(stage, **nothing) for stage in whole.stages)  # type: ignore[arg-type]
    yield "stages that take no time", dataclasses.replace(whole, stages=flat)
    unknown = tuple(dataclasses.replace(batch, cause=None, ready=None) for batch in whole.timeline)
    yield "waits of unknown cause", dataclasses.replace(whole, timeline=unknown)


@pytest.mark.parametrize("found", [pytest.param(found, id=name) for name, found in partial()])
def test_what_is_not_known_is_left_out(found: Findings) -> None:
    page = render_page(found)
    assert "nan" not in page
    assert "None" not in page
    assert Findings.from_json(found.to_json()).stalls == found.stalls
