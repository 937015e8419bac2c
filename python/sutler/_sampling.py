"""Where an epoch's order comes from: the loader's own samplers, and what a user's sampler draws."""

from __future__ import annotations

import contextlib
import hashlib
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sutler import _keys, _sutler
from sutler._keys import KeyTable


class EpochSampler:
    """The order of the loader's own epochs, and the count of them.

    Trainers such as Lightning look for ``loader.sampler.set_epoch`` and call it before each epoch. The loader reads the
    epoch from here; nothing here refers to the loader, so that dropping the loader ends its threads at once.
    """

    def __init__(
        self, dataset: Any, *, shuffle: bool, seed: int, drop_last: bool, rank: int, world_size: int
    ) -> None:
        #: Asked for its length each time, since it may grow.
        self._dataset = dataset
        self._shuffle = shuffle
        self._seed = seed
        self._drop_last = drop_last
        self._rank = rank
        self._world_size = world_size
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

    def __iter__(self) -> Iterator[int]:
        order = _sutler.epoch_order(
            len(self._dataset),
            shuffle=self._shuffle,
            seed=self._seed,
            epoch=self.epoch,
            drop_last=self._drop_last,
            rank=self._rank,
            world_size=self._world_size,
        )
        return iter(order)

    def __len__(self) -> int:
        if self._drop_last:
            return len(self._dataset) // self._world_size
        return -(-len(self._dataset) // self._world_size)


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


class Drawing:
    """What a user's sampler or batch sampler draws for one epoch, as far as it is needed.

    Drawn bit by bit, as PyTorch does it, so a sampler may be without end, or look at how the training goes. Kept by the
    epoch's iterator, since a sampler that is asked twice may answer differently. An *item* is an index, or a batch of
    them, in the engine's numbers.
    """

    def __init__(self, source: Iterable[Any], keys: KeyTable | None, *, in_batches: bool) -> None:
        self.in_batches = in_batches
        self._source: Iterator[Any] = iter(source)
        self._keys = keys
        self._number = _numbering(keys)
        #: Items from number `_first` on; those before it are in the trainer's hands.
        self._items: list[Any] = []
        self._first = 0
        self.ended = False
        self._samples = 0
        self._unique: set[int] = set()
        self._hash = hashlib.blake2b(digest_size=8)

    def items(self, start: int, count: int) -> list[Any]:
        """So many items from number `start` on: fewer at the end."""
        while not self.ended and self._first + len(self._items) < start + count:
            self._draw()
        return self._items[start - self._first : start - self._first + count]

    def forget_before(self, start: int) -> None:
        """Items before this one are not asked for again."""
        del self._items[: max(0, start - self._first)]
        self._first = max(self._first, start)

    def _draw(self) -> None:
        try:
            drawn = next(self._source)
        except StopIteration:
            self.ended = True
            return
        numbers = [self._number(index) for index in drawn] if self.in_batches else [self._number(drawn)]
        self._items.append(numbers if self.in_batches else numbers[0])
        self._samples += len(numbers)
        self._unique.update(numbers)
        for number in numbers:
            keyed = self._keys is not None and number >= _sutler.FIRST_KEYED
            value = _keys.by_value(self._keys.key(number)) if self._keys and keyed else b"%d" % number
            self._hash.update(b"%d:" % len(value) + value)

    @property
    def unique_fraction(self) -> float:
        """The share of what was drawn that is no repeat."""
        return len(self._unique) / self._samples if self._samples else 1.0

    def mark(self) -> dict[str, Any]:
        """How far it has been drawn and a short name for that, by which a checkpoint knows it again."""
        return {"samples": self._samples, "digest": self._hash.hexdigest()}

    def go_to(self, mark: dict[str, Any] | None, consumed: int) -> int:
        """Draws what had been drawn at a mark and tells the number of the item that begins after `consumed` samples.

        Raises `ValueError` when it is not the same, as the rest of that epoch is unknown then.
        """
        if mark is not None:
            while not self.ended and self._samples < mark["samples"]:
                self._draw()
            if self.mark() != mark:
                raise ValueError(
                    f"the sampler drew another order ({self.mark()}) than the one the state was saved in ({mark}), so "
                    "the rest of that epoch is unknown. Seed the sampler by epoch and call set_epoch before resuming, "
                    "or use shuffle=True, which resumes exactly."
                )
        if not self.in_batches:
            return consumed
        item = 0
        while consumed > 0 and (batch := self.items(item, 1)):
            consumed -= len(batch[0])
            item += 1
        return item


class Feed:
    """Hands what a sampler draws to the plan of a run, a few batches before they are needed."""

    def __init__(
        self, drawing: Drawing, first: int, batch_size: int, batches_ahead: int, announce: Callable[[], None]
    ) -> None:
        self._drawing = drawing
        self._next = first
        self._step = 1 if drawing.in_batches else batch_size
        self._batches_ahead = batches_ahead
        #: Tells the engine about keys that it has not seen before.
        self._announce = announce
        self._fed = 0

    def top_up(self, run: _sutler.Run, delivered: int) -> None:
        """Sees to it that as many batches as may be prepared are known, now that so many are delivered."""
        missing = delivered + self._batches_ahead - self._fed
        if missing <= 0:
            return
        items = self._drawing.items(self._next, missing * self._step)
        self._announce()
        (run.extend_batches if self._drawing.in_batches else run.extend)(items)
        self._fed += missing
        self._next += len(items)
        if self._drawing.ended:
            run.end_drawing()
            self._fed = sys.maxsize

    @property
    def ended(self) -> bool:
        """Whether the sampler is at its end."""
        return self._fed == sys.maxsize


def _numbering(keys: KeyTable | None) -> Callable[[Any], int]:
    """From what a sampler draws to the engine's number for it."""
    if keys is None:
        return int

    def number(key: Any) -> int:
        with contextlib.suppress(TypeError):  # a key of another kind
            key = operator.index(key)  # NumPy's integers, and tensors without dimensions
        return keys.number(key)

    return number
