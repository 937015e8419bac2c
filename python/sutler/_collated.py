"""What a worker process sends in place of samples where it has collated them itself."""

from __future__ import annotations

from typing import Any, NamedTuple


class Collated(NamedTuple):
    """A batch, as `collate_fn` returned it."""

    batch: Any


class NotCollated(NamedTuple):
    """The exception that `collate_fn` raised, as bytes."""

    exception: bytes
