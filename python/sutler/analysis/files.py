"""Which files the samples of a dataset lie in.

A dataset of ours knows. Those of torchvision say so in ``samples`` or ``imgs``. Of any other, samples are loaded in
this process while Python tells which files it opens; a dataset that reads past Python's ``open`` shows none.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from collections.abc import Sequence
from typing import Any

from sutler.datasets import NativeDataset


def files_of(dataset: Any, indices: Sequence[Any], *, seconds_max: float) -> dict[Any, list[str]]:
    """The files of each sample; samples whose files are not known are missing.

    Args:
        dataset: Any map-style dataset.
        indices: Which samples.
        seconds_max: How long to go on loading samples where that is the only way to find out.
    """
    if isinstance(dataset, NativeDataset):
        return {index: [dataset.path(index)] for index in indices}
    inner, inner_indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if inner is not None and inner_indices is not None:  # torch.utils.data.Subset
        below = {index: inner_indices[index] for index in indices}
        found = files_of(inner, list(below.values()), seconds_max=seconds_max)
        return {index: found[lower] for index, lower in below.items() if lower in found}
    for name in ("samples", "imgs"):
        listed = _listed(getattr(dataset, name, None), indices)
        if listed:
            return listed
    return _watched(dataset, indices, seconds_max)


def _listed(entries: Any, indices: Sequence[Any]) -> dict[Any, list[str]]:
    found = {}
    for index in indices:
        try:
            entry = entries[index]
            path = entry[0] if isinstance(entry, (tuple, list)) else entry
            name = os.fspath(path)
        except (TypeError, IndexError, KeyError):
            return {}
        if not isinstance(name, str) or not os.path.isfile(name):
            return {}
        found[index] = [name]
    return found


class _Watch:
    """Notes the files that Python opens while it is on. Hooks cannot be taken back, so there is one for all."""

    def __init__(self) -> None:
        self.opened: list[str] | None = None
        self._installed = False
        #: Code is opened as well, and is no sample.
        self._code = tuple({os.path.realpath(path) for path in sysconfig.get_paths().values()})

    def begin(self) -> list[str]:
        if not self._installed:
            sys.addaudithook(self._hook)
            self._installed = True
        opened: list[str] = []
        self.opened = opened
        return opened

    def end(self) -> None:
        self.opened = None

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if (
            self.opened is not None
            and event == "open"
            and isinstance(arguments[0], (str, bytes, os.PathLike))
        ):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not path.startswith((*self._code, "/proc/", "/sys/", "/dev/")):
                self.opened.append(path)


_WATCH = _Watch()


def _watched(dataset: Any, indices: Sequence[Any], seconds_max: float) -> dict[Any, list[str]]:
    found = {}
    deadline = time.monotonic() + seconds_max
    for index in indices:
        opened = _WATCH.begin()
        try:
            dataset[index]
        except Exception:
            continue  # a bad sample, of which the loader has its own opinion
        finally:
            _WATCH.end()
        paths = [path for path in dict.fromkeys(opened) if os.path.isfile(path)]
        if not paths:
            return {}  # it opens none, or not through Python
        found[index] = paths
        if time.monotonic() > deadline:
            break
    return found
