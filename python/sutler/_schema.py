"""Which arrays a sample has, and where in a batch's memory each goes.

A schema is made from the first sample and holds for all that look like it: the same nesting, the same keys, arrays
of the same types and shapes. Numbers count as arrays without dimensions, with the types PyTorch's default collation
gives them. Everything else (strings, objects of other classes) travels beside the block, sample by sample.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sutler._tensors import is_plain

#: Arrays of a batch begin at multiples of this.
ALIGNMENT = 64


class Dense(NamedTuple):
    """An array that every sample has: its bytes for a batch begin at `offset`."""

    offset: int
    bytes: int
    dtype: str
    shape: tuple[int, ...]
    kind: str


class Other(NamedTuple):
    """Something that travels beside the block: which of such things."""

    place: int


class Sequence(NamedTuple):
    """A list or tuple; `cls` rebuilds it, `None` for what becomes a list."""

    cls: type | None
    source: type
    items: list[Any]


class Mapping(NamedTuple):
    """A dict."""

    keys: list[Any]
    items: list[Any]


class Schema(NamedTuple):
    """The layout of a batch of at most `rows` samples."""

    root: Any
    rows: int
    bytes: int
    others: int


class Mismatch(Exception):  # noqa: N818 - control flow, never seen by users
    """A sample does not look like the first one."""


def dense_type(value: Any) -> tuple[str, str, tuple[int, ...]] | None:
    """Kind, type name and shape of a value that can go into a block; `None` for any other."""
    cls = type(value)
    if cls is bool:
        return "number", "bool", ()
    if cls is int:
        return ("number", "int64", ()) if -(2**63) <= value < 2**63 else None
    if cls is float:
        return "number", "float64", ()
    if cls is np.ndarray:
        known = value.dtype.isnative and value.dtype.kind in "biufc" and value.dtype.itemsize <= 16
        return ("array", value.dtype.name, value.shape) if known and value.dtype.name != "float128" else None
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return ("scalar", value.dtype.name, ()) if value.dtype.itemsize <= 8 else None
    if is_plain(value):
        name = str(value.dtype).removeprefix("torch.")
        return None if name.startswith(("complex", "float8")) else ("tensor", name, tuple(value.shape))
    return None


def propose(sample: Any, rows: int) -> Schema | None:
    """The schema of a sample for batches of `rows`; `None` when nothing of it can go into a block."""
    state = {"bytes": 0, "others": 0, "dense": 0}

    def visit(value: Any) -> Any:
        cls = type(value)
        if cls is tuple or cls is list or (isinstance(value, tuple) and hasattr(value, "_fields")):
            named = cls if cls not in (tuple, list) else None
            return Sequence(named, cls, [visit(item) for item in value])
        if cls is dict:
            return Mapping(list(value), [visit(item) for item in value.values()])
        found = dense_type(value)
        if found is None or 0 in found[2]:
            state["others"] += 1
            return Other(state["others"] - 1)
        kind, dtype, shape = found
        itemsize = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
        size = itemsize * int(np.prod(shape, dtype=np.int64))
        leaf = Dense(state["bytes"], size, dtype, shape, kind)
        state["bytes"] += -(-size * rows // ALIGNMENT) * ALIGNMENT
        state["dense"] += 1
        return leaf

    root = visit(sample)
    return Schema(root, rows, state["bytes"], state["others"]) if state["dense"] else None


def _value_of(leaf: Dense, batch: Any, row: int) -> Any:
    block = batch.block(leaf.offset + row * leaf.bytes, list(leaf.shape), stored_type(leaf))
    array = np.array(block)
    if leaf.kind == "number":
        return array.item()
    if leaf.kind == "scalar":
        return array[()]
    if leaf.kind == "array":
        return array
    import torch

    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if leaf.dtype == "bfloat16" else tensor


def stored_type(leaf: Dense) -> str:
    """The name by which NumPy knows an array's type, or for lack of one another of its size."""
    return "int16" if leaf.dtype == "bfloat16" else leaf.dtype


def view(schema: Schema, batch: Any, count: int, convert: Any, collate: Any, others: list[list[Any]]) -> Any:
    """The collated batch: its arrays over the block's first `count` rows, the rest through `collate`."""
    # PyTorch's collation hands texts on as it finds them: in a tuple where it took sequences apart, else in a list.
    return _view(schema.root, list, (batch, count, convert, collate, others))


# Not a function inside the one above that knows its arguments: one that calls itself is part of a cycle, and would keep
# the batch, whose memory others wait for, until the collector comes.
def _view(node: Any, column: type, given: tuple[Any, int, Any, Any, list[list[Any]]]) -> Any:
    batch, count, convert, collate, others = given
    if type(node) is Dense:
        return convert(batch.block(node.offset, [count, *node.shape], node.dtype))
    if type(node) is Sequence:
        items = [_view(child, tuple, given) for child in node.items]
        return items if node.cls is None else node.cls(*items)
    if type(node) is Mapping:
        return dict(zip(node.keys, (_view(child, list, given) for child in node.items), strict=True))
    return collate(column(row[node.place] for row in others))


def sample_of(schema: Schema, batch: Any, row: int, others: list[Any]) -> Any:
    """One sample taken back out of the block, as it was, in memory of its own."""
    return _sample_of(schema.root, batch, row, others)


def _sample_of(node: Any, batch: Any, row: int, others: list[Any]) -> Any:
    if type(node) is Dense:
        return _value_of(node, batch, row)
    if type(node) is Sequence:
        items = [_sample_of(child, batch, row, others) for child in node.items]
        if node.cls is not None:
            return node.cls(*items)
        return tuple(items) if node.source is tuple else items
    if type(node) is Mapping:
        return dict(
            zip(node.keys, (_sample_of(child, batch, row, others) for child in node.items), strict=True)
        )
    return others[node.place]
