"""`sutler analyze`, the command: what it prints, what it writes, and what it says of wrong arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python.analysis.conftest import BRIEF
from tests.python.conftest import DEADLINE


def command(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "sutler", "analyze", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def test_the_command_prints_json_and_writes_files(forty_photos: Path, tmp_path: Path) -> None:
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
    done = command(
        forty_photos, *flags, "--cache", "64KiB", "--html", page, "--trace", trace, "--verify", "--json"
    )
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
    # What was missed is what the others are known to at best, and the configuration as it is was run again.
    assert len(facts["measured_again"]) == 2
    assert any("the configuration as it is gave" in note for note in facts["warnings"])
    for point in facts["what_if"]["cache"]:
        if point["verified"] is None and not point["now"]:
            known = point["predicted"]
            assert known["high"] >= known["value"] * (1 + min(1, facts["facts"]["missed"]["cache"])) - 1e-6
    assert page.stat().st_size > 1000
    assert trace.stat().st_size > 100


def test_the_command_prints_a_table_and_knows_accelerators(forty_photos: Path) -> None:
    done = command(forty_photos, "--accelerator", "cosmoflow-a100", "--size", 32, "--time", BRIEF)
    assert "Recommendation" in done.stdout
    assert "cosmoflow-a100" in done.stdout


def test_the_command_tells_beforehand_that_it_takes_long(forty_photos: Path) -> None:
    flags = ("-b", 2, "--step-time", "150ms", "--size", 32, "--time", f"{BRIEF}s", "--batches", 10)
    words = [sys.executable, "-m", "sutler", "analyze", str(forty_photos), *map(str, flags)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        told = running.stderr.readline()
        # It is still measuring, as there is nothing on its other output yet and it has not ended.
        assert running.poll() is None
        report, rest = running.communicate(timeout=DEADLINE)
    assert told.startswith("The analysis is going to take about ")
    assert rest == ""
    assert running.returncode == 0
    assert "Recommendation" in report


def test_the_command_says_what_is_wrong(forty_photos: Path, tmp_path: Path) -> None:
    assert "nowhere" in command(tmp_path / "nowhere", code=1).stderr
    for options, match in (
        (
            ("--accelerator", "abacus"),
            "--accelerator: there are no published figures for the accelerator 'abacus'",
        ),
        (("--html", tmp_path / "none" / "a.html"), "--html: there is no folder"),
        (("--trace", tmp_path), "is a folder"),
        (("--html", tmp_path / "a", "--trace", tmp_path / "a"), "name the same file"),
    ):
        told = command(forty_photos, *options, code=2).stderr
        assert match in told
        assert "--help" in told
    for wrong in (
        ("--step-time", "30"),
        ("--step-time", "1s", "--accelerator", "x"),
        ("--batch-size", "8", "--accelerator", "cosmoflow-a100"),
        ("--cache", "much"),
        (),
    ):
        path = (forty_photos,) if wrong else ()
        assert "--help" in command(*path, *wrong, code=2).stderr
    for wrong_time, match in (
        ("30", "with its unit"),
        ("0ms", "longer than nothing"),
        ("-5ms", "longer than nothing"),
    ):
        assert match in command(forty_photos, "--step-time", wrong_time, code=2).stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device here that is always full")
@pytest.mark.parametrize("option", ["--html", "--trace"])
def test_a_file_that_cannot_be_written_is_named(option: str, forty_photos: Path) -> None:
    flags = ("-b", 4, "--size", 32, "--time", f"{BRIEF}s", "--step-time", "1ms")
    told = command(forty_photos, *flags, option, "/dev/full", code=1).stderr
    assert "No space left on device: '/dev/full'" in told


def test_a_folder_of_broken_files_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "class_0").mkdir()
    for number in range(6):
        (tmp_path / "class_0" / f"{number}.jpg").write_bytes(b"\xff\xd8 and then nothing")
    assert "none could be prepared" in command(tmp_path, "--time", f"{BRIEF}s", code=1).stderr
