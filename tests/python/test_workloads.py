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

pytest.importorskip("torch")
pytest.importorskip("torchvision")


@pytest.fixture
def speech(tmp_path: Path) -> Path:
    for number in range(3):
        with wave.open(str(tmp_path / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(np.zeros(3000 + number, np.int16).tobytes())
    return tmp_path


def test_everybody_gets_every_sample_in_turns(
    speech: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A process for each would import torch again, which takes longer than the rest.
    monkeypatch.setattr(
        workloads, "seat", lambda take, *given: ThreadPoolExecutor(1, initializer=take, initargs=given)
    )
    monkeypatch.setattr(workloads, "_loader", {})
    monkeypatch.setattr(workload_data, "LARGE", (640, 480))
    written = speech / "figures.json"
    words = ["workloads", "--speech", str(speech), "--samples", "12", "--batch-size", "4", "--workers", "1"]
    words += ["--heavy-ms", "2", "--rounds", "1", "--no-parity", "--json", str(written)]
    assert main([*words, "--contenders", "torch", "sutler-native-ready"]) == 0
    figures: dict[str, Any] = json.loads(written.read_text())
    kinds = {each["kind"]: set(each["contenders"]) for each in figures["workloads"]}
    assert kinds == {"speech": {"torch"}, "photos": {"torch", "sutler-native-ready"}}
    told = capsys.readouterr().out
    assert "accelerator busy" in told
    assert "target: Sutler, native" in told


def test_without_speech_it_says_what_to_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workloads"]) == 1
    assert "--speech" in capsys.readouterr().err


def test_the_mix_is_the_same_every_time() -> None:
    assert len(Mix(100, 0.2).slow) == 20
    assert Mix(100, 0.2).slow == Mix(100, 0.2).slow
    assert (len(Mix(50, 0.0).slow), len(Mix(50, 1.0).slow)) == (0, 50)
