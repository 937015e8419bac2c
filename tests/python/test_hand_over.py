"""A slow sample makes room between its transforms, and nothing else changes."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
from sutler import Loader
from sutler import transforms as T  # noqa: N812 - as users write it
from sutler.testing import make_photos

torch = pytest.importorskip("torch")

SAMPLES = 96


def pause(seconds: float) -> None:
    time.sleep(seconds)


class Draws:
    """Draws from every generator there is, before and after each place where it may make room."""

    def __init__(self, slow: frozenset[int], *, steps: int = 4) -> None:
        self.slow = slow
        self.steps = steps

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        numbers = []
        rng = sutler.get_worker_info().rng
        for step in range(self.steps):
            pause(0.03 if index in self.slow else 0.001)
            numbers += [random.random(), float(np.random.rand()), float(torch.rand(()))]
            # The worker's own generators, each first asked for at another step.
            if step >= 1:
                numbers.append(rng.random_generator.random())
            if step >= 2:
                numbers.append(float(rng.numpy_generator.random()))
            sutler.yield_point()
        return index, np.array(numbers), threading.current_thread() is threading.main_thread()


SLOW = frozenset(range(24, SAMPLES, 4))


def samples_of(loader: Loader[Any]) -> dict[int, np.ndarray[Any, Any]]:
    return {
        int(index): row
        for indices, rows, _ in loader
        for index, row in zip(indices, rows.numpy(), strict=True)
    }


def strict() -> dict[int, np.ndarray[Any, Any]]:
    return samples_of(Loader(Draws(frozenset()), batch_size=4, num_workers=1))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sample_is_the_same_whether_it_made_room_or_not(workers: int) -> None:
    expected = strict()
    loader = Loader(
        Draws(SLOW),
        batch_size=4,
        num_workers=workers,
        order="ready",
        hand_over=True,
        persistent_workers=True,
        prefetch_factor=4,
    )
    elsewhere = 0
    with loader:
        for epoch in range(8):
            # Two will do, but where others keep the cores busy every sample is slow now and then.
            if epoch >= 2 and elsewhere > 0:
                break
            loader.set_epoch(0)  # the same random numbers again
            found: dict[int, Any] = {}
            for indices, rows, main in loader:
                elsewhere += int((~main).sum())
                found |= dict(zip(indices.tolist(), rows.numpy(), strict=True))
            assert sorted(found) == list(range(SAMPLES)), f"in epoch {epoch}"
            for index, row in found.items():
                np.testing.assert_array_equal(row, expected[index])
    assert elsewhere > 0, "nothing ever made room"


class Tails:
    """Has a native dataset make its samples, whose Python part draws random numbers and offers to make room."""

    def __init__(self, folder: Path) -> None:
        self.photos = sutler.ImageFolder(
            folder, T.Compose([T.Resize((8, 8)), T.ToDtype("float32"), T.Lambda(self.change)])
        )
        self.slow = False

    def change(self, image: Any) -> Any:
        for _ in range(3):
            pause(0.03 if self.slow else 0.001)
            sutler.yield_point()
        return image + torch.rand(())

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        self.slow = index in SLOW
        return index, self.photos[index % len(self.photos)][0]


def test_room_is_made_in_the_python_part_of_a_native_dataset(tmp_path: Path) -> None:
    make_photos(tmp_path, 4, 1)
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 1, "timeout": 60}
    with (
        Loader(Tails(tmp_path), **options) as strict,
        Loader(Tails(tmp_path), **options, order="ready", hand_over=True, prefetch_factor=4) as ready,
    ):
        expected, found = (
            {
                int(index): image
                for indices, images in loader
                for index, image in zip(indices, images, strict=True)
            }
            for loader in (strict, ready)
        )
    assert sorted(found) == list(range(SAMPLES))
    assert all(torch.equal(found[index], expected[index]) for index in found)


def test_unless_asked_everything_stays_in_one_thread() -> None:
    loader = Loader(Draws(SLOW), batch_size=4, num_workers=1, order="ready")
    assert all(bool(main.all()) for _, _, main in loader)


def test_strict_order_stays_in_one_thread() -> None:
    loader = Loader(Draws(SLOW), batch_size=4, num_workers=1)
    assert all(bool(main.all()) for _, _, main in loader)


class Piped:
    """Its transforms are a pipeline of somebody else's, which knows nothing of making room."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        value = self.pipeline(torch.tensor([index, 0.0], dtype=torch.float64))
        return value, threading.current_thread() is threading.main_thread()


def step(value: Any) -> Any:
    pause(0.02 if int(value[0]) in SLOW else 0.001)
    return value + torch.tensor([0.0, random.random()], dtype=torch.float64)


def pipelines() -> list[Any]:
    found = [sutler.transforms.Compose([step] * 5)]
    try:
        from torchvision import transforms
        from torchvision.transforms import v2
    except ModuleNotFoundError:
        return found
    return [*found, transforms.Compose([step] * 5), v2.Compose([step] * 5)]


@pytest.mark.parametrize("pipeline", pipelines(), ids=lambda pipeline: type(pipeline).__module__)
def test_the_steps_of_a_pipeline_are_places_to_make_room(pipeline: Any) -> None:
    def served(**arguments: Any) -> tuple[dict[int, float], bool]:
        loader = Loader(Piped(pipeline), batch_size=4, num_workers=1, prefetch_factor=4, **arguments)
        values: dict[int, float] = {}
        elsewhere = False
        for rows, main in loader:
            values |= {int(index): float(value) for index, value in rows}
            elsewhere = elsewhere or not bool(main.all())
        return values, elsewhere

    ready, made_room = served(order="ready", hand_over=True)
    strict, stayed = served()
    assert ready == strict
    assert made_room
    assert not stayed


class Stepping:
    """A transform as many write it: an object that can be called."""

    def __call__(self, value: Any) -> Any:
        return step(value)


def test_the_steps_of_a_pipeline_are_timed_by_name() -> None:
    dataset = Piped(sutler.transforms.Compose([*[step] * 4, Stepping()]))
    loader = Loader(dataset, batch_size=4, num_workers=1, order="ready", hand_over=True)
    assert loader.stats()["steps"] == []
    served = sum(len(rows) for rows, _ in loader)
    steps = loader.stats()["steps"]
    assert [entry["name"] for entry in steps] == ["load", *["step"] * 4, "Stepping"]
    assert all(entry["count"] == served and 0 <= entry["p50"] <= entry["p99"] for entry in steps)
    assert all(set(entry) == {"name", "count", "mean", "p50", "p95", "p99"} for entry in steps)
    plain = Loader(dataset, batch_size=4, num_workers=1)
    assert sum(len(rows) for rows, _ in plain) == served
    assert plain.stats()["steps"] == []


class Failing(Draws):
    """Raises in the middle of slow samples, and ends its process once."""

    def __init__(self, slow: frozenset[int], flag: Any) -> None:
        super().__init__(slow)
        self.flag = flag

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        if index == 40:
            raise ValueError("sample 40 is bad")
        if index == 60 and not self.flag.exists():
            self.flag.touch()
            os._exit(3)
        return sample[:2]


def test_failures_and_dead_workers_lose_nothing(tmp_path: Path) -> None:
    loader = Loader(
        Failing(SLOW, tmp_path / "died"),
        batch_size=4,
        num_workers=2,
        order="ready",
        hand_over=True,
        errors="skip",
        prefetch_factor=4,
    )
    served = [int(index) for indices, _ in loader for index in indices]
    assert sorted(served) == [index for index in range(SAMPLES) if index != 40]
    assert [failure.id for failure in loader.failures()] == [40]


class Catching(Draws):
    """Catches everything, as no dataset should."""

    def __getitem__(self, index: int) -> Any:
        for _ in range(6):
            pause(0.02 if index in self.slow else 0.0005)
            try:
                sutler.yield_point()
            except BaseException:
                continue
        return index


@pytest.mark.parametrize("dataset", [Draws(SLOW), Catching(SLOW)], ids=["plain", "catching"])
def test_a_pass_that_is_broken_off_leaves_nothing_behind(dataset: Any) -> None:
    """Samples that stand when their epoch is called off are forgotten, and the next epoch is whole."""
    with Loader(
        dataset,
        batch_size=4,
        num_workers=1,
        order="ready",
        hand_over=True,
        persistent_workers=True,
        prefetch_factor=4,
    ) as loader:
        for taken in (9, 11, 13):
            for number, _ in enumerate(loader):
                if number == taken:
                    break
        served = [
            index for batch in loader for index in (batch[0] if isinstance(batch, list) else batch).tolist()
        ]
    assert sorted(served) == list(range(SAMPLES))


def test_nobody_else_notices_a_yield_point() -> None:
    sutler.yield_point()
    loader = Loader(Catching(frozenset()), batch_size=8)
    assert sorted(index for batch in loader for index in batch.tolist()) == list(range(SAMPLES))
    for wrong in ({"hand_over": 1}, {"overlap_epochs": "yes"}):
        with pytest.raises(TypeError, match="should be a bool"):
            Loader(Catching(frozenset()), **wrong)
