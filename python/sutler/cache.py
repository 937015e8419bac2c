"""What a loader keeps in memory between epochs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from sutler import _sutler

#: Who leaves when there is no room: what this release can do.
POLICIES = ("pinned", "lru", "random")

#: The split that is found by measuring.
AUTO = "auto"

#: All of it for encoded samples.
DEFAULT_SPLIT = "100-0-0"


@dataclass(frozen=True)
class Cache:
    """How much memory a loader may use to keep samples from one epoch to the next, and for what.

    It is a description: each loader that is given it has a cache of its own, of this size. A sample is kept in one
    of two forms. *Encoded* is the file as it was read, or the line of a text: a hit saves the read. *Decoded* is what
    all transforms before the first random one make of it, or the tokens of a line: a hit saves the decoding too, but
    takes several times the memory. Either way a batch holds the same bytes as it would without a cache. Of a dataset
    written in Python all of the memory is for what its deterministic part returns: see :class:`sutler.PreparedDataset`.

    Args:
        memory: All it may take: a number of bytes, or text such as ``"8GiB"`` or ``"500MB"``.
        split: The shares of encoded, decoded and augmented samples in percent, as in ``"58-42-0"``; or ``"auto"``,
            for images, which measures the dataset for about a second when the first epoch begins, takes the best split,
            and looks again before each later epoch: where reading or preparing has become a quarter faster or slower
            and another split is clearly better, it changes. ``stats()["cache"]["plan"]`` tells what it did.
            By default all of it is for encoded samples: that keeps the most samples, so it saves the most reads,
            whatever the transforms are, and it neither delays the first batch nor depends on how busy the machine is.
            Augmented samples serve each job once, so a share for them is for several jobs, of an agent
            (``sutler serve --split``); a loader on its own refuses it.
        policy: Who leaves when there is no room. ``"pinned"``: nobody; as an epoch needs every sample once, this
            misses the fewest. ``"lru"``: the longest unused, for samplers that come back to the same samples soon.
            ``"random"``: anyone, which is what a page cache comes to, to compare with.

    Raises:
        ValueError: The size, the split or the policy is not one; the message says what is.

    Examples:
        >>> import sutler
        >>> sutler.Cache("8GiB").memory
        8589934592
        >>> sutler.Cache(memory="500MB", split="58-42-0")
        Cache(memory=500000000, split='58-42-0', policy='pinned')
    """

    memory: int
    split: str = DEFAULT_SPLIT
    policy: Literal["pinned", "lru", "random"] = "pinned"

    def __init__(
        self,
        memory: int | str,
        split: str = DEFAULT_SPLIT,
        policy: Literal["pinned", "lru", "random"] = "pinned",
    ) -> None:
        object.__setattr__(self, "memory", read_size(memory))
        object.__setattr__(self, "split", split)
        object.__setattr__(self, "policy", policy)
        read_split(split)
        if policy not in POLICIES:
            raise ValueError(
                f"policy should be one that this release has ({', '.join(map(repr, POLICIES))}), got {policy!r}"
            )


def read_size(size: Any) -> int:
    """The bytes that a ``memory=`` or ``cache=`` argument asks for."""
    if isinstance(size, str):
        return _sutler.parse_size(size)
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"a size should be a number of bytes or text such as '8GiB', got {size!r}")
    if not 0 < size < 2**63:
        raise ValueError(f"a size should be a positive number of bytes, got {size}")
    return size


def read_split(split: Any) -> tuple[int, int, int]:
    """The percentages that a ``split=`` argument asks for, or begins with: encoded, decoded and augmented."""
    if split == AUTO:
        return 100, 0, 0
    shares = re.fullmatch(r"(\d{1,3})-(\d{1,3})-(\d{1,3})", split) if isinstance(split, str) else None
    if shares is None:
        raise ValueError(
            "split should be 'auto' or the percentages of encoded, decoded and augmented samples, such as "
            f"'58-42-0', got {split!r}"
        )
    encoded, decoded, augmented = map(int, shares.groups())
    if encoded + decoded + augmented != 100:
        raise ValueError(
            f"split={split!r} adds up to {encoded + decoded + augmented} percent; the three shares should make 100"
        )
    return encoded, decoded, augmented


def check_alone(cache: Cache) -> None:
    """Raises for a split that only several jobs can use: an augmented sample serves each job once."""
    encoded, decoded, augmented = read_split(cache.split)
    if augmented:
        raise ValueError(
            f"split={cache.split!r} has a share for augmented samples. A job gets each of those once, so they can only "
            "serve other jobs, and this loader has none to share with. Give their share to decoded samples "
            f"(split='{encoded}-{decoded + augmented}-0'), or let jobs share through an agent: "
            f"`sutler serve --memory … --split {cache.split}`, and agent='auto', order='shared' in each of them."
        )


def open_cache(wanted: Cache, samples: int, content: str, seed: int) -> _sutler.Cache:
    """The memory for copies of a native dataset's samples."""
    if wanted.split == AUTO and content != "images":
        raise ValueError(
            f"split='auto' measures what decoding images costs, and the dataset holds {content}; pass the shares, such "
            "as split='100-0-0' for samples as they were stored or split='0-100-0' for what is made of them before "
            "anything random"
        )
    encoded, decoded, _ = read_split(wanted.split)
    return _sutler.Cache(
        samples,
        budget_bytes=wanted.memory,
        encoded_percent=encoded,
        decoded_percent=decoded,
        policy=wanted.policy,
        seed=seed,
        any_split=wanted.split == AUTO,
    )


def read_cache(cache: Any) -> Cache | None:
    """The cache that a ``cache=`` argument asks for."""
    if cache is None or isinstance(cache, Cache):
        return cache
    if isinstance(cache, str) and "://" in cache:
        raise ValueError(
            f"cache={cache!r} names a server, and this release keeps samples in this process alone. Pass a size "
            "such as '8GiB'."
        )
    return Cache(read_size(cache))
