"""The benchmarks of datasets written in Python run on a few samples; how anybody does is not looked at here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sutler.testing import make_photos

from benchmarks import process_tree, worker_memory
from benchmarks.__main__ import main

pytest.importorskip("torch")
pytest.importorskip("torchvision")


def run(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[str, dict[str, Any]]:
    written = folder / "figures.json"
    assert main([*words, "--json", str(written)]) == 0
    return capsys.readouterr().out, json.loads(written.read_text())


def test_both_loaders_deliver_every_sample_of_a_python_dataset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_photos(tmp_path / "photos", 6, 2)
    options = ("--workers", "1", "--rounds", "1", "--batch-size", "4", "--repeat", "1")
    printed, figures = run(capsys, tmp_path, "python-dataset", "--data", str(tmp_path / "photos"), *options)
    assert {name: len(rounds) for name, rounds in figures["contenders"].items()} == {"sutler": 1, "torch": 1}
    assert {each["samples"] for rounds in figures["contenders"].values() for each in rounds} == {6}
    assert all(each["first_batch"] > 0 for rounds in figures["contenders"].values() for each in rounds)
    assert str(tmp_path) not in json.dumps(figures["settings"])
    assert printed.count("target: ") == 3


def test_both_deliver_every_row_of_a_tensor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--workers", "1", "--rounds", "1", "--batch-size", "4", "--rows", "10")
    printed, figures = run(capsys, tmp_path, "python-dataset", *options)
    assert {each["samples"] for rounds in figures["contenders"].values() for each in rounds} == {10}
    assert "10 rows of a TensorDataset" in printed


def test_a_cache_of_a_python_dataset_misses_what_it_has_no_room_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_photos(tmp_path / "photos", 8, 2)
    options = ("--workers", "1", "--rounds", "1", "--batch-size", "4", "--repeat", "1", "--memory-mib", "64")
    printed, figures = run(capsys, tmp_path, "python-cache", "--data", str(tmp_path / "photos"), *options)
    hits = {name: rounds[0]["hits"] for name, rounds in figures["contenders"].items()}
    assert (hits["none"], hits["all"]) == (0, 8)
    assert 0 < hits["half"] == figures["kept"]["half"]["decoded"]["entries"] < 8
    assert "0.00% away at most, reached" in printed


def test_memory_is_measured_with_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker_memory, "seat", lambda: ThreadPoolExecutor(1))
    options = ("--entries", "40000", "--workers", "1", "--rounds", "1", "--epochs", "1")
    printed, figures = run(capsys, tmp_path, "worker-memory", *options)
    assert set(figures["growths"]) == {"objects", "few-objects", "arrays"}
    for growths in figures["growths"].values():
        for name in ("sutler", "torch"):
            (growth,) = growths[name]
            assert growth["before"]["proportional"] > 0
            assert growth["after"]["private"] > 0
    assert printed.count("target: ") == 3


def test_a_process_tree_is_the_process_and_all_below_it() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = process_tree.descendants(os.getpid())
        assert len(process_tree.descendants(child.pid)) == 2
        assert {os.getpid(), *process_tree.descendants(child.pid)} <= set(found)
        assert process_tree.memory(os.getpid()).proportional > process_tree.memory(child.pid).proportional > 0
        assert process_tree.cpu_seconds(os.getpid()) > 0
        child.communicate(b"\n")
