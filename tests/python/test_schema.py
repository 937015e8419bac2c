"""The layout of batches in shared memory: which samples fit it, and what is read back out of it."""

from __future__ import annotations

import gc
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
from sutler import _schema
from sutler._schema_writer import SchemaWriter


class Point(NamedTuple):
    """A sample with names."""

    x: Any
    y: Any


class Memory:
    """A batch's memory, as the native batch lends it."""

    def __init__(self, schema: _schema.Schema) -> None:
        self.bytes = np.zeros(schema.bytes, np.uint8)

    def block(self, offset: int, shape: list[int], dtype: str) -> np.ndarray[Any, Any]:
        """An array at an offset."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return self.bytes[offset : offset + size].view(dtype).reshape(shape)


def lay_out(samples: list[Any], rows: int | None = None) -> tuple[_schema.Schema, Memory, list[list[Any]]]:
    schema = _schema.propose(samples[0], rows or len(samples))
    assert schema is not None
    memory = Memory(schema)
    writer = SchemaWriter(schema, memory.bytes)
    others = [writer.store(sample, 0, row) for row, sample in enumerate(samples)]
    return schema, memory, others


def collated(samples: list[Any], rows: int | None = None) -> Any:
    schema, memory, others = lay_out(samples, rows)
    return _schema.view(schema, memory, len(samples), np.asarray, lambda values: values, others)


def test_arrays_of_samples_become_arrays_of_batches() -> None:
    batch = collated([{"image": np.full((2, 3), at, np.uint8), "label": at} for at in range(3)])
    assert batch["image"].shape == (3, 2, 3)
    assert [int(image[0, 0]) for image in batch["image"]] == [0, 1, 2]
    assert batch["label"].dtype == np.int64
    assert batch["label"].tolist() == [0, 1, 2]


def test_a_short_batch_uses_the_first_rows() -> None:
    assert collated([0.5, 1.5], rows=8).tolist() == [0.5, 1.5]


def test_nesting_is_kept_as_pytorchs_collation_keeps_it() -> None:
    batch = collated([Point((at, "text"), [{"deep": at / 2, "name": "n"}]) for at in range(2)])
    assert type(batch) is Point
    assert type(batch.x) is list
    assert batch.x[1] == ("text", "text")
    assert batch.y[0]["deep"].tolist() == [0.0, 0.5]
    assert batch.y[0]["name"] == ["n", "n"]


@pytest.mark.parametrize(
    "sample",
    [
        (np.zeros((2, 2)), 1, "text"),
        [True, 2.5, None],
        {"a": np.float32(1.5), "b": {"c": (np.arange(3), b"x")}},
        Point(np.ones(1, np.int16), {1, 2}),
    ],
    ids=str,
)
def test_a_single_sample_comes_back_as_it_was(sample: Any) -> None:
    schema, memory, others = lay_out([sample, sample])
    found = _schema.sample_of(schema, memory, 1, others[1])
    assert type(found) is type(sample)
    assert repr(found) == repr(sample)


def test_tensors_come_back_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    samples = [torch.tensor([0, 1, 1]).to(dtype) for dtype in (torch.float32, torch.bfloat16, torch.bool)]
    schema, memory, others = lay_out([samples])
    for found, sample in zip(_schema.sample_of(schema, memory, 0, others[0]), samples, strict=True):
        assert found.dtype == sample.dtype
        assert torch.equal(found, sample)


@pytest.mark.parametrize(
    "other",
    [
        (np.zeros(3, np.float32), 1),
        (np.zeros(2, np.float64), 1),
        (np.zeros(2, np.float32), 1.0),
        (np.zeros(2, np.float32), True),
        (np.zeros(2, np.float32), "1"),
        (np.zeros(2, np.float32),),
        [np.zeros(2, np.float32), 1],
        (np.zeros(2, np.float32), 2**70),
        {"x": 1},
        None,
    ],
    ids=repr,
)
def test_samples_that_look_otherwise_do_not_fit(other: Any) -> None:
    schema, memory, _ = lay_out([(np.zeros(2, np.float32), 1)])
    with pytest.raises(_schema.Mismatch):
        SchemaWriter(schema, memory.bytes).store(other, 0, 0)


@pytest.mark.parametrize(
    "sample", [None, "text", b"bytes", [], {}, np.zeros(0), np.array(["a"]), 2**70], ids=repr
)
def test_samples_without_arrays_have_no_schema(sample: Any) -> None:
    assert _schema.propose(sample, 4) is None


def test_arrays_begin_where_vector_instructions_like_them() -> None:
    schema = _schema.propose([np.zeros(3, np.uint8), 1, np.zeros(5)], 7)
    assert schema is not None
    assert [leaf.offset % _schema.ALIGNMENT for leaf in schema.root.items] == [0, 0, 0]
    ends = [leaf.offset + 7 * leaf.bytes for leaf in schema.root.items]
    assert all(end <= leaf.offset for end, leaf in zip(ends, schema.root.items[1:], strict=False))


def test_batches_lie_at_their_offsets_and_too_large_ones_nowhere() -> None:
    schema = _schema.propose(np.zeros(3), 2)
    assert schema is not None
    memory = np.zeros(2 * schema.bytes, np.uint8)
    writer = SchemaWriter(schema, memory)
    writer.store(np.ones(3), schema.bytes, 1)
    assert memory.view(np.float64).nonzero()[0].tolist() == [at + schema.bytes // 8 for at in (3, 4, 5)]
    with pytest.raises(_schema.Mismatch):
        writer.store(np.ones(3), 0, 2)


def test_a_batch_is_let_go_without_the_collector() -> None:
    samples = [{"x": np.full(2, at), "pair": (at, "text")} for at in range(2)]
    schema, memory, others = lay_out(samples)
    watch = weakref.ref(memory)
    gc.disable()
    try:
        _schema.view(schema, memory, 2, np.array, list, others)
        _schema.sample_of(schema, memory, 1, others[1])
        del memory
        assert watch() is None
    finally:
        gc.enable()
