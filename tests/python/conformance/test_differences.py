"""The table of differences and the tests that consult it name the same things."""

from __future__ import annotations

import re
from pathlib import Path

from .differences import DIFFERENCES


def test_every_difference_is_written_down_and_every_one_written_down_is_tested() -> None:
    sources = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    consulted = {name for source in sources for name in re.findall(r'differs\("(\w+)"\)', source)}
    assert consulted == set(DIFFERENCES)


def test_differences_are_told_in_sentences() -> None:
    for name, difference in DIFFERENCES.items():
        assert all(text.endswith(".") for text in difference), name
