"""Batches of volumes: images and labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sutler._assembly import HostBatches
from sutler._seeding import generators_kept

if TYPE_CHECKING:
    from sutler._sutler import Batch


class VolumeBatches(HostBatches):
    """The batches of one epoch as (images, labels), one after the other."""

    def _assemble(self, batch: Batch) -> Any:
        if self._by_sample or not batch.is_block:
            return self._assemble_samples(batch)
        parts = [self._convert(array) for array in batch.volumes()]
        if self._loader.return_ids:
            parts.append(self._ids(batch))
        return parts

    def _samples(self, batch: Batch, convert: Callable[[Any], Any]) -> list[Any]:
        """Images and labels of the samples of a batch one by one."""
        if batch.is_block:
            images, labels = batch.volumes()
            return list(zip(convert(images), convert(labels), strict=True))
        return [(convert(image), convert(label)) for image, label in batch.take_volumes()]

    def _assemble_samples(self, batch: Batch) -> Any:
        loader = self._loader
        dataset = loader._origin
        convert = np.asarray if loader.output == "dlpack" else self._convert
        ids: list[int] = np.asarray(batch.ids()).tolist()
        samples = zip(self._samples(batch, convert), ids, batch.repeats(), strict=True)
        with generators_kept(), loader._function_times.noted():
            pairs = [
                dataset.finish(pair, index, seed=loader.seed, epoch=self._epoch, repeat=repeat)
                for pair, index, repeat in samples
            ]
        columns: dict[str, list[Any]] = {
            "volumes": [image for image, _ in pairs],
            "labels of volumes": [label for _, label in pairs],
        }
        if loader.output != "torch" and dataset.lowered.tail:
            for name, column in columns.items():
                columns[name] = [
                    np.asarray(value) if hasattr(value, "__array__") else value for value in column
                ]
        if loader.return_ids:
            columns["ids"] = ids if loader._selection is None else loader._selection.places(ids)
        return self._collated(columns)
