"""Whether worker processes run the functions behind native transforms, or the trainer does; and then why."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple

from sutler._threads import wants_threads
from sutler._worker_errors import last_line
from sutler.datasets import NativeDataset

if TYPE_CHECKING:
    from sutler.loader import Loader


class InTrainer(NamedTuple):
    """Why functions run in the trainer's process, and what to do about it, as sentences."""

    reason: str
    remedy: str


_AGENT = InTrainer(
    "An agent prepares the native part, and runs no Python.",
    "Leave agent= out to have worker processes run it.",
)
_CACHE = InTrainer(
    "cache= keeps what native threads prepare, and they run no Python.",
    "Leave cache= out to have worker processes run it.",
)
_SHARED = InTrainer(
    'In order="shared" native threads prepare what jobs have in common, and they run no Python.',
    'Pass order="ready" to have worker processes run it.',
)
#: Of what is done to labels and to whole batches, where no function follows the native transforms.
NATIVE_THREADS = InTrainer(
    "Native threads prepare the samples, and run no Python.",
    "To have worker processes run it, pass a dataset written in Python whose __getitem__ returns a sample of this one, "
    "with num_workers.",
)
_NO_WORKERS = InTrainer("There are no workers.", "Pass num_workers to have worker processes run it.")
_THREADS = InTrainer(
    "Worker threads would draw its random numbers from the generators that the trainer draws from.",
    'Pass multiprocessing_context="fork", or "forkserver" where it can be pickled, to have worker processes run it.',
)
_DAEMON = InTrainer(
    "This process is a worker of another one, and may start none of its own.",
    "Use a transform of sutler.transforms, or make the loader in the process that this one works for.",
)


def has_functions(dataset: Any) -> bool:
    """Whether Python functions follow the native part of a dataset's samples."""
    return isinstance(dataset, NativeDataset) and bool(dataset.lowered.tail)


def why_in_trainer(loader: Loader) -> InTrainer | None:
    """Why the functions of a loader's native dataset run in the trainer's process; ``None`` where workers run them.

    Asked when the loader is made and again when an epoch begins, since trainers set attributes in between. Samples have
    the same values in both places, so nothing but speed rests on the answer.
    """
    if loader._agent is not None:
        return _AGENT
    if loader.cache is not None:
        return _CACHE
    if loader.order == "shared":
        return _SHARED
    if loader.num_workers == 0:
        return _NO_WORKERS
    if wants_threads(loader.multiprocessing_context):
        return _THREADS
    if multiprocessing.current_process().daemon:
        return _DAEMON
    return _why_not_sent(loader)


def _why_not_sent(loader: Loader) -> InTrainer | None:
    """What keeps functions from reaching workers, if they are not forked."""
    method = _start_method(loader.multiprocessing_context)
    if method == "fork":
        return None
    sent = {
        "The dataset with it": loader.dataset,
        "The collate_fn": loader.collate_fn,
        "The worker_init_fn": loader.worker_init_fn,
    }
    for name, value in sent.items():
        try:
            pickled = bytes(ForkingPickler.dumps(value))
        except Exception as error:  # whatever a class of somebody else's raises
            return InTrainer(
                f"{name} cannot be sent to workers that are started by {method!r} ({last_line(error)}).",
                "To have worker processes run it, let what is sent be functions and classes of modules, not lambdas or "
                'those inside of other functions; or pass multiprocessing_context="fork".',
            )
        if b"__main__" in pickled and not hasattr(sys.modules["__main__"], "__file__"):
            return InTrainer(
                f"{name} has something of this session, which workers that are started by {method!r} cannot import.",
                "To have worker processes run it, put functions and classes into a module; or pass "
                'multiprocessing_context="fork".',
            )
    return None


def _start_method(context: Any) -> str:
    """How worker processes are started; asking does not settle it for the rest of the program."""
    named = None if context is None else context.get_start_method()
    chosen: str | None = named or multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]
