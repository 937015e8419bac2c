"""Puts samples together to a batch that came one by one: from Python functions, or differing in size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sutler._output import import_torch

if TYPE_CHECKING:
    from sutler.loader import Loader


class Columns:
    """The parts of samples, of each part all of a batch, and how a batch is made of them."""

    #: What the parts of a sample are called, but for its id.
    names: tuple[str, ...] = ("images", "labels")
    #: Whether arrays of one shape make the same batch where they lie one behind the other in memory.
    in_blocks = True

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def put_together(self, columns: dict[str, list[Any]]) -> Any:
        """A batch, or the one sample there is, in the hands of whoever puts samples together."""
        loader = self._loader
        samples = list(zip(*columns.values(), strict=True))
        if not loader._batched():
            return samples[0] if loader.collate_fn is None else loader.collate_fn(samples[0])
        if loader.collate_fn is not None:
            return loader.collate_fn(samples)
        return self.collated(columns)

    def of_samples(self, samples: list[Any]) -> list[Any]:
        """A batch of whole samples, their ids included where they are asked for."""
        names = (*self.names, "ids") if self._loader.return_ids else self.names
        return self.collated(dict(zip(names, map(list, zip(*samples, strict=True)), strict=True)))

    def of_blocks(self, parts: list[Any]) -> list[Any]:
        """A batch of which each part is one array already."""
        return parts

    def collated(self, columns: dict[str, list[Any]]) -> list[Any]:
        """A batch by default."""
        return [self.collate(column, name) for name, column in columns.items()]

    def collate(self, values: list[Any], name: str) -> Any:
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


def as_output(value: Any, output: str) -> Any:
    """What a function has returned, as an array where batches are not PyTorch's."""
    return np.asarray(value) if output != "torch" and hasattr(value, "__array__") else value


def own_array(array: np.ndarray[Any, Any], output: str) -> Any:
    """An array that was made here, as the loader's output."""
    return import_torch().from_numpy(array) if output == "torch" else array
