"""Ranks that take whole batches in turn: of the dataset's order, of what a sampler draws, or of a stream.

Trainers that gather what all ranks made of a step put one rank's rows after the other's. Where the ranks have taken
whole batches, that is the order of the dataset again. All ranks together have the same samples in a step either way, so
a state says the same, whichever way the rest of its epoch is dealt out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np

from sutler import _draws
from sutler._selection import Numbers

#: Attributes by which samplers and streams tell over how many ranks they divide what they have.
_NUMBERS_OF_RANKS = ("num_replicas", "world_size", "dp_size")


#: Batches larger than this, and larger than the dataset, stand for everything there is.
FILLED_MAX = 65_536


def size_of_turn(batch_size: int, samples: int) -> int:
    """How many samples a rank takes at a time of so many: a batch that stands for everything is not filled up."""
    return min(batch_size, max(FILLED_MAX, samples))


def deal_in_turns(
    samples: int, consumed: int, *, batch_size: int, world_size: int, drop_last: bool
) -> Numbers:
    """The samples of an epoch, from a place on in an order of which every so manieth makes whole batches for a rank.

    Without `drop_last` the last step is filled up with samples from the beginning until all ranks have a full batch, as
    Accelerate does it: trainers take the loss of a batch for that of as many samples as a full one has.
    """
    step = batch_size * world_size
    rest = max(0, samples - consumed)
    steps = rest // step if drop_last else -(-rest // step)
    dealt: Numbers = np.arange(consumed + steps * step, dtype=np.int64) % max(1, samples)
    turns = dealt[consumed:].reshape(steps, world_size, batch_size)
    dealt[consumed:] = turns.transpose(0, 2, 1).flatten()
    return dealt


def divides_itself(source: Any) -> bool:
    """Whether a sampler, the one inside of a batch sampler, or a stream gives each rank its share without our help."""
    if (
        getattr(source, "_distributed", None) is not None
    ):  # what Hugging Face's `split_dataset_by_node` returns
        return True
    parts = (source, getattr(source, "sampler", None))
    return any(hasattr(part, name) for part in parts for name in _NUMBERS_OF_RANKS)


class Step(NamedTuple):
    """What all ranks do at the same time."""

    #: A batch for each rank.
    batches: list[list[Any]]
    #: How many samples these are without those that fill it up, which come last.
    samples: int


class StepsInTurn:
    """What a sampler or a batch sampler draws, in steps of which every rank has a whole batch.

    As Accelerate divides it: where the last step has too little for all ranks it is filled up from the beginning, and
    with `drop_last` it is left out. Every rank draws everything, so samplers must draw the same on all of them.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        *,
        in_batches: bool,
        batch_size: int | None,
        drop_last: bool,
        world_size: int,
    ) -> None:
        self.sampler = sampler
        self._in_batches = in_batches
        #: How many samples a batch has; ``None`` where a batch sampler does not say.
        self.batch_size = batch_size
        self._drop_last = drop_last
        self._world_size = world_size

    def __iter__(self) -> Iterator[Step]:
        # Begun at once, not when first asked: the sampler may be set to another epoch by then.
        return self._steps(iter(self.sampler))

    def _steps(self, drawn: Iterator[Any]) -> Iterator[Step]:
        first: list[list[Any]] | None = None
        step: list[list[Any]] = []
        for batch in map(list, drawn) if self._in_batches else self._cut(drawn):
            # Only once there is another batch is it clear that this was not the last step.
            if len(step) == self._world_size:
                first = first or step
                yield _whole(step)
                step = []
            step.append(batch)
        if not step:
            return
        size = self.batch_size
        if len(step) == self._world_size and (size is None or all(len(batch) == size for batch in step)):
            yield _whole(step)
        elif not self._drop_last:
            yield self._filled(step, first or step)

    def _cut(self, drawn: Iterator[Any]) -> Iterator[list[Any]]:
        while batch := list(islice(drawn, self.batch_size)):
            yield batch

    def _filled(self, step: list[list[Any]], first: list[list[Any]]) -> Step:
        """The last step, with a batch of the full size for each rank."""
        samples = _whole(step).samples
        if self.batch_size is None:
            missing = self._world_size - len(step)
            return Step([*step, *islice(cycle(first), missing)], samples)
        more = cycle([sample for batch in first for sample in batch])
        batches = [*step, *([] for _ in range(self._world_size - len(step)))]
        return Step(
            [[*batch, *islice(more, max(0, self.batch_size - len(batch)))] for batch in batches], samples
        )

    def __len__(self) -> int:
        drawn = len(self.sampler)  # type: ignore[arg-type]  # TypeError where it has no length
        size = 1 if self._in_batches else self.batch_size or 1
        full = size * self._world_size
        return drawn // full if self._drop_last else -(-drawn // full)


def _whole(step: list[list[Any]]) -> Step:
    return Step(step, sum(map(len, step)))


def joined_with_repeats(dealt: Numbers) -> list[int]:
    """The samples, each with how often it came before, which decides its random numbers; as the engine counts it."""
    order = np.argsort(dealt, kind="stable")
    places = np.arange(len(dealt))
    first = np.append(True, np.diff(dealt[order]) != 0)[: len(dealt)]
    repeats = np.empty_like(dealt)
    repeats[order] = places - np.maximum.accumulate(np.where(first, places, 0))
    joined: list[int] = (dealt | repeats << _draws.HALF_BITS).tolist()
    return joined
