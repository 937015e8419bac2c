"""Batches of volumes: images and labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sutler._assembly import HostBatches
from sutler._columns import Columns, as_output
from sutler._seeding import generators_kept

if TYPE_CHECKING:
    from sutler._sutler import Batch


class VolumeColumns(Columns):
    """Puts volumes and their labels together."""

    names = ("volumes", "labels of volumes")


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
            name: [as_output(pair[part], loader.output) for pair in pairs]
            for part, name in enumerate(VolumeColumns.names)
        }
        if loader.return_ids:
            columns["ids"] = ids if loader._selection is None else loader._selection.places(ids)
        return self._columns.put_together(columns)
