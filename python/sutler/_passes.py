"""Where a loader's next pass over its dataset begins: in which epoch, at which place in it, and with which draws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sutler._draws import Draws, UnusedDraws
from sutler._epoch import Position
from sutler._epoch_batches import EpochBatches
from sutler._sampling import Drawing, EpochSampler, with_set_epoch

if TYPE_CHECKING:
    from sutler.loader import Loader


class Passes:
    """The passes of a loader: the one that checkpoints belong to, and what is known of the next one.

    A pass is planned when an iterator is made, and begins when that is asked for its first batch. What was planned may
    no longer be true by then, as a state can be loaded or an epoch chosen in between.
    """

    def __init__(
        self,
        clock: EpochSampler,
        sampler: Iterable[Any] | None,
        batch_sampler: Iterable[Sequence[Any]] | None,
    ) -> None:
        #: Knows which epoch is next.
        self._clock = clock
        #: The user's sampler, if there is one.
        self._given: Iterable[Any] | None = sampler if batch_sampler is None else batch_sampler
        self._in_batches = batch_sampler is not None
        #: The user's sampler that is told the epoch, if there is one.
        self._told_epoch = with_set_epoch(self._given)
        #: How far the pass is that began last, if one has.
        self._position: Position | None = None
        #: Where a state that was loaded says to go on, until a pass has begun.
        self._resume: Position | None = None
        #: What the sampler has drawn for the pass that began last.
        self.drawing: Drawing | None = None
        self._unused_draws = UnusedDraws()

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch to run next."""
        self._clock.set_epoch(epoch)
        if self._told_epoch is not None:
            self._told_epoch.set_epoch(epoch)

    def resume_at(self, position: Position) -> None:
        """The next pass goes on where a saved state left one."""
        self._resume = position
        self._clock.go_on_to(position.epoch)
        self._position = None

    def standing(self, loader: Loader) -> Position:
        """Where the next batch comes from, as far as a checkpoint is concerned."""
        epoch = self._clock.epoch
        if self._resume is None or self._resume.epoch != epoch:
            position = self._position
            left = position is None or position.complete or (self._clock.chosen and position.epoch != epoch)
            if position is not None and not left:
                return position
        first = self._first(epoch)
        if loader._streams is not None:
            # A pass that was made, and not yet asked for a batch, may have begun to read there.
            for iterator in loader._iterators:
                if not iterator.begun and iterator.is_planned_at(first):
                    return iterator.planned()
        return first

    def plan(self, loader: Loader) -> Position:
        """Where the pass of an iterator begins that is being made."""
        # Whoever goes over several at once asks them for their first batches in the order they were made.
        before = sum(not iterator.begun for iterator in loader._iterators)
        position = self._first(self._clock.epoch + before)
        position.drawing = self._draw(loader, position.epoch)
        return position

    def settle(self, loader: Loader, planned: Position) -> Position:
        """Where a pass really begins that was planned as given: the same position where nothing has changed since."""
        now = self._first(self._clock.epoch)
        drawing = planned.drawing
        if drawing is not None and drawing.epoch != self._sampler_epoch():
            now.drawing = self._draw(loader, now.epoch)
            return now
        now.drawing = drawing
        return planned if planned.is_where(now) else now

    def begin(self, position: Position) -> None:
        """The first batch of a pass is asked for: from now on a checkpoint belongs to it."""
        self.drawing = position.drawing
        if position.drawing is not None:
            self._unused_draws.begin(position.drawing.draws)
        self._resume = None
        self._position = position
        self._clock.go_on_to(position.epoch + 1)

    def _first(self, epoch: int) -> Position:
        """Where a pass of an epoch begins: where a loaded state left it, else at its beginning."""
        resume = self._resume
        return resume.copy() if resume is not None and resume.epoch == epoch else Position(epoch, 0)

    def _sampler_epoch(self) -> Any:
        """The epoch that the user's sampler was set to last, where it says so."""
        return getattr(self._told_epoch, "epoch", None)

    def _draw(self, loader: Loader, epoch: int) -> Drawing | None:
        """What the user's sampler has for an epoch, if there is such a sampler; one of ours is told which it is."""
        given = self._given
        if given is None:
            return None
        if loader._selection is not None:
            loader._selection.read_again()
        if isinstance(given, EpochBatches):  # it draws the same for an epoch, and otherwise for other ranks
            given.set_epoch(epoch)
            draws = Draws(given, self._sampler_epoch())
        else:
            source = given if loader._steps is None else loader._steps
            draws = self._unused_draws.take(source, self._sampler_epoch())
        keys = loader._backend.keys
        # Datasets written in Python answer for their keys themselves, and need not have a length.
        samples = len(loader._origin) if keys is None else 0
        return Drawing(
            draws,
            keys,
            loader._selection,
            samples=samples,
            in_batches=self._in_batches,
            place=None if loader._steps is None else loader._place(),
        )
