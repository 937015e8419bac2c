"""The memory that batches of a stream travel in: pieces that go back and forth between a worker and the trainer.

Getting memory from the system costs more than filling it: every page is cleared, mapped twice and taken apart again. So
a worker has a few slots, each with a piece of memory that has no name, and uses one again once the trainer says it is
done with the batch in it. The trainer maps a slot's memory when it first comes and keeps the map. A trainer that keeps
more batches than there are slots gets the rest in memory of their own, which goes with the batch.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from sutler import _payload

#: The slot of memory that is used once.
NO_SLOT = 2**32 - 1
#: Up to this many bytes a batch is copied out, and its slot is free at once: a trainer may keep many small batches.
#: 256 KiB take some 30 µs.
COPIED_BYTES = 256 << 10
#: Batches that a trainer has in its hands without keeping any: the one it works on, and the next that it is given.
HELD = 2

#: How often this process was forked. A child has the batches that its parent has, in the same memory.
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(before=_count_fork)


class Segment:
    """A piece of memory in the worker, which the trainer maps, too."""

    def __init__(self, slot: int, capacity: int) -> None:
        self.slot = slot
        self.capacity = capacity
        #: Whether the trainer has it already.
        self.sent = False
        self.descriptor = os.memfd_create("sutler-batch", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.descriptor, capacity)
            # Memory that is used once is used whole, so all pages come at once; a slot's come as they are needed.
            populate = mmap.MAP_POPULATE if slot == NO_SLOT else 0
            self.view = memoryview(mmap.mmap(self.descriptor, capacity, flags=mmap.MAP_SHARED | populate))
        except BaseException:
            self.close()
            raise
        self.address = _address(self.view)

    def close(self) -> None:
        """Lets go of the memory; what still refers to it keeps it."""
        os.close(self.descriptor)


@dataclass(frozen=True)
class Placed:
    """Where a batch is: in which segment, where its head begins, and where what it consists of ends."""

    segment: Segment
    start: int
    end: int


class BatchMemory:
    """A worker's memory for batches."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._free: list[Segment] = []
        self._busy: dict[int, Segment] = {}
        #: Slots that have no memory.
        self._empty = list(range(slots))
        self._current: Segment | None = None
        self._used = 0
        #: The size of the latest batch, and of the largest one.
        self._latest = 0
        self._largest = 0

    def begin(self) -> None:
        """A batch is about to be made: what is allocated from now on is part of it."""
        self._leave()
        if self._largest:
            self._current = self._take(self._latest, self._largest)

    def allocate(self, size: int) -> memoryview | None:
        """Memory for a part of the batch that is being made, if there is any left."""
        start = _payload.align(self._used)
        if self._current is None or start + size > self._current.capacity:
            return None
        self._used = start + size
        return self._current.view[start : self._used]

    def place(self, value: Any, after: bytes) -> Placed:
        """Puts a batch into memory, but for the parts that are there already, and some bytes at its end."""
        pickled, views = _payload.take_apart(value)
        size = _payload.head_size(pickled, len(views))
        places, start, end = self._plan(views, size)
        total = end + len(after)
        if self._current is None or total > self._current.capacity:
            before, self._current, self._used = self._current, None, 0
            places, start, end = self._plan(views, size)
            total = end + len(after)
            self._current = self._take(total, max(total, self._largest))
            if before is not None:
                self._free_again(before)
        segment = self._current
        target = segment.view
        target[start : start + size] = _payload.make_head(pickled, places)
        for (place, length), view in zip(places, views, strict=True):
            if place >= self._used:  # else it was allocated there
                target[place : place + length] = view
        target[end:total] = after
        self._latest, self._largest = total, max(total, self._largest)
        return Placed(segment, start, end)

    def _plan(self, views: list[memoryview], head_size: int) -> tuple[list[tuple[int, int]], int, int]:
        """Where to put the buffers, where to put the head, and where all that ends.

        The head comes last, whether buffers are copied or were allocated, so that batches of one kind lie the same.
        """
        end = self._used
        places = []
        for view in views:
            place = self._place_of(view)
            if place is None:
                place = _payload.align(end)
                end = place + view.nbytes
            places.append((place, view.nbytes))
        start = _payload.align(end)
        return places, start, start + head_size

    def _place_of(self, view: memoryview) -> int | None:
        """Where a buffer is in the current segment, if it was allocated there."""
        if self._current is None or not self._used or not view.nbytes:
            return None
        place = _address(view) - self._current.address
        return place if place >= 0 and place + view.nbytes <= self._used else None

    def hand_over(self) -> None:
        """The batch is on its way: its memory is the trainer's until it comes back."""
        segment, self._current, self._used = self._current, None, 0
        if segment is None:
            return
        segment.sent = True
        if segment.slot == NO_SLOT:
            segment.close()
        else:
            self._busy[segment.slot] = segment

    def take_back(self, slot: int, reusable: bool) -> None:
        """The trainer is done with a slot; where a child of its still sees the memory, only the slot is used again."""
        segment = self._busy.pop(slot)
        if reusable:
            self._free.append(segment)
        else:
            self._drop(segment)

    def _take(self, once: int, capacity: int) -> Segment:
        """Memory of at least a size: a free slot's, new memory for a slot, or some to be used once."""
        for index, segment in enumerate(self._free):
            if segment.capacity >= once:
                return self._free.pop(index)
        if self._free:
            self._drop(self._free.pop())  # it is too small
        if self._empty:
            return Segment(self._empty.pop(), capacity)
        return Segment(NO_SLOT, once)

    def _drop(self, segment: Segment) -> None:
        self._empty.append(segment.slot)
        segment.close()

    def _leave(self) -> None:
        """A batch was not completed."""
        segment, self._current, self._used = self._current, None, 0
        if segment is not None:
            self._free_again(segment)

    def _free_again(self, segment: Segment) -> None:
        if segment.slot == NO_SLOT:
            segment.close()
        else:
            self._free.append(segment)


class BatchMaps:
    """The trainer's maps of one worker's memory."""

    def __init__(self) -> None:
        self._maps: dict[int, mmap.mmap] = {}
        #: What the worker is to be told: slots that no batch uses any more, and whether they may be written to again.
        #: Batches come to their end in any thread, so this is something that any may append to.
        self.done: deque[tuple[int, bool]] = deque()

    def add(self, slot: int, descriptor: int) -> None:
        """Maps memory that came along with an answer; a slot's earlier memory stays for as long as batches use it."""
        size = os.fstat(descriptor).st_size
        populate = mmap.MAP_POPULATE if slot == NO_SLOT else 0
        self._maps[slot] = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | populate)

    def has(self, slot: int) -> bool:
        """Whether the memory of a slot is known."""
        return slot in self._maps

    def give_back(self, slot: int) -> None:
        """Nobody is interested in the batch that came in a slot."""
        if slot == NO_SLOT:
            self._maps.pop(slot, None)
        else:
            self.done.append((slot, True))

    def open(self, slot: int, end: int, total: int) -> tuple[memoryview, bytes]:
        """A batch's memory, which lives as long as what refers to it, and the bytes behind it."""
        mapped = self._maps.pop(slot) if slot == NO_SLOT else self._maps[slot]
        with memoryview(mapped) as whole:
            after = bytes(whole[end:total])
            if end <= COPIED_BYTES:
                copied = memoryview(bytearray(whole[:end]))
                if slot != NO_SLOT:
                    self.done.append((slot, True))
                return copied, after
        # The array stands for the batch: all that is made of the batch refers to it, so when it goes the batch is gone.
        batch: Any = np.frombuffer(mapped, np.uint8, count=end)
        if slot != NO_SLOT:
            ended = weakref.finalize(batch, _note_end, os.getpid(), self.done, slot, _forks)
            ended.atexit = False
        return memoryview(batch), after


def _note_end(owner: int, done: deque[tuple[int, bool]], slot: int, forks: int) -> None:
    if owner == os.getpid():
        done.append((slot, forks == _forks))


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])
