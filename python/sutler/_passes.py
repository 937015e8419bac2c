"""Where a loader's next pass over its dataset begins: in which epoch, at which place in it, and with which draws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sutler._drawn_from import DrawnFrom, own_states, restore_own, sampler_state_of
from sutler._draws import Draws, UnusedDraws
from sutler._epoch import Position
from sutler._epoch_batches import EpochBatches
from sutler._sampling import Drawing, EpochSampler, with_set_epoch
from sutler._state import check_state, make_state

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
        #: The epoch that was chosen last when that pass began.
        self._begun_within: int | None = None
        #: What the sampler has drawn for the pass that began last.
        self.drawing: Drawing | None = None
        self._unused_draws = UnusedDraws()
        #: Whether the sampler was told a state from between two epochs, and has not been asked to draw since.
        self._told_state = False

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch to run next."""
        self._clock.set_epoch(epoch)
        if self._told_epoch is not None:
            self._told_epoch.set_epoch(epoch)

    @property
    def within(self) -> int | None:
        """The epoch that was chosen last, here or before the state was saved that is loaded."""
        return self._clock.within

    def resume_at(self, position: Position, within: int | None = None) -> None:
        """The next pass goes on where a saved state left one, within a trainer's epoch where that is known."""
        self._resume = position
        if position.drawn_from is not None and _repeated(position) is None:
            self._put_to_rest(position.drawn_from)
        self._clock.resume_at(position.epoch, within)
        self._position = None

    def skip_to(self, consumed: int) -> None:
        """The next pass begins after so many samples of its epoch, of which nobody has a state."""
        position = self.coming()
        position.consumed, position.drawn = consumed, None
        if self._unused_draws.first() is None:
            position.drawn_from = None  # the sampler is where it is to begin
        self.resume_at(position)

    def _put_to_rest(self, resting: DrawnFrom) -> None:
        """Puts the sampler where it was between two epochs.

        At once and not when the epoch begins, as a trainer may seed its generators again before that.
        """
        restore_own(self._given, resting.at_rest)
        self._told_state = resting.load_sampler_state(self._given)
        if resting.at_rest or self._told_state:  # what was drawn before this was drawn from elsewhere
            self._unused_draws.forget()

    def save(self, loader: Loader) -> dict[str, Any]:
        """What another loader needs to go on to the same pass as this one: the next, or one that is to be resumed."""
        clock = self._clock
        resumed = self._resumed(clock.epoch) is not None
        position = self.standing(loader) if resumed else self.coming()
        kept = resumed or position.copies is not None
        return {
            "epoch": clock.epoch,
            "chosen": clock.chosen,
            "within": clock.within,
            "resumed": clock.resumed,
            "turn": clock.turn,
            "resume": make_state(loader, position) if kept else None,
        }

    def load(self, loader: Loader, saved: dict[str, Any]) -> None:
        """Goes on to what `save` told of."""
        if saved["resume"] is not None:
            self.resume_at(check_state(loader, saved["resume"]))
        clock = self._clock
        clock.epoch, clock.chosen, clock.turn = saved["epoch"], saved["chosen"], saved["turn"]
        clock.within, clock.resumed = saved["within"], saved["resumed"]

    def standing(self, loader: Loader, *, by_length: bool = False, over: bool = False) -> Position:
        """Where the next batch comes from, as far as a checkpoint is concerned.

        After the last batch that is nowhere in its epoch, until the iterator has said that it is over: a trainer's loop
        over the epoch goes on, and one that resumes it gets nothing. `by_length` is for trainers that count batches,
        and so leave the epoch with the last one; `over` says that the trainer's epoch is, whatever is left of ours.
        """
        position = self._position
        if not over and position is not None and not self._is_elsewhere(position, by_length):
            left = _is_complete(loader, position) if by_length else position.ended
            if not left:
                return position
        first = self.coming()
        if loader._streams is not None:
            # A pass that was made, and not yet asked for a batch, may have begun to read there.
            for iterator in loader._iterators:
                if not iterator.begun and iterator.is_planned_at(first):
                    return iterator.planned()
        return first

    def _is_elsewhere(self, position: Position, by_length: bool) -> bool:
        """Whether another pass was chosen since the one at a position began."""
        clock = self._clock
        if not clock.chosen:
            return False
        begun = self._begun_within
        return position.epoch != clock.epoch or (by_length and begun is not None and clock.within != begun)

    def coming(self) -> Position:
        """Where the next pass begins, whatever became of the one before."""
        first = self._first(self._clock.epoch)
        if self._given is not None and not first.is_begun:
            first.drawn_from = self._resting()
        return first

    def plan(self, loader: Loader) -> Position:
        """Where the pass of an iterator begins that is being made."""
        # Whoever goes over several at once asks them for their first batches in the order they were made.
        before = sum(not iterator.begun for iterator in loader._iterators)
        position = self._first(self._clock.epoch + before)
        position.drawing = self._draw(loader, position)
        return position

    def settle(self, loader: Loader, planned: Position) -> Position:
        """Where a pass really begins that was planned as given: the same position where nothing has changed since."""
        now = self._first(self._clock.epoch)
        drawing = planned.drawing
        if drawing is not None and not drawing.draws.is_still_for(self._sampler_epoch(), _repeated(now)):
            self._unused_draws.drop(drawing.draws)
            now.drawing = self._draw(loader, now)
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
        self._begun_within = self._clock.within
        self._clock.go_on_to(position.epoch + 1)

    def _first(self, epoch: int) -> Position:
        """Where a pass of an epoch begins: where a loaded state left it, else at its beginning."""
        resume = self._resumed(epoch)
        if resume is not None:
            return resume.copy()
        # A trainer may choose the epoch that comes after a loaded state's.
        left = self._position or self._resume
        copies = None if left is None or left.copies is None else left.copies.at_rest()
        return Position(epoch, 0).with_copies(copies)

    def _resumed(self, epoch: int) -> Position | None:
        """Where a loaded state goes on in an epoch, unless it stands in another one, or the trainer has left it."""
        resume = self._resume
        if resume is None or resume.epoch != epoch or self._clock.has_left_resumed:
            return None
        return resume

    def _sampler_epoch(self) -> Any:
        """The epoch that the user's sampler was set to last, where it says so."""
        return getattr(self._told_epoch, "epoch", None)

    def _resting(self) -> DrawnFrom:
        """Where the sampler and its generators are between two epochs: before what was drawn ahead for the next one."""
        resting = DrawnFrom()
        resting.at_rest = own_states(self._given)
        ahead = self._unused_draws.first()
        if ahead is None:
            resting.sampler_state = sampler_state_of(self._given)
            return resting
        before = ahead.drawn_from.at_draw | ahead.drawn_from.at_iter
        resting.at_rest |= {which: before[which] for which in resting.at_rest.keys() & before.keys()}
        resting.sampler_state = ahead.drawn_from.sampler_state
        return resting

    def _draw(self, loader: Loader, position: Position) -> Drawing | None:
        """What the user's sampler has for an epoch, if there is such a sampler; one of ours is told which it is."""
        given = self._given
        if given is None:
            return None
        if loader._selection is not None:
            loader._selection.read_again()
        if isinstance(given, EpochBatches):  # it draws the same for an epoch, and otherwise for other ranks
            given.set_epoch(position.epoch)
            draws = Draws(given, self._sampler_epoch(), _repeated(position))
        else:
            source = given if loader._steps is None else loader._steps
            draws = self._unused_draws.take(
                source, self._sampler_epoch(), _repeated(position), told_state=self._told_state
            )
            self._told_state = False
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


def _repeated(position: Position) -> DrawnFrom | None:
    """What was drawn before a position is to be drawn from again, as a loaded state has it."""
    return position.drawn_from if position.is_begun and position.drawn is not None else None


def _is_complete(loader: Loader, position: Position) -> bool:
    """Whether the last batch of an epoch is in the trainer's hands. A sampler tells only when it is asked for more."""
    if position.complete or position.drawing is None:
        return position.complete
    whole = loader.drop_last and not position.drawing.in_batches
    return position.drawing.leaves_less_than((loader.batch_size or 1) if whole else 1, position.done)
