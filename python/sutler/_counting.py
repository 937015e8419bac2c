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


def has_counted_all(caller: FrameType) -> bool:
    """Whether such a trainer, which asks for a state, has had all batches of its epoch.

    A loader may be anywhere in an epoch of its own then: it is shorter than another one that it is combined with, or
    ``limit_train_batches`` shortens the epochs of all.
    """
    progress = getattr(getattr(_loop_of(caller), "epoch_loop", None), "batch_progress", None)
    return bool(getattr(progress, "is_last_batch", False))


def has_taken_ahead(caller: FrameType) -> bool:
    """Whether such a trainer has taken a batch that it has not trained on.

    Where nobody says how many batches there are, it looks for the one after each, to know when that was the last.
    """
    fetcher = getattr(_loop_of(caller), "_data_fetcher", None)
    return bool(getattr(fetcher, "batches", None))


def _loop_of(caller: FrameType) -> object:
    """The trainer's loop on behalf of which a state is asked for."""
    asking: FrameType | None = caller
    while asking is not None and counts_batches(asking):
        asking = asking.f_back
    return None if asking is None else asking.f_locals.get("self")
