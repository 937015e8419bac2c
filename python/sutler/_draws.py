"""What a sampler draws, remembered until an epoch begins with it.

Trainers such as Lightning make iterators that they never ask for a batch, to see whether they can. Workers begin with
the first batches at once, so that a sampler has drawn by then, and one with a generator would draw another order for
the iterator after that. So that one begins with the same.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from sutler._drawn_from import (
    DrawnFrom,
    replayed,
    restore,
    restore_own,
    sampler_state_of,
    states_of,
    watched,
)

#: The engine is told of a draw in one number: the lower half is the sample's, the upper one how often it came before.
HALF_BITS = 32


def join(number: int, repeat: int) -> int:
    """A sample's number and how often it was drawn before in the epoch, in one."""
    return number | repeat << HALF_BITS


def split(joined: int) -> tuple[int, int]:
    """The number, and how often."""
    return joined & (1 << HALF_BITS) - 1, joined >> HALF_BITS


class Draws:
    """What a sampler draws from one ``iter(sampler)`` on; it may be gone through again until an epoch has begun."""

    def __init__(
        self,
        sampler: Iterable[Any],
        epoch: Any,
        repeats: DrawnFrom | None = None,
        *,
        told_state: bool = False,
    ) -> None:
        self._sampler = sampler
        #: The epoch that the sampler was set to when drawing began, where it has such a thing.
        self.epoch = epoch
        #: What a loaded state says that these are to be drawn from, as they were before.
        self.repeats = repeats
        #: What they are drawn from.
        self.drawn_from = DrawnFrom() if repeats is None else repeats
        #: Whether a loaded state was told to the sampler, from before these draws.
        self._told_state = told_state if repeats is None else repeats.load_sampler_state(sampler)
        self._untouched = True
        #: Whether another state was loaded since, so that no epoch may begin with these.
        self.outdated = False
        self._source = self._fresh_iter() if repeats is None else self._repeated_iter(repeats)
        self._drawn: list[Any] = []
        self._begun = False
        self._owner: weakref.ref[Any] | None = None

    def _fresh_iter(self) -> Iterator[Any]:
        self.drawn_from.sampler_state = sampler_state_of(self._sampler)
        source, self.drawn_from.at_iter = watched(self._sampler, lambda: iter(self._sampler))
        return source

    def _repeated_iter(self, repeats: DrawnFrom) -> Iterator[Any]:
        with replayed(self._sampler, repeats.at_iter):
            return iter(self._sampler)

    def again(self) -> contextlib.AbstractContextManager[None]:
        """In this what a loaded state speaks of is drawn again, from where the generators were."""
        if self.repeats is None or not self._untouched:
            return contextlib.nullcontext()
        return replayed(self._sampler, self.repeats.at_draw)

    def start_over(self) -> bool:
        """Begins again without the state that the sampler was told, if it was.

        Some samplers count on in their state and begin anew with an epoch: told where they stood between two epochs,
        they draw nothing.
        """
        if self.repeats is None or not self._told_state:
            return False
        self._told_state, self._untouched, self._drawn = False, True, []
        self._source = self._repeated_iter(self.repeats)
        return True

    def belong_to(self, iterator: Any) -> None:
        """An iterator is about to serve them."""
        self._owner = weakref.ref(iterator)

    def is_left_over(self) -> bool:
        """Whether the iterator is gone that they were for."""
        return self._owner is not None and self._owner() is None

    def is_of(self, sampler: Iterable[Any], epoch: Any, repeats: DrawnFrom | None) -> bool:
        """Whether the sampler is this one, still set to the same epoch, and the same is to be repeated."""
        return self._sampler is sampler and self.is_still_for(epoch, repeats)

    def is_still_for(self, epoch: Any, repeats: DrawnFrom | None) -> bool:
        """Whether the sampler is still set to the same epoch, and the same is to be repeated."""
        return self.epoch == epoch and self.repeats is repeats and not self.outdated

    def take_over(self) -> None:
        """Another iterator is to be made for them."""
        self._owner = None

    def begin(self) -> None:
        """The epoch has begun: nobody goes through them again, and they need not be remembered."""
        self._begun = True

    def item(self, place: int) -> Any:
        """The item at a place that is next, or was drawn before; raises `StopIteration` at the end."""
        if place < len(self._drawn):
            return self._drawn[place]
        drawn = self._draw()
        if not self._begun:
            self._drawn.append(drawn)
        return drawn

    def _draw(self) -> Any:
        if not self._untouched:
            return next(self._source)
        self._untouched = False
        if self.repeats is not None:
            return next(self._source)
        before = states_of(self._sampler) if self._told_state else {}
        try:
            drawn, self.drawn_from.at_draw = watched(self._sampler, lambda: next(self._source))
        except StopIteration:
            if not self._told_state:
                raise
            return self._first_of_new_epoch(before)
        return drawn

    def _first_of_new_epoch(self, before: dict[str, bytes]) -> Any:
        """The first draw of a sampler that took a state from between two epochs for the end of one; see `start_over`.

        Generators are put back to where they were `before` it found nothing to draw.
        """
        self._told_state, self._untouched = False, True
        restore(self._sampler, before)
        restore_own(self._sampler, self.drawn_from.at_iter)
        self._source = self._fresh_iter()
        return self._draw()

    def __iter__(self) -> Iterator[Any]:
        return _Again(self)


class _Again(Iterator[Any]):
    """Goes through draws from the beginning. No generator: a sampler may be asked again after it raised."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._place = 0

    def __next__(self) -> Any:
        item = self._draws.item(self._place)
        self._place += 1
        return item


class UnusedDraws:
    """What a loader's sampler has drawn for iterators that have not begun."""

    def __init__(self) -> None:
        self._all: list[Draws] = []

    def take(
        self, sampler: Iterable[Any], epoch: Any, repeats: DrawnFrom | None, *, told_state: bool
    ) -> Draws:
        """What to serve next: what an iterator that is gone has left over, else what the sampler draws now.

        `told_state` says that the sampler was told a loaded state, and has not drawn since.
        """
        self._all = [
            draws for draws in self._all if not draws.is_left_over() or draws.is_of(sampler, epoch, repeats)
        ]
        for draws in self._all:
            if draws.is_left_over():
                draws.take_over()
                return draws
        self._all.append(Draws(sampler, epoch, repeats, told_state=told_state))
        return self._all[-1]

    def first(self) -> Draws | None:
        """Those that the next epoch will begin with, if any were drawn."""
        return self._all[0] if self._all else None

    def begin(self, begun: Draws) -> None:
        """An epoch begins with these."""
        begun.begin()
        self.drop(begun)

    def forget(self) -> None:
        """No epoch will begin with any of them: the sampler was put elsewhere."""
        for draws in self._all:
            draws.outdated = True
        self._all = []

    def drop(self, dropped: Draws) -> None:
        """No epoch will begin with these."""
        self._all = [draws for draws in self._all if draws is not dropped]
