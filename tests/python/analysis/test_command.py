"""`sutler analyze`, the command: what it prints, what it writes, and what it says of wrong arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sutler.testing import make_photos

#: Enough to see that it works, and far too little for figures.
BRIEF = 0.3


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    make_photos(root, 40, 2)
    return root


def command(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "sutler", "analyze", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def test_the_command_prints_json_and_writes_files(photos: Path, tmp_path: Path) -> None:
    page, trace = tmp_path / "report.html", tmp_path / "trace.json"
    flags = (
        "-b",
        4,
        "--step-time",
        "5ms",
        "--threads",
        2,
        "--size",
        32,
        "--time",
        f"{BRIEF}s",
        "--storage-mbps",
        2,
    )
    done = command(photos, *flags, "--cache", "64KiB", "--html", page, "--trace", trace, "--verify", "--json")
    facts = json.loads(done.stdout)
    assert {"rates", "stalls", "what_if", "recommendation"} <= set(facts)
    assert facts["subject"]["workers"] == 2
    assert facts["subject"]["storage_mbps"] == 2.0
    assert sum(facts["stalls"].values()) == pytest.approx(1.0)
    verified = [
        point for points in facts["what_if"].values() for point in points if point["verified"] is not None
    ]
    assert {point["axis"] for point in verified} >= {"cache", "storage_mbps"}
    assert any("Further machines and jobs that share were not tried" in note for note in facts["warnings"])
    assert page.stat().st_size > 1000
    assert trace.stat().st_size > 100


def test_the_command_prints_a_table_and_knows_accelerators(photos: Path) -> None:
    done = command(photos, "--accelerator", "cosmoflow-a100", "--size", 32, "--time", f"{BRIEF}s")
    assert "Recommendation" in done.stdout
    assert "cosmoflow-a100" in done.stdout


def test_the_command_says_what_is_wrong(photos: Path, tmp_path: Path) -> None:
    assert "nowhere" in command(tmp_path / "nowhere", code=1).stderr
    assert "abacus" in command(photos, "--accelerator", "abacus", code=1).stderr
    assert "there is no folder" in command(photos, "--html", tmp_path / "none" / "a.html", code=1).stderr
    assert "is a folder" in command(photos, "--trace", tmp_path, code=1).stderr
    for wrong in (
        ("--step-time", "30"),
        ("--step-time", "1s", "--accelerator", "x"),
        ("--cache", "much"),
        (),
    ):
        path = (photos,) if wrong else ()
        assert "--help" in command(*path, *wrong, code=2).stderr


def test_a_folder_of_broken_files_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "class_0").mkdir()
    for number in range(6):
        (tmp_path / "class_0" / f"{number}.jpg").write_bytes(b"\xff\xd8 and then nothing")
    assert "none could be prepared" in command(tmp_path, "--time", f"{BRIEF}s", code=1).stderr
