"""Where an epoch's order comes from: the loader's own samplers, and what a user's sampler draws."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import operator
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sutler import _draws, _sutler
from sutler._draws import Draws
from sutler._keys import KeyTable
from sutler._selection import Numbers, Selection
from sutler._turns import Step, deal_in_turns
from sutler._words import counted


def check_epoch(epoch: Any) -> int:
    """The number of an epoch, if it is one."""
    try:
        number = operator.index(epoch)
    except TypeError:
        raise TypeError(f"epoch should be an integer from 0 to 2**32 - 1, got {epoch!r}") from None
    if not 0 <= number < 2**32:
        raise ValueError(f"epoch should be from 0 to 2**32 - 1, got {number}")
    return number


class EpochSampler:
    """The order of the loader's own epochs, and the count of them.

    Trainers such as Lightning look for ``loader.sampler.set_epoch`` and call it before each epoch. The loader reads the
    epoch from here; nothing here refers to the loader, so that dropping the loader ends its threads at once.
    """

    #: What PyTorch's `RandomSampler` has besides, for code that looks at it.
    replacement = False
    generator = None

    def __init__(
        self, dataset: Any, *, shuffle: bool, seed: int, drop_last: bool, place: Callable[[], tuple[int, int]]
    ) -> None:
        #: Asked for its length each time, since it may grow.
        self.data_source = dataset
        self._shuffle = shuffle
        self._seed = seed
        self._drop_last = drop_last
        #: The rank and the number of ranks; asked each time, since a process group may come after the loader.
        self._place = place
        #: The epoch that the next ``iter(loader)`` runs.
        self.epoch = 0
        #: Whether the user chose that epoch, rather than it being the one after the last.
        self.chosen = False
        #: The epoch that was chosen last, here or before a state was saved. A trainer that combines loaders begins the
        #: shorter ones anew within its own epoch, and counts that as one.
        self.within: int | None = None
        #: What a loaded state says of it, with the epoch that it stands in, until a pass has begun.
        self.resumed: tuple[int, int] | None = None
        #: How many samples a rank takes at a time, where that is not every so manieth one.
        self.turn: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next ``iter(loader)`` runs."""
        self.epoch = self.within = check_epoch(epoch)
        self.chosen = True
        if self.resumed is not None and self.resumed[0] == epoch:
            # The trainer is in the same epoch of its own as the state, which may be of a later one of the loader's.
            self.epoch = self.resumed[1]

    def go_on_to(self, epoch: int) -> None:
        """The loader's own step to an epoch."""
        self.epoch = epoch
        self.chosen = False
        self.resumed = None

    def resume_at(self, epoch: int, within: int | None) -> None:
        """A loaded state stands in an epoch, and was saved within one of the trainer's, where that is known."""
        self.go_on_to(epoch)
        self.within = within
        self.resumed = None if within is None else (within, epoch)

    @property
    def has_left_resumed(self) -> bool:
        """Whether an epoch was chosen after the one in which a loaded state was saved."""
        return self.resumed is not None and self.resumed[0] != self.within

    @property
    def num_samples(self) -> int:
        """How many samples the dataset has, on all ranks together."""
        return len(self.data_source)

    def dealt(self, consumed: int) -> Numbers | None:
        """The order of which every so manieth sample is a rank's, if ranks take turns; see `deal_in_turns`."""
        _, world_size = self._place()
        if self.turn is None or world_size == 1:
            return None
        return deal_in_turns(
            len(self.data_source),
            consumed,
            batch_size=self.turn,
            world_size=world_size,
            drop_last=self._drop_last,
        )

    def __iter__(self) -> Iterator[int]:
        rank, world_size = self._place()
        dealt = self.dealt(0)
        if dealt is not None:
            return iter(dealt[rank::world_size].tolist())
        order = _sutler.epoch_order(
            len(self.data_source),
            shuffle=self._shuffle,
            seed=self._seed,
            epoch=self.epoch,
            drop_last=self._drop_last,
            rank=rank,
            world_size=world_size,
        )
        return iter(order)

    def __len__(self) -> int:
        _, world_size = self._place()
        turn = 1 if self.turn is None or world_size == 1 else self.turn
        steps, rest = divmod(len(self.data_source), turn * world_size)
        return turn * (steps if self._drop_last or not rest else steps + 1)


class EpochBatchSampler:
    """The same order cut into batches, as ``torch.utils.data.BatchSampler`` would."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        if self.drop_last:
            return len(self.sampler) // self.batch_size
        return -(-len(self.sampler) // self.batch_size)


def with_set_epoch(given: Any) -> Any:
    """A user's sampler or batch sampler, or the sampler in it, if that is to be told the epoch; else ``None``."""
    inner = given if hasattr(given, "set_epoch") else getattr(given, "sampler", None)
    return inner if hasattr(inner, "set_epoch") else None


def as_pytorchs(own: type[Any], name: str) -> type[Any]:
    """A class of ours that is also one of PyTorch's samplers, where PyTorch is in use.

    Trainers ask what a sampler is to learn whether an order is shuffled.
    """
    data = sys.modules.get("torch.utils.data")
    if data is None:
        return own
    return _joined(own, getattr(data, name))  # type: ignore[arg-type]  # classes can be hashed


@functools.cache
def _joined(own: type[Any], base: type[Any]) -> type[Any]:
    return type(own.__name__, (own, base), {"__module__": own.__module__, "__doc__": own.__doc__})


class Drawing:
    """What a user's sampler or batch sampler draws for one epoch, as far as it is needed.

    Drawn bit by bit, as PyTorch does it, so a sampler may be without end, or look at how the training goes. Kept by the
    epoch's iterator, since a sampler that is asked twice may answer differently. An *item* is an index, or a batch of
    them, in the engine's numbers, with how often the sampler has drawn it before (`_draws.join`).
    """

    def __init__(
        self,
        draws: Draws,
        keys: KeyTable | None,
        selection: Selection | None = None,
        *,
        samples: int,
        in_batches: bool,
        place: tuple[int, int] | None = None,
    ) -> None:
        self.in_batches = in_batches
        #: The rank whose batches these are, and of how many, where all draw the same and take turns.
        self._place = place
        #: How many samples the latest step of all ranks has, without those that fill it up.
        self.samples_in_step = 0
        self.draws = draws
        #: The epoch that the sampler was set to when drawing began, where it has such a thing.
        self.epoch = draws.epoch
        self._keys = keys
        self._number = _numbering(keys, selection, samples)
        #: What the sampler raised when only its end was looked for, for whoever draws next.
        self._raised: Exception | None = None
        #: A thread that copies batches ahead draws as well as the trainer that asks for a state.
        self._lock = threading.RLock()
        self._begin()

    def _begin(self) -> None:
        """Nothing is drawn yet."""
        self._source: Iterator[Any] = iter(self.draws)
        #: Items from number `_first` on; those before it are in the trainer's hands.
        self._items: list[Any] = []
        self._first = 0
        self.ended = False
        #: How many samples were drawn in all, and how many of them for this rank.
        self._samples = self._own_samples = 0
        self._unique: set[int] = set()
        #: How often the samples were drawn again that were.
        self._again: dict[int, int] = {}
        # What is drawn for all ranks has one name on all of them, and another with another number of them.
        ranks = b"" if self._place is None else b"%d" % self._place[1]
        self._hash = hashlib.blake2b(ranks, digest_size=8)

    def items(self, start: int, count: int) -> list[Any]:
        """So many items from number `start` on: fewer at the end."""
        with self._lock:
            while not self.ended and self._first + len(self._items) < start + count:
                self._draw()
            return self._items[start - self._first : start - self._first + count]

    def leaves_less_than(self, samples: int, done: int) -> bool:
        """Whether the sampler has fewer than so many samples after those that are done.

        Draws as many as it takes to know, which are those that the next batch is made of.
        """
        with self._lock:
            try:
                while not self.ended and self._own_samples - done < samples:
                    self._draw()
            except Exception as error:
                self._raised = error
            return self.ended and self._own_samples - done < samples

    def forget_before(self, start: int) -> None:
        """Items before this one are not asked for again."""
        del self._items[: max(0, start - self._first)]
        self._first = max(self._first, start)

    def _draw(self) -> None:
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised
        try:
            drawn = next(self._source)
        except StopIteration:
            self.ended = True
            return
        if isinstance(drawn, Step):
            self.samples_in_step = drawn.samples
            own, _ = self._place or (0, 1)
            batch = [self._take(part) for part in drawn.batches][own]
        else:
            batch = self._take(drawn if self.in_batches else [drawn])
        self._own_samples += len(batch)
        self._items += [batch] if self.in_batches else batch

    def _take(self, drawn: Iterable[Any]) -> list[int]:
        """What was drawn, as the engine is told of it."""
        numbers = [self._number(index) for index in drawn]
        if not numbers:
            number = self._first + len(self._items)
            raise ValueError(
                f"batch {number} of the batch sampler is empty; every batch needs at least one sample"
            )
        items = [self._count(number) for number in numbers]
        self._samples += len(numbers)
        for number in numbers:
            keyed = self._keys is not None and number >= _sutler.FIRST_KEYED
            value = self._keys.value(number) if self._keys and keyed else b"%d" % number
            self._hash.update(b"%d:" % len(value) + value)
        return items

    def _count(self, number: int) -> int:
        if number not in self._unique:
            self._unique.add(number)
            return number
        self._again[number] = self._again.get(number, 0) + 1
        return _draws.join(number, self._again[number])

    @property
    def unique_fraction(self) -> float:
        """The share of what was drawn that is no repeat."""
        return len(self._unique) / self._samples if self._samples else 1.0

    def mark(self) -> dict[str, Any]:
        """How far it has been drawn and a short name for that, by which a checkpoint knows it again."""
        return {"samples": self._samples, "digest": self._hash.hexdigest()}

    def go_to(self, mark: dict[str, Any] | None, consumed: int) -> int:
        """Draws what had been drawn at a mark and tells the number of the item that begins after `consumed` samples.

        Raises `ValueError` when it is not the same, as the rest of that epoch is unknown then.
        """
        if mark is not None:
            self._draw_again(mark)
            if self.mark() != mark and self.draws.start_over():
                self._begin()
                self._draw_again(mark)
            if self.mark() != mark:
                raise ValueError(
                    f"the sampler drew another order ({self.mark()}) than the one the state was saved in ({mark}), so "
                    "the rest of that epoch is unknown. A sampler draws the same again if it is made with the same "
                    "arguments and draws from PyTorch's, NumPy's or Python's global generator or from a "
                    "torch.Generator in its attribute 'generator', which the loader puts back; if it has a "
                    "state_dict and a load_state_dict; or if it is seeded by the epoch and set_epoch is called "
                    "before resuming. shuffle=True needs none of it."
                )
        if not self.in_batches:
            return consumed
        item = 0
        while consumed > 0 and (batch := self.items(item, 1)):
            consumed -= len(batch[0])
            item += 1
        return item

    def _draw_again(self, mark: dict[str, Any]) -> None:
        """Draws as much as had been drawn at a mark."""
        with self.draws.again():
            while not self.ended and self._samples < mark["samples"]:
                self._draw()


class Feed:
    """Hands what a sampler draws to the plan of a run, a few batches before they are needed."""

    def __init__(
        self,
        drawing: Drawing,
        first: int,
        batch_size: int,
        batches_ahead: Callable[[], int],
        announce: Callable[[], None],
        resumed: int = 0,
    ) -> None:
        self._drawing = drawing
        self._next = first
        self._step = 1 if drawing.in_batches else batch_size
        #: How many batches are prepared ahead, which may become more.
        self._batches_ahead = batches_ahead
        #: Tells the engine about keys that it has not seen before.
        self._announce = announce
        #: How many positions a checkpoint speaks about: those that are done make no batches to wait for.
        self._resumed = resumed
        self._fed = 0

    def top_up(self, run: _sutler.Run, delivered: int) -> None:
        """Sees to it that as many batches as may be prepared are known, now that so many are delivered."""
        missing = delivered + self._batches_ahead() - self._fed
        if missing <= 0:
            return
        items = self._drawing.items(self._next, self._items_resumed() + missing * self._step)
        self._resumed = 0
        self._announce()
        (run.extend_batches if self._drawing.in_batches else run.extend)(items)
        self._fed += missing
        self._next += len(items)
        if self._drawing.ended:
            run.end_drawing()
            self._fed = sys.maxsize

    def _items_resumed(self) -> int:
        """How many items hold the positions of a checkpoint that were not fed yet."""
        if not self._drawing.in_batches:
            return self._resumed
        positions, items = self._resumed, 0
        while positions > 0 and (batch := self._drawing.items(self._next + items, 1)):
            positions -= len(batch[0])
            items += 1
        return items

    @property
    def ended(self) -> bool:
        """Whether the sampler is at its end."""
        return self._fed == sys.maxsize


def _numbering(keys: KeyTable | None, selection: Selection | None, samples: int) -> Callable[[Any], int]:
    """From what a sampler draws to the engine's number for it."""
    if selection is not None:
        return lambda drawn: selection.number(_index(drawn))
    if keys is None:
        return lambda drawn: _from_start(_index(drawn), samples)

    def number(key: Any) -> int:
        # A tensor of shape [1] would pass for an integer, too, and the dataset gives it another answer than that.
        if not getattr(key, "ndim", 0):
            with contextlib.suppress(TypeError):  # a key of another kind
                key = operator.index(key)  # NumPy's integers, and tensors without dimensions
        return keys.number(key)

    return number


def _from_start(index: int, samples: int) -> int:
    """An index into a dataset of so many samples; a negative one counts from its end, as in ``dataset[index]``."""
    if not -samples <= index < samples:
        raise IndexError(f"the sampler drew index {index}, but the dataset has {counted(samples, 'sample')}")
    return index + samples if index < 0 else index


def _index(drawn: Any) -> int:
    try:
        return operator.index(drawn)  # NumPy's integers, and tensors without dimensions
    except TypeError:
        raise TypeError(
            f"the sampler drew {drawn!r}, and samples of this dataset are named by integers; one that draws lists "
            "goes to batch_sampler="
        ) from None
