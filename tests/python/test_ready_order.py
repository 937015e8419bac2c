"""`order="ready"`: samples as they get ready, each exactly once, and resumable between any two batches."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sutler
from sutler import Loader
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler


class Squares:
    """Some samples take long."""

    def __init__(self, count: int, slow: dict[int, float] | None = None) -> None:
        self.count = count
        self.slow = slow or {}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        time.sleep(self.slow.get(index, 0.0005))
        return index * index


def roots(batches: Iterator[Any] | list[Any]) -> list[int]:
    """The indices in some batches."""
    return [round(float(value) ** 0.5) for batch in batches for value in batch]


COUNT = 11
SLOW = {0: 0.02, 7: 0.01, 8: 0.02}


def make(**options: Any) -> Loader:
    given: dict[str, Any] = {"batch_size": 3, "num_workers": 2, "seed": 5, "in_order": False, **options}
    return Loader(Squares(COUNT, SLOW), **given)


class Held(Squares):
    """The first sample takes until it is let go."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.let_go = multiprocessing.get_context("fork").Event()

    def __getitem__(self, index: int) -> int:
        if index == 0:
            self.let_go.wait(30)
        return super().__getitem__(index)


def test_a_slow_sample_is_late_and_its_batch_is_not() -> None:
    dataset = Held(24)
    options: dict[str, Any] = {"num_workers": 2, "order": "ready", "multiprocessing_context": "fork"}
    with Loader(dataset, batch_size=4, **options) as loader:
        iterator = iter(loader)
        batches = [next(iterator).tolist()]
        assert 0 not in batches[0]
        dataset.let_go.set()
        batches += [batch.tolist() for batch in iterator]
    assert sorted(roots(batches)) == list(range(24))
    assert [len(batch) for batch in batches] == [4] * 6


@pytest.mark.parametrize("lateness", [0, 1, 3])
def test_lateness_is_bounded(lateness: int) -> None:
    with Loader(
        Squares(40, {0: 0.4}), batch_size=4, num_workers=2, order="ready", lateness=lateness
    ) as loader:
        batches = [roots([batch]) for batch in loader]
    (where,) = (index for index, batch in enumerate(batches) if 0 in batch)
    assert where <= lateness
    assert sorted(itertools.chain(*batches)) == list(range(40))


@pytest.mark.parametrize("drawn", [False, True])
def test_lateness_is_bounded_over_resumes(drawn: bool) -> None:
    # A batch sampler's batches stay together, so it is the batch of the slow sample that is late.
    sampling: dict[str, Any] = (
        {"batch_sampler": [list(range(at, at + 4)) for at in range(0, 40, 4)]} if drawn else {"batch_size": 4}
    )
    batches: list[list[int]] = []
    state: dict[str, Any] | None = None
    while len(batches) < 10:
        with Loader(Squares(40, {0: 0.5}), num_workers=2, order="ready", lateness=2, **sampling) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            for batch in loader:
                batches.append(roots([batch]))
                state = loader.state_dict()
                # Taken up anew after each of the first batches, by when the slow sample must be there.
                if len(batches) < 5:
                    break
    (where,) = (index for index, batch in enumerate(batches) if 0 in batch)
    assert where <= 2
    assert sorted(itertools.chain(*batches)) == list(range(40))


def test_native_samples_are_the_same_in_another_order(augmented: sutler.ImageFolder) -> None:
    def by_id(order: Any) -> dict[int, tuple[bytes, int]]:
        found = {}
        options: dict[str, Any] = {"num_workers": 3, "return_ids": True, "output": "numpy", "order": order}
        with Loader(augmented, 4, shuffle=True, **options) as loader:
            for images, labels, ids in loader:
                for image, label, index in zip(images, labels, ids, strict=True):
                    assert index not in found
                    found[int(index)] = (image.tobytes(), int(label))
        return found

    assert by_id("ready") == by_id("strict")


#: How an epoch can be drawn; each is made anew for the loader that resumes.
SAMPLINGS: dict[str, Any] = {
    "sequential": dict,
    "shuffled": lambda: {"shuffle": True},
    "dropping": lambda: {"shuffle": True, "drop_last": True},
    "sampler": lambda: {"sampler": SubsetRandomSampler(range(COUNT), generator=generator())},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0] * COUNT, COUNT, generator=generator())},
    "batch sampler": lambda: {
        "batch_size": 1,
        "batch_sampler": BatchSampler(RandomSampler(range(COUNT), generator=generator()), 4, drop_last=False),
    },
}


def generator() -> Any:
    import torch

    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampling", list(SAMPLINGS))
def test_the_rest_of_an_epoch_is_exact_from_any_batch_on(sampling: str, workers: int, in_order: bool) -> None:
    def loader() -> Loader:
        return make(num_workers=workers, in_order=in_order, **SAMPLINGS[sampling]())

    with make(num_workers=0, in_order=True, **SAMPLINGS[sampling]()) as plain:
        expected = roots(list(plain))
    with loader() as first:
        total = len(first)
    for stop in range(total + 1):
        with loader() as first:
            before = list(itertools.islice(first, stop))
            state = json.loads(json.dumps(first.state_dict()))
        with loader() as second:
            second.load_state_dict(state)
            after = list(second)
            together = roots(before) + roots(after)
            assert len(before) + len(after) == total
            assert together == expected if in_order else sorted(together) == sorted(expected)


@pytest.mark.parametrize("collate_fn", [None, list])  # whose batches are made in one piece
def test_an_epoch_can_be_resumed_twice(collate_fn: Any) -> None:
    seen: list[int] = []
    state = None
    for _ in range(4):
        with make(collate_fn=collate_fn) as loader:
            if state is not None:
                loader.load_state_dict(state)
            seen += roots(list(itertools.islice(loader, 1)))
            state = loader.state_dict()
    assert len(seen) == len(set(seen)) == COUNT


def test_a_state_stays_small() -> None:
    with Loader(Squares(4000), batch_size=40, num_workers=2, order="ready", shuffle=True) as loader:
        for _ in itertools.islice(loader, 60):
            pass
        assert len(json.dumps(loader.state_dict())) < 1200


def test_states_with_gaps_are_refused_where_they_cannot_be_gone_on_from() -> None:
    with make() as loader:
        next(iter(loader))
        state = loader.state_dict()
    with make(in_order=True) as strict, pytest.raises(ValueError, match="order='ready'"):
        strict.load_state_dict(state)
    for damage in ({"len": 3}, {"len": 3, "failed": 0, "done": {"runs": [1]}}):
        with make() as loader, pytest.raises(ValueError, match="the state is damaged"):
            loader.load_state_dict({**state, "served": damage})


def test_ranks_serve_and_resume_their_own_parts() -> None:
    seen: list[int] = []
    for rank in range(2):
        with make(rank=rank, world_size=2, shuffle=True) as loader:
            before = list(itertools.islice(loader, 1))
            state = loader.state_dict()
        with make(rank=rank, world_size=2, shuffle=True) as loader:
            loader.load_state_dict(state)
            seen += roots(before) + roots(list(loader))
    assert set(seen) == set(range(COUNT))
    assert len(seen) == 12  # one is served twice, so that both ranks have equally many


def test_a_strict_state_can_be_taken_up_in_ready_order() -> None:
    with make(in_order=True, shuffle=True) as loader:
        before = roots(list(itertools.islice(loader, 1)))
        state = loader.state_dict()
    with make(shuffle=True) as loader:
        loader.load_state_dict(state)
        middle = roots(list(itertools.islice(loader, 1)))
        state = loader.state_dict()
    with make(shuffle=True) as loader:
        loader.load_state_dict(state)
        assert sorted(before + middle + roots(list(loader))) == list(range(COUNT))


def test_bad_samples_are_left_out_and_an_epoch_goes_on_after_one() -> None:
    class Bad(Squares):
        def __getitem__(self, index: int) -> int:
            if index in (2, 11):
                raise KeyError(index)
            return super().__getitem__(index)

    with Loader(Bad(23), batch_size=3, num_workers=2, order="ready", errors="skip") as loader:
        assert sorted(roots(list(loader))) == [index for index in range(23) if index not in (2, 11)]
        assert sorted(failure.id for failure in loader.failures()) == [2, 11]
    with Loader(Bad(23), batch_size=1, num_workers=2, order="ready") as loader:
        iterator, seen = iter(loader), []
        for _ in range(23):
            try:
                seen += roots([next(iterator)])
            except KeyError:
                seen.append(-1)
        assert sorted(seen) == [-1, -1, *(index for index in range(23) if index not in (2, 11))]


@pytest.mark.parametrize("wrong", [-1, 2**32])
def test_a_wrong_lateness_is_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match="lateness should be a number of batches"):
        make(lateness=wrong)


@pytest.mark.filterwarnings("ignore:This loader will start")
@pytest.mark.parametrize(
    ("workers", "factor", "lateness"), [(0, None, 8), (4, None, 8), (16, None, 32), (2, 1, 8), (2, 10, 20)]
)
def test_a_sample_may_be_as_late_as_batches_are_prepared_ahead(
    workers: int, factor: int | None, lateness: int
) -> None:
    with Loader(Squares(40), num_workers=workers, prefetch_factor=factor, order="ready") as loader:
        assert loader.lateness == lateness


def test_a_lateness_is_a_number() -> None:
    with pytest.raises(TypeError, match="lateness should be a number of batches"):
        make(lateness=1.5)
