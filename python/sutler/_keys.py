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
        #: Why keys cannot be pickled, by their numbers, of those that cannot: such a key is equal only to itself.
        self._opaque: dict[int, Exception] = {}
        #: The numbers that the engine has not been told of, and their keys as they were when they were drawn.
        self._fresh: list[tuple[int, bytes]] = []

    def number(self, key: Any) -> int:
        """The number of a key."""
        if _is_number(key):
            return int(key)
        reason = None
        try:
            # By its bytes: a key may be a list, which no dict takes.
            value = by_value(key)
        except Exception as error:
            # No other key gets this identity, since the table keeps this one.
            value, reason = b"i%d" % id(key), error
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = FIRST_KEYED + len(self._keys)
            self._keys.append(key)
            if reason is not None:
                self._opaque[number] = reason.with_traceback(None)
            self._fresh.append((number, b"" if reason is not None else pickle.dumps(key)))
        return number

    def key(self, number: int) -> Any:
        """The key of a number."""
        return number if number < FIRST_KEYED else self._keys[number - FIRST_KEYED]

    @property
    def has_opaque(self) -> bool:
        """Whether there are keys that cannot be pickled."""
        return bool(self._opaque)

    def stand_in(self, number: int) -> Any:
        """What takes the place of a key that cannot be pickled where its value matters; `None` for other keys.

        It is the place in the order in which keys were first drawn, so that it is the same in another run.
        """
        return ("key", number - FIRST_KEYED) if number in self._opaque else None

    def value(self, number: int) -> bytes:
        """The same bytes for equal keys, of a number that stands for one."""
        stand_in = self.stand_in(number)
        return by_value(self.key(number) if stand_in is None else stand_in)

    def tell_again(self) -> None:
        """Another engine is to be told of all keys."""
        numbers = range(FIRST_KEYED, FIRST_KEYED + len(self._keys))
        self._fresh = [
            (number, b"" if number in self._opaque else pickle.dumps(self.key(number))) for number in numbers
        ]

    def take_fresh(self) -> list[tuple[bytes, str]]:
        """Keys that the engine has not been told of: pickled, and in words."""
        for number, _ in self._fresh:
            if number in self._opaque:
                reason = self._opaque[number]
                raise TypeError(
                    f"the sampler drew {self.key(number)!r}, which cannot be pickled ({reason}), and workers have to "
                    "be told what to fetch. Draw something that stands for it, such as an index or a name; or pass "
                    "num_workers=0."
                ) from reason
        fresh, self._fresh = self._fresh, []
        return [(pickled, repr(self.key(number))) for number, pickled in fresh]
