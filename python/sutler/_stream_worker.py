"""What runs in a worker process that goes through a stream: reads a batch when it is asked for one.

Every answer is a header that says where in this worker's memory a batch is, with a descriptor of that memory when it is
used for the first time. It has no name, so nothing is left anywhere once worker and trainer are gone.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from sutler import _worker_errors
from sutler._stream_collate import PlacedCollate
from sutler._stream_memory import NO_SLOT, BatchMemory, Segment
from sutler._stream_random import RandomStates, WorkerRandom
from sutler._stream_reader import EndOfStream, ReaderProgress, StreamReader, tell_epoch
from sutler._worker import WorkerOptions, receive, set_up, until_hangup

#: What the trainer says: which kind of order, the epoch's number, and how long the rest is.
ORDER = struct.Struct("<cQQ")
BEGIN, READ = b"N", b"W"

#: What an order for a batch says beside: slots of memory that the trainer is done with, and if they may be reused.
DONE = struct.Struct("<I?")

#: What a worker answers: the kind, the epoch's number, the slot of memory, and where in it the head of a batch (or of
#: an exception) begins, where the batch ends, and where the reader's progress, which follows it, ends.
ANSWER = struct.Struct("<cQIQQQ")
BEGAN, BATCH, END, ERROR = b"N", b"B", b"D", b"E"


@dataclass
class StreamOptions(WorkerOptions):
    """What a worker needs to know to make batches of a stream."""

    batch_size: int | None
    drop_last: bool
    collate: Callable[[Any], Any]
    #: Batches that a worker may have made, or be making, that the trainer has not taken or not let go of.
    batches_held: int


class StreamWorker:
    """One worker's side of the conversation."""

    def __init__(
        self, dataset: Any, channel: socket.socket, options: StreamOptions, broken: BaseException | None
    ) -> None:
        self._dataset = dataset
        self._channel = channel
        self._options = options
        self._init_error = broken
        #: Why the epoch could not begin: raised for every batch of it.
        self._broken: BaseException | None = None
        self._reader: StreamReader | None = None
        self._random = WorkerRandom()
        self._memory = BatchMemory(options.batches_held)
        if isinstance(options.collate, PlacedCollate):
            options.collate.use(self._memory)
        self._epoch = 0

    def serve(self) -> None:
        """Answers orders until the trainer hangs up."""
        while True:
            head, _ = receive(self._channel, ORDER.size)
            kind, epoch, length = ORDER.unpack(head)
            body, _ = receive(self._channel, length)
            if kind == BEGIN:
                self._begin(epoch, *pickle.loads(body))
            else:
                for slot, reusable in DONE.iter_unpack(body):
                    self._memory.take_back(slot, reusable)
                self._answer()

    def _begin(self, epoch: int, start: ReaderProgress, dataset_epoch: int | None, stayed: bool) -> None:
        self._epoch = epoch
        if stayed:
            drawn = self._random.states()
            began = ReaderProgress(random=None if drawn is None else RandomStates(began=drawn.now))
            self._memory.begin()
            self._send(self._place(BEGAN, began, None))
        self._reader = None
        self._broken = self._init_error
        if self._broken is None:
            options = self._options
            try:
                tell_epoch(self._dataset, dataset_epoch)
                self._reader = StreamReader(
                    self._dataset, options.batch_size, options.drop_last, options.collate, start, self._random
                )
            except Exception as error:
                self._broken = error

    def _answer(self) -> None:
        self._memory.begin()
        try:
            placed = self._place(BATCH, *self._read())
        except EndOfStream:
            self._channel.sendall(ANSWER.pack(END, self._epoch, NO_SLOT, 0, 0, 0))
            return
        except Exception as error:
            _, exception = _worker_errors.describe(error, self._options.worker)
            self._memory.begin()
            placed = self._place(ERROR, None, exception)
        self._send(placed)

    def _place(self, kind: bytes, progress: ReaderProgress | None, value: Any) -> tuple[bytes, Segment]:
        """Puts an answer into memory: what is to be said of it, and where it is."""
        after = b"" if progress is None else pickle.dumps(progress)
        placed = self._memory.place(value, after)
        where = (placed.segment.slot, placed.start, placed.end, placed.end + len(after))
        return ANSWER.pack(kind, self._epoch, *where), placed.segment

    def _send(self, placed: tuple[bytes, Segment]) -> None:
        answer, segment = placed
        if segment.sent:
            self._channel.sendall(answer)
        else:
            socket.send_fds(self._channel, [answer], [segment.descriptor])
        self._memory.hand_over()

    def _read(self) -> tuple[ReaderProgress, Any]:
        if self._reader is None:
            raise self._broken or RuntimeError(
                "a batch was asked for before the epoch began; please report this"
            )
        batch = self._reader.read()
        return self._reader.progress(), batch


def run_stream_worker(dataset: Any, connection: Connection, options: StreamOptions) -> None:
    """The life of a worker process."""
    channel, init_error = set_up(dataset, connection, options)
    with channel, until_hangup(options):
        StreamWorker(dataset, channel, options, init_error).serve()
