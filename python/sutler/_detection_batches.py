"""Batches of pictures with boxes: pictures in frames of one size, and a dictionary for each of what is on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sutler._assembly import HostBatches
from sutler._columns import Columns, as_output
from sutler._seeding import generators_kept

if TYPE_CHECKING:
    from sutler._run import RunReader
    from sutler._sutler import Batch, _Targets
    from sutler.detection import CocoDetection
    from sutler.loader import Loader


def split_targets(targets: _Targets, convert: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """What is on each picture, from what is on all of them; the arrays of all pictures share memory."""
    ends, *arrays = targets
    boxes, labels, areas, crowds, image_ids, sizes, source_sizes = map(convert, arrays)
    starts = [0, *ends[:-1]]
    return [
        {
            "boxes": boxes[start:end],
            "labels": labels[start:end],
            "image_id": image_ids[number, ...],  # with the dots NumPy gives an array, too
            "area": areas[start:end],
            "iscrowd": crowds[start:end],
            "size": sizes[number],
            "orig_size": source_sizes[number],
        }
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


class DetectionBatches(HostBatches):
    """The batches of one epoch as (images, targets), one after the other."""

    def __init__(self, loader: Loader, run: RunReader, epoch: int, dataset: CocoDetection) -> None:
        super().__init__(loader, run, epoch, FramedColumns(loader, dataset.size_divisible))
        self._dataset = dataset
        # Parts of an array that only lends its memory cannot be had; NumPy's view of it has parts, and lends them too.
        self._convert_parts = np.asarray if loader.output == "dlpack" else self._convert

    def _assemble(self, batch: Batch) -> Any:
        if self._by_sample:
            return self._assemble_samples(batch)
        images, columns = batch.framed(self._dataset._native, self._dataset.size_divisible)
        parts = [self._convert(images), self._transformed(split_targets(columns, self._convert_parts))]
        if self._loader.return_ids:
            parts.append(self._ids(batch))
        return parts

    def _transformed(self, targets: list[dict[str, Any]]) -> list[Any]:
        target_transform = self._dataset.target_transform
        return targets if target_transform is None else [target_transform(target) for target in targets]

    def _assemble_samples(self, batch: Batch) -> Any:
        """The slow way: picture by picture, for functions behind the transforms and collate functions."""
        loader, dataset = self._loader, self._dataset
        arrays, found = batch.take_detections(dataset._native)
        images = [self._convert_parts(array) for array in arrays]
        targets = split_targets(found, self._convert_parts)
        ids: list[int] = np.asarray(batch.ids()).tolist()
        with generators_kept(), loader._function_times.noted():
            for place, (index, repeat) in enumerate(zip(ids, batch.repeats(), strict=True)):
                images[place], targets[place] = dataset.finish_detection(
                    images[place], targets[place], index, seed=loader.seed, epoch=self._epoch, repeat=repeat
                )
        images = [as_output(image, loader.output) for image in images]
        columns: dict[str, list[Any]] = {"images": images, "targets": self._transformed(targets)}
        if loader.return_ids:
            columns["ids"] = ids if loader._selection is None else loader._selection.places(ids)
        return self._columns.put_together(columns)


class FramedColumns(Columns):
    """Puts pictures together that differ in size; what is on them stays a list."""

    names = ("images", "targets")
    in_blocks = False

    def __init__(self, loader: Loader, size_divisible: int) -> None:
        super().__init__(loader)
        self._size_divisible = size_divisible

    def collated(self, columns: dict[str, list[Any]]) -> list[Any]:
        """A batch by default."""
        images, targets = columns.pop("images"), columns.pop("targets")
        return [self._framed(images), targets, *super().collated(columns)]

    def _framed(self, images: list[Any]) -> Any:
        """One array of pictures that functions have made."""
        multiple = self._size_divisible
        shapes = [tuple(image.shape) for image in images]
        if len({(len(shape), shape[:-2]) for shape in shapes}) > 1 or len(shapes[0]) < 2:
            raise ValueError(
                f"the pictures of a batch have the shapes {', '.join(map(str, shapes))}, which differ in more than "
                "height and width; let your function return (channels, height, width) throughout"
            )
        height, width = (-(-max(shape[axis] for shape in shapes) // multiple) * multiple for axis in (-2, -1))
        shape = (len(images), *shapes[0][:-2], height, width)
        framed = (
            images[0].new_zeros(shape)
            if hasattr(images[0], "new_zeros")
            else np.zeros(shape, images[0].dtype)
        )
        for frame, image in zip(framed, images, strict=True):
            frame[..., : image.shape[-2], : image.shape[-1]] = image
        return framed
