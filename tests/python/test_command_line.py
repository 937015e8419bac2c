"""The `sutler` command, as a user runs it: exit codes, JSON, and words on standard error."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sutler
from sutler.testing import make_photos, make_tones


def command(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "sutler", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,  # for those that start PyTorch, on a machine with much else to do
        check=False,
    )
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def facts(*arguments: object, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(command(*arguments, "--json", code=code).stdout)
    return found


@pytest.mark.parametrize("started", ["module", "script", "program of a user"])
def test_ctrl_c_ends_the_command_also_while_it_is_starting(started: str, tmp_path: Path) -> None:
    # Something that is imported on the way, and takes its time.
    (tmp_path / "numpy.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    (tmp_path / "sutler").write_text("import sys\nfrom sutler.__main__ import main\nsys.exit(main())\n")
    (tmp_path / "train.py").write_text("import sutler\n")
    arguments = {
        "module": ["-m", "sutler", "--version"],
        "script": [str(tmp_path / "sutler"), "--version"],
        "program of a user": [str(tmp_path / "train.py")],
    }[started]
    package = str(Path(sutler.__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), package])},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "importing\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT  # which shells tell as 130
    assert ("KeyboardInterrupt" in said) == (started == "program of a user")
    assert said == "" or started == "program of a user"


def test_help_and_version_are_answers() -> None:
    top = command("--help").stdout
    for name in ("demo", "bench", "analyze", "inspect", "plan"):
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
        ("plan", "."),
        ("plan", ".", "--memory", "much"),
        ("plan", ".", "--memory", "1GiB", "--jobs", "0"),
        ("plan", ".", "--memory", "1GiB", "--step-time", "30"),
        ("plan", ".", "--memory", "1GiB", "--time", "-1s"),
        ("plan", ".", "--memory", "1GiB", "--storage-mbps", "0"),
        ("plan", ".", "--memory", "1GiB", "--epochs", "3"),
        ("demo", "--memory", "much"),
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
    found = facts("inspect", own_photos, code=1)
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
    done = command("inspect", own_photos, code=1)
    assert "3 files are broken" in done.stdout
    assert "photo_000009.jpg" in done.stdout
    assert done.stderr.startswith("error: 3 of 12 files are broken. ")


def test_inspect_is_content_with_good_files(photos: Path) -> None:
    assert facts("inspect", photos)["broken"] == []
    assert "No file is broken." in command("inspect", photos).stdout


def test_inspect_explains_a_folder_without_samples(tmp_path: Path) -> None:
    (tmp_path / "class_0").mkdir()
    (tmp_path / "class_0" / "one.xyz").write_bytes(b"?")
    assert "1 file, ending in .xyz" in command("inspect", tmp_path, code=1).stderr


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


@pytest.mark.parametrize("name", ["bench", "plan"])
def test_a_folder_of_sound_is_told_what_reads_it(tmp_path: Path, name: str) -> None:
    make_tones(tmp_path, count=4, classes=2)
    more = ("--memory", "1MiB") if name == "plan" else ()
    done = command(name, tmp_path, *more, code=1)
    assert (
        "holds sound (4 files), and this command is about images; `sutler inspect` knows sound" in done.stderr
    )
    assert "extensions=" not in done.stderr


def test_one_is_not_a_plural(tmp_path: Path) -> None:
    make_photos(tmp_path, 1, 1)
    assert command("inspect", tmp_path).stdout.startswith("1 sample in 1 class, ")
    told = command("bench", tmp_path, "--size", 16, "--epochs", 1, "--threads", 1, "-b", 1).stdout
    assert told.startswith("1 sample, 1 thread, batches of 1, 1 epoch each, interleaved")


DEMO = ("--images", 60, "--size", 32, "-b", 8, "--epochs", 3)


def test_demo_feeds_two_jobs_from_one_engine() -> None:
    found = facts("demo", "--no-peers", *DEMO, "--memory", "1MiB")
    assert (found["samples"], found["served"], found["failed"], found["epochs"]) == (60, 2 * 3 * 60, 0, 3)
    assert found["per_s"] == pytest.approx(found["served"] / found["wall_seconds"])
    assert sum(found["stalls"].values()) == pytest.approx(found["seconds"], rel=0.01)
    assert found["peer"] is None
    assert [job["samples"] for job in found["jobs"]] == [180, 180]
    for job in found["jobs"]:
        assert sum(job["served"].values()) == job["samples"]
        assert sum(job["stalls"].values()) == pytest.approx(job["seconds"], rel=0.01)
    for form, count in found["served_from"].items():
        assert count == sum(job["served"][form] for job in found["jobs"])
    # Were each job on its own, nothing that the other has prepared would come.
    assert found["served_from"]["augmented"] > 0
    assert found["storage_reads"] < 360
    assert 0 < found["cache"]["encoded"]["entries"] < 60
    assert 0 < found["cache"]["used_bytes"] <= found["cache"]["budget_bytes"] == 1 << 20
    assert found["window_bytes"] == 4 * 8 * 32 * 32 * 3 * 4


def test_demo_tells_people_the_same() -> None:
    told = command("demo", "--no-peers", *DEMO).stdout
    assert "two jobs at once, each 3 epochs" in told
    for line in ("samples per second", "waiting for storage", "… that the other job had prepared"):
        assert sum(each.lstrip().startswith(line) for each in told.splitlines()) == 1, told
    assert re.search(r"In the cache: \d+ of 60 samples, [\d.]+ .iB of 16.0 MiB", told)
    assert "360 served and 0 failed in 2 × 3 epochs of 60 samples" in told
    assert "PyTorch" not in told


def test_demo_puts_pytorch_beside_it(photos: Path) -> None:
    pytest.importorskip("torchvision")
    found = facts("demo", photos, "--size", 16, "-b", 8, "--epochs", 1, "--threads", 2)
    assert found["peer"]["samples"] == found["served"] == 2 * found["samples"]
    assert (found["peer"]["jobs"], found["peer"]["workers"]) == (2, 1)
    assert found["peer"]["per_s"] > 0


def test_demo_says_why_there_is_nothing_to_compare_with(photos: Path, tmp_path: Path) -> None:
    rows = [f"{path},0" for path in sorted(photos.rglob("*.jpg"))[:8]]
    manifest = tmp_path / "list.csv"
    manifest.write_text("\n".join(["path,label", *rows]))
    told = command("demo", manifest, "--size", 16, "-b", 4, "--epochs", 1).stdout
    pytest.importorskip("torchvision")
    assert "There is nothing to compare with: torchvision has no dataset for a manifest." in told


def test_demo_refuses_what_it_cannot_feed(tmp_path: Path) -> None:
    done = command("demo", tmp_path / "nowhere", "--no-peers", code=1)
    assert "nowhere" in done.stderr
    done = command("demo", "--no-peers", "--images", 4, "--memory", "1KiB", code=1)
    assert (
        "has no room for samples: in a dataset of 4 samples it takes 8.0 KiB to keep even one" in done.stderr
    )


def test_plan_says_what_was_measured_and_what_follows(photos: Path) -> None:
    found = facts("plan", photos, "--memory", "1MiB", "--time", "200ms", "--size", "64")
    assert {"profile", "splits", "best", "published"} <= set(found)
    assert all(found["profile"][name] > 0 for name in ("encoded_bytes", "storage_bytes_per_s", "read_s"))
    assert len(found["splits"]) == 5151
    assert found["best"]["split"] in {each["split"] for each in found["splits"]}
    assert found["published"]["best"]["predicted"] > 0
    told = command("plan", photos, "--memory", "1MiB", "--time", "200ms", "--size", "64").stdout
    assert "storage delivers" in told
    splits = re.findall(r"^ +(\d+-\d+-\d+)( \(best\))? ", told, re.MULTILINE)
    assert [best for _, best in splits].count(" (best)") == 1
    assert len({split for split, _ in splits}) == len(splits) >= 6, "each split once, the best one too"
    assert "broken" not in told


def test_plan_can_be_asked_about_slower_storage(photos: Path) -> None:
    found = facts("plan", photos, "--memory", "1MiB", "--time", "500ms", "--storage-mbps", "1")
    assert found["profile"]["storage_bytes_per_s"] == pytest.approx(1e6, rel=0.15)


def test_plan_passes_broken_files_over_and_refuses_an_empty_folder(tmp_path: Path) -> None:
    make_photos(tmp_path / "some", 6, 2)
    (tmp_path / "some" / "class_0" / "broken.jpg").write_bytes(b"no picture")
    arguments = ("plan", tmp_path / "some", "--memory", "1MiB", "--time", "100ms")
    found = facts(*arguments)
    assert found["profile"]["samples"] == 7
    assert [Path(each["path"]).name for each in found["broken"]] == ["broken.jpg"]
    told = command(*arguments).stdout
    assert "1 of the 7 samples that were tried could not be prepared and were left out" in told
    assert "broken.jpg" in told
    with pytest.warns(UserWarning, match="broken.jpg"):
        sutler.plan(sutler.ImageFolder(tmp_path / "some"), memory="1MiB", time=0.1)
    (tmp_path / "none" / "class").mkdir(parents=True)
    assert "class" in command("plan", tmp_path / "none", "--memory", "1MiB", code=1).stderr
    (tmp_path / "bad" / "class").mkdir(parents=True)
    (tmp_path / "bad" / "class" / "broken.jpg").write_bytes(b"no picture")
    assert "nothing to measure" in command("plan", tmp_path / "bad", "--memory", "1MiB", code=1).stderr
