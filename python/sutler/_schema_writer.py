"""Puts samples into the shared memory of batches, in the worker.

A schema is taken apart once, into one function for each of its parts. A sample then costs a call per part and a copy
per array, and leaves no garbage: a function that calls itself by its name would be part of a cycle, which only the
collector ends, together with whatever it refers to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sutler._schema import Dense, Mapping, Mismatch, Schema, Sequence, dense_type, stored_type

#: Stores a value: given the arrays of the batch, the row, and the list for what goes into none of them.
Put = Callable[[Any, list[Any], int, list[Any]], None]

NUMBERS = {"bool": bool, "int64": int, "float64": float}


class SchemaWriter:
    """Writes samples of one schema to one piece of shared memory."""

    def __init__(self, schema: Schema, memory: np.ndarray[Any, Any]) -> None:
        self._schema = schema
        self._memory = memory
        self._leaves: list[Dense] = []
        self._put = self._take_apart(schema.root)
        #: The arrays of each batch, by where it begins: there is room for a few batches, which is used over and over.
        self._arrays: dict[int, list[Any]] = {}

    def store(self, sample: Any, offset: int, row: int) -> list[Any]:
        """Writes a sample's arrays to a row of the batch at `offset` and returns what did not go there.

        Raises `Mismatch`, having written nothing that matters, when the sample does not fit the schema.
        """
        if row >= self._schema.rows:  # a batch sampler may make larger batches than its first
            raise Mismatch
        arrays = self._arrays.get(offset)
        if arrays is None:
            arrays = self._arrays[offset] = [self._array(leaf, offset) for leaf in self._leaves]
        others: list[Any] = [None] * self._schema.others
        self._put(sample, arrays, row, others)
        return others

    def _array(self, leaf: Dense, offset: int) -> Any:
        start = offset + leaf.offset
        column = self._memory[start : start + leaf.bytes * self._schema.rows]
        return column.view(stored_type(leaf)).reshape(self._schema.rows, *leaf.shape)

    def _take_apart(self, node: Any) -> Put:
        if type(node) is Dense:
            self._leaves.append(node)
            return _put_dense(node, len(self._leaves) - 1)
        if type(node) is Sequence:
            return _put_sequence(node, [self._take_apart(item) for item in node.items])
        if type(node) is Mapping:
            return _put_mapping(node.keys, [self._take_apart(item) for item in node.items])
        return _put_other(node.place)


def _put_sequence(node: Sequence, items: list[Put]) -> Put:
    source: Any = node.source
    count = len(items)

    def put(value: Any, arrays: list[Any], row: int, others: list[Any]) -> None:
        if type(value) is not source or len(value) != count:
            raise Mismatch
        for put_item, item in zip(items, value, strict=True):
            put_item(item, arrays, row, others)

    return put


def _put_mapping(keys: list[Any], items: list[Put]) -> Put:
    def put(value: Any, arrays: list[Any], row: int, others: list[Any]) -> None:
        if type(value) is not dict or list(value) != keys:
            raise Mismatch
        for put_item, item in zip(items, value.values(), strict=True):
            put_item(item, arrays, row, others)

    return put


def _put_other(place: int) -> Put:
    def put(value: Any, arrays: list[Any], row: int, others: list[Any]) -> None:
        if dense_type(value) is not None:
            raise Mismatch
        others[place] = value

    return put


def _put_dense(leaf: Dense, index: int) -> Put:
    if leaf.kind == "number":
        return _put_number(NUMBERS[leaf.dtype], index)
    if leaf.kind == "tensor":
        return _put_tensor(leaf, index)
    expected = (leaf.kind, leaf.dtype, leaf.shape)

    def put(value: Any, arrays: list[Any], row: int, others: list[Any]) -> None:
        if dense_type(value) != expected:
            raise Mismatch
        arrays[index][row] = value

    return put


def _put_number(cls: type, index: int) -> Put:
    def put(value: Any, arrays: list[Any], row: int, others: list[Any]) -> None:
        if type(value) is not cls:
            raise Mismatch
        try:
            arrays[index][row] = value
        except OverflowError:  # more than 64 bits
            raise Mismatch from None

    return put


def _put_tensor(leaf: Dense, index: int) -> Put:
    import torch

    plain, strided, dtype, shape = torch.Tensor, torch.strided, getattr(torch, leaf.dtype), leaf.shape
    stand_in = torch.int16 if leaf.dtype == "bfloat16" else None

    def put(value: Any, arrays: list[Any], row: int, others: list[Any]) -> None:
        if (
            type(value) is not plain
            or value.dtype is not dtype
            or value.shape != shape
            or value.layout is not strided
            or value.requires_grad
            or not value.is_cpu
        ):
            raise Mismatch
        try:
            arrays[index][row] = (value if stand_in is None else value.view(stand_in)).numpy()
        except RuntimeError:  # a view of something else, whose values are not in memory as they are
            raise Mismatch from None

    return put
