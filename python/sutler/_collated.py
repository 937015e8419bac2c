"""What a worker sends in place of samples where it has collated them itself, and how a thread sends anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sutler import _payload
from sutler._worker_errors import Raised

if TYPE_CHECKING:
    from sutler._sutler import Batch

#: From this many bytes on a batch goes into the shared memory of its batch, where it stays; smaller ones are copied out
#: of the worker's mailbox, so that a trainer may keep many of them. 256 KiB take some 30 µs.
SHARED_BYTES_MIN = 256 << 10


class Untold(NamedTuple):
    """Why nobody knows what a copy of a dataset has come to: what its `state_dict` raised, or pickling that."""

    exception: bytes | Raised


#: A worker, and what its copy of the dataset has come to, pickled; for datasets that have a state of their own.
Told = tuple[int, bytes | Untold]


class Collated(NamedTuple):
    """A batch, as `collate_fn` returned it."""

    batch: Any
    told: Told | None = None


class Separate(NamedTuple):
    """A sample that the trainer is to collate, of a dataset whose batches workers collate as a rule."""

    sample: Any
    told: Told


class NotCollated(NamedTuple):
    """What `collate_fn` raised, or a function of a native dataset: as bytes, from a thread as it is described there."""

    exception: bytes | Raised
    told: Told | None = None


class CollatedLayout(NamedTuple):
    """What takes the place of a schema: a batch of up to so many bytes lies in its memory in one piece."""

    bytes: int

    @classmethod
    def for_batches_like(cls, size: int) -> CollatedLayout:
        """Room for a batch of a size, and for larger ones: what is never written to costs no memory."""
        return cls(2 * size)

    def read(self, batch: Batch) -> Any:
        """What a worker left in a batch's memory; its arrays are views of that."""
        return _payload.load(np.asarray(batch.block(0, [self.bytes], "uint8")).data)


class Handed(NamedTuple):
    """Something that a worker thread handed over as it is."""

    value: Any
