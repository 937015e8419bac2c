"""From the engine's batches to what the user asked for: samples, labels and ids, collated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sutler._output import converter
from sutler._run import AssembledBatches

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
        dataset = loader.dataset
        self._by_sample = (
            loader.collate_fn is not None
            or bool(dataset.lowered.tail)
            or (loader.batch_size is None and loader._given_batch_sampler is None)
        )

    def _assemble(self, batch: Batch) -> Any:
        loader = self._loader
        target_transform = loader.dataset.target_transform
        if self._by_sample or not batch.is_block:
            return self._assemble_samples(batch)
        if target_transform is None:
            labels = self._convert(batch.labels())
        else:
            transformed = [target_transform(label) for label in np.asarray(batch.labels()).tolist()]
            labels = self._collate(transformed, "labels")
        parts = [self._convert(batch.images()), labels]
        if loader.return_ids:
            parts.append(self._convert(batch.ids()))
        return parts

    def _assemble_samples(self, batch: Batch) -> Any:
        """The slow way: sample by sample, for Python transforms, collate functions and images that differ in size."""
        loader = self._loader
        dataset = loader.dataset
        # An array that only lends its memory has no rows; NumPy's view of it has, and lends them too.
        convert = np.asarray if loader.output == "dlpack" else self._convert
        images = (
            list(convert(batch.images())) if batch.is_block else [convert(a) for a in batch.take_images()]
        )
        labels: list[Any] = np.asarray(batch.labels()).tolist()
        ids: list[int] = np.asarray(batch.ids()).tolist()
        if dataset.lowered.tail:
            images = [
                dataset.finish(image, index, seed=loader.seed, epoch=self._epoch)
                for image, index in zip(images, ids, strict=True)
            ]
            if loader.output != "torch":
                images = [np.asarray(image) if hasattr(image, "__array__") else image for image in images]
        if dataset.target_transform is not None:
            labels = [dataset.target_transform(label) for label in labels]
        columns: dict[str, list[Any]] = {"images": images, "labels": labels}
        if loader.return_ids:
            columns["ids"] = ids
        samples = list(zip(*columns.values(), strict=True))
        if loader.batch_size is None and loader._given_batch_sampler is None:
            return samples[0] if loader.collate_fn is None else loader.collate_fn(samples[0])
        if loader.collate_fn is not None:
            return loader.collate_fn(samples)
        return [self._collate(column, name) for name, column in columns.items()]

    def _collate(self, values: list[Any], name: str) -> Any:
        """PyTorch's default collation where that is the output, its meaning in NumPy elsewhere."""
        if self._loader.output == "torch":
            from torch.utils.data import default_collate

            # Only what has a shape is stacked; the rest, dictionaries for instance, is PyTorch's to put together.
            _check_shapes(
                {tuple(value.shape) for value in values if hasattr(value, "shape")}, name, RuntimeError
            )
            return default_collate(values)
        _check_shapes({np.shape(value) for value in values}, name, ValueError)
        return np.stack(values) if hasattr(values[0], "__array__") else np.asarray(values)


#: How many of the shapes in a batch a message lists: enough to see the pattern, on one line.
_SHAPES_LISTED = 4


def _check_shapes(shapes: set[tuple[int, ...]], name: str, error: type[Exception]) -> None:
    """Raises ``error``, which is what users of PyTorch or NumPy expect there, unless there is one shape only."""
    if len(shapes) < 2:
        return
    listed = ", ".join(map(str, sorted(shapes)[:_SHAPES_LISTED]))
    more = f" and {len(shapes) - _SHAPES_LISTED} more" if len(shapes) > _SHAPES_LISTED else ""
    remedy = (
        "add a Resize or crop to the transform"
        if name == "images"
        else "let target_transform return one shape"
    )
    raise error(
        f"the {name} of a batch differ in shape ({listed}{more}) and cannot be stacked; "
        f"{remedy}, or pass a collate_fn"
    )
