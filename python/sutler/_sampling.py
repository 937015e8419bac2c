"""Where an epoch's order comes from: the loader's own samplers, and what a user's sampler drew."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from sutler import _keys, _sutler
from sutler._keys import KeyTable


class EpochSampler:
    """The order of the loader's own epochs, and the count of them.

    Trainers such as Lightning look for ``loader.sampler.set_epoch`` and call it before each epoch. The loader reads the
    epoch from here; nothing here refers to the loader, so that dropping the loader ends its threads at once.
    """

    #: What PyTorch's `RandomSampler` has besides, for code that looks at it.
    replacement = False
    generator = None

    def __init__(
        self, dataset: Any, *, shuffle: bool, seed: int, drop_last: bool, place: Callable[[], tuple[int, int]]
    ) -> None:
        #: Asked for its length each time, since it may grow.
        self.data_source = dataset
        self._shuffle = shuffle
        self._seed = seed
        self._drop_last = drop_last
        #: The rank and the number of ranks; asked each time, since a process group may come after the loader.
        self._place = place
        #: The epoch that the next ``iter(loader)`` runs.
        self.epoch = 0
        #: Whether the user chose that epoch, rather than it being the one after the last.
        self.chosen = False

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next ``iter(loader)`` runs."""
        if not 0 <= epoch < 2**32:
            raise ValueError(f"epoch should be from 0 to 2**32 - 1, got {epoch}")
        self.epoch = epoch
        self.chosen = True

    def go_on_to(self, epoch: int) -> None:
        """The loader's own step to an epoch."""
        self.epoch = epoch
        self.chosen = False

    @property
    def num_samples(self) -> int:
        """How many samples the dataset has, on all ranks together."""
        return len(self.data_source)

    def __iter__(self) -> Iterator[int]:
        rank, world_size = self._place()
        order = _sutler.epoch_order(
            len(self.data_source),
            shuffle=self._shuffle,
            seed=self._seed,
            epoch=self.epoch,
            drop_last=self._drop_last,
            rank=rank,
            world_size=world_size,
        )
        return iter(order)

    def __len__(self) -> int:
        _, world_size = self._place()
        if self._drop_last:
            return len(self.data_source) // world_size
        return -(-len(self.data_source) // world_size)


class EpochBatchSampler:
    """The same order cut into batches, as ``torch.utils.data.BatchSampler`` would."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        if self.drop_last:
            return len(self.sampler) // self.batch_size
        return -(-len(self.sampler) // self.batch_size)


def as_pytorchs(own: type[Any], name: str) -> type[Any]:
    """A class of ours that is also one of PyTorch's samplers, where PyTorch is in use.

    Trainers ask what a sampler is to learn whether an order is shuffled.
    """
    data = sys.modules.get("torch.utils.data")
    if data is None:
        return own
    return _joined(own, getattr(data, name))  # type: ignore[arg-type]  # classes can be hashed


@functools.cache
def _joined(own: type[Any], base: type[Any]) -> type[Any]:
    return type(own.__name__, (own, base), {"__module__": own.__module__, "__doc__": own.__doc__})


class Drawn:
    """What a user's sampler or batch sampler drew for one epoch.

    Kept by the epoch's iterator, since a sampler that is asked twice may answer differently.
    """

    def __init__(self, batches: list[list[int]] | None, indices: list[int], keys: KeyTable | None) -> None:
        #: The batches of a batch sampler.
        self.batches = batches
        #: The indices of a sampler, or those of all batches.
        self.indices = indices
        #: The epoch that the sampler was set to, where it has such a thing.
        self.epoch: Any = None
        self._keys = keys

    @classmethod
    def from_sampler(cls, sampler: Iterable[Any], keys: KeyTable | None) -> Drawn:
        """Asks a sampler for an epoch of indices, or of any keys where there is a table for them."""
        number = _numbering(keys)
        return cls(None, [number(index) for index in sampler], keys)

    @classmethod
    def from_batch_sampler(cls, batch_sampler: Iterable[Iterable[Any]], keys: KeyTable | None) -> Drawn:
        """Asks a batch sampler for an epoch of batches."""
        number = _numbering(keys)
        batches = [[number(index) for index in batch] for batch in batch_sampler]
        return cls(batches, list(chain.from_iterable(batches)), keys)

    @property
    def largest_batch(self) -> int:
        """The size of the largest batch of a batch sampler; at least 1, as it is the engine that refuses empty ones."""
        return max(chain([1], map(len, self.batches or [])))

    @property
    def unique_fraction(self) -> float:
        """The share of the indices that are not repeats."""
        return len(set(self.indices)) / len(self.indices) if self.indices else 1.0

    @functools.cached_property
    def digest(self) -> str:
        """A short name for what was drawn, by which a checkpoint knows it again."""
        if self._keys is not None and any(index >= _sutler.FIRST_KEYED for index in self.indices):
            return _keys.digest(map(self._keys.key, self.indices))
        return hashlib.blake2b(np.asarray(self.indices, dtype="<i8").tobytes(), digest_size=8).hexdigest()


def _numbering(keys: KeyTable | None) -> Callable[[Any], int]:
    """From what a sampler draws to the engine's number for it."""
    if keys is None:
        return int

    def number(key: Any) -> int:
        with contextlib.suppress(TypeError):  # a key of another kind
            key = operator.index(key)  # NumPy's integers, and tensors without dimensions
        return keys.number(key)

    return number
