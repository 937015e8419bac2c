"""The benchmark of workloads runs on a few small samples; how fast anybody is, is not looked at here."""

from __future__ import annotations

import json
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import workload_data, workloads
from benchmarks.__main__ import main
from benchmarks.workload_data import Mix
from benchmarks.workload_feeds import Turn
from benchmarks.workload_volumes import BalancedCrop, Scan, parts
from tests.python.volumes import references
from tests.python.volumes.references import write_nifti

pytest.importorskip("torch")
pytest.importorskip("torchvision")


@pytest.fixture
def speech(tmp_path: Path) -> Path:
    folder = tmp_path / "speech"
    folder.mkdir()
    for number in range(3):
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(np.zeros(3000 + number, np.int16).tobytes())
    return folder


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    for number in range(2):
        labels = np.zeros((12, 14, 16), np.uint8)
        labels[2 : 5 + number, 3:9, 4:9] = 1
        labels[4, 5, 6] = 2
        write_nifti(tmp_path / "volumes" / f"case_{number}_seg.nii.gz", labels, (1.6, 1.2, 1.2))
    return tmp_path / "volumes"


def test_everybody_gets_every_sample_in_turns(
    speech: Path, volumes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A process for each would import torch again, which takes longer than the rest.
    monkeypatch.setattr(workloads, "seat", lambda: ThreadPoolExecutor(1))
    monkeypatch.setattr(workload_data, "LARGE", (640, 480))
    written = speech / "figures.json"
    words = ["workloads", "--speech", str(speech), "--volumes", str(volumes), "--side", "8"]
    words += ["--samples", "12", "--batch-size", "4", "--workers", "1", "--mixes", "mixed"]
    words += ["--heavy-ms", "2", "--rounds", "1", "--json", str(written)]
    assert main([*words, "--contenders", "torch", "sutler-native-ready"]) == 0
    figures: dict[str, Any] = json.loads(written.read_text())
    kinds = {each["kind"]: set(each["contenders"]) for each in figures["workloads"]}
    both = {"torch", "sutler-native-ready"}
    assert kinds == {"volumes": both, "speech": both, "photos": both}
    assert all(each["step_seconds"] > 0 for each in figures["workloads"])
    told = capsys.readouterr().out
    assert 'target: Sutler, native, order="ready" ≥ 95% busy' in told
    assert "× torch: " in told


def test_none_slow_is_no_slower_than_three_percent_more(
    volumes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not that it holds, on a few samples: that this is what is looked at."""
    monkeypatch.setattr(workloads, "seat", lambda: ThreadPoolExecutor(1))
    words = [
        "workloads",
        "--workloads",
        "volumes",
        "--volumes",
        str(volumes),
        "--side",
        "8",
        "--samples",
        "4",
    ]
    words += ["--workers", "1", "--mixes", "none", "all", "--rounds", "1"]
    assert main([*words, "--contenders", "torch", "sutler"]) == 0
    told = capsys.readouterr().out
    assert told.count("target: Sutler ≤ 1.03 × torch: ") == 2
    assert "busy:" not in told


@pytest.mark.parametrize("kind", ["speech", "volumes"])
def test_without_files_it_says_what_to_pass(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["workloads", "--workloads", kind]) == 1
    assert f"--{kind}" in capsys.readouterr().err
    assert main(["workloads", "--workloads", kind, f"--{kind}", str(tmp_path), "--contenders", "torch"]) == 1
    assert "pass a folder that has some" in capsys.readouterr().err


@pytest.mark.parametrize("density", [0.02, 0.3, 0.5, 0.9])
def test_parts_of_a_label_are_those_that_flooding_finds(density: float) -> None:
    mask = np.random.default_rng(1).random((7, 9, 11)) < density
    assert sorted(parts(mask), key=str) == sorted(references.parts(mask, True), key=str)


def test_a_crop_in_numpy_lies_over_one_of_the_largest_parts() -> None:
    labels = np.zeros((12, 14, 16), np.uint8)
    labels[1, 1, 1] = labels[2:5, 3:6, 4:9] = labels[7:11, 8:13, 10:15] = 3
    rng = np.random.default_rng(0)
    image = np.arange(labels.size, dtype=np.float32).reshape(labels.shape)
    shown = [BalancedCrop(6, 1.0)(Scan(image, labels, rng)) for _ in range(40)]
    assert {int((scan.labels > 0).sum()) for scan in shown} <= {45, 46, 100}
    assert len({int((scan.labels > 0).sum()) // 50 for scan in shown}) == 2
    for scan in shown:
        start = np.unravel_index(int(scan.image[0, 0, 0]), labels.shape)
        cut = tuple(slice(first, first + 6) for first in start)
        np.testing.assert_array_equal(scan.labels, labels[cut])
        np.testing.assert_array_equal(scan.image, image[cut])


def test_busy_is_the_share_of_steps_and_later_leaves_the_beginning_out() -> None:
    turn = Turn(total=5.0, first_batch=1.0, waits=[1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert turn.busy(step=0.25) == 0.5
    assert turn.busy_later(step=0.25) == 1.0


def test_slow_clips_are_told_by_their_length(speech: Path, tmp_path: Path) -> None:
    mix = Mix(12, 0.25)
    workload_data.list_clips(speech, tmp_path / "listed", mix)
    clips = [workload_data.read_clip(path) for path in workload_data.find_clips(tmp_path / "listed")]
    assert {index for index, clip in enumerate(clips) if workload_data.is_slow(clip)} == mix.slow


def test_the_mix_is_the_same_every_time() -> None:
    assert len(Mix(100, 0.2).slow) == 20
    assert Mix(100, 0.2).slow == Mix(100, 0.2).slow
    assert (len(Mix(50, 0.0).slow), len(Mix(50, 1.0).slow)) == (0, 50)
