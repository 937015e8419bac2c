"""PyTorch's data pipes, which a loader divides over its workers and tells when and how to shuffle."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import sutler
import torch
from torch.utils.data import datapipes

COUNT = 40


def pipes(buffer_size: int = 10) -> Any:
    """A stream of numbers, shuffled, of which every worker takes its share."""
    numbers = datapipes.iter.IterableWrapper(range(COUNT))
    return numbers.shuffle(buffer_size=buffer_size).sharding_filter()


def flat(batches: Any) -> list[int]:
    return [value for batch in batches for value in batch.tolist()]


def with_seed(seed: int, loader: Any) -> list[int]:
    torch.manual_seed(seed)
    return flat(loader)


@pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 2}, {"num_workers": 3, "persistent_workers": True}], ids=str
)
def test_workers_share_what_all_shuffle_alike(load: Callable[..., Any], workers: dict[str, Any]) -> None:
    loader = load(pipes(), batch_size=4, shuffle=True, **workers)
    epochs = [with_seed(seed, loader) for seed in (1, 1, 2)]
    assert sorted(epochs[0]) == sorted(epochs[2]) == list(range(COUNT))
    assert epochs[0] == epochs[1] != epochs[2]
    torchs = torch.utils.data.DataLoader(pipes(), batch_size=4, shuffle=True, **workers)
    assert epochs[0] == with_seed(1, torchs)


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffling_can_be_turned_off(load: Callable[..., Any], workers: int) -> None:
    loader = load(pipes(), batch_size=4, shuffle=False, num_workers=workers)
    shares = [list(range(worker, COUNT, max(workers, 1))) for worker in range(max(workers, 1))]
    batches = [batch.tolist() for batch in loader]
    assert [
        flat(map(torch.tensor, batches[worker :: len(shares)])) for worker in range(len(shares))
    ] == shares


def test_shuffling_can_be_asked_for_where_no_pipe_does_it(
    load: Callable[..., Any], differs: Callable[[str], bool]
) -> None:
    with pytest.warns(UserWarning, match="does not contain a `Shuffler`"):
        loader = load(datapipes.iter.IterableWrapper(range(COUNT)), batch_size=4, shuffle=True)
    found = flat(loader)
    assert sorted(found) == list(range(COUNT))
    assert (found != list(range(COUNT))) == differs("pipes_that_do_not_shuffle")


def test_one_that_can_be_indexed_is_a_dataset_like_others(load: Callable[..., Any]) -> None:
    squares = datapipes.map.SequenceWrapper(range(COUNT)).map(lambda number: number**2)
    for workers in (0, 2):
        loader = load(squares, batch_size=4, shuffle=True, num_workers=workers)
        assert sorted(flat(loader)) == [number**2 for number in range(COUNT)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_goes_on_behind_every_batch(workers: int) -> None:
    def make() -> sutler.Loader:
        return sutler.Loader(pipes(), batch_size=4, num_workers=workers)

    torch.manual_seed(5)
    iterator = iter(loader := make())
    states, batches = [loader.state_dict()], []
    for batch in iterator:
        batches.append(batch.tolist())
        states.append(loader.state_dict())
    for number, state in enumerate(states[:-1]):
        torch.manual_seed(number)  # what was drawn comes from the state
        with make() as resumed:
            resumed.load_state_dict(state)
            rest = [batch.tolist() for batch in resumed]
        if number:  # before an epoch begins nothing is drawn
            assert rest == batches[number:]


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_share_an_epoch(workers: int) -> None:
    found = []
    for rank in range(3):
        torch.manual_seed(rank)
        with sutler.Loader(
            pipes(), batch_size=4, num_workers=workers, seed=8, rank=rank, world_size=3
        ) as loader:
            found.append([flat(loader) for _ in range(2)])
    first, second = (sorted(itertools.chain(*epoch)) for epoch in zip(*found, strict=True))
    assert first == second == list(range(COUNT))
    assert found[0][0] != found[0][1]
