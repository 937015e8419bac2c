"""From the engine's batches to what the user asked for: samples, labels and ids, collated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sutler._columns import Columns, as_output
from sutler._output import converter
from sutler._run import AssembledBatches
from sutler._seeding import generators_kept

if TYPE_CHECKING:
    from sutler._run import RunReader
    from sutler._sutler import Array, Batch
    from sutler.loader import Loader


class HostBatches(AssembledBatches):
    """The batches of one epoch in host memory, one after the other."""

    def __init__(self, loader: Loader, run: RunReader, epoch: int, columns: Columns) -> None:
        super().__init__(run)
        self._loader = loader
        #: What puts samples together that come one by one.
        self._columns = columns
        self._epoch = epoch
        self._convert: Callable[[Array], Any] = converter(loader.output)
        dataset = loader._origin
        self._by_sample = loader.collate_fn is not None or bool(dataset.lowered.tail) or not loader._batched()
        self.prepares = self._by_sample or dataset.target_transform is not None
        besides = [
            function for function in (dataset.target_transform, loader.collate_fn) if function is not None
        ]
        if besides and not dataset.lowered.tail:  # else its functions are what is noted
            self.notes = partial(loader._besides_times.note_batch, besides)

    def _assemble(self, batch: Batch) -> Any:
        if self._by_sample or not batch.is_block:
            return self._assemble_samples(batch)
        parts = [self._convert(batch.images()), self._labels(batch)]
        if self._loader.return_ids:
            parts.append(self._ids(batch))
        return parts

    def _ids(self, batch: Batch) -> Any:
        """What ``loader.dataset`` calls the samples of a batch."""
        selection = self._loader._selection
        ids: Any = batch.ids()
        if selection is not None:
            ids = np.asarray(selection.places(np.asarray(ids).tolist()), dtype=np.int64)
        return self._convert(ids)

    def _labels(self, batch: Batch) -> Any:
        """The labels of a batch, transformed and put together."""
        target_transform = self._loader._origin.target_transform
        if target_transform is None:
            return self._convert(batch.labels())
        transformed = [target_transform(label) for label in np.asarray(batch.labels()).tolist()]
        return self._columns.collate(transformed, "labels")

    def _samples(self, batch: Batch, convert: Callable[[Any], Any]) -> list[Any]:
        """The samples of a batch one by one."""
        if batch.is_block:
            return list(convert(batch.images()))
        return [convert(array) for array in batch.take_images()]

    def _assemble_samples(self, batch: Batch) -> Any:
        """The slow way: sample by sample, for Python transforms, collate functions and images that differ in size."""
        loader = self._loader
        dataset = loader._origin
        # An array that only lends its memory has no rows; NumPy's view of it has, and lends them too.
        convert = np.asarray if loader.output == "dlpack" else self._convert
        images = self._samples(batch, convert)
        labels: list[Any] = np.asarray(batch.labels()).tolist()
        ids: list[int] = np.asarray(batch.ids()).tolist()
        if dataset.lowered.tail:
            with generators_kept(), loader._function_times.noted():
                images = [
                    dataset.finish(image, index, seed=loader.seed, epoch=self._epoch, repeat=repeat)
                    for image, index, repeat in zip(images, ids, batch.repeats(), strict=True)
                ]
            images = [as_output(image, loader.output) for image in images]
        if dataset.target_transform is not None:
            labels = [as_output(dataset.target_transform(label), loader.output) for label in labels]
        columns: dict[str, list[Any]] = {"images": images, "labels": labels}
        if loader.return_ids:
            columns["ids"] = ids if loader._selection is None else loader._selection.places(ids)
        return self._columns.put_together(columns)
