"""The samplers a loader shows: what trainers look for to set the epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator


class EpochSampler:
    """The order of the loader's own epochs.

    Trainers such as Lightning look for ``loader.sampler.set_epoch`` and call it before each epoch.
    """

    def __init__(
        self, order: Callable[[], list[int]], length: Callable[[], int], set_epoch: Callable[[int], None]
    ) -> None:
        self._order = order
        self._length = length
        self._set_epoch = set_epoch

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next ``iter(loader)`` runs."""
        self._set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        return iter(self._order())

    def __len__(self) -> int:
        return self._length()


class EpochBatchSampler:
    """The same order cut into batches, as ``torch.utils.data.BatchSampler`` would."""

    def __init__(self, sampler: EpochSampler, batch_size: int, drop_last: bool) -> None:
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
