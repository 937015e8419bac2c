"""Datasets written in Python that say which part of a sample is the same every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["PreparedDataset", "deterministic"]

Getter = TypeVar("Getter", bound=Callable[..., Any])

#: The attribute of a function that `deterministic` has marked.
MARK = "__sutler_deterministic__"


class PreparedDataset:
    """A dataset whose samples are made in two steps: one that is the same in every epoch, and one that is random.

    Derive from it, beside PyTorch's ``Dataset`` if you like, and write :meth:`prepare`, :meth:`augment` and ``__len__``
    instead of ``__getitem__``. With ``cache=`` a :class:`sutler.Loader` keeps what ``prepare`` returns, and asks for it
    again only where it did not fit. Samples are the same with and without a cache.

    Before ``prepare`` Python's, NumPy's and PyTorch's generators are seeded from the index alone, before ``augment``
    from the loader's ``seed``, the epoch and the index. So what ``prepare`` draws, if anything, is the same every time.

    To PyTorch's ``DataLoader`` it is a dataset like any other.

    Examples:
        >>> import random, sutler
        >>> class Numbers(sutler.PreparedDataset):
        ...     def __len__(self):
        ...         return 4
        ...     def prepare(self, index):
        ...         return index * index  # slow, and always the same
        ...     def augment(self, prepared):
        ...         return prepared + random.random()  # quick, and always different
        >>> loader = sutler.Loader(Numbers(), batch_size=4, cache="1MiB")
        >>> first, second = list(loader), list(loader)
        >>> loader.stats()["served"]["decoded"]
        4
    """

    def prepare(self, index: Any) -> Any:
        """The part of a sample that depends on its index alone: reading and decoding.

        What it returns is kept as bytes: arrays, tensors, images of Pillow, numbers, texts, and tuples, lists and dicts
        of them; anything that can be pickled will do.
        """
        raise NotImplementedError(f"{type(self).__name__} should have a method prepare(self, index)")

    def augment(self, prepared: Any) -> Any:
        """The rest, random or not: makes a sample of what :meth:`prepare` returned, which it may change in place."""
        return prepared

    def __getitem__(self, index: Any) -> Any:
        return self.augment(self.prepare(index))


def deterministic(getter: Getter) -> Getter:
    """Marks a ``__getitem__`` that returns the same sample for an index in every epoch, so that ``cache=`` may keep it.

    For evaluation, say, or where augmentation happens later, in ``collate_fn`` or on the device. Where a part of a
    sample is random, derive from :class:`PreparedDataset` instead.

    Examples:
        >>> import sutler
        >>> class Squares:
        ...     def __len__(self):
        ...         return 4
        ...     @sutler.deterministic
        ...     def __getitem__(self, index):
        ...         return index * index
        >>> loader = sutler.Loader(Squares(), batch_size=4, cache="1MiB")
        >>> first, second = list(loader), list(loader)
        >>> loader.stats()["served"]["decoded"]
        4
    """
    if not callable(getter):
        raise TypeError(f"deterministic marks a method, as in `@sutler.deterministic`; got {getter!r}")
    setattr(getter, MARK, True)
    return getter
