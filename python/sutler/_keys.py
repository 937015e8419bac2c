"""What a dataset written in Python is asked for: indices, or any other keys that a sampler draws.

The engine knows samples by number. An index that is one is its own number; every other key gets one that is kept here.
"""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

from sutler._sutler import FIRST_KEYED


def _is_number(key: Any) -> bool:
    return type(key) is int and 0 <= key < FIRST_KEYED


def _is_plain(key: Any) -> bool:
    if type(key) in (tuple, list):
        return all(map(_is_plain, key))
    return key is None or type(key) in (bool, int, float, str, bytes)


def by_value(key: Any) -> bytes:
    """The same bytes for equal keys; a pickle alone also tells which of their parts are one object."""
    return b"r" + repr(key).encode() if _is_plain(key) else b"p" + pickle.dumps(key)


def seed_number(key: Any) -> int:
    """The number that a sample's random numbers are drawn from: the same for a key in every process and every run."""
    if _is_number(key):
        return int(key)
    return int.from_bytes(hashlib.blake2b(by_value(key), digest_size=4).digest(), "little")


class KeyTable:
    """The numbers of keys; it grows with every key that is drawn for the first time."""

    def __init__(self) -> None:
        self._keys: list[Any] = []
        self._numbers: dict[bytes, int] = {}
        self._fresh: list[tuple[bytes, str]] = []

    def number(self, key: Any) -> int:
        """The number of a key."""
        if _is_number(key):
            return int(key)
        # By its bytes: a key may be a list, which no dict takes.
        value = by_value(key)
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = FIRST_KEYED + len(self._keys)
            self._keys.append(key)
            self._fresh.append((pickle.dumps(key), repr(key)))
        return number

    def key(self, number: int) -> Any:
        """The key of a number."""
        return number if number < FIRST_KEYED else self._keys[number - FIRST_KEYED]

    def tell_again(self) -> None:
        """Another engine is to be told of all keys."""
        self._fresh = [(pickle.dumps(key), repr(key)) for key in self._keys]

    def take_fresh(self) -> list[tuple[bytes, str]]:
        """Keys that the engine has not been told of: pickled, and in words."""
        fresh, self._fresh = self._fresh, []
        return fresh
