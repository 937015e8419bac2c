"""Objects as bytes, with large buffers beside the pickle instead of inside it.

A head: the number of buffers and the length of the pickle, where each buffer begins and its length (8 bytes each), and
the pickle. Buffers begin at multiples of 64 bytes, behind the head unless their place is chosen otherwise. Arrays that
come out share the memory they were read from, and their dimensions follow each other there as they did before, unless
all arrays are asked to lie front to back. One with gaps or repetitions in its memory comes out front to back anyway.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from sutler._tensors import is_plain

ALIGNMENT = 64


def _rebuild_tensor(buffer: Any, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    import torch

    if 0 in shape:
        return torch.empty_strided(shape, strides, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype).as_strided(shape, strides)


def _rebuild_array(as_it_lies: np.ndarray, axes: list[int]) -> np.ndarray:
    return as_it_lies.transpose(axes)


def _rebuild_view(buffer: Any, layout: Any, shape: Any) -> memoryview:
    plain = memoryview(buffer).cast("B")
    return plain.cast(layout) if len(shape) == 1 else plain.cast(layout, shape)


def _rebuild_proxy(items: dict[Any, Any]) -> Any:
    return MappingProxyType(items)


def _by_stride(strides: Sequence[int]) -> list[int]:
    """The dimensions in the order in which they follow each other in memory."""
    return sorted(range(len(strides)), key=lambda axis: -strides[axis])


class _Pickler(pickle.Pickler):
    """Takes plain CPU tensors apart into a buffer and its shape; PyTorch's own way goes through a file format.

    Takes arrays whose dimensions are permuted, of which NumPy would put a copy into the pickle; and two classes that
    can be collated and that `pickle` does not know.
    """

    def __init__(
        self, stream: io.BytesIO, buffers: list[pickle.PickleBuffer], *, front_to_back: bool
    ) -> None:
        super().__init__(stream, protocol=5, buffer_callback=buffers.append)
        self._front_to_back = front_to_back

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray:
            return self._reduce_array(value)
        if is_plain(value):
            return self._reduce_tensor(value)
        if type(value) is memoryview:
            return _rebuild_view, (pickle.PickleBuffer(value.tobytes()), value.format, value.shape)
        if type(value) is MappingProxyType:
            return _rebuild_proxy, (dict(value),)
        return NotImplemented

    def _reduce_array(self, array: np.ndarray) -> Any:
        if array.flags.c_contiguous or array.dtype.hasobject:
            return NotImplemented
        if self._front_to_back:
            return np.ascontiguousarray(array).__reduce_ex__(5)
        order = _by_stride(array.strides)
        as_it_lies = array.transpose(order)
        if not as_it_lies.flags.c_contiguous:
            return np.ascontiguousarray(array).__reduce_ex__(5)
        return _rebuild_array, (as_it_lies, np.argsort(order).tolist())

    def _reduce_tensor(self, tensor: Any) -> Any:
        import torch

        as_it_lies = tensor
        if not tensor.is_contiguous():
            as_it_lies = tensor.permute(_by_stride(tensor.stride()))
            if self._front_to_back or not as_it_lies.is_contiguous():
                as_it_lies = tensor = tensor.contiguous()
        # NumPy lends memory and PyTorch does not; bytes are a type that both have.
        raw = as_it_lies.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b""
        return _rebuild_tensor, (pickle.PickleBuffer(raw), tensor.dtype, tuple(tensor.shape), tensor.stride())


def take_apart(value: Any, *, front_to_back: bool = False) -> tuple[memoryview, list[memoryview]]:
    """The pickle of an object, and the large buffers that are not in it."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, buffers, front_to_back=front_to_back).dump(value)
    return stream.getbuffer(), [_as_bytes(buffer.raw()) for buffer in buffers]


def _as_bytes(view: memoryview) -> memoryview:
    return view.cast("B") if view.format != "B" or view.ndim != 1 else view


def align(position: int) -> int:
    """The first place from a position on where a buffer may begin."""
    return -(-position // ALIGNMENT) * ALIGNMENT


def head_size(pickled: memoryview, buffers: int) -> int:
    """How long the head is of an object with so many buffers."""
    return 16 + 16 * buffers + len(pickled)


def make_head(pickled: memoryview, places: list[tuple[int, int]]) -> bytes:
    """The head of an object's bytes; places are where its buffers begin, and their lengths."""
    numbers = (number for place in places for number in place)
    return struct.pack(f"<2Q{2 * len(places)}Q", len(places), len(pickled), *numbers) + pickled


def dump(value: Any, *, front_to_back: bool = False) -> tuple[bytes, list[memoryview], int]:
    """The head of an object's bytes, the buffers that follow it, and how long all of it is."""
    pickled, views = take_apart(value, front_to_back=front_to_back)
    size = head_size(pickled, len(views))
    places = []
    for view in views:
        places.append((align(size), view.nbytes))
        size = sum(places[-1])
    return make_head(pickled, places), views, size


def write(target: memoryview, head: bytes, views: list[memoryview]) -> None:
    """Puts what `dump` made into memory."""
    target[: len(head)] = head
    position = len(head)
    for view in views:
        position = align(position)
        target[position : position + view.nbytes] = view
        position += view.nbytes


def load(source: memoryview, start: int = 0) -> Any:
    """The object whose head is at `start`; its arrays are views of `source`."""
    count, length = struct.unpack_from("<2Q", source, start)
    places = struct.unpack_from(f"<{2 * count}Q", source, start + 16)
    buffers = [source[place : place + size] for place, size in zip(places[::2], places[1::2], strict=True)]
    first = start + 16 + 16 * count
    return pickle.loads(source[first : first + length], buffers=buffers)


def copied(value: Any) -> Any:
    """An object as it comes out in another process; its arrays lie in memory front to back, however they did before."""
    head, views, size = dump(value, front_to_back=True)
    memory = memoryview(bytearray(size))
    write(memory, head, views)
    return load(memory)
