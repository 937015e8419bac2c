"""Which part of a sample of a dataset written in Python is deterministic, so that a cache may keep it."""

from __future__ import annotations

import sys
import warnings
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from sutler import _payload
from sutler._fetch import bulk_getter
from sutler._stream_reader import is_stream
from sutler._words import counted
from sutler.cache import DEFAULT_SPLIT, Cache
from sutler.prepared import MARK, PreparedDataset

#: How a split is written that keeps decoded samples alone, which is what a prepared part is.
DECODED_ALONE = "0-100-0"


class Parts:
    """The two parts of a marked dataset's samples; `parts_of` finds them."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def prepare(self, key: Any) -> Any:
        """The deterministic part of a sample."""
        dataset, index = _locate(self._dataset, key)
        return dataset.prepare(index) if isinstance(dataset, PreparedDataset) else dataset[index]

    def augment(self, key: Any, prepared: Any) -> Any:
        """The sample, of its deterministic part."""
        dataset, _ = _locate(self._dataset, key)
        return dataset.augment(prepared) if isinstance(dataset, PreparedDataset) else prepared


def parts_of(dataset: Any) -> Parts | None:
    """The two parts of a dataset's samples, where the dataset has marked them."""
    return Parts(dataset) if reason_unmarked(dataset) is None else None


def reason_unmarked(dataset: Any) -> str | None:
    """Why nobody knows the deterministic part of a dataset's samples; ``None`` where it is marked."""
    if bulk_getter(dataset) is not None:
        return f"{_name(dataset)} has a __getitems__, which makes all samples of a batch in one call"
    for leaf in leaves(dataset):
        getter = getattr(type(leaf), "__getitem__", None)
        if getattr(getter, MARK, False):
            continue
        if not isinstance(leaf, PreparedDataset):
            return f"{_name(leaf)} does not say which part of a sample is the same in every epoch"
        if getter is not PreparedDataset.__getitem__:
            return f"{_name(leaf)} has a __getitem__ of its own beside prepare() and augment()"
    return None


def _name(dataset: Any) -> str:
    return f"{type(dataset).__module__}.{type(dataset).__qualname__}"


def leaves(dataset: Any) -> Iterator[Any]:
    """The datasets that PyTorch's `Subset` and `ConcatDataset` take their samples from, or the dataset itself."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and type(dataset) is torch_data.Subset:
        yield from leaves(dataset.dataset)
    elif torch_data is not None and type(dataset) is torch_data.ConcatDataset:
        for part in dataset.datasets:
            yield from leaves(part)
    else:
        yield dataset


def _locate(dataset: Any, key: Any) -> tuple[Any, Any]:
    """Which dataset a sample is taken from, and what it is asked for."""
    torch_data = sys.modules.get("torch.utils.data")
    while torch_data is not None:
        if type(dataset) is torch_data.Subset:
            dataset, key = dataset.dataset, dataset.indices[key]
        elif type(dataset) is torch_data.ConcatDataset:
            ends = dataset.cumulative_sizes
            if key < 0:
                key += ends[-1]
            if not 0 <= key < ends[-1]:
                raise IndexError(f"index {key} is not in a dataset of {counted(ends[-1], 'sample')}")
            part = bisect_right(ends, key)
            dataset, key = dataset.datasets[part], key - (ends[part - 1] if part else 0)
        else:
            break
    return dataset, key


def pack(prepared: Any, key: Any) -> tuple[bytes, list[memoryview], int]:
    """A deterministic part as bytes: as `_payload.dump` makes them."""
    try:
        return _payload.dump(prepared)
    except Exception as error:
        raise TypeError(
            f"what was prepared for {key!r} cannot be kept in the cache: {error}. Return arrays, tensors, images, "
            "numbers, texts, or tuples, lists and dicts of them from prepare(), and make the rest in augment()."
        ) from error


def cache_for(wanted: Cache | None, dataset: Any, stacklevel: int) -> Cache | None:
    """The cache that a dataset written in Python can use; says why where that is none."""
    if wanted is None:
        return None
    if is_stream(dataset):
        raise ValueError(
            f"cache keeps samples by their index, and those of {_name(dataset)}, which is a stream, have none. Leave "
            "cache out, or give the dataset a __getitem__ and a __len__."
        )
    reason = reason_unmarked(dataset)
    if reason is not None:
        warnings.warn(
            f"cache has no effect: {reason}, so its samples count as augmented, and a job never gets the same "
            "augmented sample twice. Derive the dataset from sutler.PreparedDataset, so that what its prepare() "
            "returns is kept; or mark a __getitem__ that draws nothing with @sutler.deterministic.",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )
        return None
    if wanted.split not in (DEFAULT_SPLIT, DECODED_ALONE):
        raise ValueError(
            f"split={wanted.split!r} shares the memory out over encoded and decoded samples, and of a dataset written "
            "in Python only what its deterministic part returns is kept. Leave split out."
        )
    try:
        len(dataset)
    except TypeError:
        raise ValueError(
            f"cache needs to know how many samples there are, and {_name(dataset)} has no __len__. Give it one, or "
            "leave cache out."
        ) from None
    return wanted
