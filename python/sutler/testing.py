"""Data to try things on."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import pathlib
import struct
import time
import wave
import zlib
from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from sutler import _sutler
from sutler.datasets import NativeDataset

_Dataset = TypeVar("_Dataset", bound=NativeDataset)


def make_photos(
    root: str | os.PathLike[str], count: int = 48, classes: int = 4, *, seed: int = 0, longer_side: int = 160
) -> None:
    """Writes photo-like JPEGs, one folder per class: real texture, real sizes, no photographs.

    Args:
        root: Where to put the class folders.
        count: How many pictures.
        classes: In how many folders.
        seed: Decides every picture.
        longer_side: The longer side of a typical picture in pixels; ImageNet's is 500.

    Examples:
        >>> import pathlib, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> make_photos(folder, count=3, classes=2)
        >>> sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*.jpg"))
        ['class_0/photo_000000.jpg', 'class_0/photo_000001.jpg', 'class_1/photo_000002.jpg']
    """
    _sutler.make_photos(os.fspath(root), count=count, classes=classes, seed=seed, longer_side=longer_side)


def word_tokenizer(words: Mapping[str, int], unknown: str = "[UNK]") -> str:
    """The ``tokenizer.json`` of a tokenizer of whole words, with white space between them.

    Args:
        words: The number of each word.
        unknown: The one that stands for all others.

    Examples:
        >>> tokenizer = word_tokenizer({"[UNK]": 0, "be": 1})
        >>> _sutler.Tokenizer(tokenizer, add_special_tokens=False).tokens("be or be")
        [1, 0, 1]
    """
    model = {"type": "WordLevel", "vocab": dict(words), "unk_token": unknown}
    return json.dumps({"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model})


def make_tones(
    root: str | os.PathLike[str], count: int = 48, classes: int = 4, *, seed: int = 0, sample_rate: int = 8000
) -> None:
    """Writes WAV files, one folder per class: gliding tones of 0.1 to 0.6 seconds between two short silences.

    Args:
        root: Where to put the class folders.
        count: How many files.
        classes: In how many folders; each has tones of its own height.
        seed: Decides every file.
        sample_rate: Values per second.

    Examples:
        >>> import pathlib, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> make_tones(folder, count=3, classes=2)
        >>> sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*.wav"))
        ['class_0/tone_000000.wav', 'class_0/tone_000001.wav', 'class_1/tone_000002.wav']
    """
    random = np.random.default_rng(seed)
    for number in range(count):
        label = number * classes // count
        folder = pathlib.Path(root) / f"class_{label}"
        folder.mkdir(parents=True, exist_ok=True)
        values = int(random.uniform(0.1, 0.6) * sample_rate)
        pitch = 200.0 * 1.3**label * np.linspace(1.0, random.uniform(0.8, 1.25), values)
        tone = 0.4 * np.sin(2 * np.pi * np.cumsum(pitch) / sample_rate) + 0.02 * random.standard_normal(
            values
        )
        silence = np.zeros(sample_rate // 20)
        whole = np.concatenate([silence, tone, silence])
        with wave.open(str(folder / f"tone_{number:06}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(sample_rate)
            file.writeframes((whole * 32767).astype("<i2").tobytes())


#: What is on the pictures of :func:`make_detection`: the categories' ids, as gappy as COCO's, names and colours.
_SHAPES = ((1, "red", (220, 30, 30)), (3, "green", (30, 200, 60)), (7, "blue", (40, 60, 230)))


def make_detection(
    root: str | os.PathLike[str], count: int = 12, *, seed: int = 0, longer_side: int = 160
) -> str:
    """Writes pictures of coloured rectangles, and a COCO annotation file with their boxes.

    Every fourth picture is upright, one in twelve has nothing on it, and one in twelve has a crowd.

    Args:
        root: Where to put the pictures and ``annotations.json``.
        count: How many pictures.
        seed: Decides every picture.
        longer_side: The longer side of a picture in pixels, at most.

    Returns:
        The path of the annotation file.

    Examples:
        >>> import json, tempfile
        >>> with open(make_detection(tempfile.mkdtemp(), count=3)) as file:
        ...     annotations = json.load(file)
        >>> [image["file_name"] for image in annotations["images"]]
        ['000000.png', '000001.png', '000002.png']
    """
    random = np.random.default_rng(seed)
    folder = pathlib.Path(root)
    folder.mkdir(parents=True, exist_ok=True)
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    for number in range(count):
        longer = int(longer_side * random.uniform(0.6, 1.0))
        shorter = int(longer * random.uniform(0.5, 0.9))
        height, width = (longer, shorter) if number % 4 == 3 else (shorter, longer)
        pixels = random.integers(90, 150, (height, width, 3), dtype=np.uint8)
        name = f"{number:06}.png"
        # Ids have gaps and the file is not in their order, as it is with COCO's.
        image_id = 1000 + (count - number) * 3
        images.append({"id": image_id, "file_name": name, "width": width, "height": height})
        for _ in range(0 if number % 12 == 5 else int(random.integers(1, 5))):
            category, _, colour = _SHAPES[int(random.integers(len(_SHAPES)))]
            box_width, box_height = (int(side * random.uniform(0.15, 0.5)) for side in (width, height))
            x, y = (int(random.integers(0, side)) for side in (width - box_width, height - box_height))
            pixels[y : y + box_height, x : x + box_width] = colour
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": category,
                    "bbox": [x, y, box_width, box_height],
                    "area": box_width * box_height,
                    "iscrowd": int(number % 12 == 7),
                    "segmentation": [],
                }
            )
        (folder / name).write_bytes(_png(pixels))
    categories = [{"id": category, "name": name} for category, name, _ in _SHAPES]
    path = folder / "annotations.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return str(path)


def _png(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    """A picture of 8-bit RGB pixels as a PNG file."""
    height, width, _ = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, width * 3)], axis=1)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines.tobytes(), 1)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def make_volumes(
    root: str | os.PathLike[str],
    count: int = 8,
    *,
    shape: tuple[int, int, int] = (64, 80, 96),
    seed: int = 0,
) -> None:
    """Writes volumes as ``case_00000_x.npy`` (noise, float32) with labels ``case_00000_y.npy`` (uint8).

    Labels are 0 but for an ellipsoid of 1 and, inside of it, a smaller one of 2.

    Args:
        root: Where to put them.
        count: How many volumes.
        shape: Depth, height and width of the largest; others are up to a quarter smaller along each axis.
        seed: Decides every volume.

    Examples:
        >>> import numpy as np, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> make_volumes(folder, count=2, shape=(16, 16, 16))
        >>> sorted(path.name for path in folder.iterdir())
        ['case_00000_x.npy', 'case_00000_y.npy', 'case_00001_x.npy', 'case_00001_y.npy']
        >>> sorted(np.unique(np.load(folder / "case_00000_y.npy")).tolist())
        [0, 1, 2]
    """
    random = np.random.default_rng(seed)
    folder = pathlib.Path(root)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        sides = [side - int(random.integers(side // 4 + 1)) if number else side for side in shape]
        places = np.meshgrid(*[np.arange(side) for side in sides], indexing="ij")
        centre = [random.uniform(0.35, 0.65) * side for side in sides]
        distance = np.zeros(sides)
        for place, middle, side in zip(places, centre, sides, strict=True):
            distance += ((place - middle) / (0.3 * side)) ** 2
        label = (distance < 1).astype(np.uint8) + (distance < 0.25)
        image = 100 * label + 40 * random.standard_normal(sides)
        np.save(folder / f"case_{number:05}_x.npy", image[None].astype(np.float32))
        np.save(folder / f"case_{number:05}_y.npy", label[None].astype(np.uint8))


def can_be_throttled(dataset: NativeDataset) -> bool:
    """Whether :func:`throttled` takes this dataset: its samples are files, and not pieces of files."""
    return isinstance(dataset._native, _sutler.Dataset)


def throttled(dataset: _Dataset, bytes_per_s: float) -> _Dataset:
    """The same dataset on slower storage: all its reads together get no more than ``bytes_per_s``.

    Threads queue for it as they would for a disk. It holds in this process; a copy that is sent to another is as fast
    as the storage there.

    Raises:
        TypeError: Its samples are lines of text, which are read as pieces of files.
        ValueError: The rate is not a positive number.

    Examples:
        >>> import tempfile, sutler
        >>> folder = tempfile.mkdtemp()
        >>> make_photos(folder, count=4)
        >>> len(throttled(sutler.ImageFolder(folder), 20e6))
        4
    """
    if not can_be_throttled(dataset):
        raise TypeError(
            f"what {type(dataset).__name__} reads cannot be held to a rate, as its samples are pieces of files; "
            "datasets of whole files, such as sutler.ImageFolder, can be throttled"
        )
    slower = object.__new__(type(dataset))
    vars(slower).update(vars(dataset))  # not `copy.copy`, which would list the files again
    slower._native = dataset._native.throttled(bytes_per_s)
    return slower


def set_rate(dataset: NativeDataset, bytes_per_s: float) -> None:
    """Changes the rate of a dataset that :func:`throttled` made, also while somebody reads from it.

    Raises:
        ValueError: The rate is not a positive number, or the dataset is not throttled.

    Examples:
        >>> import tempfile, sutler
        >>> folder = tempfile.mkdtemp()
        >>> make_photos(folder, count=4)
        >>> slow = throttled(sutler.ImageFolder(folder), 20e6)
        >>> set_rate(slow, 5e6)
    """
    dataset._native.set_rate(bytes_per_s)


class SlowDisk:
    """A disk that delivers no more than ``bytes_per_s``, with the page cache of the system in front of it.

    For datasets written in Python: files that the page cache has are read at once, and all others take their turn, also
    where several worker processes read. So a dataset that fits into memory is slow in its first epoch only, as it is
    with a real disk. Workers have to be forked, as what they share is handed down to them.

    Raises:
        ValueError: The rate is not a positive number.

    Examples:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "sample"
        >>> _ = path.write_bytes(bytes(1000))
        >>> len(SlowDisk(1e6).read(path))
        1000
    """

    def __init__(self, bytes_per_s: float) -> None:
        if not 0 < bytes_per_s < float("inf"):
            raise ValueError(
                f"storage cannot deliver {bytes_per_s} bytes per second; the rate should be positive"
            )
        self._bytes_per_s = bytes_per_s
        #: When the last turn that was given out is over, by the clock that all processes share.
        self._taken_until = multiprocessing.get_context("fork").Value("d", 0.0)

    def read(self, path: str | os.PathLike[str]) -> bytes:
        """All bytes of a file."""
        asked = time.monotonic()
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            content = bytearray(size)
            if _read_from_memory(descriptor, content):
                return bytes(content)
            # Its bytes pass through here on their way from the device, and take as long as this disk takes for them.
            done = 0
            while done < size:
                read = os.preadv(descriptor, [memoryview(content)[done:]], done)
                if not read:
                    raise OSError(errno.EIO, "the file became shorter while it was read", os.fspath(path))
                done += read
        finally:
            os.close(descriptor)
        with self._taken_until.get_lock():
            over = max(asked, self._taken_until.value) + size / self._bytes_per_s
            self._taken_until.value = over
        time.sleep(max(0.0, over - time.monotonic()))
        return bytes(content)


def _read_from_memory(descriptor: int, content: bytearray) -> bool:
    """Reads a whole file if the page cache has all of it."""
    try:
        return os.preadv(descriptor, [content], 0, os.RWF_NOWAIT) == len(content)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
            return False
        raise
