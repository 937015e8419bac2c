"""MLPerf's 3D-UNet restated in NumPy, one value at a time where that is clearest; and files to try it on."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: NIfTI's numbers for types.
DATATYPES = {"uint8": 2, "int16": 4, "int32": 8, "float32": 16, "float64": 64, "uint16": 512}


def write_nifti(
    path: Path,
    values: Array,
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0),
    scale: tuple[float, float] = (0.0, 0.0),
) -> None:
    """Writes a NIfTI-1 file, packed where its name says so. A fourth axis, of channels, is the first of the array."""
    shape = values.shape if values.ndim == 3 else (*values.shape[1:], values.shape[0])
    header = bytearray(352)
    struct.pack_into("<i", header, 0, 348)
    struct.pack_into(f"<{1 + len(shape)}h", header, 40, len(shape), *shape)
    struct.pack_into("<hh", header, 70, DATATYPES[values.dtype.name], values.dtype.itemsize * 8)
    struct.pack_into("<4f", header, 76, 1.0, *spacing)
    struct.pack_into("<3f", header, 108, 352.0, *scale)
    header[344:348] = b"n+1\0"
    # The first axis is the fastest, and channels are the slowest.
    channels = values[None] if values.ndim == 3 else values
    content = bytes(header) + b"".join(channel.tobytes(order="F") for channel in channels)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)


def resampled_shape(shape: tuple[int, ...], spacing: Any, wanted: Any) -> list[int]:
    """The shape after a change of spacing."""
    return [
        int(distance / target * side) for side, distance, target in zip(shape, spacing, wanted, strict=True)
    ]


def trilinear(values: Array, shape: list[int]) -> Array:
    """The image at another shape, corners on corners."""
    result = values.astype(np.float64)
    for axis, side in enumerate(shape):
        length = result.shape[axis]
        at = np.linspace(0, length - 1, side) if side > 1 else np.zeros(1)
        low = np.minimum(at.astype(int), length - 1)
        high = np.minimum(low + 1, length - 1)
        share = (at - low).reshape([-1 if each == axis else 1 for each in range(result.ndim)])
        result = np.take(result, low, axis) * (1 - share) + np.take(result, high, axis) * share
    return result


def nearest(values: Array, shape: list[int]) -> Array:
    """Labels at another shape. In single precision, as PyTorch computes the places."""
    for axis, side in enumerate(shape):
        step = np.float32(values.shape[axis]) / np.float32(side)
        places = np.floor(np.arange(side, dtype=np.float32) * step).astype(int)
        values = np.take(values, np.minimum(places, values.shape[axis] - 1), axis)
    return values


def offline(
    image: Array,
    label: Array,
    spacing: Any,
    wanted: Any = (1.6, 1.2, 1.2),
    least: tuple[int, int, int] = (128, 128, 128),
) -> tuple[Array, Array]:
    """All that is done before training."""
    shape = resampled_shape(image.shape, spacing, wanted)
    image, label = trilinear(image, shape), nearest(label, shape)
    image = (np.clip(image, -79.0, 304.0) - 101.0) / 76.9
    missing = [max(0, side - length) for side, length in zip(least, shape, strict=True)]
    padding = [(each // 2, each - each // 2) for each in missing]
    return np.pad(image, padding, mode="edge"), np.pad(label, padding, mode="edge")


def parts(label: Array, value: int) -> list[tuple[slice, ...]]:
    """The blocks that the connected parts of a label fill, by flooding."""
    left = {tuple(place) for place in np.argwhere(label == value).tolist()}
    found = []
    while left:
        open_places = [left.pop()]
        part = []
        while open_places:
            place = open_places.pop()
            part.append(place)
            for axis in range(3):
                for step in (-1, 1):
                    near = tuple(side + step * (each == axis) for each, side in enumerate(place))
                    if near in left:
                        left.remove(near)
                        open_places.append(near)
        corners = np.array(part)
        lows, highs = corners.min(0).tolist(), (corners.max(0) + 1).tolist()
        found.append(tuple(slice(low, high) for low, high in zip(lows, highs, strict=True)))
    return found


def largest(blocks: list[tuple[slice, ...]], count: int = 2) -> list[tuple[slice, ...]]:
    """The largest blocks."""
    return sorted(blocks, key=lambda block: np.prod([side.stop - side.start for side in block]))[-count:]
