"""Batches of samples that differ in length: padded to the longest, with the length of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sutler._assembly import HostBatches
from sutler._columns import Columns, check_shapes, own_array
from sutler._output import import_torch

if TYPE_CHECKING:
    from sutler._run import RunReader
    from sutler._sutler import Batch
    from sutler.loader import Loader


class PaddedBatches(HostBatches):
    """The batches of one epoch as (padded, lengths, labels), one after the other."""

    def __init__(self, loader: Loader, run: RunReader, epoch: int, padding_value: float) -> None:
        super().__init__(loader, run, epoch, PaddedColumns(loader, padding_value))
        self._padding_value = padding_value

    def _assemble(self, batch: Batch) -> Any:
        if self._by_sample:
            return self._assemble_samples(batch)
        # The labels first: padding may take the samples out of the batch.
        labels = self._labels(batch)
        block = batch.padded(self._padding_value)
        if block is None:
            shapes = {tuple(array.shape) for array in batch.take_arrays()}
            raise _cannot_pad(shapes, self._loader.output)
        parts = [self._convert(block[0]), self._convert(block[1]), labels]
        if self._loader.return_ids:
            parts.append(self._ids(batch))
        return parts

    def _samples(self, batch: Batch, convert: Callable[[Any], Any]) -> list[Any]:
        return [convert(array) for array in batch.take_arrays()]


class PaddedColumns(Columns):
    """Puts samples together that differ in length."""

    def __init__(self, loader: Loader, padding_value: float) -> None:
        super().__init__(loader)
        self._padding_value = padding_value

    def collated(self, columns: dict[str, list[Any]]) -> list[Any]:
        """A batch by default."""
        samples = columns.pop("images")
        return [*self._pad(samples), *super().collated(columns)]

    def of_blocks(self, parts: list[Any]) -> list[Any]:
        """A batch of clips that have one length."""
        clips, *others = parts
        lengths = np.full(len(clips), clips.shape[-1], dtype=np.int64)
        return [clips, own_array(lengths, self._loader.output), *others]

    def _pad(self, samples: list[Any]) -> tuple[Any, Any]:
        """One array of samples that Python functions have made."""
        wrong = [sample for sample in samples if not getattr(sample, "shape", ())]
        if wrong:
            function = self._loader._origin.lowered.tail[-1]
            kind = "a number" if hasattr(wrong[0], "shape") else type(wrong[0]).__name__
            raise TypeError(
                f"{getattr(function, '__name__', function)}, the last function of the transform, returned {kind}, and "
                "clips are padded along their last axis; return an array or tensor that has one, or pass a collate_fn"
            )
        shapes = {tuple(sample.shape) for sample in samples}
        if len({shape[:-1] for shape in shapes}) > 1:
            raise _cannot_pad(shapes, self._loader.output)
        output = self._loader.output
        lengths = [sample.shape[-1] for sample in samples]
        shape = (len(samples), *samples[0].shape[:-1], max(lengths))
        padded: Any
        if output == "torch" and all(isinstance(sample, import_torch().Tensor) for sample in samples):
            padded = samples[0].new_full(shape, self._padding_value)  # NumPy has not all of its types
        else:
            samples = [np.asarray(sample) for sample in samples]
            padded = np.full(shape, self._padding_value, dtype=samples[0].dtype)
        for index, sample in enumerate(samples):
            padded[index, ..., : lengths[index]] = sample
        padded = own_array(padded, output) if isinstance(padded, np.ndarray) else padded
        return padded, own_array(np.asarray(lengths, dtype=np.int64), output)


def _cannot_pad(shapes: set[tuple[int, ...]], output: str) -> Exception:
    error = RuntimeError if output == "torch" else ValueError
    try:
        check_shapes(
            shapes, "clips", error, "pass mono=True, or return one number of rows from your function"
        )
    except error as explained:
        return explained
    raise AssertionError(f"clips of one shape can be padded: {shapes}")
