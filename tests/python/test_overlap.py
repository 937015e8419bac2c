"""The next epoch begins while the last batches of this one are served, and nothing else changes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import sutler
import sutler.testing
from sutler import Loader
from sutler import transforms as T  # noqa: N812 - as users write it


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    sutler.testing.make_photos(folder, count=48, classes=2)
    return folder


def loader_over(photos: Path, **arguments: Any) -> Loader[Any]:
    dataset = sutler.ImageFolder(photos, transform=T.RandomResizedCrop(24), progress=False)
    given: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": 2, "output": "numpy"}
    return Loader(dataset, return_ids=True, **(given | arguments))


def epochs(loader: Loader[Any], count: int) -> list[list[tuple[list[int], bytes]]]:
    return [[(ids.tolist(), images.tobytes()) for images, _, ids in loader] for _ in range(count)]


def test_the_same_batches_come(photos: Path) -> None:
    with loader_over(photos) as plain, loader_over(photos, overlap_epochs=True) as overlapping:
        assert epochs(overlapping, 4) == epochs(plain, 4)
        assert plain.stats()["samples"] == overlapping.stats()["samples"] == 4 * 48


def test_its_first_batches_are_ready_when_it_begins(photos: Path) -> None:
    with loader_over(photos, overlap_epochs=True) as loader:
        list(loader)
        successor = loader._successor._iterator
        assert successor is not None
        deadline = time.monotonic() + 30
        assert iter(loader) is successor
        while time.monotonic() < deadline:
            before = loader.stats()["wait_seconds"]
            if next(successor) and loader.stats()["wait_seconds"] - before < 0.05:
                return
        pytest.fail("no batch was there when it was asked for")


def test_whatever_changes_between_epochs_still_counts(photos: Path) -> None:
    with loader_over(photos, overlap_epochs=True) as loader, loader_over(photos) as plain:
        assert epochs(loader, 1) == epochs(plain, 1)
        for changed in (loader, plain):
            changed.set_epoch(7)
        assert epochs(loader, 1) == epochs(plain, 1)
        loader.num_workers = 1
        assert epochs(loader, 1) == epochs(plain, 1)
        assert loader.stats()["workers"] == 1


def test_a_state_knows_nothing_of_it(photos: Path) -> None:
    with loader_over(photos, overlap_epochs=True) as loader:
        for number, _ in enumerate(loader):
            if number == 4:  # the last batch but one, when the next epoch is under way
                state = loader.state_dict()
                break
        with loader_over(photos) as resumed, loader_over(photos) as whole:
            resumed.load_state_dict(state)
            assert epochs(resumed, 2) == [
                epoch[skip:] for epoch, skip in zip(epochs(whole, 2), (5, 0), strict=True)
            ]
        loader.load_state_dict(state)
        assert [len(epoch) for epoch in epochs(loader, 2)] == [1, 6]


def test_failures_are_those_of_the_epoch_that_is_served(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "some"
    sutler.testing.make_photos(folder, count=48, classes=2)
    for path in sorted(folder.rglob("*.jpg"))[::12]:
        path.write_bytes(b"no picture")
    with loader_over(folder, overlap_epochs=True, errors="skip", shuffle=False) as loader:
        for _ in range(3):
            assert sum(len(ids) for _, _, ids in loader) == 44
            assert len(loader.failures()) == 4


class Numbers:
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("order", ["strict", "ready"])
def test_workers_that_stay_do_it_too(order: Any) -> None:
    pytest.importorskip("torch")
    with Loader(
        Numbers(), 4, shuffle=True, num_workers=1, persistent_workers=True, order=order, overlap_epochs=True
    ) as loader:
        for _ in range(3):
            assert sorted(index for batch in loader for index in batch.tolist()) == list(range(24))
        assert loader._successor._iterator is not None
    assert loader._successor._iterator is None
