"""Resume with samplers of the user's: from every batch, with 0 workers and with some."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sutler import Loader

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")

SAMPLES = 22


class Noisy(data.Dataset):
    """Each sample has its index and a random number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, torch.rand(1)


def values_of(batches: Any) -> list[list[Any]]:
    return [[torch.as_tensor(indices).tolist(), noise.tolist()] for indices, noise in batches]


def saved(loader: Loader) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


SAME_EVERY_EPOCH: dict[str, Callable[[], dict[str, Any]]] = {
    "list": lambda: {"batch_size": 4, "sampler": list(range(SAMPLES))},
    "drop_last": lambda: {"batch_size": 4, "sampler": list(range(SAMPLES)), "drop_last": True},
    "batches": lambda: {"batch_sampler": [[0, 1, 2], [3], [4, 5, 6, 7]]},
    "distributed": lambda: {"batch_size": 4, "sampler": data.DistributedSampler(Noisy(), 2, 1, seed=3)},
    "distributed in batches": lambda: {
        "batch_sampler": data.BatchSampler(data.DistributedSampler(Noisy(), 2, 1, seed=3), 4, True)
    },
    "single": lambda: {"batch_size": None, "sampler": [3, 1, 2]},
}


@pytest.mark.parametrize(
    "workers", [{"num_workers": 0}, {"num_workers": 1, "prefetch_factor": 1}, {"num_workers": 2}]
)
@pytest.mark.parametrize("order", ["strict", "ready"])
@pytest.mark.parametrize("name", SAME_EVERY_EPOCH)
def test_every_batch_is_a_place_to_resume_from(name: str, order: str, workers: dict[str, Any]) -> None:
    def make() -> Loader:
        return Loader(Noisy(), order=order, **workers, **SAME_EVERY_EPOCH[name]())

    # Where samples are served as they get ready, they may come in other batches.
    comparable: Callable[[Any], Any] = list if order == "strict" else _samples_of
    loader = make()
    states = [saved(loader)]
    epoch = []
    for batch in loader:
        epoch += values_of([batch])
        states.append(saved(loader))
    following = values_of(loader)

    assert [state["epoch"] for state in states] == [0] * len(epoch) + [1]
    assert states[-1]["consumed"] == 0
    assert states[-1]["served"] is None
    for number, state in enumerate(states):
        resumed = make()
        resumed.load_state_dict(state)
        if number < len(epoch):
            assert comparable(values_of(resumed)) == comparable(epoch[number:])
        assert comparable(values_of(resumed)) == comparable(following)


def _samples_of(batches: list[Any]) -> list[Any]:
    samples: list[Any] = []
    for indices, noise in batches:
        samples += zip(indices, noise, strict=True) if isinstance(indices, list) else [(indices, noise)]
    return sorted(samples)


def test_the_state_after_the_last_batch_is_the_same_when_its_iterator_is_gone() -> None:
    loader = Loader(Noisy(), batch_size=11, sampler=range(SAMPLES), num_workers=0)
    for batch, _ in enumerate(loader):
        if batch == 1:
            break
    assert (saved(loader)["epoch"], saved(loader)["consumed"]) == (1, 0)


def test_looking_for_the_end_keeps_what_the_sampler_raises_for_its_batch() -> None:
    def sampler() -> Iterator[int]:
        yield 5
        raise KeyError("no more")

    loader = Loader(Noisy(), sampler=sampler(), num_workers=0)
    batches = iter(loader)
    next(batches)
    assert saved(loader)["consumed"] == 1
    with pytest.raises(KeyError, match="no more"):
        next(batches)
