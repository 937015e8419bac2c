"""The list of differences, the tests that consult it and the page about it name the same things."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path

import pytest
from sutler import Loader
from torch.utils.data import DataLoader

from scripts.write_differences import BEGIN, END, PAGE, table, with_table

from .differences import DIFFERENCES


def test_every_difference_is_written_down_and_every_one_written_down_is_tested() -> None:
    sources = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    consulted = {name for source in sources for name in re.findall(r'differs\("(\w+)"\)', source)}
    assert consulted == set(DIFFERENCES)


def test_differences_are_told_in_sentences() -> None:
    for name, difference in DIFFERENCES.items():
        assert all(text.endswith(".") for text in difference), name


def test_the_page_about_differences_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == with_table(page, DIFFERENCES), "run `make differences`"


def test_the_page_about_differences_has_every_argument_of_our_own() -> None:
    own = set(signature(Loader).parameters) - set(signature(DataLoader).parameters)
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)=`", row)} == own


def test_a_table_takes_the_place_of_the_one_before_it() -> None:
    page = f"Above.\n\n{BEGIN}\n\nWhat was there.\n\n{END}\n\nBelow.\n"
    written = with_table(page, {"one": ("A | B.", "C.", "D.")})
    assert written == (
        f"Above.\n\n{BEGIN}\n\n| PyTorch | Sutler | Why |\n|---|---|---|\n| A \\| B. | C. | D. |\n\n{END}\n\nBelow.\n"
    )
    assert with_table(written, {}) == f"Above.\n\n{BEGIN}\n\n{table({})}\n\n{END}\n\nBelow.\n"


@pytest.mark.parametrize("page", ["", BEGIN, END + BEGIN, BEGIN + END + END])
def test_a_page_without_a_place_for_the_table_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="put them back"):
        with_table(page, DIFFERENCES)
