"""The `sutler` command, as a user runs it: exit codes, JSON, and words on standard error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sutler


def command(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "sutler", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def facts(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(command(*arguments, "--json").stdout)
    return found


def test_help_and_version_are_answers() -> None:
    top = command("--help").stdout
    for name in ("demo", "bench", "inspect"):
        assert name in top
        assert "--json" in command(name, "--help").stdout
    assert sutler.__version__ in command("--version").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("no-such-command",),
        ("inspect",),
        ("inspect", ".", "--no-such-flag"),
        ("bench", ".", "--threads", "many"),
        ("bench", ".", "--pipeline", "other"),
    ],
    ids=str,
)
def test_wrong_arguments_exit_with_2_and_say_why(arguments: tuple[str, ...]) -> None:
    done = command(*arguments, code=2)
    assert "--help" in done.stderr
    assert done.stdout == ""


def test_a_job_that_fails_exits_with_1_and_says_why(tmp_path: Path) -> None:
    for name in ("inspect", "bench"):
        done = command(name, tmp_path / "nowhere", code=1)
        assert done.stderr.startswith("error: ")
        assert "nowhere" in done.stderr
        assert done.stdout == ""


def test_inspect_finds_what_is_broken(own_photos: Path) -> None:
    (own_photos / "class_0" / "photo_000001.jpg").write_bytes(b"")
    (own_photos / "class_1" / "photo_000005.jpg").write_text("words")
    whole = (own_photos / "class_2" / "photo_000009.jpg").read_bytes()
    (own_photos / "class_2" / "photo_000009.jpg").write_bytes(whole[: len(whole) // 2])
    found = facts("inspect", own_photos)
    dataset = sutler.ImageFolder(own_photos)
    assert found["samples"] == 12
    assert found["bytes"] == sum(Path(path).stat().st_size for path, _ in dataset.samples)
    assert found["fingerprint"] == dataset.fingerprint
    assert found["formats"]["jpeg"] >= 9
    assert [(Path(broken["path"]).name, broken["kind"]) for broken in found["broken"]] == [
        ("photo_000001.jpg", "empty"),
        ("photo_000005.jpg", "unrecognised"),
        ("photo_000009.jpg", "truncated"),
    ]
    assert all(broken["reason"] for broken in found["broken"])
    text = command("inspect", own_photos).stdout
    assert "3 files are broken" in text
    assert "photo_000009.jpg" in text


def test_inspect_is_content_with_good_files(photos: Path) -> None:
    assert facts("inspect", photos)["broken"] == []
    assert "No file is broken." in command("inspect", photos).stdout


@pytest.mark.parametrize("pipeline", ["train", "eval"])
def test_bench_measures_and_compares(photos: Path, pipeline: str) -> None:
    arguments = ("--pipeline", pipeline, "--size", 32, "-b", 8, "--threads", 2, "--epochs", 3)
    found = facts("bench", photos, *arguments)
    assert {"loader_per_s", "bare_per_s", "efficiency", "stages"} <= set(found)
    assert found["loader_per_s"] > 0
    assert found["bare_per_s"] > 0
    assert 0.05 < found["efficiency"] < 20
    assert {"fetch", "decode", "augment"} <= set(found["stages"])
    assert all(stage["count"] == 3 * 41 for stage in found["stages"].values())
    assert "loader / bare loop" in command("bench", photos, *arguments).stdout


def test_bench_leaves_broken_files_out_and_fails_without_good_ones(own_photos: Path) -> None:
    paths = [Path(path) for path, _ in sutler.ImageFolder(own_photos).samples]
    paths[3].write_bytes(b"broken")
    assert facts("bench", own_photos, "--size", 16, "--epochs", 1)["broken"] == 1
    for path in paths:
        path.write_bytes(b"broken")
    done = command("bench", own_photos, "--size", 16, "--epochs", 1, code=1)
    assert "none of the 12 samples can be decoded" in done.stderr


def test_demo_runs_without_peers() -> None:
    found = facts("demo", "--no-peers", "--images", 30, "--size", 32, "-b", 8, "--epochs", 2)
    assert (found["samples"], found["served"], found["failed"]) == (30, 60, 0)
    assert found["per_s"] > 0
    assert sum(found["stalls"].values()) == pytest.approx(found["seconds"], rel=0.01)
    assert found["peer"] is None
