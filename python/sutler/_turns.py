"""Ranks that take whole batches of the dataset's order in turn, rather than every so manieth sample of it.

Trainers that gather what all ranks made of a step put one rank's rows after the other's. Where the ranks have taken
whole batches, that is the order of the dataset again. All ranks together have the same samples in a step either way, so
a state says the same, whichever way the rest of its epoch is dealt out.
"""

from __future__ import annotations

import numpy as np

from sutler import _draws
from sutler._selection import Numbers


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


def joined_with_repeats(dealt: Numbers) -> list[int]:
    """The samples, each with how often it came before, which decides its random numbers; as the engine counts it."""
    order = np.argsort(dealt, kind="stable")
    places = np.arange(len(dealt))
    first = np.append(True, np.diff(dealt[order]) != 0)[: len(dealt)]
    repeats = np.empty_like(dealt)
    repeats[order] = places - np.maximum.accumulate(np.where(first, places, 0))
    joined: list[int] = (dealt | repeats << _draws.HALF_BITS).tolist()
    return joined
