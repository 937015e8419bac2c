"""The next epoch, begun while the last batches of this one are served."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sutler._epoch import EpochIterator, Position
from sutler._stream_copy import is_stateful
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
    return loader.overlap_epochs and why_no_overlap(loader) is None


def why_no_overlap(loader: Loader) -> str | None:
    """Where the next epoch is not ours to foresee, or its workers do not stay, and what to do; ``None`` elsewhere."""
    if loader._streams is not None:
        return "for a stream, whose next pass nobody can foresee; leave it out"
    if loader.num_workers == 0:
        return "without workers, which would begin the next epoch; pass num_workers as well"
    if loader._selection is not None:
        return "for a subset, whose list of indices may be changed until the epoch begins; leave it out"
    if not isinstance(loader.dataset, NativeDataset) and not loader.persistent_workers:
        return "where workers end with their epoch; pass persistent_workers=True as well"
    if is_stateful(loader.dataset):
        return "for a dataset that has a state of its own, which the next epoch begins from; leave it out"
    if loader._given_sampler is not None or loader._given_batch_sampler is not None:
        return "with a sampler, which is drawn from when its epoch begins; leave one of the two out"
    if loader.order == "shared":
        return 'with order="shared", in which other jobs decide as well; leave it out, or pass order="ready"'
    if loader._agent is not None:
        return "with an agent, which has other jobs to serve; leave it out"
    if loader.device is not None:
        return "with device=, as batches are copied there epoch by epoch; leave one of the two out"
    return None
