"""What a worker does that goes through a stream: reads a batch when it is asked for one.

Every answer is a header that says where in this worker's memory a batch is, with a descriptor of that memory when it is
used for the first time. It has no name, so nothing is left anywhere once worker and trainer are gone.
"""

from __future__ import annotations

import pickle
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from sutler import _worker_errors
from sutler._data_pipes import PipeOrders
from sutler._stream_collate import PlacedCollate
from sutler._stream_copy import StreamCopy
from sutler._stream_memory import NO_SLOT, BatchMemory
from sutler._stream_random import RandomStates, WorkerRandom
from sutler._stream_reader import EndOfStream, ReaderProgress, StreamReader
from sutler._thread_worker import Seat, set_up_thread
from sutler._threads import THREAD
from sutler._words import counted
from sutler._worker import WorkerOptions, receive, set_up, tell_begun, until_hangup
from sutler._worker_info import get_worker_info

#: What the trainer says: which kind of order, the epoch's number, and how long the rest is.
ORDER = struct.Struct("<cQQ")
BEGIN, READ = b"N", b"W"

#: What an order for a batch says beside: slots of memory that the trainer is done with, and if they may be reused.
DONE = struct.Struct("<I?")

#: What a worker answers: the kind, the epoch's number, the slot of memory, and where in it the head of a batch (or of
#: an exception) begins, where the batch ends, and where the reader's progress, which follows it, ends. Then when it was
#: done, by a clock that all processes of the machine share.
ANSWER = struct.Struct("<cQIQQQd")
BEGAN, BATCH, END, ERROR = b"N", b"B", b"D", b"E"

#: The slot of a batch that a thread has handed over: it is in no memory of its own.
HANDED_OVER = NO_SLOT - 1


@dataclass
class StreamOptions(WorkerOptions):
    """What a worker needs to know to make batches of a stream."""

    batch_size: int | None
    drop_last: bool
    collate: Callable[[Any], Any]
    #: Batches that a worker may have made, or be making, that the trainer has not taken or not let go of.
    batches_held: int
    #: Whose batches of the stream are served, where ranks take turns, and how many they are.
    place: tuple[int, int] = (0, 1)
    #: Whether the worker stays, so that the next pass begins where its copy of the dataset is at the end of this one.
    stays: bool = False


class StreamWorker:
    """One worker's side of the conversation."""

    def __init__(
        self, dataset: Any, channel: socket.socket, options: StreamOptions, broken: BaseException | None
    ) -> None:
        self._copy = StreamCopy(dataset)
        self._channel = channel
        self._options = options
        self._init_error = broken
        #: Why the epoch could not begin: raised for every batch of it.
        self._broken: BaseException | None = None
        self._reader: StreamReader | None = None
        #: Whether the trainer was told where the pass has left the dataset.
        self._told_end = False
        info = get_worker_info()
        self._random = WorkerRandom(info.rng, whole_process=info.worker_method != THREAD)
        self._memory = BatchMemory(options.batches_held)
        self._place_batches()
        self._epoch = 0

    def _place_batches(self) -> None:
        """Lets batches be made in the memory that they travel in, where collation can do that."""
        if isinstance(self._options.collate, PlacedCollate):
            self._options.collate.use(self._memory)

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

    def _begin(
        self,
        epoch: int,
        start: ReaderProgress,
        dataset_epoch: int | None,
        stayed: bool,
        pipes: PipeOrders | None,
    ) -> None:
        self._epoch = epoch
        self._told_end = False
        self._reader = None
        self._broken = self._init_error
        if stayed:
            self._tell_rest()
        if self._broken is None:
            options = self._options
            try:
                self._copy.tell(start, dataset_epoch)
                if pipes is not None:
                    pipes.tell(self._copy.dataset, options.worker, options.num_workers)
                self._reader = StreamReader(
                    self._copy,
                    options.batch_size,
                    options.drop_last,
                    options.collate,
                    start,
                    self._random,
                    options.place,
                )
            except Exception as error:
                self._broken = error

    def _tell_rest(self) -> None:
        """Tells where earlier epochs have left this worker that stayed."""
        drawn = self._random.states()
        state = None
        try:
            state = self._copy.state()
        except Exception as error:  # the dataset's own
            self._broken = self._broken or error
        rest = ReaderProgress(state=state, random=None if drawn is None else RandomStates(began=drawn.now))
        self._memory.begin()
        self._send(self._place(BEGAN, rest, None))

    def _answer(self) -> None:
        self._memory.begin()
        try:
            placed = self._place(BATCH, *self._read())
        except EndOfStream:
            self._answer_end()
            return
        except Exception as error:
            self._memory.begin()
            placed = self._place(ERROR, None, self._describe(error))
        self._send(placed)

    def _answer_end(self) -> None:
        """Says that there is no more, and the first time, where this worker stays, where it has come to by that."""
        if self._told_end or not self._options.stays or self._reader is None:
            self._channel.sendall(ANSWER.pack(END, self._epoch, NO_SLOT, 0, 0, 0, time.monotonic()))
            return
        self._told_end = True
        try:
            placed = self._place(END, self._reader.progress(), None)
        except Exception as error:
            self._memory.begin()
            placed = self._place(ERROR, None, self._describe(error))
        self._send(placed)

    def _describe(self, error: Exception) -> Any:
        return _worker_errors.describe(error, self._options.worker)

    def _place(self, kind: bytes, progress: ReaderProgress | None, value: Any) -> tuple[bytes, Any]:
        """Puts an answer into memory: what is to be said of it, and where it is."""
        after = b"" if progress is None else pickle.dumps(progress)
        placed = self._memory.place(value, after)
        where = (placed.segment.slot, placed.start, placed.end, placed.end + len(after))
        return ANSWER.pack(kind, self._epoch, *where, time.monotonic()), placed.segment

    def _send(self, placed: tuple[bytes, Any]) -> None:
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
        worker = StreamWorker(dataset, channel, options, init_error)
        tell_begun(options)
        worker.serve()


class ThreadStreamWorker(StreamWorker):
    """The same in a thread, which hands its batches over as they are."""

    def __init__(
        self,
        dataset: Any,
        channel: socket.socket,
        options: StreamOptions,
        broken: BaseException | None,
        seat: Seat,
    ) -> None:
        self._seat = seat
        super().__init__(dataset, channel, options, broken)

    def _place_batches(self) -> None:
        """They do not travel."""

    def _describe(self, error: Exception) -> Any:
        return _worker_errors.describe_here(error, self._options.worker)

    def _place(self, kind: bytes, progress: ReaderProgress | None, value: Any) -> tuple[bytes, Any]:
        return ANSWER.pack(kind, self._epoch, HANDED_OVER, 0, 0, 0, time.monotonic()), (progress, value)

    def _send(self, placed: tuple[bytes, Any]) -> None:
        answer, handed = placed
        self._seat.batches.append(handed)
        self._channel.sendall(answer)

    def _answer(self) -> None:
        samples = 0 if self._reader is None else self._reader.samples
        self._seat.doing = f"its stream, behind {counted(samples, 'sample')}"
        super()._answer()
        self._seat.doing = ""


def run_stream_thread(dataset: Any, channel: socket.socket, options: StreamOptions, seat: Seat) -> None:
    """The life of a worker thread."""
    ThreadStreamWorker(dataset, channel, options, set_up_thread(dataset, options), seat).serve()
