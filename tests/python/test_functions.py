"""Functions behind native transforms: timed, and warned of where they hold the trainer up."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sutler
import sutler.testing
import torch
from sutler import PythonTransformWarning, _functions
from sutler import transforms as T  # noqa: N812

SAMPLES = 12
SLOW = 0.04


def slow(sample: Any) -> Any:
    time.sleep(SLOW)
    return sample


def slow_pair(image: Any, target: Any) -> Any:
    time.sleep(SLOW)
    return image, target


def slow_tokenizer(line: str) -> list[int]:
    time.sleep(SLOW)
    return [len(word) for word in line.split()]


def photos(folder: Path) -> Any:
    sutler.testing.make_photos(folder, SAMPLES, 2, longer_side=48)
    return sutler.ImageFolder(folder, T.Compose([T.Resize([16, 16]), T.Lambda(slow)]))


def sound(folder: Path) -> Any:
    sutler.testing.make_tones(folder, SAMPLES, 2)
    return sutler.AudioFolder(folder, T.Compose([T.PreEmphasis(), T.Lambda(slow)]))


def volumes(folder: Path) -> Any:
    sutler.testing.make_volumes(folder, SAMPLES, shape=(16, 16, 16))
    return sutler.VolumeFolder(folder, T.Compose([T.RandBalancedCrop(8), T.Lambda(slow)]))


def detection(folder: Path) -> Any:
    annotations = sutler.testing.make_detection(folder, SAMPLES)
    return sutler.CocoDetection(folder, annotations, T.Compose([T.Resize([16, 16]), T.Lambda(slow_pair)]))


def lines(folder: Path) -> Any:
    (folder / "lines.txt").write_text("some words in a line\n" * SAMPLES)
    return sutler.TextLines(folder / "lines.txt", slow_tokenizer, pad=0)


MAKERS = [photos, sound, volumes, detection, lines]


@pytest.fixture(autouse=True)
def nobody_was_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_functions, "_warned_of", set())


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("order", ["strict", "ready"])
def test_a_slow_function_is_warned_of_once_and_its_time_is_told(
    make: Callable[[Path], Any], order: Any, tmp_path: Path
) -> None:
    dataset = make(tmp_path)
    with (
        sutler.Loader(dataset, batch_size=4, num_workers=2, order=order) as loader,
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        for _ in range(2):
            assert len(list(loader)) == 3
        assert sum(len(list(sutler.Loader(dataset, batch_size=4, num_workers=1))) for _ in range(2)) == 6
        stats = loader.stats()
    (message,) = [warning for warning in told if issubclass(warning.category, PythonTransformWarning)]
    name = "slow_tokenizer" if make is lines else "slow_pair" if make is detection else "slow"
    assert str(message.message).startswith(
        f"{name} runs in the trainer's process, one sample after the other"
    )
    assert 'num_workers nor order="ready"' in str(message.message)
    assert "a dataset written in Python" in str(message.message)
    assert message.filename == __file__
    step = stats["steps"][-1]
    assert (step["name"], step["count"]) == (name, 2 * SAMPLES)
    assert all(step[key] >= SLOW for key in ("mean", "p50", "p95", "p99"))
    # The trainer waits for it all.
    assert stats["stalls"]["prep"] >= 2 * SAMPLES * SLOW


def test_what_the_trainer_hardly_notices_is_not_warned_of(tmp_path: Path) -> None:
    sutler.testing.make_photos(tmp_path, SAMPLES, 2, longer_side=48)
    dataset = sutler.ImageFolder(tmp_path, T.Compose([T.Resize([16, 16]), T.Lambda(lambda image: image)]))
    with sutler.Loader(dataset, batch_size=4, num_workers=2) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in loader:
            time.sleep(_functions.SECONDS_NOTICED / 2)
    assert loader.stats()["steps"][-1]["name"] == "<lambda>"


def test_whoever_asks_for_no_workers_is_not_told_that_there_are_none(tmp_path: Path) -> None:
    dataset = photos(tmp_path)
    with sutler.Loader(dataset, batch_size=4, num_workers=0) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader)) == 3


def noisy(image: Any) -> Any:
    return image + torch.rand(())


class InWorkers:
    """A native dataset as one written in Python, so that worker processes run its functions."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def test_worker_processes_make_the_same_batches(tmp_path: Path) -> None:
    sutler.testing.make_photos(tmp_path, SAMPLES, 2, longer_side=48)
    steps = [T.RandomResizedCrop(16), T.ToDtype(torch.float32, scale=True), T.Lambda(noisy)]
    dataset = sutler.ImageFolder(tmp_path, T.Compose(steps))
    arguments: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3, "num_workers": 2}
    with (
        sutler.Loader(dataset, **arguments) as here,
        sutler.Loader(InWorkers(dataset), **arguments) as there,
    ):
        for _ in range(2):
            for one, other in zip(here, there, strict=True):
                assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def unchanged(image: Any) -> Any:
    return image


def test_a_function_that_is_there_twice_is_two_steps(tmp_path: Path) -> None:
    sutler.testing.make_photos(tmp_path, SAMPLES, 2, longer_side=48)
    steps = [T.Resize([16, 16]), T.Lambda(unchanged), T.Lambda(unchanged)]
    with sutler.Loader(sutler.ImageFolder(tmp_path, T.Compose(steps)), batch_size=4) as loader:
        assert len(list(loader)) == 3
        told = loader.stats()["steps"]
    assert [(step["name"], step["count"]) for step in told[-2:]] == [("unchanged", SAMPLES)] * 2
