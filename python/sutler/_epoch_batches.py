"""What batch samplers of our own have in common: they are told the epoch, and divide it over the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from sutler._arguments import check_seed, place_in_job
from sutler._sampling import check_epoch
from sutler._words import counted


class EpochBatches:
    """Batches that are drawn anew in every epoch, for a loader's ``batch_sampler``; not made directly."""

    #: What it was given for each sample.
    made_of: ClassVar[str]

    def __init__(
        self,
        batch_size: int,
        *,
        shuffle: bool,
        drop_last: bool,
        seed: int,
        rank: int | None,
        world_size: int | None,
    ) -> None:
        check_positive("batch_size", batch_size)
        check_seed(seed)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed = seed
        #: The epoch whose batches come next.
        self.epoch = 0
        self._place = place_in_job(rank, world_size)
        #: How many ranks its batches are divided over.
        self.world_size = self._place()[1]

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch; a loader does so itself."""
        self.epoch = check_epoch(epoch)

    @property
    def samples(self) -> int:
        """How many samples its batches are drawn from."""
        raise NotImplementedError(f"{type(self).__name__} is not made directly")

    def _batches(self, rank: int, world_size: int) -> list[list[int]]:
        """The batches of a rank's epoch."""
        raise NotImplementedError(f"{type(self).__name__} is not made directly")

    def __iter__(self) -> Iterator[list[int]]:
        # Drawn at once, not when first asked: the epoch may be another one by then.
        return iter(self._batches(*self._place()))


def check_samples(batch_sampler: Any, dataset: Any) -> None:
    """Raises for batches that were made for another number of samples than a loader's dataset has."""
    if isinstance(batch_sampler, EpochBatches) and batch_sampler.samples != len(dataset):
        raise ValueError(
            f"the {type(batch_sampler).__name__} were made of {counted(batch_sampler.samples, batch_sampler.made_of)}, "
            f"and the dataset has {counted(len(dataset), 'sample')}; make them of the dataset that the loader is given"
        )


def check_positive(name: str, value: object) -> None:
    """Refuses what is no number of things."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} should be a positive integer value, but got {name}={value}")
