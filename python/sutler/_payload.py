"""Objects as bytes, with large buffers beside the pickle instead of inside it.

Layout: number of buffers and the length of the pickle, the lengths of the buffers (8 bytes each), the pickle, then the
buffers, each at a multiple of 64 bytes. Arrays that come out share the memory they were read from.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections.abc import Callable
from typing import Any

ALIGNMENT = 64


def _rebuild_tensor(buffer: Any, dtype: Any, shape: tuple[int, ...], numel: int) -> Any:
    import torch

    if numel == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype, count=numel).reshape(shape)


class _Pickler(pickle.Pickler):
    """Takes plain CPU tensors apart into a buffer and its shape; PyTorch's own way goes through a file format."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if (
            torch is not None
            and type(value) is torch.Tensor
            and value.device.type == "cpu"
            and value.layout == torch.strided
            and not value.requires_grad
            and not value.is_quantized
            and not value.is_conj()
            and not value.is_neg()
        ):
            plain = value.contiguous()
            # NumPy lends memory and PyTorch does not; bytes are a type that both have.
            raw = plain.reshape(-1).view(torch.uint8).numpy() if plain.numel() else b""
            return _rebuild_tensor, (pickle.PickleBuffer(raw), value.dtype, tuple(value.shape), value.numel())
        return NotImplemented


def dump(value: Any) -> tuple[bytes, list[memoryview], int]:
    """The head of an object's bytes, the buffers that follow it, and how long all of it is."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
    views = [buffer.raw() for buffer in buffers]
    pickled = stream.getbuffer()
    head = (
        struct.pack(f"<2Q{len(views)}Q", len(views), len(pickled), *(view.nbytes for view in views)) + pickled
    )
    size = len(head)
    for view in views:
        size = -(-size // ALIGNMENT) * ALIGNMENT + view.nbytes
    return head, views, size


def write(target: memoryview, head: bytes, views: list[memoryview]) -> None:
    """Puts what `dump` made into memory."""
    target[: len(head)] = head
    position = len(head)
    for view in views:
        position = -(-position // ALIGNMENT) * ALIGNMENT
        target[position : position + view.nbytes] = (
            view.cast("B") if view.format != "B" or view.ndim != 1 else view
        )
        position += view.nbytes


def load(source: memoryview, loads: Callable[..., Any] = pickle.loads) -> Any:
    """The object; its arrays are views of `source`."""
    count, length = struct.unpack_from("<2Q", source)
    lengths = struct.unpack_from(f"<{count}Q", source, 16)
    start = 16 + 8 * count
    position = start + length
    buffers = []
    for size in lengths:
        position = -(-position // ALIGNMENT) * ALIGNMENT
        buffers.append(source[position : position + size])
        position += size
    return loads(source[start : start + length], buffers=buffers)
