"""A job that serves samples as they get ready goes on with another number of ranks, from the states of all of them."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any, Literal

import pytest
import sutler
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sutler import Loader
from torch.utils.data import DistributedSampler

few = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

#: Batch size, batches before the stop and number of ranks, of each part of an epoch.
Parts = list[tuple[int, int, int]]

parts_of_an_epoch = st.lists(
    st.tuples(st.integers(1, 7), st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=3
)


class Numbers:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def same_batch(samples: list[int]) -> list[int]:
    return samples


def ids_of(batch: Any) -> list[int]:
    ids: list[int] = batch[-1].tolist()
    return ids


def go_through(dataset: Any, parts: Parts, last: tuple[int, int], **options: Any) -> Counter[int]:
    """How often each sample came in an epoch that was stopped after some batches, to go on with other ranks."""
    counts: Counter[int] = Counter()
    given: dict[str, Any] = {"shuffle": True, "seed": 4, "order": "ready", "return_ids": True, **options}
    states: list[dict[str, Any]] = []
    batch_size, last_world = last
    for size, stop, world in [*parts, (batch_size, 10**6, last_world)]:
        saved = []
        for rank in range(world):
            with Loader(dataset, size, rank=rank, world_size=world, **given) as loader:
                if states:
                    loader.load_state_dict(states)
                for batch in itertools.islice(loader, stop):
                    counts.update(ids_of(batch))
                saved.append(json.loads(json.dumps(loader.state_dict())))
        states = saved
        if states[0]["epoch"] == 1:  # nothing is left of the first one
            break
    assert all(state["epoch"] == 1 and state["served"] is None for state in states)
    return counts


def check_once(counts: Counter[int], samples: int, worlds: list[int]) -> None:
    assert set(counts) == set(range(samples))
    # Ranks are padded to equal length by each world in turn.
    assert sum(counts.values()) - samples <= sum(world - 1 for world in worlds)


@few
@given(parts=parts_of_an_epoch, last=st.tuples(st.integers(1, 7), st.integers(1, 4)))
@example(parts=[(3, 2, 1)], last=(3, 2))
@example(parts=[(3, 2, 2)], last=(3, 1))
@example(parts=[(2, 2, 4)], last=(2, 3))
@pytest.mark.parametrize("order", ["ready", "shared"])
def test_every_sample_of_a_native_dataset_comes_once(
    augmented: sutler.ImageFolder, order: str, parts: Parts, last: tuple[int, int]
) -> None:
    counts = go_through(augmented, parts, last, num_workers=2, output="numpy", order=order)
    check_once(counts, len(augmented), [world for _, _, world in parts] + [last[1]])


@few
@given(
    samples=st.integers(1, 40), parts=parts_of_an_epoch, last=st.tuples(st.integers(1, 7), st.integers(1, 4))
)
@example(samples=24, parts=[(3, 2, 1)], last=(3, 2))
@example(samples=24, parts=[(3, 2, 2)], last=(3, 1))
@example(samples=24, parts=[(2, 2, 4)], last=(2, 3))
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_sample_of_a_python_dataset_comes_once(
    samples: int, parts: Parts, last: tuple[int, int], shuffle: bool
) -> None:
    counts = go_through(Numbers(samples), parts, last, num_workers=0, shuffle=shuffle)
    check_once(counts, samples, [world for _, _, world in parts] + [last[1]])


@pytest.mark.parametrize("worlds", [(1, 2), (2, 1), (4, 3)])
@pytest.mark.parametrize("collate_fn", [None, same_batch])
def test_workers_go_on_with_other_ranks(worlds: tuple[int, int], collate_fn: Any) -> None:
    first, then = worlds
    parts = [(2, 2, first), (1, 2, then)]
    counts = go_through(Numbers(40), parts, (2, then), num_workers=2, collate_fn=collate_fn)
    # 40 samples less what each part takes can be dealt out evenly, so nothing is padded.
    assert counts == Counter(range(40))


def states_of(world: int, steps: int = 2, samples: int = 24, **options: Any) -> list[dict[str, Any]]:
    states = []
    for rank in range(world):
        with Loader(Numbers(samples), 2, order="ready", rank=rank, world_size=world, **options) as loader:
            for _ in itertools.islice(loader, steps):
                pass
            states.append(loader.state_dict())
    return states


def load(states: Any, world: int = 3, order: Literal["strict", "ready"] = "ready", **options: Any) -> Loader:
    loader = Loader(Numbers(24), 2, order=order, rank=0, world_size=world, **options)
    loader.load_state_dict(states)
    return loader


def test_as_many_ranks_as_before_each_find_their_own_state() -> None:
    states = states_of(2)
    assert load(list(reversed(states)), world=2).state_dict() == states[0]


def test_the_state_of_a_single_rank_is_the_state_of_its_job() -> None:
    (state,) = states_of(1)
    loader = load(state, world=2)
    assert sorted(value for batch in loader for value in batch.tolist()) == list(range(4, 24, 2))


def test_a_state_before_the_first_batch_of_a_dealt_out_rest_is_for_any_rank() -> None:
    state = load(states_of(2), world=3).state_dict()
    assert state["served"] is None
    counts: Counter[int] = Counter()
    for rank in range(4):
        loader = Loader(Numbers(24), 2, order="ready", rank=rank, world_size=4)
        loader.load_state_dict(state)
        for batch in loader:
            counts.update(batch.tolist())
    assert counts == Counter(range(8, 24))


def test_states_of_strict_order_may_be_passed_together() -> None:
    states = []
    for rank in range(2):
        loader = Loader(Numbers(24), 2, rank=rank, world_size=2)
        next(iter(loader))
        states.append(loader.state_dict())
    assert next(iter(load(states, world=1, order="strict"))).tolist() == [4, 5]
    assert next(iter(load(states, world=1))).tolist() == [4, 5]


def test_states_that_do_not_belong_together_are_refused() -> None:
    states = states_of(3)
    earlier = states_of(3, steps=1)
    with pytest.raises(ValueError, match="but an empty list"):
        load([], world=2)
    with pytest.raises(ValueError, match="had 3 ranks, and the state of rank 1 is missing"):
        load([states[0], states[2]], world=2)
    with pytest.raises(ValueError, match="the states of rank 0 and rank 1 are missing"):
        load([states[2]], world=2)
    with pytest.raises(ValueError, match="two of the states were saved by rank 1 of 3"):
        load([*states, states[1]], world=2)
    with pytest.raises(ValueError, match="jobs with 2 and 3 ranks"):
        load([*states, states_of(2)[0]], world=2)
    with pytest.raises(ValueError, match=r"rank 2 had been served 2 samples, rank 0 4\."):
        load([*states[:2], earlier[2]], world=2)
    with pytest.raises(ValueError, match="number 2 of the list was saved before the first batch"):
        load([*states[:2], states_of(3, steps=0)[2]], world=2)
    with pytest.raises(ValueError, match="number 0 of the list has epoch=0, number 1 has epoch=1"):
        load([states[0], {**states[1], "epoch": 1}, states[2]], world=2)
    with pytest.raises(ValueError, match="go on from different earlier states"):
        load([states[0], {**states[1], "before": states[0]["served"]}, states[2]], world=2)
    longer = {"len": 99, "failed": 0, "done": {"runs": [95, 4]}}
    with pytest.raises(ValueError, match="the states are damaged"):
        load([states[0], {**states[1], "served": longer}, states[2]], world=2)
    with pytest.raises(ValueError, match="its place is"):
        load([states[0], {**states[1], "place": [3, 3]}, states[2]], world=2)
    with pytest.raises(ValueError, match="on every rank the list of all of them"):
        load(states[0], world=2)
    with pytest.raises(ValueError, match="pass the same order"):
        load(states, world=2, order="strict")


def test_what_a_sampler_of_the_users_shares_out_is_not_dealt_out_anew() -> None:
    def loader(rank: int, world: int) -> Loader:
        sampler: Any = DistributedSampler(Numbers(24), world, rank)  # type: ignore[arg-type]
        return Loader(Numbers(24), 2, sampler=sampler, order="ready", rank=rank, world_size=world)

    states = []
    for rank in range(2):
        first = loader(rank, 2)
        next(iter(first))
        states.append(first.state_dict())
    again = loader(1, 2)
    again.load_state_dict(states)
    assert again.state_dict() == states[1]
    with pytest.raises(ValueError, match="saved by 2 ranks with a sampler of yours, and this job has 3"):
        loader(0, 3).load_state_dict(states)


def test_a_stream_has_a_state_for_each_rank() -> None:
    class Stream:
        def __iter__(self) -> Any:
            return iter(range(4))

    with (
        Loader(Stream()) as loader,
        pytest.raises(ValueError, match="each rank of a job over a stream"),
    ):
        loader.load_state_dict([loader.state_dict()])
