"""Samples' own random numbers, drawn from generators that belong to the whole process: Python's, NumPy's and PyTorch's.

Whoever makes a sample or a batch in the trainer's process lets the generators start from its seed, and puts them back
where the trainer left them. Seeding takes 7 µs, saving and putting back another 85, of which NumPy takes 70: so that is
done once for all the samples of a batch. Nobody can have drawn from PyTorch's before it is imported; until then it is
left out.
"""

from __future__ import annotations

import os
import random  # noqa: F401 - it is found among what is imported, as the others are
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy.random  # noqa: F401 - NumPy loads it when first used, and it must be there to be seeded

from sutler._generators import no_fork

__all__ = ["generators_kept", "put_aside", "seed_generators", "seeded"]


class _Generator(NamedTuple):
    """One of the generators: where it is found once it is imported, and what can be done with it there."""

    module: str
    save: Callable[[Any], Any]
    restore: Callable[[Any, Any], None]
    seed: Callable[[Any, int], None]


def _unforked(call: Callable[..., Any], *arguments: Any) -> Any:
    """Calls PyTorch's generator while nobody forks."""
    with no_fork:
        return call(*arguments)


_ALL = (
    _Generator(
        "random",
        save=lambda module: module.getstate(),
        restore=lambda module, state: module.setstate(state),
        seed=lambda module, seed: module.seed(seed),
    ),
    _Generator(
        "numpy.random",
        save=lambda module: module.get_state(),
        restore=lambda module, state: module.set_state(state),
        seed=lambda module, seed: module.seed(seed % 2**32),  # it takes no more than 32 bits
    ),
    _Generator(
        "torch",
        save=lambda module: _unforked(module.default_generator.get_state),
        restore=lambda module, state: _unforked(module.default_generator.set_state, state),
        seed=lambda module, seed: _unforked(module.default_generator.manual_seed, seed),
    ),
)

# Two threads that seed the generators at once would give each other's numbers away, so what is seeded runs alone. One
# thread may take it again: what is seeded may ask a dataset that seeds, too.
_alone = threading.RLock()

#: The states to put back when the innermost `generators_kept` ends, by module; ``None`` outside of it, and inside of
#: what is seeded there: that goes on drawing after something within it was seeded. Whoever has the lock may touch it.
_kept: dict[str, Any] | None = None


def put_aside() -> Callable[[], None]:
    """Lets another thread seed, though this one may be inside of what is seeded, until it calls what is returned.

    For threads that take turns and put the generators back where they were at each. Whoever has the lock keeps it: the
    next thread gets another one.
    """
    global _alone, _kept
    before = _alone, _kept
    _alone, _kept = threading.RLock(), None

    def take_up() -> None:
        global _alone, _kept
        _alone, _kept = before

    return take_up


def never_put_back() -> None:
    """For a worker process, which seeds the generators for every sample: nobody draws from them in between.

    What is seeded by one that is seeded itself puts them back all the same.
    """
    global _kept
    _kept = {}


def _forget_parent() -> None:
    """We are in a forked child: a thread that has the lock, or keeps generators, is the parent's and not here."""
    put_aside()


os.register_at_fork(after_in_child=_forget_parent)


def seed_generators(seed: int) -> None:
    """Lets Python's, NumPy's and PyTorch's generators start from a seed, for good."""
    for generator in _ALL:
        module = sys.modules.get(generator.module)
        if module is not None:
            generator.seed(module, seed)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Saves the generators once for all that is `seeded` inside, and lets them go on as before afterwards.

    For whoever makes several samples and draws nothing in between.
    """
    global _kept
    with _alone:
        states: dict[str, Any] = {}
        outer, _kept = _kept, states
        try:
            yield
        finally:
            _kept = outer
            _restore(states)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Lets Python's, NumPy's and PyTorch's generators start from a seed inside, and go on as before afterwards.

    Examples:
        >>> import random
        >>> with seeded(7):
        ...     first = random.random()
        >>> import random
        >>> with seeded(7):
        ...     first == random.random()
        True
    """
    global _kept
    with _alone:
        outer, _kept = _kept, None
        states: dict[str, Any] = {} if outer is None else outer
        try:
            _save(states)
            seed_generators(seed)
            yield
        finally:
            _kept = outer
            if outer is None:
                _restore(states)


def _save(states: dict[str, Any]) -> None:
    """Adds the states that are not there yet: a library may be imported by what made an earlier sample."""
    for generator in _ALL:
        module = sys.modules.get(generator.module)
        if module is not None and generator.module not in states:
            states[generator.module] = generator.save(module)


def _restore(states: dict[str, Any]) -> None:
    for generator in _ALL:
        if generator.module in states:
            generator.restore(sys.modules[generator.module], states[generator.module])
