"""The benchmark of streams runs on short epochs; how fast anybody is, is not looked at here."""

from __future__ import annotations

import json
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks import streams
from benchmarks.__main__ import main


def seat_in_this_process(take: Any, *given: Any) -> Executor:
    """A process for each would import torch again, which takes longer than the rest."""
    return ThreadPoolExecutor(1, initializer=take, initargs=given)


def test_everybody_gets_every_batch_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(streams, "seat", seat_in_this_process)
    monkeypatch.setattr(streams, "_loaders", {})
    written = tmp_path / "figures.json"
    words = ["streams", "--workers", "1", "--rounds", "2", "--share", "0.01", "--json", str(written)]
    assert main([*words, "--cases", "bytes", "edge", "vectors", "dicts"]) == 0
    figures = json.loads(written.read_text())
    assert set(figures["seconds"]) == {"bytes", "edge", "vectors", "dicts"}
    for measured in figures["seconds"].values():
        assert {name: len(times) for name, times in measured.items()} == {"sutler": 2, "torch": 2}
    assert "torch / sutler" in capsys.readouterr().out
