"""The memory of batches: one copy, used again once a batch is gone, and never while anybody sees it."""

from __future__ import annotations

import os
import threading
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sutler
import torch
from sutler import _payload
from sutler._python_batches import numpy_collate
from sutler._stream_collate import NumpyCollate, TorchCollate
from sutler._stream_memory import COPIED_BYTES, NO_SLOT, BatchMaps, BatchMemory
from torch.utils.data import default_collate

from .datasets import Plain, make, share

pytestmark = pytest.mark.processes

LARGE = 2 * COPIED_BYTES


class Channel:
    """A worker's memory and the trainer's maps of it, without the processes."""

    def __init__(self, slots: int) -> None:
        self.memory = BatchMemory(slots)
        self.maps = BatchMaps()
        self.slots: list[int] = []

    def bring_back(self) -> None:
        while self.maps.done:
            self.memory.take_back(*self.maps.done.popleft())

    def send(self, value: Any, after: bytes = b"") -> Any:
        placed = self.memory.place(value, after)
        segment = placed.segment
        self.slots.append(segment.slot)
        if not segment.sent:
            self.maps.add(segment.slot, segment.descriptor)
        source, found = self.maps.open(segment.slot, placed.end, placed.end + len(after))
        assert found == after
        self.memory.hand_over()
        return _payload.load(source, placed.start)


def filled(size: int, value: int) -> Any:
    return np.full(size, value, np.uint8)


def test_a_slot_is_used_again_once_its_batch_is_gone() -> None:
    channel = Channel(2)
    first = channel.send(filled(LARGE, 1))
    second = channel.send(filled(LARGE, 2))
    channel.bring_back()
    third = channel.send(filled(LARGE, 3), b"behind")
    assert channel.slots[0] != channel.slots[1]
    assert channel.slots[2] == NO_SLOT, "both slots are in use"
    part = first[10:20]
    del first
    channel.bring_back()
    channel.send(filled(LARGE, 4))
    assert channel.slots[3] == NO_SLOT, "a part of the first batch is still seen"
    assert (part == 1).all()
    del part
    channel.bring_back()
    fifth = channel.send(filled(LARGE, 5))
    assert channel.slots[4] == channel.slots[0]
    assert [(array == value).all() for array, value in ((second, 2), (third, 3), (fifth, 5))] == [True] * 3


def test_small_batches_are_copied_out_so_that_many_can_be_kept() -> None:
    channel = Channel(1)
    kept = []
    for value in range(100):
        kept.append(channel.send([filled(100, value), "text"]))
        channel.bring_back()
    assert set(channel.slots) == {0}
    assert all((array == value).all() and text == "text" for value, (array, text) in enumerate(kept))


def test_a_slot_grows_with_its_batches() -> None:
    channel = Channel(1)
    for size in (LARGE, 3 * LARGE, LARGE, 5 * LARGE, 10):
        assert (channel.send(filled(size, size % 251)) == size % 251).all()
        channel.bring_back()
    assert set(channel.slots) == {0}


def test_what_was_allocated_is_not_copied() -> None:
    channel = Channel(1)
    channel.send(filled(2 * LARGE, 0))
    channel.bring_back()
    channel.memory.begin()
    place = channel.memory.allocate(LARGE)
    assert place is not None
    inside: Any = np.frombuffer(place, np.uint8)
    inside[:] = 7
    outside = filled(100, 8)
    placed = channel.memory.place({"outside": outside, "inside": inside, "part": inside[64:]}, b"")
    inside[:] = 9  # is what travels, not what was copied
    source, _ = channel.maps.open(placed.segment.slot, placed.end, placed.end)
    channel.memory.hand_over()
    found = _payload.load(source, placed.start)
    assert (found["inside"] == 9).all()
    assert (found["part"] == 9).all()
    assert len(found["part"]) == LARGE - 64
    assert (found["outside"] == 8).all()


def test_what_does_not_fit_is_moved_as_a_whole() -> None:
    channel = Channel(2)
    channel.send(filled(LARGE, 0))
    channel.bring_back()
    channel.memory.begin()
    place = channel.memory.allocate(LARGE // 2)
    assert place is not None
    assert channel.memory.allocate(LARGE) is None
    inside: Any = np.frombuffer(place, np.uint8)
    inside[:] = 3
    found = channel.send([inside, filled(LARGE, 4)])
    assert [(array == value).all() for array, value in zip(found, (3, 4), strict=True)] == [True, True]


def test_a_batch_that_was_not_completed_leaves_its_memory() -> None:
    channel = Channel(1)
    channel.send(filled(LARGE, 0))
    channel.bring_back()
    for _ in range(3):
        channel.memory.begin()
        assert channel.memory.allocate(100) is not None
    channel.memory.begin()
    assert (channel.send(filled(LARGE, 1)) == 1).all()
    assert set(channel.slots) == {0}


def test_memory_that_a_child_sees_is_not_written_to() -> None:
    channel = Channel(1)
    batch = channel.send(filled(LARGE, 1))
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    del batch
    assert list(channel.maps.done) == [(0, False)]
    channel.bring_back()
    assert (channel.send(filled(LARGE, 2)) == 2).all()


class Filled(Plain):
    """Samples of 320 KB, each filled with its number."""

    def __iter__(self) -> Iterator[Any]:
        for number in share(self.count):
            yield {
                "image": torch.full((200, 400), float(number)),
                "array": np.full(500, number),
                "id": number,
            }


def check(batch: Any) -> None:
    for image, array, number in zip(batch["image"], batch["array"], batch["id"], strict=True):
        assert bool((image == float(number)).all())
        assert bool((array == number).all())


@pytest.mark.parametrize("options", [{}, {"order": "ready"}, {"output": "numpy"}], ids=str)
def test_an_epoch_stays_in_its_slots(options: dict[str, Any]) -> None:
    places = set()
    for batch in make(Filled(80), 2, **options):
        check(batch)
        places.add(np.asarray(batch["image"]).__array_interface__["data"][0])
    assert len(places) <= 2 * 4, "two ahead and two in hand, for each worker"


def test_a_trainer_may_keep_as_many_batches_as_it_likes() -> None:
    loader = make(Filled(80), 2, persistent_workers=True)
    kept = list(loader)
    kept += list(loader)
    assert len({batch["image"].data_ptr() for batch in kept}) == len(kept)
    loader.close()
    for batch in kept:
        check(batch)


def test_batches_that_end_in_another_thread() -> None:
    batches: list[Any] = []

    def consume() -> None:
        while batches:
            check(batches.pop())

    for number, batch in enumerate(make(Filled(90), 1)):
        batches.append(batch)
        del batch
        if number % 4 == 3:
            thread = threading.Thread(target=consume)
            thread.start()
            thread.join()
    assert number == 44


def test_a_forked_child_may_go_on_with_a_batch() -> None:
    iterator = iter(make(Filled(60), 1))
    next(iterator)
    batch = next(iterator)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(reading, 1)  # until the parent has been through the rest
        image = batch["image"].numpy()  # PyTorch would wait for threads that the child does not have
        os._exit(0 if (image[0] == 2).all() and (image[1] == 3).all() else 1)
    for batch in iterator:
        check(batch)
    os.write(writing, b".")
    assert os.waitpid(pid, 0)[1] == 0
    os.close(reading)
    os.close(writing)


def test_two_streams_at_once_keep_to_their_own_memory() -> None:
    for first, second in zip(make(Filled(20), 1), make(Filled(20), 1), strict=True):
        first["image"] += 1
        check(second)


class Ragged(Plain):
    """Samples whose size changes from batch to batch."""

    def __iter__(self) -> Iterator[Any]:
        for number in share(self.count):
            yield torch.full((1000 * (1 + number // 2 * 37 % 200),), float(number))


def test_batches_of_any_size() -> None:
    seen = 0
    for batch in make(Ragged(120), 1):
        assert batch.tolist() == [[float(row[0])] * len(row) for row in batch]
        seen += len(batch)
    assert seen == 120


Pair = namedtuple("Pair", ["left", "right"])


@pytest.mark.parametrize(
    "samples",
    [
        [torch.zeros(9000), torch.ones(9000)],
        [torch.zeros(9000), torch.ones(9000, dtype=torch.float64)],
        [torch.zeros(9000, requires_grad=True), torch.ones(9000)],
        [torch.ones(9000, dtype=torch.complex64).conj(), torch.ones(9000, dtype=torch.complex64)],
        [torch.nn.Parameter(torch.ones(9000)), torch.nn.Parameter(torch.ones(9000))],
        [torch.ones(90, 100).t(), torch.zeros(100, 90)],
        [torch.ones(3, 90, 100).to(memory_format=torch.preserve_format)[:, ::2], torch.zeros(3, 45, 100)],
        [np.ones((100, 90)), np.zeros((100, 90))],
        [np.float32(1), np.float32(2)],
        [Pair(torch.ones(9000), "a"), Pair(torch.zeros(9000), "b")],
        [{"x": [torch.ones(9000), 1], "y": (2.5, b"c")}, {"x": [torch.zeros(9000), 2], "y": (3.5, b"d")}],
        [torch.ones(9000, dtype=torch.bool), torch.zeros(9000, dtype=torch.bool)],
        [torch.ones(9000, dtype=torch.bfloat16), torch.zeros(9000, dtype=torch.bfloat16)],
        [torch.zeros(0, 9000), torch.zeros(0, 9000)],
    ],
    ids=lambda samples: str(type(samples[0]).__name__),
)
def test_collation_is_pytorchs(samples: list[Any]) -> None:
    channel = Channel(1)
    channel.send(filled(1 << 20, 0))
    channel.bring_back()
    channel.memory.begin()
    collate = TorchCollate()
    collate.use(channel.memory)
    expected = default_collate(samples)
    collated = collate(samples)
    found = channel.send(collated)

    def compare(found: Any, expected: Any) -> None:
        assert type(found) is type(expected)
        if isinstance(expected, torch.Tensor):
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)
        elif isinstance(expected, dict):
            assert list(found) == list(expected)
            for key in expected:
                compare(found[key], expected[key])
        elif isinstance(expected, list | tuple):
            for one, other in zip(found, expected, strict=True):
                compare(one, other)
        else:
            assert found == expected

    compare(collated, expected)
    compare(found, expected)


@pytest.mark.parametrize(
    "samples",
    [
        [np.ones((100, 90)), np.zeros((100, 90))],
        [np.ones(9000, np.int16), np.zeros(9000, np.float32)],
        [np.array([None] * 9000), np.array([1] * 9000)],
        [{"x": (np.ones(9000)[::2], "a")}, {"x": (np.zeros(4500), "b")}],
        [1, 2],
    ],
    ids=["arrays", "mixed", "objects", "dicts", "numbers"],
)
def test_collation_of_arrays(samples: list[Any]) -> None:
    channel = Channel(1)
    channel.send(filled(1 << 20, 0))
    channel.bring_back()
    channel.memory.begin()
    collate = NumpyCollate()
    collate.use(channel.memory)
    expected = numpy_collate(samples)
    found = channel.send(collate(samples))
    np.testing.assert_equal(found, expected)
    assert isinstance(expected, dict) or found.dtype == expected.dtype


@pytest.mark.parametrize("size", [4, 4000], ids=["no place", "a place"])
def test_batches_lie_front_to_back_however_samples_do(size: int) -> None:
    channel = Channel(1)
    channel.send(filled(1 << 20, 0))
    channel.bring_back()
    channel.memory.begin()
    sample = np.asfortranarray(np.arange(6.0 * size).reshape(2, 3, size))
    for collate, value in ((NumpyCollate(), sample), (TorchCollate(), torch.from_numpy(sample))):
        collate.use(channel.memory)
        found = np.asarray(collate([value, value]))
        assert found.flags.c_contiguous
        np.testing.assert_equal(found, np.stack([sample, sample]))


def test_tensors_that_differ_in_shape_are_pytorchs_error() -> None:
    collate = TorchCollate()
    collate.use(BatchMemory(1))
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        collate([torch.ones(9000), torch.ones(9001)])


def test_an_unpicklable_batch_is_an_error_and_the_next_one_comes() -> None:
    class Mixed(Plain):
        def __iter__(self) -> Iterator[Any]:
            yield torch.ones(100_000)
            yield lambda: None
            yield torch.full((100_000,), 2.0)

    iterator = iter(make(Mixed(3), 1, batch_size=None))
    assert float(next(iterator).sum()) == 100_000
    with pytest.raises(Exception, match="pickle"):
        next(iterator)
    assert float(next(iterator).sum()) == 200_000
    assert next(iterator, None) is None


class Refused(Plain):
    """Raises what a lost connection raises, which is no reason for a worker to go."""

    def __iter__(self) -> Iterator[int]:
        yield 1
        raise ConnectionResetError("the storage hung up")


def test_a_streams_own_connection_errors_arrive() -> None:
    iterator = iter(sutler.Loader(Refused(1), num_workers=1))
    assert next(iterator).tolist() == [1]
    with pytest.raises(ConnectionResetError, match="the storage hung up"):
        next(iterator)
    del iterator
