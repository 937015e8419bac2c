"""The benchmark of slow items runs on a few quick ones; how fast anybody is, is not looked at here."""

from __future__ import annotations

import json
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks import slow_items
from benchmarks.__main__ import main
from benchmarks.slow_items import Settings, percentile

pytest.importorskip("torch")


def settings(work: str = "sleep", workers: int = 4) -> Settings:
    return Settings(work, 100, 10, workers, fast_ms=20, slow_ms=400, slow_share=0.05, step_ms=0)


def seat_in_this_process(take: Any, *given: Any) -> Executor:
    """A process for each would import torch again, which takes longer than the rest."""
    return ThreadPoolExecutor(1, initializer=take, initargs=given)


@pytest.mark.parametrize("work", ["sleep", "burn"])
def test_everybody_gets_every_item_in_turns(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slow_items, "seat", seat_in_this_process)
    monkeypatch.setattr(slow_items, "_loaders", {})
    written = tmp_path / "figures.json"
    words = ["slow-items", "--work", work, "--samples", "20", "--batch-size", "4", "--workers", "1"]
    words += ["--fast-ms", "0.1", "--slow-ms", "2", "--rounds", "2", "--json", str(written)]
    assert main([*words, "--contenders", "torch", "torch-unordered"]) == 0
    figures = json.loads(written.read_text())
    assert set(figures["contenders"]) == {"torch", "torch-unordered"}
    for measured in figures["contenders"].values():
        assert [len(epoch["waits"]) for epoch in measured["epochs"]] == [4, 4]
    assert "epoch / bound" in capsys.readouterr().out


def test_the_bound_is_the_work_shared_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(settings().slow) == 5
    assert settings().slow == settings().slow
    assert settings(workers=4).bound_seconds == pytest.approx((95 * 0.02 + 5 * 0.4) / 4)
    assert settings(workers=100).bound_seconds == pytest.approx(0.4)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    assert settings("burn", workers=4).bound_seconds == pytest.approx((95 * 0.02 + 5 * 0.4) / 2)


def test_percentiles() -> None:
    assert percentile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([], 0.99) == 0.0
