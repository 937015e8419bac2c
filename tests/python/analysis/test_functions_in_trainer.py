"""Functions of the user's that run in the trainer's process, beside native threads, are measured as such."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import sutler
from sutler import transforms as T  # noqa: N812 - as users write it

from tests.python.analysis.conftest import BRIEF

#: Long enough that neither the clock nor a busy machine matters much.
SECONDS = 0.002
BATCH = 4


def slow_image(image: Any) -> Any:
    time.sleep(SECONDS)
    return image


def slow_label(label: int) -> int:
    time.sleep(SECONDS)
    return label


def slow_batch(samples: list[Any]) -> int:
    time.sleep(SECONDS * len(samples))
    return len(samples)


def told_of(report: sutler.Report) -> list[str]:
    return [warning for warning in report.findings.warnings if "in the trainer's process" in warning]


@pytest.mark.filterwarnings("ignore::sutler.PythonTransformWarning")
@pytest.mark.parametrize("function", [slow_image, slow_label, slow_batch])
def test_what_a_function_takes_in_the_trainers_process_is_a_fact(function: Any, forty_photos: Path) -> None:
    steps: list[Any] = [T.Resize((16, 16))] + [T.Lambda(function)] * (function is slow_image)
    on_labels = function if function is slow_label else None
    dataset = sutler.ImageFolder(forty_photos, T.Compose(steps), target_transform=on_labels)
    collate = function if function is slow_batch else None
    # Worker threads leave functions to the trainer.
    with sutler.Loader(
        dataset, BATCH, num_workers=2, collate_fn=collate, multiprocessing_context="thread"
    ) as loader:
        report = sutler.analyze(loader, 0.001, time=BRIEF)
    assert SECONDS <= report.findings.facts["in_trainer_s"] < 2 * SECONDS
    (told,) = told_of(report)
    assert told.startswith(f"{function.__name__} runs in the trainer's process")
    assert "Neither more workers nor more cores" in told


def test_where_all_is_native_or_in_workers_nothing_runs_in_the_trainers_process(forty_photos: Path) -> None:
    native = sutler.ImageFolder(forty_photos, T.Resize((16, 16)))
    with sutler.Loader(native, BATCH, num_workers=2) as loader:
        report = sutler.analyze(loader, 0.001, time=BRIEF)
    assert "in_trainer_s" not in report.findings.facts
    assert not told_of(report)
    with sutler.Loader(list(range(40)), BATCH, num_workers=2, collate_fn=slow_batch) as loader:
        report = sutler.analyze(loader, 0.001, time=BRIEF)
    assert "in_trainer_s" not in report.findings.facts
    assert not told_of(report)


def test_a_function_that_worker_processes_run_is_preparation_that_more_of_them_do_sooner(
    forty_photos: Path,
) -> None:
    dataset = sutler.ImageFolder(forty_photos, T.Compose([T.Resize((16, 16)), T.Lambda(slow_image)]))
    with sutler.Loader(dataset, BATCH, num_workers=1) as loader:
        report = sutler.analyze(loader, 0.001, time=BRIEF)
    assert "in_trainer_s" not in report.findings.facts
    assert not told_of(report)
    assert report.findings.subject.kind == "python"
    assert report.findings.stalls.prep > 0.5
    with pytest.raises(ValueError, match="functions that are written in Python, cannot be slowed down"):
        sutler.analyze(loader, 0.001, storage_mbps=1)


@pytest.mark.filterwarnings("ignore::sutler.PythonTransformWarning")
def test_one_that_a_cache_leaves_to_the_trainer_is_analysed_there(forty_photos: Path) -> None:
    dataset = sutler.ImageFolder(forty_photos, T.Compose([T.Resize((16, 16)), T.Lambda(slow_image)]))
    with sutler.Loader(dataset, BATCH, num_workers=2, cache="1MiB") as loader:
        report = sutler.analyze(loader, 0.001, time=BRIEF)
    assert report.findings.facts["in_trainer_s"] >= SECONDS
    assert report.findings.subject.kind == "native"
