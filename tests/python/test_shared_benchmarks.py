"""The benchmarks of jobs that share an agent run on few pictures and hand over what their tables show."""

from __future__ import annotations

import argparse
import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sutler.testing import make_photos, make_tones

from benchmarks import convergence, kept, reads
from benchmarks.__main__ import main
from benchmarks.worker import Direct

torch = pytest.importorskip("torch")


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a benchmark and returns what it printed and its JSON."""

    def run(*words: str) -> tuple[str, dict[str, Any]]:
        written = tmp_path / "figures.json"
        assert main([*words, "--json", str(written)]) == 0
        return capsys.readouterr().out, json.loads(written.read_text())

    return run


def test_reads_counts_each_case(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "CASES", [reads.Case("two", (1, 1))])
    printed, figures = bench(
        "reads", "--samples", "200", "--batch-size", "2", "--epochs", "1", "--rounds", "2"
    )
    assert [case["least"] for case in figures["cases"]] == [0.5, 0.5]
    for case in figures["cases"]:
        assert case["per_sample"] == case["reads"] / case["served"]
        assert min(case["epochs"]) >= 1
    assert "target: reads per sample ≤ 1.05 × the least in every case" in printed


def test_kept_tells_what_a_hit_saves(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_photos(tmp_path / "photos", 12, 2, longer_side=300)
    options = ("--data", str(tmp_path / "photos"), "--size", "32", "--batch-size", "4", "--rounds", "2")
    printed, figures = bench("kept", *options)
    assert figures["samples"] == 24
    for seconds in figures["cpu_seconds"].values():
        assert {form: len(each) for form, each in seconds.items()} == dict.fromkeys(kept.TARGETS, 2)
        assert all(each > 0 for rounds in seconds.values() for each in rounds)
    assert "target: train, decoded copies ≥ 3 × storage" in printed
    # A way whose samples come in another form is no measurement of it.
    assert main(["kept", *options, "--memory-mib", "1"]) == 1
    assert "came in the form 'decoded'" in capsys.readouterr().err


def test_agent_takes_turns_with_embedded(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Both in this process: one for each would import torch again, which takes longer than the rest.
    monkeypatch.setattr("benchmarks.agent.Worker", Direct)
    photos = tmp_path / "photos"
    make_photos(photos, 6, 2)
    options = ("--samples", "24", "--small-samples", "0", "--batch-sizes", "64", "4", "--rounds", "2")
    printed, figures = bench("agent", "--data", str(photos), *options, "--threads", "1")
    assert [turns["batch_size"] for turns in figures["turns"]] == [64, 4]
    for turns in figures["turns"]:
        for side in ("embedded", "through_agent"):
            assert [epoch["samples"] for epoch in turns[side]] == [24, 24]
            assert len(turns[f"{side}_cpu"]) == 2
    assert "target: large photos, batches of 64: ≥ 0.95 × embedded" in printed


def test_convergence_trains_in_every_order(bench: Any) -> None:
    options = ("--samples", "300", "--epochs", "1", "--seeds", "2", "--batch-size", "10")
    printed, figures = bench("convergence", "--orders", "shared,ready", *options)
    runs = figures["trainings"]
    assert [run["order"] for run in runs] == ["strict", "shared", "ready"] * 2
    assert all(len(run["accuracy"]) == 1 and 0 <= run["accuracy"][0] <= 1 for run in runs)
    assert all((run["shared"] > 0) == (run["order"] == "shared") for run in runs)
    # The same seed begins with the same weights and ends elsewhere, since it was served in another order.
    strict, shared, _ = runs[:3]
    assert strict["seed"] == shared["seed"]
    assert strict["loss"] != shared["loss"]
    assert "ready order against strict: 2 seeds are too few to tell" in printed


def test_convergence_says_what_differs_and_what_does_not() -> None:
    arguments = argparse.Namespace(
        orders=("strict", "shared", "sorted"), samples=10, epochs=1, batch_size=1, seeds=8
    )
    trainings = [
        convergence.Training(order, seed, [accuracy + seed / 100], 1.0)
        for order, accuracy in [("strict", 0.7), ("shared", 0.7), ("sorted", 0.1)]
        for seed in range(8)
    ]
    said = "\n".join(convergence._summary(arguments, "some", trainings))
    assert "of shared from strict, corrected for two statistics: p 1.000, reached" in said
    assert "control: sorted order against strict: told apart, as it should be" in said
    # Far less than seeds differ by among themselves, but the same for each.
    worse = [
        convergence.Training(each.order, each.seed, [each.final - 0.002 * (each.order == "shared")], 1.0)
        for each in trainings
    ]
    said = "\n".join(convergence._summary(arguments, "some", worse))
    slower = [
        convergence.Training(
            each.order, each.seed, [each.final - 0.1 * (each.order == "shared"), each.final], 1.0
        )
        for each in trainings
    ]
    assert "p 0.016, missed" in "\n".join(convergence._summary(arguments, "some", slower)), (
        "it ends alike, but later"
    )
    assert "of shared from strict, corrected for two statistics: p 0.016, missed" in said


def test_signs_tell_what_differs_from_what_does_not() -> None:
    # Of the 32 ways to sign five differences, two are as far from zero as these.
    assert convergence.paired_p([1, 2, 3, 4, 5]) == pytest.approx(2 / 32)
    assert convergence.paired_p([0.0, 0.0, 0.0]) == 1
    rng = random.Random(3)
    # Without a difference, p is spread evenly between 0 and 1.
    drawn = [convergence.paired_p([rng.gauss(0, 1) for _ in range(8)]) for _ in range(400)]
    assert 0.45 < sum(drawn) / len(drawn) < 0.60
    assert sum(p < 0.1 for p in drawn) < 0.16 * len(drawn)
    # Where there are too many ways, a part of them is drawn.
    assert 0 < convergence.paired_p([rng.gauss(3, 1) for _ in range(20)]) < 0.001


def test_convergence_on_speech_tells_how_far_samples_moved(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process for each training would import torch again, which takes longer than the rest.
    monkeypatch.setattr(convergence, "ProcessPoolExecutor", lambda count, _: ThreadPoolExecutor(count))
    make_tones(tmp_path / "speech", count=40, classes=10)
    options = ("--epochs", "1", "--seeds", "1", "--batch-size", "4", "--orders", "strict,ready")
    printed, figures = bench("convergence", "--speech", str(tmp_path / "speech"), *options)
    assert [run["order"] for run in figures["trainings"]] == ["strict", "ready"]
    assert "32 spoken digits, 7 of them slow" in printed
    [moved] = figures["moved"]
    assert 0 <= moved["share"] <= 1
    assert moved["latest"] <= 8, "a sample is later than it may be"
    assert "of the samples came in another batch than in strict order" in printed
    assert main(["convergence", "--speech", str(tmp_path), "--orders", "shared"]) == 1


def test_moves_are_counted_in_batches() -> None:
    strict = [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]]
    assert convergence.moves(strict, strict, 2) == convergence.Moves(0.0, 0.0, 0)
    # Sample 1 comes two batches later than it should, 2 and 4 one earlier; the second epoch is as it should be.
    served = [[0, 2, 3, 4, 5, 1], strict[1]]
    assert convergence.moves(served, strict, 2) == convergence.Moves(3 / 12, 4 / 3, 2)
