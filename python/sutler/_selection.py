"""Parts of native datasets: what PyTorch's `Subset` and `random_split` make of one is served by native threads, too.

A subset is a list of indices. The order of an epoch is drawn over that list, as PyTorch does it, and each place of it
stands for a sample of the native dataset; nothing is prepared in Python.
"""

from __future__ import annotations

import functools
import hashlib
import operator
import sys
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from sutler._words import counted
from sutler.datasets import NativeDataset
from sutler.errors import Failure, SampleError, about_another

Numbers = npt.NDArray[np.int64]


def _is_subset(dataset: Any) -> bool:
    # A class derived from it may have a __getitem__ of its own.
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and type(dataset) is torch_data.Subset


def origin_of(dataset: Any) -> Any:
    """The native dataset that a subset, or a subset of one, takes its samples from; any other dataset itself."""
    below = dataset
    while _is_subset(below):
        below = below.dataset
    return below if isinstance(below, NativeDataset) else dataset


class Selection:
    """Which samples of a native dataset a subset stands for, in its order.

    Read when the loader is made and again when an epoch begins, since the list is the user's to change.
    """

    def __init__(self, subset: Any) -> None:
        self._subset = subset
        self.numbers = _resolve(subset)

    def read_again(self) -> None:
        """An epoch begins."""
        numbers = _resolve(self._subset)
        if not np.array_equal(numbers, self.numbers):
            self.numbers = numbers
            self.__dict__.pop("digest", None)
            self.__dict__.pop("_places", None)

    def number(self, index: int) -> int:
        """The native dataset's number for what the subset calls ``index``."""
        if not -len(self.numbers) <= index < len(self.numbers):
            raise IndexError(
                f"the sampler drew index {index}, but the dataset has {counted(len(self.numbers), 'sample')}"
            )
        return int(self.numbers[index])

    def distinct(self) -> int:
        """How many different samples it names."""
        return len(np.unique(self.numbers))

    @functools.cached_property
    def digest(self) -> str:
        """A short name for the selection, by which a checkpoint knows it again."""
        return hashlib.blake2b(self.numbers.astype("<i8").tobytes(), digest_size=16).hexdigest()

    def named(self, fingerprint: str) -> str:
        """A name for the selection from a dataset of this name."""
        both = f"{fingerprint}:{self.digest}"
        return hashlib.blake2b(both.encode(), digest_size=16).hexdigest()

    @functools.cached_property
    def _places(self) -> dict[int, int]:
        # Backwards, so that of a sample that is there twice the first place counts.
        last = len(self.numbers) - 1
        return {number: last - place for place, number in enumerate(self.numbers[::-1].tolist())}

    def places(self, numbers: list[int]) -> list[int]:
        """What the subset calls the samples that the native dataset has under these numbers."""
        return [self._places[number] for number in numbers]

    def renamed_error(self, error: Exception) -> Exception:
        """The same error, about the sample as the subset calls it."""
        return about_another(error, self._renamed)

    def _renamed(self, error: SampleError) -> SampleError:
        if error.sample not in self._places:
            return error  # of another dataset, which a function has asked for something
        (place,) = self.places([error.sample])
        return type(error)(place, error.path, error.reason, error.kind)

    def renamed_failures(self, failures: list[Failure]) -> list[Failure]:
        """The same failures, of the samples as the subset calls them."""
        return [failure._replace(id=self._places[failure.id]) for failure in failures]


def selection_of(dataset: Any) -> Selection | None:
    """The part of a native dataset that a dataset is; ``None`` for everything else, and for all of one."""
    return Selection(dataset) if _is_subset(dataset) and origin_of(dataset) is not dataset else None


def _resolve(subset: Any) -> Numbers:
    below = subset.dataset
    named = _as_integers(subset.indices)
    outside = (named < -len(below)) | (named >= len(below))
    if outside.any():
        raise IndexError(
            f"the Subset names sample {named[outside][0]}, and the {type(below).__name__} that it is made of has "
            f"{counted(len(below), 'sample')}; pass indices that it has"
        )
    from_start = np.where(named < 0, named + len(below), named)
    return _resolve(below)[from_start] if _is_subset(below) else from_start


def _as_integers(indices: Any) -> Numbers:
    # Arrays and tensors have a list; the rest is asked as `Subset` asks it.
    as_list = getattr(indices, "tolist", lambda: [indices[place] for place in range(len(indices))])
    named = as_list()
    try:
        return np.array([operator.index(name) for name in named], dtype=np.int64)
    except TypeError:
        wrong = next(name for name in named if not hasattr(name, "__index__"))
        raise TypeError(
            f"the indices of a Subset of a native dataset should be integers, and one of them is {wrong!r}"
        ) from None


def warn_of_concatenation(dataset: Any, leaves: list[Any], stacklevel: int) -> None:
    """Tells that native datasets which were put together in Python are also prepared from there."""
    if leaves and leaves[0] is not dataset and all(isinstance(leaf, NativeDataset) for leaf in leaves):
        warnings.warn(
            f"{type(dataset).__name__} puts native datasets together in Python, so Python asks them for one sample at "
            "a time, in this process unless num_workers says how many worker processes do it. A sutler.Manifest that "
            "lists the files of all of them is prepared by native threads.",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )
