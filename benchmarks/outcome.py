"""What a benchmark hands over, and the dated folders that keep it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine

RUNS = Path(__file__).parent / "runs"


@dataclass
class Outcome:
    """A benchmark's result."""

    #: The tables, as printed.
    summary: str
    #: Every single figure, by round.
    raw: dict[str, Any]
    #: The folder whose storage was measured.
    folder: Path


class NameTakenError(ValueError):
    """A run of that name was saved today."""


def folder_for(name: str) -> Path:
    """Where a run of today is saved under this name; checked before the measurement, not after it."""
    folder = RUNS / f"{datetime.now(UTC):%Y-%m-%d}-{name}"
    if folder.exists():
        raise NameTakenError(
            f"a run named `{folder.name}` is already kept in benchmarks/runs; pass another name, or delete that folder"
        )
    return folder


def document(outcome: Outcome, command: str) -> dict[str, Any]:
    """Everything there is to know about a run, for JSON."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "command": command,
        "machine": machine.facts(outcome.folder),
        "versions": machine.versions(),
        **outcome.raw,
    }


def save(folder: Path, outcome: Outcome, facts: dict[str, Any]) -> None:
    """Writes README.md, raw.json and summary.txt."""
    folder.mkdir(parents=True)
    # For programs, and some runs have tens of thousands of figures: no indentation.
    (folder / "raw.json").write_text(json.dumps(facts, separators=(",", ":")) + "\n")
    (folder / "summary.txt").write_text(outcome.summary + "\n")
    lines = [
        f"# {folder.name}",
        "",
        "```console",
        f"$ {facts['command']}",
        "```",
        "",
        f"Measured {facts['date']}.",
        "",
    ]
    for title in ("machine", "versions"):
        lines += [
            f"| {title} | |",
            "|---|---|",
            *(f"| {key} | {value} |" for key, value in facts[title].items()),
            "",
        ]
    lines += ["`summary.txt` is what was printed; `raw.json` holds every round."]
    (folder / "README.md").write_text("\n".join(lines) + "\n")
