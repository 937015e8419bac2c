"""`num_workers="auto"`: the number of threads or processes follows the demand, and the batches do not change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import sutler
from sutler import transforms as T  # noqa: N812 - as users write it
from sutler.testing import make_photos


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> sutler.ImageFolder:
    folder = tmp_path_factory.mktemp("photos")
    make_photos(folder, 64, 2)
    return sutler.ImageFolder(folder, transform=T.RandomResizedCrop(32))


def loader_of(dataset: Any, **arguments: Any) -> Any:
    return sutler.Loader(dataset, batch_size=8, shuffle=True, output="numpy", return_ids=True, **arguments)


def test_batches_are_those_of_a_fixed_number(dataset: sutler.ImageFolder) -> None:
    with loader_of(dataset, num_workers=2) as fixed, loader_of(dataset, num_workers="auto") as auto:
        for _ in range(3):
            for (images, labels, ids), expected in zip(auto, fixed, strict=True):
                np.testing.assert_array_equal(images, expected[0])
                np.testing.assert_array_equal(labels, expected[1])
                np.testing.assert_array_equal(ids, expected[2])


def test_a_trainer_that_takes_its_time_gets_fewer(dataset: sutler.ImageFolder) -> None:
    """A sample takes a millisecond, and eight are wanted in a tenth of a second: one thread is enough."""
    with loader_of(dataset, num_workers="auto") as loader:
        begun = loader.num_workers
        if begun < 2:
            pytest.skip("one core has one thread from the beginning")
        deadline = time.monotonic() + 60
        while loader.stats()["workers"] >= begun:
            assert time.monotonic() < deadline, loader.stats()["worker_changes"]
            for _ in loader:
                time.sleep(0.1)
        changes = loader.stats()["worker_changes"]
        assert changes[0] == {"seconds": 0.0, "workers": begun, "reason": "beginning"}
        assert changes[-1]["reason"] == "demand"
        assert loader.num_workers == begun, "it says where the number started"
        # Who assigns a number gets that.
        loader.num_workers = 3
        assert len(list(loader)) == 8
        assert (loader.stats()["workers"], loader.stats()["worker_changes"]) == (3, [])


def test_a_fixed_number_has_no_changes(dataset: sutler.ImageFolder) -> None:
    with loader_of(dataset, num_workers=2) as loader:
        assert len(list(loader)) == 8
        assert (loader.stats()["workers"], loader.stats()["worker_changes"]) == (2, [])


class Waiting:
    """Samples that take their time without taking a core, as those from slow storage do."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        time.sleep(self.seconds)
        return np.full(3, index)


@pytest.mark.parametrize("order", ["strict", "ready"])
def test_processes_come_and_go_with_the_demand(order: Any) -> None:
    """Two processes at samples of a fiftieth of a second bring a hundred a second, and the trainer takes more."""
    with sutler.Loader(
        Waiting(0.02), batch_size=8, num_workers="auto", persistent_workers=True, output="numpy", order=order
    ) as loader:
        begun = loader.num_workers

        def epoch(pause: float) -> None:
            served = []
            for batch in loader:
                served += batch[:, 0].tolist()
                time.sleep(pause)
            assert sorted(served) == list(range(64)), "every sample once, whoever comes and goes"

        def until(reached: Callable[[int], bool], pause: float) -> None:
            deadline = time.monotonic() + 120
            while not reached(loader.stats()["workers"]):
                assert time.monotonic() < deadline, loader.stats()["worker_changes"]
                epoch(pause)

        until(lambda workers: workers > begun, 0.0)
        # Eight samples in two fifths of a second, each of a fiftieth: less than one process has to do.
        until(lambda workers: workers == 1, 0.4)
        changes = loader.stats()["worker_changes"]
        assert changes[0] == {"seconds": 0.0, "workers": begun, "reason": "beginning"}
        assert changes[-1]["reason"] == "demand"
        deadline = time.monotonic() + 60
        while sum(process.is_alive() for process in loader._backend.processes()) > 1:
            assert time.monotonic() < deadline, "processes that are not needed end"
            time.sleep(0.05)
        epoch(0.0)


def test_processes_give_the_same_batches_as_a_fixed_number() -> None:
    expected = list(sutler.Loader(Waiting(0.001), batch_size=8, shuffle=True, num_workers=2, output="numpy"))
    auto = sutler.Loader(Waiting(0.001), batch_size=8, shuffle=True, num_workers="auto", output="numpy")
    for ours, theirs in zip(auto, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # Workers that do not stay are started anew for each epoch, as many as are on duty.
    assert len(list(auto)) == 8
    auto.close()


class Stream:
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_what_cannot_be_is_said(dataset: sutler.ImageFolder) -> None:
    with pytest.raises(ValueError, match="num_workers should be a number or 'auto'"):
        loader_of(dataset, num_workers="many")
    with pytest.raises(
        ValueError, match=r"num_workers='auto' is for datasets with __getitem__.*Stream is iterable"
    ):
        sutler.Loader(Stream(), num_workers="auto")
