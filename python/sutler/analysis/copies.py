"""Copies of what an analysis runs in the trainer's own process, so that the user's own objects stay as they are.

A dataset may have a random generator of its own, and a stream or a `collate_fn` may count. Worker processes have copies
of all that by nature; without them the user's own objects would move on.
"""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from sutler.analysis import doubts
from sutler.datasets import NativeDataset

#: Arrays and bytes of this size and more are not copied: what changes from sample to sample is small.
SHARED_FROM = 1 << 20
#: And nothing is copied that would take more than this without them.
COPY_MAX = 1 << 30

#: What stands for itself, as it does for `copy.deepcopy`; and native datasets, which would list their files again.
_THEMSELVES = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, NativeDataset)


class _TooLargeError(Exception):
    """A copy would take more than `COPY_MAX`."""


class _Memory(io.BytesIO):
    def write(self, content: Any, /) -> int:
        if self.tell() + len(content) > COPY_MAX:
            raise _TooLargeError(f"it takes more than {COPY_MAX >> 30} GiB")
        return super().write(content)


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.shared: list[Any] = []

    def persistent_id(self, value: Any) -> int | None:
        """The place of what is shared; ``None`` for what is copied."""
        if not _is_shared(value):
            return None
        self.shared.append(value)
        return len(self.shared) - 1


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, place: int) -> Any:
        """What is shared, from its place."""
        return self._shared[place]


def _is_shared(value: Any) -> bool:
    if isinstance(value, (bytes, bytearray, str)):
        return len(value) >= SHARED_FROM
    if isinstance(value, np.ndarray):
        return value.nbytes >= SHARED_FROM or isinstance(value, np.memmap)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return bool(value.is_cuda or value.nbytes >= SHARED_FROM)
    return isinstance(value, _THEMSELVES)


def copied(value: Any) -> Any:
    """A copy that knows nothing of the other, but for large arrays, which both have.

    Raises:
        Exception: It cannot be copied, or is too large.

    Examples:
        >>> large = np.zeros(1 << 20)
        >>> mine = {"count": [1], "large": large, "function": len}
        >>> other = copied(mine)
        >>> other["count"].append(2)
        >>> mine["count"], other["large"] is large, other["function"] is len
        ([1], True, True)
    """
    file = _Memory()
    writer = _Writer(file)
    writer.dump(value)
    file.seek(0)
    return _Reader(file, writer.shared).load()


def copies(things: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Copies of these by what they are called; themselves where there can be none, with sentences that say so.

    Examples:
        >>> found, notes = copies({"dataset": [1, 2], "collate_fn": (number for number in [1])})
        >>> found["dataset"], [note.partition(" (")[0] for note in notes]
        ([1, 2], ['The collate_fn could not be copied'])
    """
    try:
        return copied(dict(things)), []  # at once, as one may be a part of another
    except Exception:  # whatever a class of somebody else's raises
        found, notes = {}, []
        for name, thing in things.items():
            try:
                found[name] = copied(thing)
            except _TooLargeError as error:
                found[name] = thing
                notes.append(doubts.not_copied(name, str(error)))
            except Exception as error:
                found[name] = thing
                notes.append(doubts.not_copied(name, f"{type(error).__name__}: {error}"))
        return found, notes
