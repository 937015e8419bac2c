"""Invariant 4: a state taken between any two batches resumes to the exact rest of the epoch."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sutler import Loader

few = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def loader_of(dataset: sutler.ImageFolder, **arguments: Any) -> Loader:
    defaults: dict[str, Any] = {"batch_size": 6, "shuffle": True, "num_workers": 2, "seed": 4}
    return Loader(dataset, return_ids=True, output="numpy", **defaults | arguments)


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(state)
    assert len(text) < 400, "a state is small"
    restored: dict[str, Any] = json.loads(text)
    assert restored == state
    return restored


def take(loader: Loader, batches: int) -> list[Any]:
    return [batch for _, batch in zip(range(batches), loader, strict=False)]


def same(left: list[Any], right: list[Any]) -> None:
    assert len(left) == len(right)
    for batch, other in zip(left, right, strict=True):
        for part, other_part in zip(batch, other, strict=True):
            np.testing.assert_array_equal(part, other_part)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("epoch", [0, 2])
def test_every_batch_of_an_epoch_is_a_place_to_resume_from(
    augmented: sutler.ImageFolder, shuffle: bool, epoch: int
) -> None:
    reference = loader_of(augmented, shuffle=shuffle)
    reference.set_epoch(epoch)
    whole, following = list(reference), list(reference)
    for stop in range(len(whole) + 1):
        saved = loader_of(augmented, shuffle=shuffle)
        saved.set_epoch(epoch)
        iterator = iter(saved)
        for _ in range(stop):
            next(iterator)
        state = through_json(saved.state_dict())
        resumed = loader_of(augmented, shuffle=shuffle, num_workers=1)
        resumed.load_state_dict(state)
        assert through_json(resumed.state_dict()) == state, "loading and saving changes nothing"
        assert (state["epoch"], state["consumed"]) == (epoch, min(6 * stop, 41))
        same(list(resumed), whole[stop:])
        same(list(resumed), following)
        # The one that was saved goes on undisturbed.
        same(list(iterator), whole[stop:])
        # Once it has said that the epoch is over, the next one begins.
        assert (saved.state_dict()["epoch"], saved.state_dict()["consumed"]) == (epoch + 1, 0)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", ["strict", "ready"])
def test_a_loop_over_epochs_that_is_cut_after_any_batch_trains_on_each_once(
    augmented: sutler.ImageFolder, order: Any, workers: int
) -> None:
    def train(checkpoint: tuple[int, dict[str, Any]], batches: int) -> tuple[list[int], Any]:
        loader = loader_of(augmented, order=order, num_workers=workers)
        first, state = checkpoint
        if state:
            loader.load_state_dict(state)
        seen: list[int] = []
        for epoch in range(first, 2):
            for number, (_, _, ids) in enumerate(loader, start=1):
                seen += ids.tolist()
                if number == batches:
                    return seen, (epoch, through_json(loader.state_dict()))
        return seen, None

    for stop in range(1, 8):
        before, checkpoint = train((0, {}), stop)
        after, _ = train(checkpoint, -1)
        assert Counter(before + after) == Counter(dict.fromkeys(range(41), 2)), f"cut after {stop} batches"


@few
@given(
    stop=st.integers(0, 50),
    batch_size=st.integers(1, 12),
    next_batch_size=st.integers(1, 12),
    world=st.integers(1, 4),
    next_world=st.integers(1, 4),
)
def test_another_number_of_ranks_takes_up_the_rest(
    augmented: sutler.ImageFolder,
    stop: int,
    batch_size: int,
    next_batch_size: int,
    world: int,
    next_world: int,
) -> None:
    counts: Counter[int] = Counter()
    states = []
    for rank in range(world):
        loader = loader_of(augmented, batch_size=batch_size, rank=rank, world_size=world)
        for _, _, ids in take(loader, stop):
            counts.update(ids.tolist())
        states.append(through_json(loader.state_dict()))
    assert all(state == states[0] for state in states), "any rank's state will do"
    if states[0]["epoch"] == 0:
        for rank in range(next_world):
            loader = loader_of(augmented, batch_size=next_batch_size, rank=rank, world_size=next_world)
            loader.load_state_dict(states[0])
            for _, _, ids in loader:
                counts.update(ids.tolist())
    assert set(counts) == set(range(41))
    # Ranks are padded to equal length, first by the one world, then by the other.
    assert sum(counts.values()) - 41 < world + next_world


def test_a_state_in_the_middle_survives_a_second_stop(augmented: sutler.ImageFolder) -> None:
    whole = list(loader_of(augmented))
    got: list[Any] = []
    state = None
    for _ in range(len(whole)):
        loader = loader_of(augmented)
        if state is not None:
            loader.load_state_dict(state)
        got += take(loader, 1)
        state = through_json(loader.state_dict())
    same(got, whole)


def test_setting_another_epoch_leaves_the_saved_one(augmented: sutler.ImageFolder) -> None:
    saved = loader_of(augmented)
    take(saved, 3)
    state = saved.state_dict()
    whole = [list(saved) for _ in range(3)]

    resumed = loader_of(augmented)
    resumed.load_state_dict(state)
    resumed.set_epoch(0)  # as trainers do, before they iterate
    assert len(list(resumed)) == 4
    resumed.load_state_dict(state)
    resumed.set_epoch(2)
    same(list(resumed), whole[1])

    saved.set_epoch(7)
    assert (saved.state_dict()["epoch"], saved.state_dict()["consumed"]) == (7, 0)
    iterator = iter(saved)
    next(iterator)
    saved.set_epoch(7)
    assert (saved.state_dict()["epoch"], saved.state_dict()["consumed"]) == (7, 6)


def test_an_error_leaves_the_state_before_its_batch(own_photos: Path) -> None:
    from sutler import transforms as T  # noqa: N812

    dataset = sutler.ImageFolder(own_photos, T.Compose([T.Resize(8), T.CenterCrop(8)]))
    (own_photos / "class_1" / "photo_000005.jpg").write_bytes(b"")
    loader = loader_of(dataset, batch_size=3, shuffle=False)
    iterator = iter(loader)
    next(iterator)
    for _ in range(3):
        with pytest.raises(sutler.DecodeError, match="photo_000005"):
            next(iterator)
        assert loader.state_dict()["consumed"] == 3
    resumed = loader_of(dataset, batch_size=3, shuffle=False, errors="skip")
    resumed.load_state_dict(loader.state_dict())
    assert [ids.tolist() for _, _, ids in resumed] == [[3, 4], [6, 7, 8], [9, 10, 11]]


def test_a_state_of_something_else_is_refused_with_both_sides(
    augmented: sutler.ImageFolder, own_photos: Path
) -> None:
    loader = loader_of(augmented)
    good = loader.state_dict()
    other = loader_of(sutler.ImageFolder(own_photos))
    with pytest.raises(ValueError, match=r"saved for fingerprint .* \(41 samples\).* \(12 samples\)"):
        other.load_state_dict(good)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"version": 99}, "version 99, this release of Sutler reads version 1"),
        ({"seed": 5}, "saved with seed=5, this loader has seed=4"),
        ({"sampling": "sequential"}, "saved in sequential order, this loader runs in shuffle order"),
        ({"epoch": -1}, "damaged: its epoch is -1"),
        ({"consumed": "many"}, "damaged: its consumed is 'many'"),
        ({"consumed": -6}, "damaged: its consumed is -6"),
    ]
    for change, message in changes:
        with pytest.raises(ValueError, match=message):
            loader.load_state_dict(good | change)
    not_a_state: Any
    for not_a_state in ({}, {"epoch": 1}, [], None, "state"):
        with pytest.raises(ValueError, match=r"not a state of a sutler\.Loader"):
            loader.load_state_dict(not_a_state)
    assert len(list(loader)) == 7, "a refused state changes nothing"


class Counting:
    """Says how often it was asked, and has a state to go on from."""

    def __init__(self) -> None:
        self.calls = 0

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.calls += 1
        return index, self.calls

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


@pytest.mark.parametrize("order", ["strict", "ready"])
def test_the_state_of_a_map_style_dataset_is_saved_after_every_batch(order: Any) -> None:
    def make() -> Loader:
        return Loader(Counting(), batch_size=3, shuffle=True, num_workers=0, output="numpy", order=order)

    def values(batches: Any) -> list[Any]:
        return [[column.tolist() for column in batch] for batch in batches]

    loader = make()
    states, epoch = [json.loads(json.dumps(loader.state_dict()))], []
    for batch in loader:
        epoch += values([batch])
        states.append(json.loads(json.dumps(loader.state_dict())))
    following = values(loader)
    for number, state in enumerate(states):
        resumed = make()
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert values(resumed) == epoch[number:]
        assert values(resumed) == following
