"""What a worker sends in place of samples where it has collated them itself, and how a thread sends anything."""

from __future__ import annotations

from typing import Any, NamedTuple

from sutler._worker_errors import Raised


class Collated(NamedTuple):
    """A batch, as `collate_fn` returned it."""

    batch: Any


class NotCollated(NamedTuple):
    """The exception that `collate_fn` raised: as bytes, from a thread as it is described there."""

    exception: bytes | Raised


class Handed(NamedTuple):
    """Something that a worker thread handed over as it is."""

    value: Any
