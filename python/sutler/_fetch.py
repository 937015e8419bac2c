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
    #: What random numbers follow from instead of a key that cannot be pickled.
    stand_in: Any = None


def sample_seed(seed: int, epoch: int, draw: Draw) -> int:
    """The seed for one sample: the same in every process, whatever it is batched with."""
    named = draw.key if draw.stand_in is None else draw.stand_in  # no call: this is for every sample
    return int(_sutler.user_seed(seed, epoch, seed_number(named), draw.repeat))


def prepare_seed(draw: Draw) -> int:
    """The seed for the deterministic part of a sample: the same in every epoch and every job."""
    return int(_sutler.user_seed(0, 0, seed_number(("prepare", _value(draw)))))


def samples_seed(seed: int, epoch: int, draws: list[Draw]) -> int:
    """The seed for samples that the dataset is asked for in one call, which cannot be told apart within it."""
    return _seed_of_all("samples", seed, epoch, draws)


def collate_seed(seed: int, epoch: int, draws: list[Draw]) -> int:
    """The seed for putting samples together, as functions do that mix the images of a batch."""
    return _seed_of_all("collate", seed, epoch, draws)


def _value(draw: Draw) -> Any:
    return draw.key if draw.stand_in is None else draw.stand_in


def _seed_of_all(purpose: str, seed: int, epoch: int, draws: list[Draw]) -> int:
    repeats = [draw.repeat for draw in draws]
    named = (purpose, *map(_value, draws), *(repeats if any(repeats) else ()))
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
    """`__getitems__` returned more or fewer samples than it was asked for, so nobody knows which is which."""

    #: What it returned, and how many samples it was asked for; not known of an error that comes from a worker.
    found: Any = None
    asked: int | None = None

    @classmethod
    def of(cls, found: Any, asked: int) -> WrongCountError:
        """The error about what was returned."""
        told = f"__getitems__ returned {counted(len(found), 'sample')} for"
        error = cls(
            f"{told} 1 index"
            if asked == 1
            else f"{told} {asked} indices, and nobody can tell which of them return_ids=True should name. Return a "
            'sample for each index; or leave return_ids out; or pass errors="skip", to have samples asked for one by '
            "one where some are missing."
        )
        error.found, error.asked = found, asked
        return error


def fetch_many(many: Callable[[list[Any]], Any], draws: list[Draw]) -> Any:
    """The samples of some draws in one call; there must be as many."""
    samples = fetch_samples(many, draws)
    if len(samples) != len(draws):
        raise WrongCountError.of(samples, len(draws))
    return samples


def fetch_samples(many: Callable[[list[Any]], Any], draws: list[Draw]) -> Any:
    """What `__getitems__` makes of some draws, be it as many samples or not; a generator is gone through.

    So is a tensor, whose rows are the samples: PyTorch's collation takes lists of them only.
    """
    found = fetch_batch(many, draws)
    torch = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(found, torch.Tensor)
    return (
        found
        if hasattr(found, "__len__") and hasattr(found, "__getitem__") and not is_tensor
        else list(found)
    )


def fetch_batch(many: Callable[[list[Any]], Any], draws: list[Draw]) -> Any:
    """What a `collate_fn` of the user's makes a batch of: whatever `__getitems__` returned, be it a list or not."""
    return many([draw.key for draw in draws])
