"""What runs in a worker process that goes through a stream: reads a batch when it is asked for one.

Every answer is a header and, where it carries something, a descriptor of memory that has no name and no other user. So
a batch can stay where it is for as long as the trainer holds it, and nothing is left anywhere once both are gone.
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from sutler import _payload, _worker_errors
from sutler._stream_reader import EndOfStream, ReaderProgress, StreamReader
from sutler._worker import WorkerOptions, receive, set_up, until_hangup

#: What the trainer says: which kind of order, the epoch's number, and how long the rest is.
ORDER = struct.Struct("<cQQ")
BEGIN, READ = b"N", b"W"

#: What a worker answers: the kind, the epoch's number, samples taken so far, and the lengths of the two parts that lie
#: in the memory which comes along: a batch (or an exception), and the state after it.
ANSWER = struct.Struct("<cQQQQ")
BATCH, LAST_BATCH, END, ERROR = b"B", b"L", b"D", b"E"


def map_at_once(descriptor: int, size: int) -> mmap.mmap:
    """The memory behind a descriptor, all pages at once: it is all used, and a fault for each would cost more."""
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)


@dataclass
class StreamOptions(WorkerOptions):
    """What a worker needs to know to make batches of a stream."""

    batch_size: int | None
    drop_last: bool
    collate: Callable[[Any], Any]


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
        self._epoch = 0

    def serve(self) -> None:
        """Answers orders until the trainer hangs up."""
        while True:
            head, _ = receive(self._channel, ORDER.size)
            kind, epoch, length = ORDER.unpack(head)
            body, _ = receive(self._channel, length)
            if kind == BEGIN:
                self._begin(epoch, pickle.loads(body))
            else:
                self._answer()

    def _begin(self, epoch: int, start: ReaderProgress) -> None:
        self._epoch = epoch
        self._reader = None
        self._broken = self._init_error
        if self._broken is None:
            options = self._options
            try:
                self._reader = StreamReader(
                    self._dataset, options.batch_size, options.drop_last, options.collate, start
                )
            except Exception as error:
                self._broken = error

    def _answer(self) -> None:
        try:
            kind, samples, state, parts = self._read()
        except EndOfStream:
            self._channel.sendall(ANSWER.pack(END, self._epoch, 0, 0, 0))
            return
        except Exception as error:
            _, exception = _worker_errors.describe(error, self._options.worker)
            kind, samples, state, parts = ERROR, 0, b"", _payload.dump(exception)
        head, views, size = parts
        memory = os.memfd_create("sutler-batch", os.MFD_CLOEXEC)
        try:
            os.ftruncate(memory, size + len(state))
            with map_at_once(memory, size + len(state)) as mapped, memoryview(mapped) as target:
                _payload.write(target[:size], head, views)
                target[size:] = state
            answer = ANSWER.pack(kind, self._epoch, samples, size, len(state))
            socket.send_fds(self._channel, [answer], [memory])
        finally:
            os.close(memory)

    def _read(self) -> tuple[bytes, int, bytes, tuple[bytes, list[memoryview], int]]:
        if self._reader is None:
            raise self._broken or RuntimeError(
                "a batch was asked for before the epoch began; please report this"
            )
        batch = self._reader.read()
        progress = self._reader.progress()
        kind = LAST_BATCH if progress.ended else BATCH
        return kind, progress.samples, progress.state or b"", _payload.dump(batch)


def run_stream_worker(dataset: Any, connection: Connection, options: StreamOptions) -> None:
    """The life of a worker process."""
    channel, init_error = set_up(dataset, connection, options)
    with channel, until_hangup(options):
        StreamWorker(dataset, channel, options, init_error).serve()
