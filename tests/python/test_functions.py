"""Functions behind native transforms in the trainer's process: timed, and warned of where they hold it up.

With `cache=` native threads prepare, and the trainer runs the functions. `test_functions_in_workers.py` has the rest.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sutler
import sutler.testing
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
    arguments: dict[str, Any] = {"batch_size": 4, "order": order, "cache": "16MiB"}
    with (
        sutler.Loader(dataset, num_workers=2, **arguments) as loader,
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        for _ in range(2):
            assert len(list(loader)) == 3
        assert sum(len(list(sutler.Loader(dataset, num_workers=1, **arguments))) for _ in range(2)) == 6
        stats = loader.stats()
    (message,) = [warning for warning in told if issubclass(warning.category, PythonTransformWarning)]
    name = "slow_tokenizer" if make is lines else "slow_pair" if make is detection else "slow"
    assert str(message.message).startswith(
        f"{name} runs in the trainer's process, one sample after the other"
    )
    assert "whatever num_workers is" in str(message.message)
    assert "cache= keeps what native threads prepare" in str(message.message)
    assert str(message.message).endswith("Leave cache= out to have worker processes run it.")
    assert message.filename == __file__
    step = stats["steps"][-1]
    assert (step["name"], step["count"]) == (name, 2 * SAMPLES)
    assert all(step[key] >= SLOW for key in ("mean", "p50", "p95", "p99"))
    # The trainer waits for it all.
    assert stats["stalls"]["prep"] >= 2 * SAMPLES * SLOW


def slow_label(label: int) -> int:
    time.sleep(SLOW)
    return label


def slow_collate(samples: list[Any]) -> list[Any]:
    time.sleep(3 * SLOW)
    return samples


@pytest.mark.parametrize("which", [slow_label, slow_collate])
def test_what_native_threads_leave_to_the_trainer_is_warned_of(which: Any, tmp_path: Path) -> None:
    sutler.testing.make_photos(tmp_path, SAMPLES, 2, longer_side=48)
    is_label = which is slow_label
    dataset = sutler.ImageFolder(tmp_path, T.Resize([16, 16]), slow_label if is_label else None)
    collate_fn = None if is_label else slow_collate
    with (
        sutler.Loader(dataset, batch_size=4, num_workers=2, collate_fn=collate_fn) as loader,
        pytest.warns(
            PythonTransformWarning, match=f"{which.__name__} runs in .* one batch after the other"
        ) as told,
    ):
        assert len(list(loader)) == 3
    assert "whose __getitem__ returns a sample of this one" in str(told[0].message)
    assert told[0].filename == __file__


def test_two_functions_of_one_name_are_both_warned_of(tmp_path: Path) -> None:
    sutler.testing.make_photos(tmp_path, SAMPLES, 2, longer_side=48)
    once = lambda image: slow(image)  # noqa: E731
    twice = lambda image: slow(slow(image))  # noqa: E731
    for function in (once, twice):
        dataset = sutler.ImageFolder(tmp_path, T.Compose([T.Resize([16, 16]), T.Lambda(function)]))
        with (
            sutler.Loader(dataset, batch_size=4, num_workers=1, cache="16MiB") as loader,
            pytest.warns(PythonTransformWarning, match="<lambda> runs in the trainer's process"),
        ):
            assert len(list(loader)) == 3


def test_what_the_trainer_hardly_notices_is_not_warned_of(tmp_path: Path) -> None:
    sutler.testing.make_photos(tmp_path, SAMPLES, 2, longer_side=48)
    dataset = sutler.ImageFolder(tmp_path, T.Compose([T.Resize([16, 16]), T.Lambda(lambda image: image)]))
    with (
        sutler.Loader(dataset, batch_size=4, num_workers=2, cache="16MiB") as loader,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        for _ in loader:
            time.sleep(_functions.SECONDS_NOTICED / 2)
    assert loader.stats()["steps"][-1]["name"] == "<lambda>"


def test_whoever_asks_for_no_workers_is_not_told_that_there_are_none(tmp_path: Path) -> None:
    dataset = photos(tmp_path)
    with sutler.Loader(dataset, batch_size=4, num_workers=0) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader)) == 3


def unchanged(image: Any) -> Any:
    return image


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_that_is_there_twice_is_two_steps(workers: int, tmp_path: Path) -> None:
    sutler.testing.make_photos(tmp_path, SAMPLES, 2, longer_side=48)
    steps = [T.Resize([16, 16]), T.Lambda(unchanged), T.Lambda(unchanged)]
    dataset = sutler.ImageFolder(tmp_path, T.Compose(steps))
    with sutler.Loader(dataset, batch_size=4, num_workers=workers) as loader:
        assert len(list(loader)) == 3
        told = loader.stats()["steps"]
    assert [(step["name"], step["count"]) for step in told[-2:]] == [("unchanged", SAMPLES)] * 2
