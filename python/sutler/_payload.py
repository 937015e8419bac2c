"""Objects as bytes, with large buffers beside the pickle instead of inside it.

A head: the number of buffers and the length of the pickle, where each buffer begins and its length (8 bytes each), and
the pickle. Buffers begin at multiples of 64 bytes, behind the head unless their place is chosen otherwise. Arrays that
come out share the memory they were read from.
"""

from __future__ import annotations

import io
import pickle
import struct
from types import MappingProxyType
from typing import Any

from sutler._tensors import is_plain

ALIGNMENT = 64


def _rebuild_tensor(buffer: Any, dtype: Any, shape: tuple[int, ...], numel: int) -> Any:
    import torch

    if numel == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype, count=numel).reshape(shape)


def _rebuild_view(buffer: Any, layout: Any, shape: Any) -> memoryview:
    plain = memoryview(buffer).cast("B")
    return plain.cast(layout) if len(shape) == 1 else plain.cast(layout, shape)


def _rebuild_proxy(items: dict[Any, Any]) -> Any:
    return MappingProxyType(items)


class _Pickler(pickle.Pickler):
    """Takes plain CPU tensors apart into a buffer and its shape; PyTorch's own way goes through a file format.

    Also takes two classes that can be collated and that `pickle` does not know.
    """

    def reducer_override(self, value: Any) -> Any:
        if is_plain(value):
            import torch

            plain = value.contiguous()
            # NumPy lends memory and PyTorch does not; bytes are a type that both have.
            raw = plain.reshape(-1).view(torch.uint8).numpy() if plain.numel() else b""
            return _rebuild_tensor, (pickle.PickleBuffer(raw), value.dtype, tuple(value.shape), value.numel())
        if type(value) is memoryview:
            return _rebuild_view, (pickle.PickleBuffer(value.tobytes()), value.format, value.shape)
        if type(value) is MappingProxyType:
            return _rebuild_proxy, (dict(value),)
        return NotImplemented


def take_apart(value: Any) -> tuple[memoryview, list[memoryview]]:
    """The pickle of an object, and the large buffers that are not in it."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
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


def dump(value: Any) -> tuple[bytes, list[memoryview], int]:
    """The head of an object's bytes, the buffers that follow it, and how long all of it is."""
    pickled, views = take_apart(value)
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
    """An object as it comes out in another process: its arrays lie in memory front to back, however they did before."""
    head, views, size = dump(value)
    memory = memoryview(bytearray(size))
    write(memory, head, views)
    return load(memory)
