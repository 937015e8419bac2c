"""Trainers that count the batches of an epoch, and never ask for more than there are."""

from __future__ import annotations

from types import FrameType

#: What asks loaders for their states in Lightning. Its epochs end with the batch that ``len(loader)`` says is the last,
#: so a loader is not told of their end, and Lightning takes a state from there to be one of the next epoch.
_LIGHTNING = frozenset(
    {"lightning.pytorch.utilities.combined_loader", "pytorch_lightning.utilities.combined_loader"}
)


def counts_batches(caller: FrameType) -> bool:
    """Whether a state is asked for by such a trainer, which nothing but the caller's module tells."""
    return caller.f_globals.get("__name__") in _LIGHTNING
