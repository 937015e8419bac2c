"""What changes between two epochs counts from the next one on: the number of workers, attributes, the process group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sutler
from sutler import Loader
from sutler import transforms as T  # noqa: N812 - as users write it
from sutler.errors import RankOutOfStep

torch = pytest.importorskip("torch")


class Numbers:
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        return index


class Stream(torch.utils.data.IterableDataset[int]):  # type: ignore[name-defined]
    def __iter__(self) -> Iterator[int]:
        worker = sutler.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        yield from range(first, 24, step)


class Words:
    """Asked for by something else than a number."""

    def __getitem__(self, word: str) -> str:
        return word.upper()


def refuse(worker: int) -> None:
    raise RuntimeError(f"worker {worker} was told")


def values(loader: Any) -> list[int]:
    return sorted(value for batch in loader for value in batch.tolist())


@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.parametrize("kind", [Numbers, Stream])
def test_another_number_of_workers(kind: Any, persistent_workers: bool) -> None:
    with Loader(kind(), 4, num_workers=1, persistent_workers=persistent_workers) as loader:
        for count in (1, 2, 0, 2):
            loader.num_workers = count
            iterator: Any = iter(loader)
            assert len(iterator._workers) == count
            assert values(iterator) == list(range(24))
            assert loader.stats()["workers"] == count
            del iterator


def test_another_number_of_threads(augmented: sutler.ImageFolder) -> None:
    with Loader(augmented, 4, num_workers=1, return_ids=True, cache="1MiB") as loader:
        for count in (1, 3, 0, 2):
            loader.num_workers = count
            assert sorted(index for *_, ids in loader for index in ids.tolist()) == list(range(41))
            assert loader._room.engine is not None
            assert loader._room.engine.threads == count
        assert loader.stats()["samples"] == 4 * 41


@pytest.mark.parametrize("kind", [Numbers, Stream])
def test_a_pass_that_is_under_way_is_left_alone(kind: Any) -> None:
    with Loader(kind(), 4, num_workers=2) as loader:
        first = iter(loader)
        begun = next(first).tolist()
        loader.num_workers = 1
        assert values(loader) == list(range(24))
        assert sorted(begun + values(first)) == list(range(24))
        del first
        assert values(loader) == list(range(24))


def test_other_workers_are_told_all_keys() -> None:
    words = ["one", "two", "three", "four"]
    with Loader(Words(), 2, sampler=words, num_workers=1) as loader:
        assert list(loader) == [["ONE", "TWO"], ["THREE", "FOUR"]]
        words.append("five")
        loader.num_workers = 2
        assert list(loader) == [["ONE", "TWO"], ["THREE", "FOUR"], ["FIVE"]]


@pytest.mark.parametrize("kind", [Numbers, Stream])
def test_a_worker_init_fn_that_is_assigned_later_is_called(kind: Any) -> None:
    with Loader(kind(), 4, num_workers=1) as loader:
        assert values(loader) == list(range(24))
        loader.worker_init_fn = refuse
        with pytest.raises(RuntimeError, match="worker 0 was told"):
            list(loader)


@pytest.fixture
def two_ranks() -> Iterator[Any]:
    """Makes this process rank 0 of 2, with nobody behind the other one."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def join() -> None:
        torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())

    yield join
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class Spoiled(Numbers):
    """A whole batch of rank 0 raises."""

    def __getitem__(self, index: int) -> int:
        if index in (8, 10, 12, 14):
            raise KeyError(index)
        return index


@pytest.mark.parametrize("workers", [0, 1])
def test_a_process_group_that_comes_after_the_first_epoch_keeps_ranks_in_step(
    workers: int, two_ranks: Any
) -> None:
    with Loader(Spoiled(), 4, num_workers=workers, errors="skip", persistent_workers=workers > 0) as loader:
        assert len(values(loader)) == 20
        two_ranks()
        with pytest.raises(RankOutOfStep):
            list(loader)


def test_a_process_group_that_comes_after_the_first_epoch_keeps_threads_in_step(
    own_photos: Path, two_ranks: Any
) -> None:
    dataset = sutler.ImageFolder(own_photos, T.Compose([T.Resize(8), T.CenterCrop(8)]))
    for number in (4, 6):  # the second batch of rank 0
        Path(dataset.path(number)).write_bytes(b"")
    with Loader(dataset, 2, num_workers=1, errors="skip", return_ids=True) as loader:
        assert sum(len(ids) for *_, ids in loader) == len(dataset) - 2
        two_ranks()
        with pytest.raises(RankOutOfStep):
            list(loader)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_process_group_may_come_before_the_first_batch(workers: int, two_ranks: Any) -> None:
    with Loader(Numbers(), 4, num_workers=workers) as loader:
        iterator = iter(loader)
        two_ranks()
        assert values(iterator) == list(range(0, 24, 2))
