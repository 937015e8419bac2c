"""Batches of a dataset written in Python: from what worker processes left, or made on the spot."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sutler import _payload, _schema, _sutler
from sutler._output import converter
from sutler.transforms.tail import seeded

if TYPE_CHECKING:
    from sutler._sutler import Batch, Job, Run
    from sutler.loader import Loader


def default_collate(output: str) -> Callable[[list[Any]], Any]:
    """PyTorch's default collation, or for other outputs its meaning in NumPy."""
    if output == "torch":
        from torch.utils.data import default_collate as torch_collate

        return torch_collate
    return numpy_collate


def numpy_collate(values: list[Any]) -> Any:
    """What PyTorch's default collation does, with arrays for tensors."""
    first = values[0]
    if isinstance(first, np.ndarray | np.generic | bool | int | float) or hasattr(first, "__array__"):
        return np.stack([np.asarray(value) for value in values])
    if isinstance(first, str | bytes):
        return values
    if isinstance(first, dict):
        return {key: numpy_collate([value[key] for value in values]) for key in first}
    if isinstance(first, tuple | list):
        if any(len(value) != len(first) for value in values):
            raise RuntimeError("each element in list of batch should be of equal size")
        columns = [numpy_collate(list(column)) for column in zip(*values, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else columns
    raise TypeError(
        f"a batch cannot be made of {type(first).__name__} objects; pass a collate_fn, or return arrays, numbers, "
        "strings, or lists, tuples and dicts of them"
    )


class ProcessBatches:
    """The batches of one epoch, as worker processes left them."""

    def __init__(self, loader: Loader, run: Run, job: Job) -> None:
        self._run = run
        self._job = job
        self._timeout = loader.timeout
        self._convert = np.asarray if loader.output == "dlpack" else converter(loader.output)
        self._collate = loader.collate_fn
        self._default = default_collate(loader.output)
        self._single = loader.batch_size is None and loader._given_batch_sampler is None
        self._return_ids = loader.return_ids
        self._schema: _schema.Schema | None = None

    def next(self) -> tuple[Any, int] | None:
        """The next batch and how much of the epoch is consumed with it; ``None`` at the end."""
        try:
            batch = self._run.next(self._timeout or None)
        except TimeoutError:
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None
        if batch is None:
            return None
        try:
            return self._assemble(batch), self._run.consumed
        except StopIteration as error:
            raise RuntimeError("a collate_fn raised StopIteration; an epoch ends on its own") from error

    def _assemble(self, batch: Batch) -> Any:
        rows = batch.take_rows()
        in_block = [in_block for _, in_block, _ in rows]
        others = [_load(payload) for _, _, payload in rows]
        complete = all(in_block) and [row for row, _, _ in rows] == list(range(len(rows)))
        if complete:
            extras = [other if other is not None else [] for other in others]
            collated = _schema.view(self._known_schema(), batch, len(rows), self._convert, self._default, extras)
        else:
            samples = [
                _schema.sample_of(self._known_schema(), batch, row, self._convert, other or []) if inside else other
                for (row, inside, _), other in zip(rows, others, strict=True)
            ]
            if self._single:
                return self._with_ids(self._collate(samples[0]) if self._collate else samples[0], batch)
            collated = (self._collate or self._default)(samples)
        return self._with_ids(collated, batch)

    def _with_ids(self, collated: Any, batch: Batch) -> Any:
        if not self._return_ids:
            return collated
        ids = int(np.asarray(batch.ids())[0]) if self._single else self._convert(batch.ids())
        return [*collated, ids] if isinstance(collated, list | tuple) else [collated, ids]

    def _known_schema(self) -> _schema.Schema:
        if self._schema is None:
            description = self._job.schema
            if description is None:
                raise RuntimeError("a worker wrote to shared memory that has no schema; please report this")
            self._schema = pickle.loads(description)
        return self._schema


def _load(payload: Any) -> Any:
    array = np.asarray(payload)
    return _payload.load(memoryview(array)) if array.nbytes else None


class InlineBatches:
    """The batches of one epoch, made by the trainer itself: `num_workers=0`."""

    def __init__(self, loader: Loader, batches: list[list[int]], consumed: list[int], epoch: int) -> None:
        self._dataset = loader.dataset
        self._batches = batches
        self._consumed = consumed
        self._step = 0
        self._epoch = epoch
        self._seed = loader.seed
        self._collate = loader.collate_fn
        self._default = default_collate(loader.output)
        self._single = loader.batch_size is None and loader._given_batch_sampler is None
        self._return_ids = loader.return_ids

    def next(self) -> tuple[Any, int] | None:
        """The next batch and how much of the epoch is consumed with it; ``None`` at the end."""
        if self._step == len(self._batches):
            return None
        indices = self._batches[self._step]
        try:
            made = self._make(indices)
        except StopIteration as error:
            raise RuntimeError("the dataset or collate_fn raised StopIteration; an epoch ends on its own") from error
        if self._return_ids:
            ids: Any = indices[0] if self._single else np.asarray(indices)
            made = [*made, ids] if isinstance(made, list | tuple) else [made, ids]
        consumed = self._consumed[self._step]
        self._step += 1
        return made, consumed

    def _make(self, indices: list[int]) -> Any:
        if self._single:
            sample = self._sample(indices[0])
            return self._collate(sample) if self._collate else sample
        many = getattr(self._dataset, "__getitems__", None)
        samples = many(indices) if many else [self._sample(index) for index in indices]
        return (self._collate or self._default)(samples)

    def _sample(self, index: int) -> Any:
        """A sample with its own random numbers, the same as from any worker process."""
        with seeded(_sutler.user_seed(self._seed, self._epoch, index)):
            return self._dataset[index]

    def close(self) -> None:
        """Makes no more batches."""
        self._step = len(self._batches)
