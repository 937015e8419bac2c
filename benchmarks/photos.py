"""The files that are measured on: photos, listed as often as an epoch needs them.

A copy is a hard link, so that a long epoch reads the bytes of few photos and all of them stay in the page cache: what
is measured is then decoding and delivery, not a disk. Where the disk is to be measured, too, photos are really copied:
of two links to the same bytes only the first is ever read from the device.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Pictures of a generated set when no photos are given, and the longer side of a typical one: ImageNet's.
GENERATED_COUNT = 256
GENERATED_SIDE = 500

_ENDINGS = (".jpg", ".jpeg")


@dataclass
class Photos:
    """A folder of class folders."""

    root: Path
    samples: int
    #: In words, for the head of a table.
    description: str


def find_photos(root: Path) -> list[tuple[str, Path]]:
    """The JPEGs below a folder with their classes: the names of their folders."""
    found = sorted(path for path in root.rglob("*") if path.suffix.lower() in _ENDINGS and path.is_file())
    if not found:
        raise FileNotFoundError(
            f"`{root}` holds no JPEGs ({', '.join(_ENDINGS)}); "
            "pass a folder of photos, or leave --data out for generated ones"
        )
    return [("all" if path.parent == root else path.parent.name, path) for path in found]


@contextmanager
def photo_tree(
    data: Path | None,
    *,
    repeat: int = 1,
    samples: int | None = None,
    classes: int | None = None,
    copied: bool = False,
) -> Iterator[Photos]:
    """A temporary folder that lists the photos of ``data``, or generated ones, ``repeat`` times or ``samples`` in all.

    With ``classes`` the photos are dealt out to that many class folders instead of those they come from. ``copied``
    ones have bytes of their own, and are no links.
    """
    with tempfile.TemporaryDirectory(prefix="sutler-bench-") as scratch:
        source = Path(scratch) / "generated" if data is None else data
        if data is None:
            from sutler.testing import make_photos

            make_photos(source, GENERATED_COUNT, 16, longer_side=GENERATED_SIDE)
        photos = find_photos(source)
        count = len(photos) * repeat if samples is None else samples
        root = Path(scratch) / "photos"
        _fill(photos, root, count, classes, _copy if copied else _link)
        used = photos[: min(count, len(photos))]
        mean = sum(path.stat().st_size for _, path in used) / len(used)
        kind = "generated pictures" if data is None else "photos"
        how = "copied" if copied else "hard-linked"
        description = f"{count:,} samples ({len(used):,} {kind}, mean {mean / 1000:.0f} kB, {how})"
        yield Photos(root, count, description)
        # Faster than the general clean-up, and quiet about what is already gone.
        shutil.rmtree(root, ignore_errors=True)


def _fill(
    photos: list[tuple[str, Path]],
    root: Path,
    count: int,
    classes: int | None,
    place: Callable[[Path, Path], None],
) -> None:
    for index in range(count):
        name, path = photos[index % len(photos)]
        if classes is not None:
            name = f"class_{index % classes:04d}"
        folder = root / name
        if index < max(len(photos), classes or 0):
            folder.mkdir(parents=True, exist_ok=True)
        place(path, folder / f"{index:07d}{path.suffix.lower()}")


def _copy(path: Path, copy: Path) -> None:
    shutil.copyfile(path, copy)


def _link(path: Path, link: Path) -> None:
    try:
        os.link(path, link)
    except OSError:
        # Another file system, or one that does not let us: a symbolic link costs one more look-up for everybody.
        os.symlink(path.resolve(), link)
