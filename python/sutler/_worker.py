"""What a worker does: takes samples from a socket, leaves results in shared memory. `_thread_worker.py` differs in how.

The conversation is described where its other side is, in the engine's `process/link.rs`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
import mmap
import os
import pickle
import random
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from sutler import _functions, _generators, _hand_over, _moment, _payload, _schema, _sutler, _worker_errors
from sutler._collated import (
    SHARED_BYTES_MIN,
    Collated,
    CollatedLayout,
    NotCollated,
    Separate,
    Told,
    Untold,
)
from sutler._fetch import (
    Draw,
    WrongCountError,
    bulk_getter,
    collate_seed,
    fetch_batch,
    fetch_many,
    fetch_samples,
    prepare_seed,
    sample_seed,
    samples_seed,
)
from sutler._hand_over import Dropped, Turns, ends_as_others_do
from sutler._native_samples import NativeSamples
from sutler._output import Output
from sutler._parts import Parts, pack, parts_of
from sutler._schema_writer import SchemaWriter
from sutler._seeding import never_put_back, seed_generators
from sutler._stream_copy import is_stateful
from sutler._worker_failures import said_of
from sutler._worker_info import WorkerInfo, as_if_no_worker, enter_worker, get_worker_info
from sutler._worker_rng import WorkerRng
from sutler.errors import SampleError

#: A mailbox begins with this many bytes; its first number is the worker's progress.
MAILBOX_BYTES = 1 << 20
MAILBOX_START = 64
#: What an order may be: one whose rows come later, one for all samples of a batch, one that tells what is in the cache,
#: one with samples that were drawn before in the epoch.
LATE, WHOLE_BATCH, KEPT, REPEATED = 1, 2, 4, 8
#: What an order tells of a sample in the cache: nothing is there, or that the trainer would keep what is prepared. Any
#: other number is that of the block where it begins, plus one.
NOT_KEPT, WANTED = 0, 2**32 - 1
#: What is told of a sample's deterministic part: nothing, that it came from the cache, that it was made; and then where
#: in the mailbox it is and how long, if it is there.
NOTHING, RECALLED, MADE = (0, 0, 0), (1, 0, 0), (2, 0, 0)
#: What an order begins with: its epoch, its flags, and after how long a sample asks whether others are to go first.
ORDER_BYTES = 16
#: A row in a message: where its batch begins in the shared memory, and its number in the batch.
ROW_BYTES = 16
#: A state of a dataset that is larger than this is not kept for whoever takes a lost worker's place.
STATE_BYTES_MAX = 32 << 20
#: How long a worker whose trainer is ending waits to be ended, too.
WATCH_SECONDS = 5.0
#: How long it may take a worker to seed its generators, which is a matter of microseconds.
SEED_SECONDS = 10.0
#: The kernel's flag of a process that is ending.
PF_EXITING = 0x4


@dataclass
class WorkerOptions:
    """What a worker needs to know beside its dataset."""

    worker: int
    num_workers: int
    base_seed: int
    sample_seed: int
    batch_rows: int
    #: Whether the dataset is asked for batches, or for single samples.
    batched: bool
    #: Whether batches are collated by default, so that what is in a sample may be written into its batch.
    dense: bool
    init_fn: Any
    trainer: int
    #: Files that the trainer deletes at its end, and that a worker deletes where the trainer was killed.
    traces: tuple[str, ...] = field(default=(), kw_only=True)
    #: What makes a batch of samples, where workers are to do that.
    collate_batches: Any = field(default=None, kw_only=True)
    #: What batches are made of by default.
    output: Output = field(default="torch", kw_only=True)
    #: Whether that is what PyTorch does by default.
    collates_by_default: bool = field(default=False, kw_only=True)
    #: Whether the state that the dataset has of its own travels with every batch.
    tells_states: bool = field(default=False, kw_only=True)
    #: What its copy of the dataset is to begin from, pickled.
    dataset_state: bytes | None = field(default=None, kw_only=True)
    #: Whether a batch may have more or fewer samples than it was to have, where `__getitems__` returns that many.
    any_count: bool = field(default=False, kw_only=True)
    #: Whether a batch is made without the samples that raised.
    leaves_out: bool = field(default=False, kw_only=True)
    #: The cache itself, for a worker that is a thread of the trainer.
    cache: _sutler.Cache | None = field(default=None, kw_only=True)
    #: Whether a sample may make room for others between two transforms.
    hand_over: bool = field(default=False, kw_only=True)
    #: Whether the dataset is a native one, whose functions are steps and whose bad files are told by their kind.
    native: bool = field(default=False, kw_only=True)
    #: Where a worker process tells that it has begun.
    began: Connection | None = field(default=None, kw_only=True)


class Hangup(Exception):  # noqa: N818 - not an error: the trainer is done with us
    """The trainer has hung up."""


def receive(connection: socket.socket, count: int) -> tuple[bytes, list[int]]:
    """So many bytes from the trainer and the descriptors that came with them."""
    received = bytearray()
    descriptors: list[int] = []
    while len(received) < count:
        data, found, _, _ = socket.recv_fds(connection, count - len(received), 1)
        if not data:
            raise Hangup
        received += data
        descriptors += found
    return bytes(received), descriptors


@dataclass
class _Raised:
    """Takes the place of a sample that could not be had."""

    error: Exception
    #: Whether it is about the sample's own file, which native code could not read.
    about_file: bool = False


def _is_of_other_count(sample: Any, asked: int) -> bool:
    """Whether a sample could not be had because `__getitems__`, asked for so many, returned another number."""
    return (
        isinstance(sample, _Raised)
        and isinstance(sample.error, WrongCountError)
        and sample.error.asked == asked
    )


class Worker:
    """One worker's side of the conversation."""

    def __init__(self, dataset: Any, connection: socket.socket, options: WorkerOptions) -> None:
        self._dataset = dataset
        self._socket = connection
        self._options = options
        self._mailbox_size = 0
        self._position = MAILBOX_START
        self._replies = bytearray()
        self._writer: SchemaWriter | None = None
        #: The memory of collated batches, and how much of it one may take.
        self._batches: tuple[memoryview, CollatedLayout] | None = None
        self._proposed = False
        self._keys: dict[int, Any] = {}
        self._many = bulk_getter(dataset) if options.batched else None
        self._parts = parts_of(dataset)
        self._tells_states = options.tells_states and is_stateful(dataset)
        #: What the dataset had come to, pickled, when that was told last.
        self._state: bytes | None = None
        self._cache: _sutler.CacheReader | None = None
        #: Of each sample of the order, where its deterministic part came from.
        self._prepared: list[tuple[int, int, int]] = []
        #: Of each sample of the order, what its steps took, in microseconds; and what they are called.
        self._steps: list[list[int]] = []
        self._step_names: list[str] = []
        self._rng: WorkerRng = get_worker_info().rng
        self._turns = Turns(self._ask_whether_to_stand, self._suspend, self.serve)
        self._open_mailbox()

    # --- the socket ---

    def _receive(self, count: int) -> tuple[bytes, list[int]]:
        return receive(self._socket, count)

    def _say(self, kind: bytes, body: bytes) -> None:
        self._replies += kind + struct.pack("<Q", len(body)) + body

    def _flush(self) -> None:
        self._socket.sendall(self._replies)
        self._replies.clear()

    # --- the mailbox ---

    def _open_mailbox(self) -> None:
        self._mailbox_fd = os.memfd_create("sutler-mailbox", os.MFD_CLOEXEC)
        self._grow(MAILBOX_BYTES)

    def _grow(self, size: int) -> None:
        first = self._mailbox_size == 0
        self._mailbox_size = size
        os.ftruncate(self._mailbox_fd, size)
        self._mailbox = mmap.mmap(self._mailbox_fd, size)
        message = b"M" + struct.pack("<QQ", 8, size)
        if first:
            socket.send_fds(self._socket, [message], [self._mailbox_fd])
        else:
            self._replies += message

    def _leave(self, value: Any) -> tuple[int, int]:
        """Puts a value into the mailbox; tells where it begins and how long it is."""
        # What is collated by default lies front to back, however the samples did, as it does in PyTorch's workers.
        head, views, size = _payload.dump(value, front_to_back=self._options.dense)
        return self._leave_parts(size, lambda target: _payload.write(target, head, views))

    def _leave_prepared(
        self, number: int, head: bytes, views: list[memoryview], size: int
    ) -> tuple[int, int]:
        """Leaves what was prepared of a sample for the cache."""
        return self._leave_parts(size, lambda target: _payload.write(target, head, views))

    def _leave_parts(self, size: int, write: Any) -> tuple[int, int]:
        start = -(-self._position // _payload.ALIGNMENT) * _payload.ALIGNMENT
        if start + size > self._mailbox_size:
            self._grow(max(2 * self._mailbox_size, start + size))
        with memoryview(self._mailbox) as whole, whole[start : start + size] as target:
            write(target)
        self._position = start + size
        return start, size

    # --- the work ---

    def serve(self) -> None:
        """Answers orders until the trainer hangs up."""
        while True:
            try:
                self._serve_one()
            except Dropped:
                self._turns.give_back()

    def _serve_one(self) -> None:
        header, descriptors = self._receive(9)
        (length,) = struct.unpack_from("<Q", header, 1)
        body, more = self._receive(length)
        if header[:1] == b"S":
            self._take_schema(body, descriptors + more)
        elif header[:1] == b"C":
            self._take_cache(body, (descriptors + more)[0])
        elif header[:1] == b"K":
            self._take_keys(body)
        elif header[:1] == b"U":
            self._turns.go_on(*struct.unpack("<Q", body))
        elif header[:1] == b"F":
            self._turns.forget(struct.unpack(f"<{length // 8}Q", body))
        else:
            self._take_order(body)
            self._flush()

    def _ask_whether_to_stand(self, token: int, done: int) -> bool:
        self._say(b"B", struct.pack("<QQ", token, done))
        self._flush()
        header, _ = self._receive(9)
        return header[:1] == b"H"

    def _suspend(self) -> Callable[[], None] | None:
        """Notes what belongs to the sample at hand; `None` while something of it is in the mailbox."""
        if self._position != MAILBOX_START or self._replies:
            return None
        prepared, steps = self._prepared, self._steps
        own = self._rng.suspend()
        generators = _generators.save(list(_generators.marks()))

        def resume() -> None:
            self._prepared, self._steps = prepared, steps
            self._position = MAILBOX_START
            self._rng.resume(own)
            _generators.restore(generators)

        return resume

    def _take_schema(self, body: bytes, descriptors: list[int]) -> None:
        (size,) = struct.unpack_from("<Q", body)
        shared = self._batch_memory(size, descriptors)
        layout = pickle.loads(body[8:])
        if isinstance(layout, CollatedLayout):
            self._batches = memoryview(shared), layout
        else:
            self._writer = SchemaWriter(layout, shared)
        self._proposed = True

    def _take_cache(self, body: bytes, descriptor: int) -> None:
        self._cache = _sutler.CacheReader(descriptor, *struct.unpack("<QQ", body))

    def _batch_memory(self, size: int, descriptors: list[int]) -> Any:
        """The memory of all batches, of which we are told what to write to."""
        shared = mmap.mmap(descriptors[0], size)
        os.close(descriptors[0])
        return np.frombuffer(shared, dtype=np.uint8)

    def _take_keys(self, body: bytes) -> None:
        self._keys.clear()
        position = 0
        while position < len(body):
            number, length = struct.unpack_from("<IQ", body, position)
            position += 12
            self._keys[number] = pickle.loads(body[position : position + length])
            position += length

    def _take_order(self, body: bytes) -> None:
        epoch, flags, asks_after = struct.unpack_from("<IIQ", body)
        late, whole_batch, kept = bool(flags & LATE), bool(flags & WHOLE_BATCH), bool(flags & KEPT)
        repeated = bool(flags & REPEATED)
        # A number each, how often it came before, what the cache has of it, and for those whose row is known that too.
        count = (len(body) - ORDER_BYTES) // (4 * (1 + repeated + kept) + (0 if late else ROW_BYTES))
        columns = [
            struct.unpack_from(f"<{count}I", body, ORDER_BYTES + 4 * count * column)
            for column in range(1 + repeated + kept)
        ]
        numbers = columns[0]
        repeats = columns[1] if repeated else (0,) * count
        marks = columns[-1] if kept else None
        draws = [
            Draw(self._keys.get(number, number), repeat)
            for number, repeat in zip(numbers, repeats, strict=True)
        ]
        self._position = MAILBOX_START
        self._prepared = [NOTHING] * count
        self._steps = [[] for _ in range(count)]
        self._mark(0)
        # Where a worker died over a sample, what is left of its batch comes in parts, and the trainer collates.
        if whole_batch and self._options.collate_batches is not None:
            (offset,) = struct.unpack_from("<q", body, len(body) - count * ROW_BYTES)
            if self._options.leaves_out and self._state is None:
                self._dataset_state()  # to have what to go back to
            raised = None
            if self._many is not None:
                raised = self._answer_as_fetched(self._many, epoch, draws, offset)
                if raised is None:
                    return
            one_by_one = self._samples(
                epoch, draws, numbers, marks, asks_after, together=False, raised=raised
            )
            self._answer_batch(epoch, draws, self._up_to_raised(one_by_one), offset)
            return
        any_count = whole_batch and self._options.any_count and self._many is not None
        samples = self._samples(
            epoch, draws, numbers, marks, asks_after, together=self._many is not None, any_count=any_count
        )
        if any_count:
            first = next(samples)
            if _is_of_other_count(first, count):
                self._answer_other_count(first.error.found, count)
                return
            samples = itertools.chain([first], samples)
        if late:
            finished = list(samples)
            self._say(b"W", b"")
            self._flush()
            samples = iter(finished)
            body = self._receive_rows()
        for step in range(count):
            offset, row = struct.unpack_from("<qQ", body, len(body) - (count - step) * ROW_BYTES)
            self._answer(step, next(samples), offset, row)

    def _receive_rows(self) -> bytes:
        """Where the samples go that we have just told of."""
        header, _ = self._receive(9)
        body, _ = self._receive(struct.unpack_from("<Q", header, 1)[0])
        return body

    def _samples(
        self,
        epoch: int,
        draws: list[Draw],
        numbers: tuple[int, ...],
        marks: tuple[int, ...] | None,
        asks_after: int,
        *,
        together: bool,
        any_count: bool = False,
        raised: Exception | None = None,
    ) -> Iterator[Any]:
        """The samples of an order one after the other, or what they raised; `together`: one call makes them all.

        `any_count`: the batch may also be made of more or fewer; `raised`: what a call for all of them raised before.
        """
        _moment.enter(self._options.sample_seed, epoch)
        fetched: list[Any] | None = None
        if together and self._many is not None and len(draws) > 1:
            self._begin(draws[0].key)
            self._seed(samples_seed(self._options.sample_seed, epoch, draws))
            try:
                fetched = fetch_many(self._many, draws)
            except WrongCountError as error:
                # To leave samples out one has to know which, and so to ask for them one by one.
                if any_count or not self._options.leaves_out:
                    fetched = [_Raised(error)] * len(draws)
            except Exception as error:
                raised = error  # one by one, so that the error names its sample
        for step, draw in enumerate(draws):
            self._begin(draw.key)
            _moment.enter(self._options.sample_seed, epoch, draw.repeat)
            mark = marks[step] if marks else None
            if self._options.hand_over or self._options.native:
                with self._turns.sample(asks_after) as turn:
                    sample = self._get_or_raised(epoch, step, draw, numbers[step], mark, fetched)
                self._name_steps(turn.names)
                self._steps[step] = turn.times
            else:
                sample = self._get_or_raised(epoch, step, draw, numbers[step], mark, fetched)
            if raised is not None and not self._options.leaves_out and _is_of_other_count(sample, 1):
                sample = _Raised(raised)  # not this one is at fault: by itself it is just missing
            yield sample
            self._mark(step + 1)

    def _get_or_raised(
        self, epoch: int, step: int, draw: Draw, number: int, mark: int | None, fetched: list[Any] | None
    ) -> Any:
        try:
            if fetched is not None:
                return fetched[step]
            if self._parts is not None:
                return self._get_in_parts(self._parts, epoch, step, draw, number, mark)
            return self._get(epoch, draw)
        except Exception as error:
            return _Raised(error, isinstance(error, SampleError) and not _functions.is_in_function())

    def _get(self, epoch: int, draw: Draw) -> Any:
        if self._many is not None:
            self._seed(samples_seed(self._options.sample_seed, epoch, [draw]))
            return fetch_many(self._many, [draw])[0]
        seed = sample_seed(self._options.sample_seed, epoch, draw)
        if self._options.native:
            self._rng.seed(seed)  # the dataset itself seeds the others alike, for its functions
            _functions.begin_sample()
        else:
            self._seed(seed)
        return self._dataset[draw.key]

    def _get_in_parts(
        self, parts: Parts, epoch: int, step: int, draw: Draw, number: int, mark: int | None
    ) -> Any:
        """A sample whose deterministic part comes from the cache, or goes there."""
        key, copy = draw.key, None
        if mark is not None and mark not in (NOT_KEPT, WANTED) and self._cache is not None:
            copy = self._cache.read(number, mark - 1)
        if copy is not None:
            prepared = _payload.load(memoryview(copy))
            self._prepared[step] = RECALLED
        else:
            self._seed(prepare_seed(draw))
            prepared = parts.prepare(key)
            if mark == NOT_KEPT:
                self._prepared[step] = MADE
            elif mark is not None:  # it is wanted, or what was kept is damaged; later it may change
                self._prepared[step] = (MADE[0], *self._leave_prepared(number, *pack(prepared, key)))
        self._seed(sample_seed(self._options.sample_seed, epoch, draw))
        return parts.augment(key, prepared)

    def _name_steps(self, names: list[str]) -> None:
        """Tells what the steps are called; one with several names, as samples go different ways, has its number."""
        known = self._step_names
        if names == known[: len(names)]:
            return
        for index, name in enumerate(names):
            if index == len(known):
                known.append(name)
            elif known[index] != name:
                known[index] = f"step {index + 1}"
        self._say(b"N", "\n".join(name.replace("\n", " ") for name in known).encode(errors="replace"))

    def _begin(self, key: Any) -> None:
        """A sample is about to be prepared."""

    def _mark(self, finished: int) -> None:
        struct.pack_into("<Q", self._mailbox, 0, finished)

    def _seed(self, seed: int) -> None:
        """Lets all generators start from a seed that does not depend on which worker this is."""
        self._rng.seed(seed)
        seed_generators(seed)

    def _answer_as_fetched(
        self, many: Callable[[list[Any]], Any], epoch: int, draws: list[Draw], offset: int
    ) -> Exception | None:
        """Answers for a batch that `__getitems__` made, collated; or tells what it raised over one of several."""
        _moment.enter(self._options.sample_seed, epoch)
        self._begin(draws[0].key)
        self._seed(samples_seed(self._options.sample_seed, epoch, draws))
        fetch = fetch_batch
        if self._options.collates_by_default:
            fetch = fetch_samples if self._options.any_count else fetch_many
        try:
            fetched = fetch(many, draws)
        except WrongCountError as error:
            if self._options.leaves_out:
                return error
            self._say_all_raised(error, len(draws))
            return None
        except Exception as error:
            if len(draws) > 1:
                return error
            self._say_all_raised(error, 1)
            return None
        self._seed(collate_seed(self._options.sample_seed, epoch, draws))
        self._say_all_done(len(draws), *self._leave_batch(fetched, offset))
        return None

    def _answer_other_count(self, samples: Any, count: int) -> None:
        """Answers for a batch of `count` samples for which `__getitems__` returned another number: collated here.

        The rows of the batch's memory belong to the samples that were asked for, and which are there is not known.
        """
        try:
            batch = self._collate_by_default(samples)
            where = self._leave(Collated(batch))
        except Exception as error:
            where = self._leave_raised(error)
        self._say_all_done(count, 0, *where)

    def _collate_by_default(self, samples: Any) -> Any:
        # Imported only here: few workers collate by default, and it may import PyTorch.
        from sutler._python_batches import collate_copies_if_needed, default_collate

        with as_if_no_worker():  # or PyTorch gets a file of shared memory for each tensor
            return collate_copies_if_needed(default_collate(self._options.output, batched=True), samples)

    def _say_all_done(self, count: int, *where: int) -> None:
        """Answers for all samples of a batch that is made: the first brings it."""
        for step in range(count):
            self._say_done(step, *(where if step == 0 else (0, 0, 0)))
        self._mark(count)

    def _up_to_raised(self, samples: Iterator[Any]) -> list[Any]:
        """The samples of a batch; those behind one that raised are not asked for where that ends the batch."""
        asked_for = []
        for sample in samples:
            asked_for.append(sample)
            if isinstance(sample, _Raised) and not self._options.leaves_out:
                break
        return asked_for

    def _answer_batch(self, epoch: int, draws: list[Draw], samples: list[Any], offset: int) -> None:
        """Answers for all samples of a batch: the first good one brings the whole batch, collated."""
        good = [index for index, sample in enumerate(samples) if not self._is_left_out(sample)]
        raised = next((samples[index].error for index in good if isinstance(samples[index], _Raised)), None)
        comes = bool(good) and (self._options.leaves_out or len(good) == len(draws))
        told = None if comes or self._options.leaves_out else self._dataset_state()
        # What is left for the trainer is left in the order of the answers, which is how a thread's is found.
        for step, sample in enumerate(samples):
            if self._is_left_out(sample):
                self._say_raised(sample, told)
                told = None
            elif not comes or step != good[0]:
                self._say_done(step, 0, 0, 0)
            elif raised is not None:
                self._say_done(step, 0, *self._leave_raised(raised))
            else:
                self._seed(collate_seed(self._options.sample_seed, epoch, [draws[index] for index in good]))
                self._say_done(step, *self._leave_batch([samples[index] for index in good], offset))
        for step in range(len(samples), len(draws)):
            self._say_done(step, 0, 0, 0)
        if not good and self._options.leaves_out:
            self._undo()

    def _is_left_out(self, sample: Any) -> bool:
        """Whether a sample could not be had, and `errors=` says what becomes of it.

        Of a native dataset that is about files. What its functions raise comes through with any policy.
        """
        if not isinstance(sample, _Raised):
            return False
        comes_through = self._options.native and self._options.leaves_out
        return not comes_through or sample.about_file

    def _leave_batch(self, samples: Any, offset: int) -> tuple[int, int, int]:
        """Collates; tells whether the batch is in its own memory, and where else in the mailbox."""
        try:
            batch = self._options.collate_batches(samples if self._options.batched else samples[0])
            return self._leave_collated(Collated(batch, self._dataset_state()), offset)
        except Exception as error:
            return 0, *self._leave_raised(error)

    def _leave_raised(self, error: Exception) -> tuple[int, int]:
        """Leaves what was raised in place of a batch, whatever the policy."""
        return self._leave(NotCollated(self._describe(error), self._dataset_state()))

    def _dataset_state(self) -> Told | None:
        """What this copy of the dataset has come to, pickled at once, as the next batch changes it.

        What is raised over it is for whoever saves a state: most never do.
        """
        if not self._tells_states:
            return None
        try:
            self._state = pickle.dumps(self._dataset.state_dict())
        except Exception as error:
            self._state = None
            return self._options.worker, Untold(self._describe(error))
        if self._options.leaves_out and len(self._state) <= STATE_BYTES_MAX:
            self._say(b"D", self._state)  # should this worker die, another one begins from there
        return self._options.worker, self._state

    def _undo(self) -> None:
        """Puts this copy of the dataset back to what it had come to before a batch of which nothing is left.

        The trainer is not told of such a batch, and so not what the copy has come to; nor would a run that resumes be.
        """
        if self._state is None:
            return
        try:
            self._dataset.load_state_dict(pickle.loads(self._state))
        except Exception as error:
            self._dataset, self._many, self._tells_states = Broken(error), None, False

    def _describe(self, error: Exception, told: Told | None = None) -> Any:
        return _worker_errors.describe(error, self._options.worker, told)

    def _leave_collated(self, collated: Collated, offset: int) -> tuple[int, int, int]:
        head, views, size = _payload.dump(collated)
        if self._batches is not None and offset >= 0 and size <= self._batches[1].bytes:
            _payload.write(self._batches[0][offset : offset + size], head, views)
            return 1, 0, 0
        if size >= SHARED_BYTES_MIN and not self._proposed:
            layout = CollatedLayout.for_batches_like(size)
            self._say_proposal(layout.bytes, layout)
        return 0, *self._leave_parts(size, lambda target: _payload.write(target, head, views))

    def _answer(self, step: int, sample: Any, offset: int, row: int) -> None:
        if self._is_left_out(sample):
            self._say_raised(sample)
            return
        if isinstance(sample, _Raised):
            self._say_done(step, 0, *self._leave_raised(sample.error))
            return
        try:
            told = self._dataset_state()
            self._store(step, sample if told is None else Separate(sample, told), offset, row)
        except Exception as error:
            self._say_raised(_Raised(error))

    def _say_raised(self, raised: _Raised, told: Told | None = None) -> None:
        where = self._leave_exception(self._describe(raised.error, told))
        is_file = self._options.native and raised.about_file
        text = said_of(raised.error) if is_file else _worker_errors.last_line(raised.error)
        self._say(b"E", struct.pack("<QQ", *where) + text.encode(errors="replace"))

    def _say_all_raised(self, error: Exception, count: int) -> None:
        """Answers for all samples of a batch that one call was to make, and that raised."""
        told = None if self._options.leaves_out else self._dataset_state()
        for step in range(count):
            self._say_raised(_Raised(error), told if step == 0 else None)
        if self._options.leaves_out:
            self._undo()

    def _say_done(self, step: int, in_block: int, start: int, size: int) -> None:
        times = self._steps[step]
        self._say(
            b"R", struct.pack(f"<{6 + len(times)}Q", in_block, start, size, *self._prepared[step], *times)
        )

    def _leave_exception(self, exception: Any) -> tuple[int, int]:
        return self._leave_parts(len(exception), lambda target: _copy(target, exception))

    def _store(self, step: int, sample: Any, offset: int, row: int) -> None:
        if offset >= 0 and self._writer is not None:
            try:
                others = self._write(self._writer, sample, offset, row)
            except _schema.Mismatch:
                pass
            else:
                self._say_done(step, 1, *(self._leave_of(sample, others) if others else (0, 0)))
                return
        if self._options.dense and not self._proposed:
            self._propose(sample)
        self._say_done(step, 0, *self._leave_of(sample, sample))

    def _leave_of(self, sample: Any, value: Any) -> tuple[int, int]:
        """Puts what there is to send of a sample into the mailbox."""
        try:
            return self._leave(value)
        except (MemoryError, OSError):
            raise
        except Exception as error:
            if not self._options.dense:
                raise
            self._collate_by_default(
                [sample]
            )  # what cannot be collated either is to raise what PyTorch raises
            raise TypeError(
                f"a sample can be collated but not pickled ({error}), and workers send samples, since several of them "
                "share a batch. Leave out of it what cannot be pickled; or pass a collate_fn of your own, if only one "
                "that calls default_collate: then workers collate, and send batches."
            ) from error

    def _write(self, writer: SchemaWriter, sample: Any, offset: int, row: int) -> list[Any]:
        return writer.store(sample, offset, row)

    def _propose(self, sample: Any) -> None:
        self._proposed = True
        schema = _schema.propose(sample, self._options.batch_rows)
        if schema is not None:
            self._say_proposal(schema.bytes, schema)

    def _say_proposal(self, batch_bytes: int, layout: Any) -> None:
        self._proposed = True
        try:
            described = pickle.dumps(layout)
        except Exception:  # a class in it that has no name elsewhere; then samples travel one by one
            return
        self._say(b"P", struct.pack("<Q", batch_bytes) + described)


def _copy(target: memoryview, data: bytes) -> None:
    target[:] = data


def set_up(
    dataset: Any, connection: Connection, options: WorkerOptions
) -> tuple[socket.socket, BaseException | None]:
    """Makes this process a worker: the socket to the trainer, and what `worker_init_fn` raised."""
    # Ctrl-C reaches the whole process group; it is for the trainer to say what happens next.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _sutler.end_with(options.trainer, list(options.traces))
    # What is here now stays: to search it for garbage would only write to every object, and so copy each page that a
    # forked worker still shares with its trainer.
    gc.freeze()
    # A spawned worker takes its interpreter down when it ends, and libraries would report all of it as leaked.
    atexit.register(gc.unfreeze)
    _sutler.keep_memory()
    seed = options.base_seed + options.worker
    with ends_if_stuck(SEED_SECONDS):
        seed_worker(options.base_seed, options.worker)
    shown = dataset.shown if isinstance(dataset, NativeSamples) else dataset
    enter_worker(WorkerInfo(options.worker, options.num_workers, seed, shown, WorkerRng(seed)))
    # The connection object closes its descriptor when it goes; the socket gets its own.
    channel = socket.socket(fileno=os.dup(connection.fileno()))
    connection.close()
    return channel, initialise(options)


def seed_worker(base_seed: int, worker: int) -> None:
    """Lets the generators of this process start as they do in a worker of PyTorch's."""
    random.seed(base_seed + worker)
    # Seeded alike, NumPy's would begin with the same numbers as Python's: both are the same generator.
    entropy = [worker, base_seed % 2**32, base_seed >> 32, 0]
    np.random.seed(np.random.SeedSequence(entropy).generate_state(4))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
        torch.manual_seed(base_seed + worker)


@contextlib.contextmanager
def ends_if_stuck(seconds: float) -> Iterator[None]:
    """Ends this process by SIGALRM if it does not come to the end of this.

    Generators have locks. Where a thread of the trainer was just drawing when this process was forked, its lock stays
    taken here for ever, and a signal that Python handles would never be looked at.
    """
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if before is not None:  # it is, where a library has set it behind Python's back
            signal.signal(signal.SIGALRM, before)


def initialise(options: WorkerOptions) -> BaseException | None:
    """Lets the trainer go first and calls the user's `worker_init_fn`; returns what that raised."""
    _sutler.give_way()
    try:
        if options.init_fn is not None:
            options.init_fn(options.worker)
    except Exception as error:
        return error
    return None


def load_state(dataset: Any, options: WorkerOptions) -> BaseException | None:
    """Tells this worker's copy of the dataset what it had come to in an earlier run; returns what that raised."""
    try:
        if options.dataset_state is not None:
            dataset.load_state_dict(pickle.loads(options.dataset_state))
    except Exception as error:
        return error
    return None


def tell_begun(options: WorkerOptions) -> None:
    """Tells whoever started this process that it is ready for samples: if it dies, that is not for want of a start."""
    if options.began is not None:
        options.began.send_bytes(b"began")
        options.began.close()


@contextlib.contextmanager
def until_hangup(options: WorkerOptions) -> Iterator[None]:
    """Goes on behind this when the trainer hangs up; not at all if it does so because it was killed."""
    try:
        yield
    except (Hangup, BrokenPipeError, ConnectionResetError):
        if options.traces and _is_exiting(options.trainer):
            # The watch that `set_up` began is about to end this process, and deletes the traces first.
            time.sleep(WATCH_SECONDS)


def _is_exiting(pid: int) -> bool:
    """Whether a process has begun to end: it closes its files before it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as status:
            flags = int(status.read().rpartition(")")[2].split()[6])
    except FileNotFoundError:
        return True
    except (OSError, ValueError, IndexError):  # a system that does not tell
        return False
    return bool(flags & PF_EXITING)


def run_worker(dataset: Any, connection: Connection, options: WorkerOptions) -> None:
    """The life of a worker process."""
    channel, init_error = set_up(dataset, connection, options)
    init_error = init_error or load_state(dataset, options)
    # The trainer may have hung up before the worker was ready to begin.
    with until_hangup(options), ends_as_others_do():
        worker = Worker(dataset if init_error is None else Broken(init_error), channel, options)
        if options.hand_over:
            _hand_over.enter(worker._turns)
        if isinstance(dataset, NativeSamples):
            _hand_over.note_functions(worker._turns, dataset.functions)
            never_put_back()
        tell_begun(options)
        worker.serve()


class Broken:
    """Stands in for the dataset of a worker that could not be got ready: every sample raises why."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __getitem__(self, index: int) -> Any:
        raise self._error
