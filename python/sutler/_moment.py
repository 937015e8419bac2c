"""For which draw of which seed a thread makes samples: what a native dataset draws by when Python asks it for one.

A native dataset inside one that is written in Python, such as a `ConcatDataset`, is asked for ``dataset[index]`` by the
loader's workers. By itself that is the sample of epoch 0; there it has to be that of the loader's epoch, or what is
random would be the same in every one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Moment(threading.local):
    seed = 0
    epoch = 0
    repeat = 0


_MOMENT = _Moment()


def current() -> tuple[int, int, int]:
    """The seed, the epoch, and how often the sample was drawn before in it; zeros where no loader asks."""
    return _MOMENT.seed, _MOMENT.epoch, _MOMENT.repeat


def enter(seed: int, epoch: int, repeat: int = 0) -> None:
    """This thread, which is a worker and nothing else, makes samples for this draw from now on."""
    _MOMENT.seed, _MOMENT.epoch, _MOMENT.repeat = seed, epoch, repeat


@contextmanager
def during(seed: int, epoch: int, repeat: int = 0) -> Iterator[None]:
    """Samples are made for this draw inside."""
    before = current()
    enter(seed, epoch, repeat)
    try:
        yield
    finally:
        enter(*before)
