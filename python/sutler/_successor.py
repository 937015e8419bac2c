"""The next epoch, begun while the last batches of this one are served."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sutler._epoch import EpochIterator, Position
from sutler.datasets import NativeDataset

if TYPE_CHECKING:
    from sutler.loader import Loader

#: What a loader may be told between two epochs, and the next one must have been begun with.
_ATTRIBUTES = (
    "num_workers",
    "batch_size",
    "drop_last",
    "shuffle",
    "seed",
    "rank",
    "world_size",
    "collate_fn",
)


class Successor:
    """The pass that a loader has begun in advance, if there is one."""

    def __init__(self) -> None:
        self._iterator: EpochIterator | None = None
        self._made_with: list[Any] = []

    def look_ahead(self, loader: Loader, current: EpochIterator) -> None:
        """Begins the next epoch once half of the batches that are prepared ahead are its own to have."""
        left = current.left
        if self._iterator is not None or not left or not _may_overlap(loader):
            return
        job = loader._room.job  # by now there may be more batches ahead than in the beginning
        if job is not None and left <= max(1, job.batches_ahead // 2):
            self._made_with = _attributes(loader)
            self._iterator = EpochIterator(loader, Position(current.epoch + 1, 0))

    def take(self, loader: Loader, position: Position) -> EpochIterator | None:
        """The pass that begins at a position, if that is the one begun in advance and nothing has changed since."""
        iterator, self._iterator = self._iterator, None
        if iterator is None:
            return None
        if (
            iterator.is_fresh()
            and iterator.is_planned_at(position)
            and self._made_with == _attributes(loader)
        ):
            return iterator
        iterator.close()
        return None

    def close(self) -> None:
        """Calls it off."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator.close()


def _attributes(loader: Loader) -> list[Any]:
    return [getattr(loader, name) for name in _ATTRIBUTES] + [os.getpid()]


def _may_overlap(loader: Loader) -> bool:
    """Whether the next epoch is ours to foresee, and its workers stay."""
    return (
        loader.overlap_epochs
        and loader.num_workers > 0
        and (isinstance(loader.dataset, NativeDataset) or loader.persistent_workers)
        and loader._streams is None
        and loader._selection is None  # its list of indices is the user's to change until the epoch begins
        and loader._given_sampler is None
        and loader._given_batch_sampler is None
        and loader.order != "shared"
        and loader._agent is None
        and loader.device is None
    )
