"""`num_workers="auto"`: the number of threads follows the demand, and the batches do not change."""

from __future__ import annotations

import time
from pathlib import Path
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


def test_what_cannot_be_is_said(dataset: sutler.ImageFolder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="num_workers should be a number or 'auto'"):
        loader_of(dataset, num_workers="many")
    with pytest.raises(ValueError, match=r"num_workers='auto' is for native datasets.*builtins.list is none"):
        sutler.Loader([1, 2, 3], num_workers="auto")
