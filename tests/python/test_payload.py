"""Objects on their way from a worker: what comes out is what went in, and arrays are not copied twice."""

from __future__ import annotations

import pickle
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from sutler import _payload


def there_and_back(value: Any) -> tuple[Any, bytearray]:
    head, views, size = _payload.dump(value)
    memory = bytearray(size)
    _payload.write(memoryview(memory), head, views)
    return _payload.load(memoryview(memory)), memory


@pytest.mark.parametrize(
    "value",
    [None, 1, "text", b"bytes", bytearray(b"own"), [1, {"a": (2.5, None)}], {"x": set("abc")}, 2**80],
    ids=str,
)
def test_objects_come_back_as_they_were(value: Any) -> None:
    found, _ = there_and_back(value)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (5, 7)], ids=str)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float64", "complex64", "U3", "O"])
def test_arrays_of_any_shape_and_type(shape: tuple[int, ...], dtype: str) -> None:
    array = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape).astype(dtype)
    found, _ = there_and_back({"array": array})
    assert found["array"].dtype == array.dtype
    assert np.array_equal(found["array"], array)


def test_arrays_that_are_not_contiguous() -> None:
    array = np.arange(24).reshape(4, 6)[::2, ::-1]
    found, _ = there_and_back([array, array.T, np.asfortranarray(array)])
    for each, expected in zip(found, [array, array.T, array], strict=True):
        assert np.array_equal(each, expected)


def test_arrays_whose_dimensions_are_permuted_are_not_copied_into_the_pickle() -> None:
    array = np.arange(24_000).reshape(20, 30, 40).transpose(2, 0, 1)
    pickled, (view,) = _payload.take_apart({"array": array})
    assert len(pickled) < 1000
    assert np.shares_memory(np.frombuffer(view, np.uint8), array)
    found, memory = there_and_back([array, array])
    assert found[0] is found[1]
    assert np.shares_memory(found[0], np.frombuffer(memory, np.uint8))
    assert found[0].strides == array.strides
    assert np.array_equal(found[0], array)


def test_a_copy_lies_front_to_back() -> None:
    torch = pytest.importorskip("torch")
    array = np.arange(24).reshape(2, 3, 4)
    for each in (array.T, array.transpose(1, 0, 2), array[:, ::-1]):
        copy, of_tensor = _payload.copied((each, torch.tensor(array).movedim(0, 1)))
        assert copy.flags.c_contiguous
        assert np.array_equal(copy, each)
        assert of_tensor.is_contiguous()
        assert of_tensor.tolist() == array.transpose(1, 0, 2).tolist()


def test_permuted_arrays_of_types_that_lend_no_memory() -> None:
    dates = np.arange(24).astype("datetime64[s]").reshape(2, 3, 4).transpose(1, 2, 0)
    objects = np.array([["a", None], [2, ()]], dtype=object).T
    (found, others), _ = there_and_back([dates, objects])
    assert found.dtype == dates.dtype
    assert found.strides == dates.strides
    assert np.array_equal(found, dates)
    assert others.tolist() == objects.tolist()


def test_large_arrays_share_the_memory_they_arrived_in() -> None:
    found, memory = there_and_back((np.zeros(1000, np.float32), np.ones(3, np.uint8)))
    whole = np.frombuffer(memory, np.uint8)
    for array in found:
        assert np.shares_memory(array, whole)
        assert array.__array_interface__["data"][0] % 8 == whole.__array_interface__["data"][0] % 8


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    tensors = [
        torch.arange(6).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).T,
        torch.tensor(True),
        torch.zeros(0, 4),
        torch.ones(3, dtype=torch.bfloat16),
        torch.tensor([1 + 2j]).conj(),
        torch.ones(2, requires_grad=True),
        torch.eye(3).to_sparse(),
    ]
    found, memory = there_and_back(tensors)
    for each, expected in zip(found, tensors, strict=True):
        assert each.dtype == expected.dtype
        assert each.requires_grad == expected.requires_grad
        assert each.layout == expected.layout
        assert torch.equal(each.to_dense() if each.is_sparse else each, expected.to_dense())
    memory[:] = bytes(len(memory))
    assert found[0].tolist() == [[0, 0, 0], [0, 0, 0]], "a plain tensor is a view"


@pytest.mark.parametrize(
    "view",
    [
        memoryview(b""),
        memoryview(b"abc"),
        np.arange(4, dtype=np.int32).data,
        np.arange(9.0)[::-2].data,
        np.arange(6).reshape(2, 3).data,
        np.array(7).data,
    ],
)
def test_views_of_memory(view: memoryview) -> None:
    found, _ = there_and_back([view])
    assert type(found[0]) is memoryview
    assert (found[0].format, found[0].shape) == (view.format, view.shape)
    assert found[0].tolist() == view.tolist()


def test_mappings_that_cannot_be_changed() -> None:
    found, _ = there_and_back(MappingProxyType({"a": 1}))
    assert type(found) is MappingProxyType
    assert found == {"a": 1}


def test_what_cannot_be_pickled_is_an_error() -> None:
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError), match="pickle"):
        _payload.dump(lambda: None)
