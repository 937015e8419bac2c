"""The scans of the workloads: MLPerf's 3D-UNet chain in NumPy, on real labels and images of noise around them.

What is slow is to look for the connected parts of a label, which a crop over something labelled needs. The chain is
written as one who cares for speed would write it: crops are cut out of mapped files, and parts are found run by run.
"""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Block = tuple[slice, slice, slice]

#: How long a NIfTI header is, with what may follow it.
_HEADER_BYTES = 352
#: NIfTI's number for 16-bit integers, and their bits.
_INT16 = (4, 16)
#: How many parts of a label a crop may be placed over: the largest.
_PARTS_KEPT = 2


def prepare(labels: Path, scratch: Path, side: int) -> Path:
    """Makes images for the label files of a folder and prepares both; returns where the pairs of arrays are."""
    import sutler

    files = sorted(labels.glob("*_seg.nii.gz"))
    if not files:
        raise FileNotFoundError(
            f"there are no files NAME_seg.nii.gz in {labels}; pass a folder that has some as --volumes"
        )
    scans, prepared = scratch / "scans", scratch / "prepared"
    scans.mkdir(parents=True)
    for number, path in enumerate(files):
        _make_scan(path, scans, number)
    done = sutler.prepare_volumes(scans, prepared, min_shape=(side, side, side), progress=False)
    if done["broken"]:
        first = done["broken"][0]
        raise FileNotFoundError(f"{Path(first['path']).name} could not be prepared: {first['reason']}")
    for path in scans.iterdir():
        path.unlink()  # as large as what was made of them
    return prepared


def _make_scan(path: Path, scans: Path, number: int) -> None:
    """An image for a label file: noise of which labelled parts have a little more."""
    content = gzip.decompress(path.read_bytes())
    header = bytearray(content[:_HEADER_BYTES])
    labels = np.frombuffer(content, np.uint8, offset=_HEADER_BYTES)
    image = np.random.default_rng(number).integers(-200, 300, labels.size, dtype=np.int16)
    image += 40 * labels.astype(np.int16)
    struct.pack_into("<hh", header, 70, *_INT16)
    name = path.name.removesuffix("_seg.nii.gz")
    (scans / f"{name}_img.nii").write_bytes(bytes(header) + image.tobytes())
    (scans / f"{name}_seg.nii").write_bytes(content)


def list_volumes(prepared: Path, folder: Path, count: int) -> None:
    """Lists the prepared pairs so many times in another folder, under names in the order of their numbers."""
    folder.mkdir(parents=True)
    pairs = sorted(prepared.glob("*_x.npy"))
    for index in range(count):
        image = pairs[index % len(pairs)]
        os.link(image, folder / f"{index:06}_x.npy")
        os.link(image.with_name(image.name.replace("_x.npy", "_y.npy")), folder / f"{index:06}_y.npy")


@dataclass(frozen=True)
class Scan:
    """An image with its labels on its way through the chain."""

    image: Array
    labels: Array
    rng: np.random.Generator


def open_pair(path: Path) -> Scan:
    """Maps both files: what is not looked at is not read."""
    image = np.load(path, mmap_mode="r")
    labels = np.load(path.with_name(path.name.replace("_x.npy", "_y.npy")), mmap_mode="r")
    shape = image.shape[-3:]
    return Scan(image.reshape(shape), labels.reshape(shape), np.random.default_rng())


@dataclass(frozen=True)
class BalancedCrop:
    """Cuts a cube out: so often over one of the largest parts of a label, else anywhere."""

    side: int
    oversampling: float

    def __call__(self, scan: Scan) -> Scan:
        block = self._over_a_part(scan) if scan.rng.random() < self.oversampling else None
        starts = []
        for axis, length in enumerate(scan.image.shape):
            room = length - self.side
            if block is None:
                starts.append(int(scan.rng.integers(room + 1)))
                continue
            first, extent = block[axis].start, block[axis].stop - block[axis].start
            if extent > self.side:
                starts.append(first + int(scan.rng.integers(extent - self.side + 1)))
            else:
                before = int(scan.rng.integers(self.side - extent + 1))
                starts.append(min(max(first - before, 0), room))
        cut = tuple(slice(start, start + self.side) for start in starts)
        return replace(scan, image=np.array(scan.image[cut]), labels=np.array(scan.labels[cut]))

    def _over_a_part(self, scan: Scan) -> Block | None:
        present = np.unique(scan.labels[scan.labels > 0])
        if not present.size:
            return None
        blocks = parts(scan.labels == scan.rng.choice(present))
        blocks.sort(key=lambda block: np.prod([side.stop - side.start for side in block]))
        kept = blocks[-_PARTS_KEPT:]
        return kept[int(scan.rng.integers(len(kept)))]


def parts(mask: Array) -> list[Block]:
    """The blocks that the parts of a mask fill that are connected along the axes.

    Runs along the last axis are found first; two are connected where they touch in neighbouring rows.
    """
    corner, mask = _shrunk(mask)
    rows_per_plane, columns = mask.shape[1], mask.shape[2]
    edges = np.diff(np.pad(mask, ((0, 0), (0, 0), (1, 1))).view(np.int8), axis=2)
    planes, rows, starts = np.nonzero(edges == 1)
    stops = np.nonzero(edges == -1)[2]
    row_numbers = planes * rows_per_plane + rows
    # A row's keys come behind those of the rows before it, so that one sorted list has all runs.
    start_keys = row_numbers * (columns + 1) + starts
    stop_keys = row_numbers * (columns + 1) + stops
    below = _touching(start_keys, stop_keys, (columns + 1), rows + 1 < rows_per_plane)
    behind = _touching(start_keys, stop_keys, rows_per_plane * (columns + 1), np.ones(len(rows), bool))
    one, other = np.concatenate([below, behind], axis=1)
    numbers = _connected(len(rows), one, other)
    order = np.argsort(numbers, kind="stable")
    firsts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    lows = [np.minimum.reduceat(axis[order], firsts) for axis in (planes, rows, starts)]
    highs = [np.maximum.reduceat(axis[order], firsts) for axis in (planes + 1, rows + 1, stops)]
    shifted = [
        [slice(int(low) + first, int(high) + first) for low, high in zip(some, others, strict=True)]
        for some, others, first in zip(lows, highs, corner, strict=True)
    ]
    return list(zip(*shifted, strict=True))


def _shrunk(mask: Array) -> tuple[list[int], Array]:
    """Where what is set begins along each axis, and the part of the mask that has all of it."""
    planes = np.flatnonzero(mask.any((1, 2)))
    mask = mask[planes[0] : planes[-1] + 1]
    flat = np.logical_or.reduce(mask, axis=0)
    rows, columns = np.flatnonzero(flat.any(1)), np.flatnonzero(flat.any(0))
    cut = mask[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return [int(planes[0]), int(rows[0]), int(columns[0])], cut


def _touching(start_keys: Array, stop_keys: Array, step: int, allowed: Array) -> Array:
    """Pairs of runs of which the second lies a step further on and has a column in common with the first."""
    first = np.searchsorted(stop_keys, start_keys + step, side="right")
    last = np.searchsorted(start_keys, stop_keys + step, side="left")
    counts = np.where(allowed, np.maximum(last - first, 0), 0)
    one = np.repeat(np.arange(len(start_keys)), counts)
    within = np.arange(len(one)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([one, first[one] + within])


def _connected(count: int, one: Array, other: Array) -> Array:
    """For each of so many things the least of those that pairs connect it with."""
    least = np.arange(count)
    while (unequal := least[one] != least[other]).any():
        some, others = least[one[unequal]], least[other[unequal]]
        lower = np.minimum(some, others)
        np.minimum.at(least, some, lower)
        np.minimum.at(least, others, lower)
        while not np.array_equal(further := least[least], least):
            least = further
    return least


def flip(scan: Scan) -> Scan:
    """Turns each axis around, one time in three."""
    axes = tuple(np.flatnonzero(scan.rng.random(3) < 1 / 3).tolist())
    if not axes:
        return scan
    image, labels = (np.ascontiguousarray(np.flip(array, axes)) for array in (scan.image, scan.labels))
    return replace(scan, image=image, labels=labels)


def cast(scan: Scan) -> Scan:
    """The types that arrays have anyway."""
    return replace(
        scan,
        image=scan.image.astype(np.float32, copy=False),
        labels=scan.labels.astype(np.uint8, copy=False),
    )


def brightness(scan: Scan) -> Scan:
    """One time in ten, x · (1 + u) with u from 0.7 to 1.3."""
    if scan.rng.random() >= 0.1:
        return scan
    return replace(scan, image=scan.image * np.float32(1 + scan.rng.uniform(0.7, 1.3)))


def noise(scan: Scan) -> Scan:
    """One time in ten, normal noise of a random deviation up to 0.1."""
    if scan.rng.random() >= 0.1:
        return scan
    added = np.empty(scan.image.shape, np.float32)
    scan.rng.standard_normal(dtype=np.float32, out=added)
    added *= np.float32(scan.rng.uniform(0, 0.1))
    added += scan.image
    return replace(scan, image=added)


class Volumes:
    """Prepared scans, as a dataset of PyTorch's users: number, image and labels."""

    def __init__(self, folder: Path, oversampling: float, side: int) -> None:
        from torchvision.transforms import Compose

        self._paths = sorted(folder.glob("*_x.npy"))
        steps: list[Callable[[Any], Any]] = [open_pair, BalancedCrop(side, oversampling), flip, cast]
        self._transform = Compose([*steps, brightness, noise])

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[int, Array, Array]:
        scan = self._transform(self._paths[index])
        return index, scan.image[None], scan.labels[None]
