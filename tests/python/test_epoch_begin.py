"""An epoch begins with its first batch: what comes between `iter(loader)` and that decides which one it is."""

from __future__ import annotations

from typing import Any

import pytest
import sutler
from sutler import Loader

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")


def loader_of(dataset: Any, **arguments: Any) -> Loader:
    return Loader(dataset, 8, num_workers=1, return_ids=True, output="numpy", **arguments)


def ids_of(batches: Any) -> list[int]:
    return [index for *_, ids in batches for index in ids.tolist()]


def orders(dataset: Any, count: int) -> list[list[int]]:
    loader = loader_of(dataset, shuffle=True)
    return [ids_of(loader) for _ in range(count)]


def test_an_iterator_that_is_never_asked_uses_up_no_epoch(augmented: sutler.ImageFolder) -> None:
    first, second = orders(augmented, 2)
    loader = loader_of(augmented, shuffle=True)
    before = loader.state_dict()
    for _ in range(3):
        iter(loader)
    kept = iter(loader)
    assert loader.state_dict() == before
    assert ids_of(loader) == first
    assert ids_of(kept) == second


@pytest.mark.parametrize("batches", [False, True])
def test_an_iterator_that_is_never_asked_uses_up_nothing_of_a_sampler(
    augmented: sutler.ImageFolder, batches: bool
) -> None:
    def make() -> Loader:
        sampler = data.RandomSampler(augmented, generator=torch.Generator().manual_seed(4))
        if not batches:
            return loader_of(augmented, sampler=sampler)
        by_batch = data.BatchSampler(sampler, 8, False)
        return Loader(augmented, batch_sampler=by_batch, num_workers=1, return_ids=True, output="numpy")

    once = make()
    first, second = (ids_of(once) for _ in range(2))
    loader = make()
    for _ in range(3):
        iter(loader)
    assert ids_of(loader) == first
    iter(loader)
    kept, other = iter(loader), iter(loader)
    orders = ids_of(kept), ids_of(other)
    assert orders[0] == second
    assert orders[1] != second, "two that are there at once draw an order each"

    saved = make()
    next(iter(saved))
    resumed = make()
    iter(resumed)  # as Lightning does before it loads the state
    resumed.load_state_dict(saved.state_dict())
    assert ids_of(resumed) == first[8:]


def test_an_epoch_may_be_chosen_after_its_iterator_is_made(augmented: sutler.ImageFolder) -> None:
    expected = orders(augmented, 4)
    loader = loader_of(augmented, shuffle=True)
    iterator = iter(loader)
    loader.sampler.set_epoch(2)
    assert ids_of([next(iterator)]) == expected[2][:8]
    assert (loader.state_dict()["epoch"], loader.state_dict()["consumed"]) == (2, 8)
    assert ids_of(iterator) == expected[2][8:]
    assert loader.state_dict()["epoch"] == 3
    assert ids_of(loader) == expected[3]


def test_a_state_may_be_loaded_after_an_iterator_is_made(augmented: sutler.ImageFolder) -> None:
    (expected,) = orders(augmented, 1)
    saved = loader_of(augmented, shuffle=True)
    next(iter(saved))
    loader = loader_of(augmented, shuffle=True)
    iterator = iter(loader)
    loader.load_state_dict(saved.state_dict())
    assert ids_of(iterator) == expected[8:]


def test_a_loaded_state_outlives_iterators_that_are_never_asked(augmented: sutler.ImageFolder) -> None:
    first, second = orders(augmented, 2)
    saved = loader_of(augmented, shuffle=True)
    next(iter(saved))
    loader = loader_of(augmented, shuffle=True)
    loader.load_state_dict(saved.state_dict())
    iter(loader)
    assert loader.state_dict() == saved.state_dict()
    assert ids_of(loader) == first[8:]
    loader.load_state_dict(saved.state_dict())
    iterator = iter(loader)
    loader.set_epoch(1)  # another epoch than the state's: all of it
    assert ids_of(iterator) == second


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_sampler_that_is_told_its_epoch_late_draws_again(
    augmented: sutler.ImageFolder, wrapped: bool
) -> None:
    def make() -> tuple[Any, Loader]:
        sampler = data.DistributedSampler(augmented, num_replicas=2, rank=1)
        order = {"batch_sampler": data.BatchSampler(sampler, 8, False)} if wrapped else {"sampler": sampler}
        arguments = order if wrapped else {"batch_size": 8, **order}
        return sampler, Loader(augmented, num_workers=1, return_ids=True, output="numpy", **arguments)

    def order_of(sampler: Any, epoch: int) -> list[int]:
        sampler.set_epoch(epoch)
        return list(sampler)

    sampler, loader = make()
    expected = [order_of(sampler, epoch) for epoch in range(4)]
    iterator = iter(loader)
    sampler.set_epoch(2)
    assert ids_of([next(iterator)]) == expected[2][:8]
    state = loader.state_dict()

    sampler, resumed = make()
    resumed.load_state_dict(state)
    iterator = iter(resumed)
    sampler.set_epoch(2)  # as Lightning does, which restores first and tells the epoch last
    assert ids_of(iterator) == expected[2][8:]

    sampler, wrong = make()
    wrong.load_state_dict(state)
    iterator = iter(wrong)
    sampler.set_epoch(3)
    for _ in range(2):
        with pytest.raises(ValueError, match="the sampler drew another order"):
            next(iterator)


def test_a_progress_bar_names_the_epoch_that_was_chosen(
    augmented: sutler.ImageFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tqdm")
    loader = loader_of(augmented, progress=True)
    iterator = iter(loader)
    loader.set_epoch(5)
    list(iterator)
    assert "epoch 5" in capsys.readouterr().err


def test_a_dataset_in_python_is_asked_for_the_epoch_that_was_chosen() -> None:
    class Draws(data.Dataset):  # type: ignore[name-defined]
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> float:
            import random

            return random.random()

    def values(loader: Loader, epoch: int | None) -> list[float]:
        iterator = iter(loader)
        if epoch is not None:
            loader.set_epoch(epoch)
        return [value for batch in iterator for value in batch.tolist()]

    for workers in (0, 1):
        loader = Loader(Draws(), 2, num_workers=workers, output="numpy")
        counted = [values(loader, None) for _ in range(3)]
        assert counted[0] != counted[2]
        assert values(loader, 2) == counted[2]
