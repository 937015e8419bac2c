"""Batches of text: padded tokens with their lengths, packed blocks, or plain strings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sutler._columns import own_array
from sutler._output import converter
from sutler._run import AssembledBatches
from sutler._seeding import generators_kept

if TYPE_CHECKING:
    from collections.abc import Callable

    from sutler._run import RunReader
    from sutler._sutler import Array, Batch
    from sutler.loader import Loader
    from sutler.text import TextLines


class LineColumns:
    """Puts lines together that came one by one: from a tokenizer that is a function."""

    def __init__(self, loader: Loader, dataset: TextLines) -> None:
        self._loader = loader
        self._dataset = dataset

    def of_samples(self, samples: list[Any]) -> Any:
        """A batch of lines, their ids included where they are asked for."""
        if not self._loader.return_ids:
            return self.complete(self.padded(samples), None)
        lines, ids = zip(*samples, strict=True)
        return self.complete(self.padded(list(lines)), list(ids))

    def complete(self, parts: list[Any], ids: list[int] | None) -> Any:
        """A batch of these parts, and of ids where they are asked for."""
        if ids is not None:
            parts.append(self._own(np.asarray(ids, dtype=np.int64)))
        return parts if len(parts) > 1 else parts[0]

    def padded(self, samples: list[Any]) -> list[Any]:
        """What a Python tokenizer has made, in one array; and plain strings in a list."""
        dataset = self._dataset
        if dataset.tokenizer is None:
            return [samples]
        rows = [_tokens(sample) for sample in samples]
        lengths = np.asarray([len(row) for row in rows], dtype=np.int64)
        padded = np.full((len(rows), dataset.padded_length(int(lengths.max()))), dataset.pad, dtype=np.int64)
        for line, row in zip(padded, rows, strict=True):
            line[: len(row)] = row
        if dataset.pads_left:
            _move_padding_left(padded, lengths)
        return self.masked(self._own(padded), self._own(lengths))

    def masked(self, ids: Any, lengths: Any) -> list[Any]:
        """Padded lines and their lengths, with what tells padding apart where that is asked for."""
        dataset = self._dataset
        if not dataset.attention_mask:
            return [ids, lengths]
        mask = np.arange(ids.shape[1]) < np.asarray(lengths)[:, None]
        if dataset.pads_left:
            mask = mask[:, ::-1]
        return [ids, lengths, self._own(mask.astype(np.int64))]

    def _own(self, array: np.ndarray[Any, Any]) -> Any:
        return own_array(array, self._loader.output)


class TextBatches(AssembledBatches):
    """The batches of one epoch, one after the other."""

    def __init__(self, loader: Loader, dataset: TextLines, run: RunReader, epoch: int) -> None:
        super().__init__(run)
        self._loader = loader
        self._dataset = dataset
        self._epoch = epoch
        self._columns = LineColumns(loader, dataset)
        self._convert: Callable[[Array], Any] = converter(loader.output)
        self.prepares = loader.collate_fn is not None or bool(dataset.lowered.tail)

    def _assemble(self, batch: Batch) -> Any:
        loader = self._loader
        if not loader._batched():
            sample = self._with_ids(self._samples(batch), batch)[0]
            return sample if loader.collate_fn is None else loader.collate_fn(sample)
        if loader.collate_fn is not None:
            return loader.collate_fn(self._with_ids(self._samples(batch), batch))
        return self._columns.complete(self._parts(batch), self._ids(batch) if loader.return_ids else None)

    def _parts(self, batch: Batch) -> list[Any]:
        """A batch as it is delivered when nobody collates it."""
        dataset = self._dataset
        if dataset.pack is not None:
            return self._planes(batch)
        block = batch.padded_tokens()
        if block is None:
            return self._columns.padded(self._samples(batch))
        if dataset.pads_left:
            _move_padding_left(np.asarray(block[0]), np.asarray(block[1]))
        return self._columns.masked(self._convert(block[0]), self._convert(block[1]))

    def _planes(self, batch: Batch) -> list[Any]:
        """The tokens of packed blocks, and what else they tell."""
        length, planes = self._dataset.pack, self._dataset.planes
        assert length is not None
        return [self._convert(batch.plane(length, planes, plane)) for plane in range(planes)]

    def _samples(self, batch: Batch) -> list[Any]:
        """The samples of a batch one by one, as ``dataset[index]`` has them."""
        dataset = self._dataset
        # An array that only lends its memory has no rows; NumPy's view of it has, and lends them too.
        convert = np.asarray if self._loader.output == "dlpack" else self._convert
        if dataset.pack is not None:
            planes = [
                convert(plane) if hasattr(plane, "__dlpack__") else plane for plane in self._planes(batch)
            ]
            rows = [tuple(plane[row] for plane in planes) for row in range(len(batch))]
            return rows if len(planes) > 1 else [row[0] for row in rows]
        if dataset.is_native:
            return [convert(array) for array in batch.take_tokens()]
        ids: list[int] = np.asarray(batch.ids()).tolist()
        texts = [np.asarray(array).tobytes().decode() for array in batch.take_text()]
        loader = self._loader
        with generators_kept(), loader._function_times.noted():
            return [
                dataset.finish(text, index, seed=loader.seed, epoch=self._epoch, repeat=repeat)
                for text, index, repeat in zip(texts, ids, batch.repeats(), strict=True)
            ]

    def _with_ids(self, samples: list[Any], batch: Batch) -> list[Any]:
        if not self._loader.return_ids:
            return samples
        return list(zip(samples, self._ids(batch), strict=True))

    def _ids(self, batch: Batch) -> list[int]:
        """What ``loader.dataset`` calls the samples of a batch."""
        ids: list[int] = np.asarray(batch.ids()).tolist()
        selection = self._loader._selection
        return ids if selection is None else selection.places(ids)


def _move_padding_left(rows: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> None:
    """Puts the tokens of each row at its end, in place: the memory may be registered with a device."""
    for row, length in zip(rows, lengths.tolist(), strict=True):
        row[:] = np.roll(row, len(row) - length)


def _tokens(sample: Any) -> np.ndarray[Any, Any]:
    """The numbers that a Python tokenizer has made of a line."""
    row = np.asarray(sample)
    if row.ndim != 1 or (row.size > 0 and row.dtype.kind not in "iu"):
        raise TypeError(
            "the tokenizer should return the numbers of a line's tokens, as a list of integers below 2**63 or an array "
            f"of one dimension, got {sample!r:.200}; pass a collate_fn to put something else together"
        )
    return row.astype(np.int64)
