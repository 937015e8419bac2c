"""A user's sampler decides: PyTorch's own samplers and some wilful ones."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import sutler
from sutler import Loader

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")


def ids_of(loader: Loader) -> list[list[int]]:
    return [ids.tolist() for _, _, ids in loader]


def loader_of(dataset: sutler.ImageFolder, **arguments: Any) -> Loader:
    return Loader(dataset, num_workers=2, return_ids=True, output="numpy", **arguments)


def seeded(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


def samplers(dataset: Any) -> dict[str, Any]:
    weights = [1.0] * len(dataset)
    return {
        "sequential": lambda: data.SequentialSampler(dataset),
        "random": lambda: data.RandomSampler(dataset, generator=seeded(1)),
        "with replacement": lambda: data.RandomSampler(dataset, True, 100, seeded(2)),
        "weighted": lambda: data.WeightedRandomSampler(weights, 60, generator=seeded(3)),
        "subset": lambda: data.SubsetRandomSampler(range(5, 20), generator=seeded(4)),
        "distributed": lambda: data.DistributedSampler(dataset, num_replicas=3, rank=1, seed=5),
        "numpy": lambda: np.random.default_rng(6).permutation(len(dataset)),
        "tensor": lambda: torch.randperm(len(dataset), generator=seeded(7)),
        "negative": lambda: [-1, -41, 0, 40],
        "empty": list,
    }


@pytest.mark.parametrize("name", samplers([0]))
@pytest.mark.parametrize("batch_size", [1, 7])
def test_a_sampler_is_followed_as_pytorch_follows_it(
    augmented: sutler.ImageFolder, name: str, batch_size: int
) -> None:
    make = samplers(augmented)[name]
    indices = list(range(len(augmented)))
    theirs = [batch.tolist() for batch in data.DataLoader(indices, batch_size, sampler=make())]
    assert ids_of(loader_of(augmented, batch_size=batch_size, sampler=make())) == theirs


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_sampler_is_followed(augmented: sutler.ImageFolder, drop_last: bool) -> None:
    def make() -> Any:
        return data.BatchSampler(data.RandomSampler(augmented, generator=seeded(1)), 6, drop_last)

    loader = loader_of(augmented, batch_sampler=make())
    assert len(loader) == len(make())
    assert ids_of(loader) == list(make())
    assert (loader.batch_size, loader.drop_last) == (None, False)


def test_batches_may_differ_and_grow_from_epoch_to_epoch(augmented: sutler.ImageFolder) -> None:
    class Growing:
        def __init__(self) -> None:
            self.size = 0

        def __iter__(self) -> Any:
            self.size += 5
            yield list(range(self.size))
            yield [3]
            yield (np.int64(7), torch.tensor(8))

    loader = loader_of(augmented, batch_sampler=Growing())
    for size in (5, 10, 15, 20):
        images = [batch[0] for batch in loader]
        assert [len(batch) for batch in images] == [size, 1, 2]
    expected = loader_of(augmented, sampler=range(20), batch_size=20)
    expected.set_epoch(3)
    np.testing.assert_array_equal(images[0], next(iter(expected))[0])


def test_a_wrong_batch_or_index_is_an_error_that_names_it(augmented: sutler.ImageFolder) -> None:
    with pytest.raises(ValueError, match="batch 1 of the batch sampler is empty"):
        iter(loader_of(augmented, batch_sampler=[[0], [], [1]]))
    with pytest.raises(ValueError, match="batch 0 of the batch sampler is empty"):
        iter(loader_of(augmented, batch_sampler=[[]]))
    for wrong in (41, -42, 2**40):
        with pytest.raises(
            IndexError, match=f"the sampler drew index {wrong}, but the dataset has 41 samples"
        ):
            iter(loader_of(augmented, sampler=[0, wrong]))
        with pytest.raises(IndexError, match=f"index {wrong}"):
            iter(loader_of(augmented, batch_sampler=[[0, wrong]]))


def test_small_batches_of_a_batch_sampler_do_not_multiply_the_memory(augmented: sutler.ImageFolder) -> None:
    by_size = Loader(augmented, 8, num_workers=8, output="numpy")
    by_sampler = Loader(
        augmented, batch_sampler=data.BatchSampler(range(41), 8, False), num_workers=8, output="numpy"
    )
    for loader in (by_size, by_sampler):
        next(iter(loader))
    assert by_sampler.stats()["memory_bytes"] == by_size.stats()["memory_bytes"]


def test_a_generator_takes_the_place_of_the_seed(augmented: sutler.ImageFolder) -> None:
    orders = [ids_of(loader_of(augmented, shuffle=True, generator=seeded(seed))) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert loader_of(augmented, generator=seeded(9)).seed == 9


def test_set_epoch_reaches_the_sampler(augmented: sutler.ImageFolder) -> None:
    def distributed() -> Any:
        return data.DistributedSampler(augmented, num_replicas=2, rank=0)

    sampler = distributed()
    loader = loader_of(augmented, batch_size=41, sampler=sampler)
    batched = loader_of(augmented, batch_sampler=data.BatchSampler(distributed(), 41, False))
    for epoch in (0, 3):
        loader.set_epoch(epoch)
        batched.set_epoch(epoch)
        expected = distributed()
        expected.set_epoch(epoch)
        assert sampler.epoch == epoch
        assert ids_of(loader) == ids_of(batched) == [list(expected)]


@pytest.mark.parametrize("kind", ["sampler", "batch_sampler"])
def test_a_seeded_sampler_resumes_exactly(augmented: sutler.ImageFolder, kind: str) -> None:
    def loader() -> Loader:
        sampler = data.RandomSampler(augmented, generator=seeded(1))
        if kind == "sampler":
            return loader_of(augmented, batch_size=6, sampler=sampler)
        return loader_of(augmented, batch_sampler=data.BatchSampler(sampler, 6, False))

    whole = ids_of(loader())
    for stop in range(len(whole)):
        first = loader()
        iterator = iter(first)
        for _ in range(stop):
            next(iterator)
        second = loader()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert ids_of(second) == whole[stop:]


def test_a_sampler_that_draws_otherwise_does_not_resume_in_silence(augmented: sutler.ImageFolder) -> None:
    first = loader_of(augmented, batch_size=6, sampler=data.RandomSampler(augmented, generator=seeded(1)))
    next(iter(first))
    second = loader_of(augmented, batch_size=6, sampler=range(len(augmented)))
    second.load_state_dict(first.state_dict())
    with pytest.raises(ValueError, match="the sampler drew another order"):
        iter(second)


def test_repeats_are_counted(augmented: sutler.ImageFolder) -> None:
    loader = loader_of(augmented, batch_size=4, sampler=[1, 1, 1, 2])
    list(loader)
    assert loader.stats()["unique_fraction"] == 0.5


@pytest.mark.parametrize("drawn", [1.9, "3", [0, 1], None])
def test_a_native_dataset_takes_whole_numbers_only(augmented: sutler.ImageFolder, drawn: Any) -> None:
    loader = sutler.Loader(augmented, batch_size=2, sampler=[0, drawn])
    with pytest.raises(TypeError, match="samples of this dataset are named by integers"):
        list(loader)


class Drawing:
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, random.random()


class DrawingTogether(Drawing):
    def __getitems__(self, indices: list[int]) -> list[tuple[int, float]]:
        return [self[index] for index in indices]


def with_noise(samples: list[tuple[int, float]]) -> list[tuple[int, float]]:
    return [(index, value + random.random()) for index, value in samples]


@pytest.mark.processes  # threads have one generator of Python's in common, which nobody can seed for a sample
@pytest.mark.parametrize("dataset", [Drawing(), DrawingTogether()], ids=["one by one", "together"])
@pytest.mark.parametrize("arguments", [{}, {"collate_fn": with_noise}], ids=["default", "collate_fn"])
@pytest.mark.parametrize("order", ["strict", "ready"])
def test_a_sample_that_is_drawn_again_has_random_numbers_of_its_own(
    dataset: Any, arguments: dict[str, Any], order: Any
) -> None:
    drawn = [3, 4, 3, 4, 3, 5, 3, 3]

    def pairs(batches: Any) -> list[tuple[int, float]]:
        found: list[tuple[int, float]] = []
        for batch in batches:
            found += batch if arguments else zip(*(column.tolist() for column in batch), strict=True)
        return sorted(found)

    def make(workers: int) -> Loader:
        return Loader(dataset, 2, sampler=drawn, num_workers=workers, order=order, **arguments)

    with make(0) as loader:
        expected = pairs(loader)
    assert len({value for _, value in expected}) == len(drawn)
    with make(2) as loader:
        assert pairs(loader) == expected
    with make(0) as loader:
        iterator = iter(loader)
        before = [next(iterator), next(iterator)]
        state = loader.state_dict()
    with make(0) as loader:
        loader.load_state_dict(state)
        assert pairs([*before, *loader]) == expected


def test_a_first_draw_is_as_it_is_without_repeats() -> None:
    with Loader(Drawing(), 6) as loader:
        _, without = next(iter(loader))
    with Loader(Drawing(), 6, sampler=[5, 2, 2, 0, 5, 1]) as loader:
        _, with_repeats = next(iter(loader))
    assert with_repeats[[0, 1, 3, 5]].tolist() == without[[5, 2, 0, 1]].tolist()
