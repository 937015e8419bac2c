"""Finds loaders that shuffle different datasets into the same order at the same time, mostly without meaning to.

An order follows from the seed, the epoch and the number of samples. Two loaders that nobody gave a seed pair the
samples at the same places of their datasets, and with the same random numbers: where pictures of two kinds are no
pairs, for instance, each would always meet the same other one.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from typing import TYPE_CHECKING

from sutler.errors import SameOrderWarning

if TYPE_CHECKING:
    from sutler._epoch import EpochIterator
    from sutler.loader import Loader

#: The seed where nobody passes one.
_DEFAULT_SEED = 0

_begun: weakref.WeakSet[EpochIterator] = weakref.WeakSet()
_lock = threading.Lock()


def note_begun(iterator: EpochIterator, loader: Loader, stacklevel: int) -> None:
    """A pass of a loader has begun: warns, once for each loader, where it is like another that is under way."""
    if not loader.shuffle:
        return
    with _lock:
        others = [other for other in _begun if other.running and other is not iterator]
        _begun.add(iterator)
    if loader._warned_of_same_order:
        return
    if any(_is_alike(iterator, loader, other, other._loader) for other in others):
        loader._warned_of_same_order = True
        why = (
            "both have seed=0, which is the default"
            if loader.generator is None
            else "both have their seed from the same generator"
        )
        remedy = "seed=1" if loader.generator is None else "a generator of its own"
        warnings.warn(
            f"Two loaders are being iterated at the same time that shuffle different datasets of {len(loader.dataset)} "
            f"samples into the same order, since {why}, so that each batch of one has the places of the other's, and "
            f"the same random numbers. Pass {remedy} to one of them.",
            SameOrderWarning,
            stacklevel=stacklevel + 1,
        )


def _is_alike(iterator: EpochIterator, loader: Loader, other: EpochIterator, others: Loader) -> bool:
    return (
        other._owner == os.getpid()
        and others.dataset is not loader.dataset
        and others.generator is loader.generator
        and (loader.generator is not None or loader.seed == others.seed == _DEFAULT_SEED)
        and other.epoch == iterator.epoch
        and (others.rank, others.world_size) == (loader.rank, loader.world_size)
        and len(others.dataset) == len(loader.dataset)
    )
