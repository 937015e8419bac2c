"""What a sampler's draws began with, so that it can draw the same again after a resume.

PyTorch's samplers draw an epoch's order when they are first asked, from a generator of their own or from PyTorch's
global one. Of the generators only those are kept that the sampler moved, so a state stays small where nothing is
random.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from sutler import _generators

#: How deep samplers may hold one another, each in its attribute ``sampler``, to be looked at.
_DEPTH = 4

#: The attribute in which PyTorch's samplers hold a generator of their own.
_GENERATOR = "generator"

Result = TypeVar("Result")


class DrawnFrom:
    """Where the generators were that a sampler drew from, and the sampler's own state, before an epoch's draws."""

    def __init__(self) -> None:
        #: Before ``iter(sampler)``: of the generators that it moved.
        self.at_iter: dict[str, bytes] = {}
        #: Before the first draw, which is after the workers' seeds were drawn: of those that it moved.
        self.at_draw: dict[str, bytes] = {}
        #: Between two epochs: of the sampler's own generators.
        self.at_rest: dict[str, bytes] = {}
        #: What the sampler's ``state_dict`` gave before ``iter(sampler)``, or between two epochs; in a tuple, where it
        #: has one.
        self.sampler_state: tuple[Any] | None = None

    def save(self) -> dict[str, Any] | None:
        """The entry of a state for it; ``None`` where there is nothing to tell."""
        parts = {"at_iter": self.at_iter, "at_draw": self.at_draw, "at_rest": self.at_rest}
        entry: dict[str, Any] = {
            name: {which: _pack(state) for which, state in states.items()}
            for name, states in parts.items()
            if states
        }
        if self.sampler_state is not None:
            entry["sampler"] = self.sampler_state[0]
        return entry or None

    @classmethod
    def load(cls, entry: Any) -> DrawnFrom | None:
        """What `save` made the entry of."""
        if entry is None:
            return None
        loaded = cls()
        try:
            for name in ("at_iter", "at_draw", "at_rest"):
                setattr(loaded, name, {which: _unpack(text) for which, text in entry.get(name, {}).items()})
        except (AttributeError, TypeError, ValueError, zlib.error) as error:
            raise ValueError(f"the state is damaged: its drawn_from cannot be read ({error})") from error
        if "sampler" in entry:
            loaded.sampler_state = (entry["sampler"],)
        return loaded

    def load_sampler_state(self, sampler: Any) -> bool:
        """Tells the sampler the state that it had before the draws; whether there is one."""
        holder = _stateful(sampler)
        if holder is None or self.sampler_state is None:
            return False
        holder.load_state_dict(copy.deepcopy(self.sampler_state[0]))
        return True


def sampler_state_of(sampler: Any) -> tuple[Any] | None:
    """A copy of the state that a sampler, or the one in it, has of its own."""
    holder = _stateful(sampler)
    return None if holder is None else (copy.deepcopy(holder.state_dict()),)


def watched(sampler: Any, draw: Callable[[], Result]) -> tuple[Result, dict[str, bytes]]:
    """What a call returns, and where those generators were before it that it has moved."""
    before = states_of(sampler)
    result = draw()
    after = states_of(sampler)
    return result, {which: state for which, state in before.items() if after.get(which) != state}


@contextlib.contextmanager
def replayed(sampler: Any, states: dict[str, bytes]) -> Iterator[None]:
    """Puts generators where they were; those of the process only for a while, so that nobody else notices."""
    put_back = _generators.save([which for which in states if which in _generators.NAMES])
    restore(sampler, states)
    try:
        yield
    finally:
        _generators.restore(put_back)


def states_of(sampler: Any) -> dict[str, bytes]:
    """Where all generators are that a sampler may draw from."""
    return _generators.save(list(_generators.marks())) | own_states(sampler)


def restore(sampler: Any, states: dict[str, bytes]) -> None:
    """Puts generators where they were, both those that belong to a sampler and those of the process."""
    restore_own(sampler, states)
    _generators.restore({which: state for which, state in states.items() if which in _generators.NAMES})


def own_states(sampler: Any) -> dict[str, bytes]:
    """Where the generators are that belong to a sampler, or to the one in it."""
    return {which: _generators.save_torch(generator) for which, generator in _own_generators(sampler)}


def restore_own(sampler: Any, states: dict[str, bytes]) -> None:
    """Puts the generators that belong to a sampler where they were."""
    for which, generator in _own_generators(sampler):
        if which in states:
            _generators.restore_torch(generator, states[which])


def _chain(sampler: Any) -> Iterator[tuple[str, Any]]:
    """A sampler, the one that it draws from, and so on, with the names of their generators."""
    name = _GENERATOR
    for _ in range(_DEPTH):
        yield name, sampler
        sampler = getattr(sampler, "sampler", None)
        name = f"sampler.{name}"
        if not isinstance(sampler, Iterable):
            return


def _own_generators(sampler: Any) -> Iterator[tuple[str, Any]]:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for name, one in _chain(sampler):
        generator = getattr(one, _GENERATOR, None)
        if isinstance(generator, torch.Generator) and generator is not torch.default_generator:
            yield name, generator


def _stateful(sampler: Any) -> Any:
    """The first of a chain of samplers that has a state of its own."""
    for _, one in _chain(sampler):
        if callable(getattr(one, "state_dict", None)) and callable(getattr(one, "load_state_dict", None)):
            return one
    return None


@functools.lru_cache(
    maxsize=32
)  # a job may save a state after every batch, and these stay the same for an epoch
def _pack(state: bytes) -> str:
    return base64.b64encode(zlib.compress(state)).decode("ascii")


def _unpack(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text, validate=True))
