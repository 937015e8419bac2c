"""How a dataset written in Python is asked for samples, and which random numbers it gets for them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from sutler import _sutler
from sutler._keys import seed_number
from sutler._words import counted


class Draw(NamedTuple):
    """What a dataset is asked for, and how often it was asked for that before in the same epoch."""

    key: Any
    repeat: int = 0


def sample_seed(seed: int, epoch: int, draw: Draw) -> int:
    """The seed for one sample: the same in every process, whatever it is batched with."""
    return int(_sutler.user_seed(seed, epoch, seed_number(draw.key), draw.repeat))


def prepare_seed(key: Any) -> int:
    """The seed for the deterministic part of a sample: the same in every epoch and every job."""
    return int(_sutler.user_seed(0, 0, seed_number(("prepare", key))))


def samples_seed(seed: int, epoch: int, draws: list[Draw]) -> int:
    """The seed for samples that the dataset is asked for in one call, which cannot be told apart within it."""
    return _seed_of_all("samples", seed, epoch, draws)


def collate_seed(seed: int, epoch: int, draws: list[Draw]) -> int:
    """The seed for putting samples together, as functions do that mix the images of a batch."""
    return _seed_of_all("collate", seed, epoch, draws)


def _seed_of_all(purpose: str, seed: int, epoch: int, draws: list[Draw]) -> int:
    repeats = [draw.repeat for draw in draws]
    named = (purpose, *(draw.key for draw in draws), *(repeats if any(repeats) else ()))
    return int(_sutler.user_seed(seed, epoch, seed_number(named)))


def bulk_getter(dataset: Any) -> Callable[[list[Any]], list[Any]] | None:
    """What fetches the samples of a batch in one call, where the dataset gains by it.

    PyTorch's `Subset` and `StackDataset` always have `__getitems__` and just ask one by one where what they are made of
    has none; their samples are better spread over the workers.
    """
    many = getattr(dataset, "__getitems__", None)
    if not callable(many):
        return None
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None:
        if type(dataset) is torch_data.Subset and bulk_getter(dataset.dataset) is None:
            return None
        if type(dataset) is torch_data.StackDataset:
            parts = dataset.datasets
            parts = parts.values() if isinstance(parts, dict) else parts
            if all(bulk_getter(part) is None for part in parts):
                return None
    found: Callable[[list[Any]], list[Any]] = many
    return found


class WrongCountError(RuntimeError):
    """`__getitems__` returned more or fewer samples than it was asked for."""


def fetch_many(many: Callable[[list[Any]], Any], draws: list[Draw]) -> list[Any]:
    """The samples of some draws in one call; there must be as many."""
    found = fetch_batch(many, draws)
    samples = found if hasattr(found, "__len__") and hasattr(found, "__getitem__") else list(found)
    if len(samples) != len(draws):
        raise WrongCountError(
            f"__getitems__ returned {counted(len(samples), 'sample')} for {len(draws)} indices"
        )
    return samples


def fetch_batch(many: Callable[[list[Any]], Any], draws: list[Draw]) -> Any:
    """What a `collate_fn` of the user's makes a batch of: whatever `__getitems__` returned, be it a list or not."""
    return many([draw.key for draw in draws])
