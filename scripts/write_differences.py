"""Writes the table of docs/guides/differences-from-dataloader.md from the list that the tests look differences up in.

`make differences` runs it, and a test compares the two, so that the page cannot say what no test has seen.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "guides" / "differences-from-dataloader.md"

#: The lines of the page that the table stands between.
BEGIN = "<!-- The table is written by `make differences`. -->"
END = "<!-- The table ends here. -->"


def table(differences: Mapping[str, tuple[str, str, str]]) -> str:
    """The differences as rows: what PyTorch does, what Sutler does, and why."""
    rows = ["| PyTorch | Sutler | Why |", "|---|---|---|"]
    for texts in differences.values():
        rows.append("| " + " | ".join(text.replace("|", r"\|") for text in texts) + " |")
    return "\n".join(rows)


def with_table(page: str, differences: Mapping[str, tuple[str, str, str]]) -> str:
    """The page with the table in its place."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(
            f"{PAGE.relative_to(REPOSITORY)} should have the line {BEGIN!r} and after it the line {END!r}, each once; "
            "put them back where the table belongs"
        )
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    return f"{before}{BEGIN}\n\n{table(differences)}\n\n{END}{after}"


def main() -> None:
    """Writes the page anew."""
    sys.path.insert(0, str(REPOSITORY))
    from tests.python.conformance.differences import DIFFERENCES

    PAGE.write_text(with_table(PAGE.read_text(), DIFFERENCES))


if __name__ == "__main__":
    main()
