"""Where reports are written to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def writable(path: str | os.PathLike[str]) -> Path:
    """The path, if a file can be written there.

    Raises:
        OSError: It cannot, and why, in words.
    """
    place = Path(path)
    if place.is_dir():
        raise IsADirectoryError(f"{place} is a folder; name a file in it")
    folder = place.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} to write {place.name} into; make it first")
    if not os.access(place if place.exists() else folder, os.W_OK):
        raise PermissionError(f"{place} may not be written to; name another place")
    return place


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Has errors while a file is written name it: a full disk is told without."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


def write(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text to a file.

    Raises:
        OSError: It cannot be written there.
    """
    place = writable(path)
    with naming(place):
        place.write_text(text, encoding="utf-8")
