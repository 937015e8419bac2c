"""From the engine's batches to what the user asked for: samples, labels and ids, collated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sutler._output import converter
from sutler._run import AssembledBatches
from sutler._seeding import generators_kept

if TYPE_CHECKING:
    from sutler._run import RunReader
    from sutler._sutler import Array, Batch
    from sutler.loader import Loader


class HostBatches(AssembledBatches):
    """The batches of one epoch in host memory, one after the other."""

    def __init__(self, loader: Loader, run: RunReader, epoch: int) -> None:
        super().__init__(run)
        self._loader = loader
        self._epoch = epoch
        self._convert: Callable[[Array], Any] = converter(loader.output)
        dataset = loader._origin
        self._by_sample = (
            loader.collate_fn is not None
            or bool(dataset.lowered.tail)
            or (loader.batch_size is None and loader._given_batch_sampler is None)
        )
        self.prepares = self._by_sample or dataset.target_transform is not None

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
        return self._collate(transformed, "labels")

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
            if loader.output != "torch":
                images = [np.asarray(image) if hasattr(image, "__array__") else image for image in images]
        if dataset.target_transform is not None:
            labels = [dataset.target_transform(label) for label in labels]
        columns: dict[str, list[Any]] = {"images": images, "labels": labels}
        if loader.return_ids:
            columns["ids"] = ids if loader._selection is None else loader._selection.places(ids)
        return self._collated(columns)

    def _collated(self, columns: dict[str, list[Any]]) -> Any:
        """A batch, or the one sample there is, in the hands of whoever puts samples together."""
        loader = self._loader
        samples = list(zip(*columns.values(), strict=True))
        if loader.batch_size is None and loader._given_batch_sampler is None:
            return samples[0] if loader.collate_fn is None else loader.collate_fn(samples[0])
        if loader.collate_fn is not None:
            return loader.collate_fn(samples)
        return self._collate_columns(columns)

    def _collate_columns(self, columns: dict[str, list[Any]]) -> list[Any]:
        """A batch of samples that came one by one."""
        return [self._collate(column, name) for name, column in columns.items()]

    def _collate(self, values: list[Any], name: str) -> Any:
        """PyTorch's default collation where that is the output, its meaning in NumPy elsewhere."""
        if self._loader.output == "torch":
            from torch.utils.data import default_collate

            # Only what has a shape is stacked; the rest, dictionaries for instance, is PyTorch's to put together.
            shapes = {tuple(value.shape) for value in values if hasattr(value, "shape")}
            check_shapes(shapes, name, RuntimeError, _REMEDIES[name])
            return default_collate(values)
        check_shapes({np.shape(value) for value in values}, name, ValueError, _REMEDIES[name])
        return np.stack(values) if hasattr(values[0], "__array__") else np.asarray(values)


#: How many of the shapes in a batch a message lists: enough to see the pattern, on one line.
_SHAPES_LISTED = 4


#: What to do about samples or labels that cannot be stacked.
_REMEDIES = {
    "images": "add a Resize or crop to the transform",
    "labels": "let target_transform return one shape",
    "ids": "report this",
    "volumes": "add a RandBalancedCrop to the transform",
    "labels of volumes": "add a RandBalancedCrop to the transform",
}


def check_shapes(shapes: set[tuple[int, ...]], name: str, error: type[Exception], remedy: str) -> None:
    """Raises ``error``, which is what users of PyTorch or NumPy expect there, unless there is one shape only."""
    if len(shapes) < 2:
        return
    listed = ", ".join(map(str, sorted(shapes)[:_SHAPES_LISTED]))
    more = f" and {len(shapes) - _SHAPES_LISTED} more" if len(shapes) > _SHAPES_LISTED else ""
    raise error(
        f"the {name} of a batch differ in shape ({listed}{more}) and cannot be stacked; "
        f"{remedy}, or pass a collate_fn"
    )
