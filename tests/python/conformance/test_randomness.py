"""Random numbers in samples: different in each sample, worker and epoch, and the same again for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, get_worker_info

from .datasets import Drawing

GENERATORS = ["python", "numpy", "torch"]


def draws(loader: Any, name: str) -> list[float]:
    return [float(value) for batch in loader for value in batch[name]]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("workers", [1, 2])
def test_samples_get_different_numbers(load: Callable[..., Any], workers: int) -> None:
    batches = list(load(Drawing(40), batch_size=2, num_workers=workers))
    for name in GENERATORS:
        numbers = draws(batches, name)
        assert len(set(numbers)) == 40, name
        assert 0.2 < sum(numbers) / 40 < 0.8, name


def test_epochs_get_different_numbers(load: Callable[..., Any]) -> None:
    for persistent in (False, True):
        loader = load(Drawing(8), batch_size=2, num_workers=1, persistent_workers=persistent)
        first, second = list(loader), list(loader)
        for name in GENERATORS:
            assert set(draws(first, name)).isdisjoint(draws(second, name)), name


@pytest.mark.parametrize("workers", [1, 2])
def test_a_generator_makes_numbers_repeatable(load: Callable[..., Any], workers: int) -> None:
    def epoch(seed: int) -> dict[str, list[float]]:
        loader = load(Drawing(12), batch_size=2, num_workers=workers, generator=generator(seed))
        batches = list(loader)
        return {name: draws(batches, name) for name in [*GENERATORS, "index"]}

    first = epoch(3)
    assert epoch(3) == first
    other = epoch(4)
    assert all(set(first[name]).isdisjoint(other[name]) for name in GENERATORS)


def test_the_global_seed_makes_numbers_repeatable(load: Callable[..., Any]) -> None:
    def epoch(seed: int) -> list[float]:
        torch.manual_seed(seed)
        return draws(load(Drawing(8), batch_size=2, num_workers=2), "torch")

    assert epoch(3) == epoch(3)


def test_what_numbers_depend_on(load: Callable[..., Any], differs: Callable[[str], bool]) -> None:
    def epoch(workers: int) -> list[float]:
        return draws(load(Drawing(12), batch_size=2, num_workers=workers, generator=generator(3)), "torch")

    if differs("random_numbers_per_sample"):
        assert epoch(1) == epoch(2)
        torch.manual_seed(3)
        once = draws(load(Drawing(12), batch_size=2, num_workers=1), "torch")
        torch.manual_seed(4)
        assert draws(load(Drawing(12), batch_size=2, num_workers=1), "torch") == once
        return
    assert epoch(1) != epoch(2)
    batches = list(load(Drawing(12), batch_size=2, num_workers=2, generator=generator(3)))
    for worker in (0, 1):
        mine = [
            (int(batch["seed"][0]), [float(value) for value in batch["torch"]])
            for batch in batches
            if int(batch["worker"][0]) == worker
        ]
        torch.manual_seed(mine[0][0])
        expected = [float(torch.rand(())) for _ in range(6)]
        assert [value for _, values in mine for value in values] == expected


class DrawingStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[int, float, float, float]]:
        worker = get_worker_info()
        assert worker is not None
        for _ in range(3):
            yield worker.seed, random.random(), float(np.random.random()), float(torch.rand(()))


@pytest.mark.parametrize("workers", [1, 3])
def test_streams_draw_the_numbers_that_they_drew_before(load: Callable[..., Any], workers: int) -> None:
    def epoch(make: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(5)
        return list(make(DrawingStream(), batch_size=None, num_workers=workers))

    assert epoch(load) == epoch(partial(DataLoader, multiprocessing_context="fork"))


def test_a_sample_that_is_drawn_twice(load: Callable[..., Any]) -> None:
    def numbers(dataset: Dataset[Any], *drawn: int) -> list[float]:
        return draws(load(dataset, batch_size=2, sampler=drawn, num_workers=1), "torch")

    assert len(set(numbers(Drawing(4), 1, 2, 1, 1))) == 4, "other random numbers each time"
    both: Dataset[Any] = ConcatDataset([Drawing(4), Drawing(4)])
    assert len(set(numbers(both, 1, 5))) == 2, "the same sample under another index"


def test_workers_do_not_disturb_the_trainers_generators(load: Callable[..., Any]) -> None:
    def after(use: bool) -> tuple[float, float, float]:
        random.seed(1)
        np.random.seed(1)
        numbers = generator(1)
        torch.manual_seed(1)
        if use:
            list(load(Drawing(8), batch_size=2, num_workers=1, generator=numbers))
        return random.random(), float(np.random.random()), float(torch.rand(()))

    assert after(True) == after(False)


def test_without_workers_samples_use_the_trainers_generators(
    load: Callable[..., Any], differs: Callable[[str], bool]
) -> None:
    random.seed(5)
    numbers = draws(load(Drawing(4), batch_size=2), "python")
    random.seed(5)
    if differs("random_numbers_per_sample"):
        assert numbers == draws(load(Drawing(4), batch_size=2), "python")
        random.seed(6)
        assert numbers == draws(load(Drawing(4), batch_size=2), "python")
        with_worker = draws(load(Drawing(4), batch_size=2, num_workers=1), "python")
        assert numbers == with_worker
    else:
        assert numbers == [random.random() for _ in range(4)]


class Seeds(Dataset[int]):
    """What PyTorch's generator was seeded with last."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return torch.initial_seed()


def test_a_seed_that_worker_init_fn_sets(load: Callable[..., Any], differs: Callable[[str], bool]) -> None:
    loader = load(
        Seeds(), num_workers=1, worker_init_fn=lambda worker: torch.manual_seed(12345), collate_fn=list
    )
    seeds = [seed for batch in loader for seed in batch]
    if differs("seeds_of_worker_init_fn"):
        assert len(set(seeds)) == 4
    else:
        assert seeds == [12345] * 4
