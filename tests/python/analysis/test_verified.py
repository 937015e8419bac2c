"""Predictions that were tried say how well the others are known."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sutler
from sutler import transforms as T  # noqa: N812 - as users write it
from sutler.analysis import analyzing, what_ifs
from sutler.analysis.benches import Batches, Config
from sutler.analysis.model import Findings, Recommendation, WhatIf
from sutler.analysis.page import render_page
from sutler.analysis.sutler_bench import SutlerBench
from sutler.analysis.wording import number

from tests.python.analysis.conftest import BRIEF
from tests.python.analysis.examples import findings


def known(value: float) -> dict[str, float]:
    return {"value": value, "low": 0.98 * value, "high": 1.02 * value}


def facts() -> dict[str, Any]:
    """A loader of eight workers that waits for storage."""
    return {
        "samples": 10_000,
        "sample_bytes": 1e5,
        "kept_bytes": 1e5,
        "cache_bytes": 0.0,
        "workers": 8,
        "cores": 8,
        "ahead": None,
        "ingest": known(400.0),
        "prepare": known(200.0),
        "prepare_alone": known(25.0),
        "work_s": None,
        "recall": known(1e5),
        "storage": known(100.0),
        "read_s": None,
        "hand_over": None,
        "measured": known(100.0),
        "stalls": {"fetch": 0.5, "prep": 0.25, "transport": 0.0, "trainer": 0.25},
        "memory_bytes": 1e10,
    }


def half_cached_gave(part: float) -> tuple[dict[str, Any], what_ifs.Questions, what_ifs.Questions]:
    """Facts, and questions before and after a run with half of the dataset cached gave so much of the prediction."""
    found, before = facts(), what_ifs.table(facts())
    middle = before["cache"][4]
    tried = replace(middle, verified=part * middle.predicted.value)
    questions = before | {"cache": (*before["cache"][:4], tried, *before["cache"][5:])}
    found["missed"] = {"cache": what_ifs.missed_by(questions["cache"])}
    return found, before, what_ifs.doubted(found, questions, 0.0, {})


def test_what_a_run_was_off_by_is_the_least_error_of_its_axis() -> None:
    _, before, after = half_cached_gave(0.8)
    tried = after["cache"][4]
    assert tried.verified is not None
    assert tried.predicted == before["cache"][4].predicted
    for old, new in zip(before["cache"], after["cache"], strict=True):
        assert new.predicted.value == old.predicted.value
        if new.verified is None and not new.now:
            assert new.predicted.error >= 0.25 - 1e-6 > old.predicted.error
    # What is as it is now was measured, and other axes were not tried.
    assert after["cache"][0] == before["cache"][0]
    assert {axis: after[axis] for axis in after if axis != "cache"} == {
        axis: before[axis] for axis in before if axis != "cache"
    }


def test_a_prediction_that_was_met_changes_nothing() -> None:
    _, before, after = half_cached_gave(0.999)
    assert [point.predicted for point in after["cache"]] == [point.predicted for point in before["cache"]]


def test_other_questions_and_reports_say_so_as_well() -> None:
    found, _, after = half_cached_gave(0.8)
    shown: Findings = replace(findings(), facts=found, what_if=after)
    report = sutler.Report(shown)
    assert report.what_if(cache="300MB").predicted.error >= 0.25 - 1e-6
    assert report.what_if(cores=4).predicted.error < 0.25
    assert "± 25.0 %" in str(report)
    assert sutler.Report(Findings.from_json(report.to_json())).findings == shown
    other: WhatIf = after["cache"][2]
    assert f"{number(other.predicted.low)} to {number(other.predicted.high)}" in render_page(shown)


def test_what_is_recommended_is_among_the_questions() -> None:
    questions = what_ifs.table(facts(), amounts={"workers": 11, "cache_bytes": 3.3e8})
    assert 11 in [point.value for point in questions["cores"]]
    assert 3.3e8 in [point.value for point in questions["cache"]]
    beyond = what_ifs.table(facts(), amounts={"cores": 100, "cache_bytes": 9e9})
    assert 100 in [point.value for point in beyond["cores"]]
    assert max(point.value for point in beyond["cache"]) == 1e9, "no more than the dataset takes"


def recommending(monkeypatch: pytest.MonkeyPatch, code: str, binding: str, amounts: dict[str, float]) -> None:
    """Whatever is measured, this is what is recommended."""
    advice = Recommendation("Do it.", binding, "what is recommended", code, 2.0, amounts)
    monkeypatch.setattr(analyzing, "_recommendation", lambda *_: advice)


def opened(monkeypatch: pytest.MonkeyPatch, bench: Any) -> list[tuple[Config, Any]]:
    """What is built of the loaders on this bench from now on."""
    configs: list[tuple[Config, Any]] = []
    build = bench.open

    def open_probe(self: Any, batches: Batches, config: Config) -> Any:
        probe = build(self, batches, config)
        configs.append((config, probe.loader))
        return probe

    monkeypatch.setattr(bench, "open", open_probe)
    return configs


def photo_loader(photos: Path) -> sutler.Loader[Any]:
    dataset = sutler.ImageFolder(photos, transform=T.RandomResizedCrop(32))
    return sutler.Loader(dataset, batch_size=4, num_workers=1)


class Brief:
    """Samples that are there at once."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        time.sleep(0.001)
        return index


def test_two_changes_that_are_recommended_together_are_run_together(
    forty_photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recommending(monkeypatch, 'num_workers=2, cache="1MiB"', "storage", {"workers": 2, "cache_bytes": 2**20})
    configs = opened(monkeypatch, SutlerBench)
    with photo_loader(forty_photos) as loader:
        found = sutler.analyze(loader, 0.001, time=BRIEF, storage_mbps=10.0, verify=True)
    assert [config for config, _ in configs if config.workers == 2 and config.cache_bytes]
    assert found.recommendation.tried
    assert "Tried here it gave" in found.recommendation.text
    assert found.recommendation.gain != 2.0


def test_more_cache_than_the_dataset_takes_is_run_as_well(
    forty_photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recommending(monkeypatch, 'cache="1GiB"', "storage", {"cache_bytes": 2**30})
    with photo_loader(forty_photos) as loader:
        found = sutler.analyze(loader, 0.001, time=BRIEF, storage_mbps=10.0, verify=True)
    everything = found.findings.what_if["cache"][-1]
    assert everything.verified is not None
    assert found.recommendation.tried
    assert found.recommendation.gain == pytest.approx(everything.verified / found.findings.measured.value)


@pytest.mark.parametrize("whose", ["native", "python", "torch"])
def test_another_order_that_is_recommended_is_run(
    whose: str, forty_photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pytest.importorskip("torch.utils.data")
    from sutler.analysis.torch_bench import TorchBench

    code = "in_order=False" if whose == "torch" else 'order="ready"'
    recommending(monkeypatch, code, "order", {})
    configs = opened(monkeypatch, TorchBench if whose == "torch" else SutlerBench)
    dataset: Any = Brief()
    loader: Any
    if whose == "torch":
        loader = data.DataLoader(dataset, 4, num_workers=2)
    elif whose == "python":
        loader = sutler.Loader(dataset, 4, num_workers=2)
    else:
        loader = photo_loader(forty_photos)
    found = sutler.analyze(loader, 0.001, time=BRIEF, verify=True)
    if not hasattr(loader, "in_order"):
        assert any("has no in_order" in warning for warning in found.warnings)
        return
    assert [config.out_of_order for config, built in configs if not built.in_order] == [True]
    assert found.recommendation.tried
    assert found.recommendation.gain != 2.0


@pytest.mark.parametrize(
    ("amounts", "why"),
    [
        ({"cores": 4096}, "it needs 4,096 cores, and this machine has"),
        ({"storage_bytes_per_s": 1e12}, "nobody can make storage faster from here"),
    ],
    ids=str,
)
def test_what_cannot_be_run_is_said_not_to_have_been(
    forty_photos: Path, monkeypatch: pytest.MonkeyPatch, amounts: dict[str, float], why: str
) -> None:
    recommending(monkeypatch, "", "processors", amounts)
    with photo_loader(forty_photos) as loader:
        found = sutler.analyze(loader, 0.001, time=BRIEF, verify=True)
    assert not found.recommendation.tried
    assert any(f"What is recommended was not tried: {why}" in warning for warning in found.warnings)
