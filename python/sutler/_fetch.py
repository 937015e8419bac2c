"""How a dataset written in Python is asked for samples, and which random numbers it gets for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from sutler import _sutler
from sutler._keys import seed_number
from sutler._words import counted


def sample_seed(seed: int, epoch: int, key: Any) -> int:
    """The seed for one sample: the same in every process, whatever it is batched with."""
    return int(_sutler.user_seed(seed, epoch, seed_number(key)))


def prepare_seed(key: Any) -> int:
    """The seed for the deterministic part of a sample: the same in every epoch and every job."""
    return int(_sutler.user_seed(0, 0, seed_number(("prepare", key))))


def samples_seed(seed: int, epoch: int, keys: Iterable[Any]) -> int:
    """The seed for samples that the dataset is asked for in one call, which cannot be told apart within it."""
    return int(_sutler.user_seed(seed, epoch, seed_number(("samples", *keys))))


def collate_seed(seed: int, epoch: int, keys: Iterable[Any]) -> int:
    """The seed for putting samples together, as functions do that mix the images of a batch."""
    return int(_sutler.user_seed(seed, epoch, seed_number(("collate", *keys))))


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


def fetch_many(many: Callable[[list[Any]], list[Any]], keys: list[Any]) -> list[Any]:
    """The samples of some keys in one call; there must be as many."""
    samples = many(keys)
    if len(samples) != len(keys):
        raise RuntimeError(f"__getitems__ returned {counted(len(samples), 'sample')} for {len(keys)} indices")
    return samples
