"""Which files the samples of a dataset lie in.

A dataset of ours knows. Those of torchvision say so in ``samples`` or ``imgs``. Of any other, samples are prepared
while Python tells which files it opens; a dataset that reads past Python's ``open`` shows none.
"""

from __future__ import annotations

import os
import pickle
import sys
import sysconfig
from collections.abc import Callable, Sequence
from typing import Any

from sutler.datasets import NativeDataset
from sutler.text import TextLines


def files_of(dataset: Any, indices: Sequence[Any]) -> dict[Any, list[str]]:
    """The files of each sample, as the dataset itself knows them; none where it does not."""
    if isinstance(dataset, TextLines):
        return {}  # pieces of files, which may be far larger than memory
    if isinstance(dataset, NativeDataset):
        return {index: [dataset.path(index)] for index in indices}
    inner, inner_indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if inner is not None and inner_indices is not None:  # torch.utils.data.Subset
        below = {index: inner_indices[index] for index in indices}
        found = files_of(inner, list(below.values()))
        return {index: found[lower] for index, lower in below.items() if lower in found}
    for name in ("samples", "imgs"):
        listed = _listed(getattr(dataset, name, None), indices)
        if listed:
            return listed
    return {}


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
        self._opened: list[str] | None = None
        self._installed = False
        #: Code is opened as well, and is no sample.
        self._code = tuple({os.path.realpath(path) for path in sysconfig.get_paths().values()})

    def begin(self) -> None:
        """From now on files are noted."""
        if not self._installed:
            sys.addaudithook(self._hook)
            self._installed = True
        self._opened = []

    def end(self) -> list[str]:
        """Each file that was opened meanwhile, once."""
        opened, self._opened = self._opened or [], None
        return [path for path in dict.fromkeys(opened) if os.path.isfile(path)]

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if (
            self._opened is not None
            and event == "open"
            and isinstance(arguments[0], (str, bytes, os.PathLike))
        ):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not path.startswith((*self._code, "/proc/", "/sys/", "/dev/")):
                self._opened.append(path)


_WATCH = _Watch()


def opened_here(dataset: Any, index: Any) -> tuple[list[str], Any]:
    """The files that are opened for a sample in this process, and the sample."""
    _WATCH.begin()
    try:
        sample = dataset[index]
    finally:
        opened = _WATCH.end()
    return opened, sample


class WatchingWorker:
    """A ``worker_init_fn`` that does what the user's does, and has the worker note the files that it opens then.

    The dataset itself stays as it is: the user's function may look at it, and change it.
    """

    def __init__(self, worker_init_fn: Callable[[int], Any] | None) -> None:
        self._worker_init_fn = worker_init_fn

    def __call__(self, worker: int) -> None:
        """Called in the worker before its first sample."""
        if self._worker_init_fn is not None:
            self._worker_init_fn(worker)
        _WATCH.begin()


def with_files(sample: Any) -> tuple[list[str], bytes | None]:
    """A ``collate_fn`` of single samples: the files that this worker has opened since the last one, and the sample.

    As bytes, if it can be had so. Only what the user's own function makes of samples has to leave a worker otherwise,
    and PyTorch's loader would wait forever for what cannot.
    """
    opened = _WATCH.end()
    try:
        pickled = pickle.dumps(sample)
    except Exception:  # whatever a class of somebody else's raises
        pickled = None
    _WATCH.begin()
    return opened, pickled
