"""One pass over the data, from the consumer's side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sutler._cuda import DevicePrefetcher
from sutler._device_ops import device_finisher
from sutler._output import converter

if TYPE_CHECKING:
    from sutler._sutler import Array, Batch
    from sutler.loader import Loader


class Position:
    """Where a job stands: its epoch, and how much of the epoch's sequence all ranks have consumed."""

    __slots__ = ("consumed", "epoch", "unique_fraction")

    def __init__(self, epoch: int, consumed: int) -> None:
        self.epoch = epoch
        self.consumed = consumed
        self.unique_fraction = 1.0


class EpochIterator(Iterator[Any]):
    """Yields the batches of one epoch; made by ``iter(loader)``."""

    def __init__(self, loader: Loader, position: Position) -> None:
        self._loader = loader
        self._position = position
        self._epoch = position.epoch
        self._convert: Callable[[Array], Any] = converter(loader.output)
        self._prefetcher: DevicePrefetcher | None = None
        self.finished = False
        self._start()

    def _start(self) -> None:
        self._owner = os.getpid()
        self._run, self._job = self._loader._begin(self._position)
        self.batches = self._run.batches
        self._taken = 0
        if self._loader.device is not None:
            finish = device_finisher(self._loader._device_operations, self._loader.device)
            self._prefetcher = DevicePrefetcher(self._fetch, self._loader.device, finish)

    def __iter__(self) -> EpochIterator:
        return self

    def __len__(self) -> int:
        return self.batches - self._taken

    def __next__(self) -> Any:
        if self.finished:
            raise StopIteration
        if self._owner != os.getpid():
            # Forked in the middle of an epoch: the threads stayed behind, but the position is ours.
            self._prefetcher = None
            self._start()
        try:
            batch, consumed = self._prefetcher.next() if self._prefetcher else self._fetch()
        except StopIteration:
            self._end()
            raise
        self._taken += 1
        self._position.consumed = consumed
        if self._taken == self.batches:
            # The epoch is complete with its last batch: a checkpoint taken now belongs to the next one.
            self._position.epoch, self._position.consumed = self._epoch + 1, 0
        return batch

    def _fetch(self) -> tuple[Any, int]:
        """The next batch on the host, and how much of the epoch is consumed with it."""
        timeout = self._loader.timeout or None
        try:
            batch = self._run.next(timeout)
        except TimeoutError:
            raise RuntimeError(f"DataLoader timed out after {self._loader.timeout} seconds") from None
        if batch is None:
            raise StopIteration
        return self._assemble(batch), self._run.consumed

    def _assemble(self, batch: Batch) -> Any:
        loader = self._loader
        dataset = loader.dataset
        ids = self._convert(batch.ids())
        labels = self._convert(batch.labels())
        by_sample = loader.collate_fn is not None or dataset.lowered.tail or not batch.is_block
        if dataset.target_transform is not None:
            labels = [dataset.target_transform(int(label)) for label in labels]
        if not by_sample and loader.batch_size is not None:
            if isinstance(labels, list):
                labels = self._collate(labels)
            parts = [self._convert(batch.images()), labels]
            return (*parts, ids) if loader.return_ids else parts
        return self._assemble_samples(batch, labels, ids)

    def _assemble_samples(self, batch: Batch, labels: Any, ids: Any) -> Any:
        """The slow way: sample by sample, for Python transforms, collate functions and images that differ in size."""
        loader = self._loader
        indices = [int(index) for index in ids]
        arrays = list(self._convert(batch.images())) if batch.is_block else batch.take_images()
        images = [array if batch.is_block else self._convert(array) for array in arrays]
        if loader.dataset.lowered.tail:
            images = [
                loader.dataset.finish(image, index, seed=loader.seed, epoch=self._epoch)
                for image, index in zip(images, indices, strict=True)
            ]
        samples: list[tuple[Any, ...]] = list(zip(images, [_plain(label) for label in labels], strict=True))
        if loader.return_ids:
            samples = [(*sample, index) for sample, index in zip(samples, indices, strict=True)]
        if loader.batch_size is None and loader._given_batch_sampler is None:
            sample = samples[0]
            return loader.collate_fn(sample) if loader.collate_fn else sample
        if loader.collate_fn is not None:
            return loader.collate_fn(samples)
        return [self._collate(list(column)) for column in zip(*samples, strict=True)]

    def _collate(self, values: list[Any]) -> Any:
        """PyTorch's default collation where that is the output, its meaning in NumPy elsewhere."""
        if self._loader.output == "torch":
            from torch.utils.data import default_collate

            return default_collate(values)
        import numpy as np

        shapes = {np.shape(value) for value in values}
        if len(shapes) > 1:
            raise ValueError(
                f"the images of a batch differ in shape ({', '.join(map(str, sorted(shapes)))}) and cannot be stacked; "
                "add a Resize or crop to the transform, or pass a collate_fn"
            )
        return np.stack(values) if values and isinstance(values[0], np.ndarray) else np.asarray(values)

    def _end(self) -> None:
        self.finished = True
        self._position.epoch, self._position.consumed = self._epoch + 1, 0
        self.close()

    def close(self) -> None:
        """Calls the rest of the epoch off."""
        self.finished = True
        if self._owner == os.getpid():
            self._run.close()
            if self._prefetcher is not None:
                self._prefetcher.close()

    def __del__(self) -> None:
        if getattr(self, "_prefetcher", None) is not None and not self.finished:
            self.close()


def _plain(label: Any) -> Any:
    return label.item() if hasattr(label, "item") else label
