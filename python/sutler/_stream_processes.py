"""The trainer's side of the conversation with worker processes that go through a stream."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import time
import weakref
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from sutler import _payload, _worker_errors
from sutler._processes import WorkerPool
from sutler._stream_progress import StreamProgress
from sutler._stream_reader import ReaderProgress
from sutler._stream_worker import (
    ANSWER,
    BEGIN,
    END,
    ERROR,
    LAST_BATCH,
    ORDER,
    READ,
    StreamOptions,
    map_at_once,
    run_stream_worker,
)
from sutler.errors import WorkerError

#: How often a worker that should be at work is looked for: an orphan of its own may hold what would tell of its death.
LOOK_SECONDS = 1.0
#: Up to this many bytes a batch is copied: 256 KiB take some 30 µs, about as long as mapping them and using the map.
COPIED_BYTES = 256 << 10


@dataclass
class Answer:
    """What a worker answered."""

    kind: bytes
    progress: ReaderProgress
    payload: memoryview | None

    @property
    def is_end(self) -> bool:
        """Whether the worker has nothing left."""
        return self.kind == END

    def value(self) -> Any:
        """The batch, in memory that lives as long as the batch; raises what the worker raised."""
        value: Any = None if self.payload is None else _payload.load(self.payload)
        if self.kind == ERROR:
            raise _worker_errors.rebuild(value)
        return value


class StreamWorkers:
    """The worker processes of one epoch, or of one after the other."""

    def __init__(self, dataset: Any, options: StreamOptions, context: Any) -> None:
        self._pool = WorkerPool(dataset, options, context, run_stream_worker)
        self._channels: list[socket.socket] = []
        self._epoch = 0
        #: Whether a worker has died, so that these cannot serve another epoch.
        self.broken = False
        self._finalizer = weakref.finalize(self, _end, os.getpid(), self._pool, self._channels)
        try:
            for worker in range(options.num_workers):
                self._channels.append(socket.socket(fileno=self._pool.start(worker)))
        except BaseException:
            self.end()
            raise

    def processes(self) -> list[Any]:
        """The workers, as multiprocessing knows them."""
        return self._pool.processes

    def begin(self, progress: StreamProgress, batches_ahead: int) -> None:
        """Begins an epoch at some progress, and asks for the first batches."""
        self._epoch += 1
        for worker, reader in enumerate(progress.readers):
            self._order(worker, BEGIN, pickle.dumps(reader))
            for _ in range(0 if reader.ended else batches_ahead):
                self.ask(worker)

    def ask(self, worker: int) -> None:
        """Asks a worker for one more batch."""
        self._order(worker, READ, b"")

    def _order(self, worker: int, kind: bytes, body: bytes) -> None:
        # What a dead worker sent before it died is still to be had; its death is an error when that is used up.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channels[worker].sendall(ORDER.pack(kind, self._epoch, len(body)) + body)

    def receive(self, worker: int, samples: int, timeout: float, stop: socket.socket) -> Answer | None:
        """A worker's next answer of this epoch; ``None`` once `stop` is shut down."""
        deadline = time.monotonic() + timeout if timeout else None
        channel = self._channels[worker]
        sentinel = self._pool.sentinel(worker)
        while True:
            left = (
                LOOK_SECONDS if deadline is None else min(LOOK_SECONDS, max(0.0, deadline - time.monotonic()))
            )
            ready = wait([channel, sentinel, stop], left)
            if stop in ready:
                return None
            if channel in ready or (sentinel in ready and wait([channel], 0)):
                answer = self._read_answer(worker, samples)
                if answer is not None:
                    return answer
            elif sentinel in ready or not self._pool.is_alive(worker):
                raise self._lost(worker, samples)
            elif deadline is not None and time.monotonic() >= deadline:
                raise RuntimeError(f"DataLoader timed out after {timeout} seconds")

    def _read_answer(self, worker: int, samples: int) -> Answer | None:
        """An answer that has come; ``None`` if it belongs to an epoch that was left."""
        received = bytearray()
        descriptors: list[int] = []
        try:
            while len(received) < ANSWER.size:
                data, found, _, _ = socket.recv_fds(self._channels[worker], ANSWER.size - len(received), 1)
                descriptors += found
                if not data:
                    raise self._lost(worker, samples)
                received += data
            kind, epoch, taken, size, state_size = ANSWER.unpack(received)
            if epoch != self._epoch:
                return None
            if not size:
                return Answer(kind, ReaderProgress(samples, ended=True), None)
            if not descriptors:
                raise OSError(
                    "a batch came without its memory: this process has too many files open. Raise `ulimit -n`, or "
                    "keep fewer batches"
                )
            state = os.pread(descriptors[0], state_size, size) or None
            return Answer(kind, ReaderProgress(taken, kind == LAST_BATCH, state), _open(descriptors[0], size))
        except ConnectionResetError:
            raise self._lost(worker, samples) from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _lost(self, worker: int, samples: int) -> WorkerError:
        self.broken = True
        return WorkerError(
            samples,
            f"stream of worker {worker}",
            f"DataLoader worker {self._pool.post_mortem(worker)} before it delivered this sample",
            "worker_lost",
        )

    def end(self) -> None:
        """Hangs up and waits for the processes."""
        self._finalizer()


def _open(descriptor: int, size: int) -> memoryview:
    """The memory behind a descriptor, which may be closed afterwards."""
    if size > COPIED_BYTES:
        return memoryview(map_at_once(descriptor, size))
    copied = bytearray(size)
    os.preadv(descriptor, [copied], 0)
    return memoryview(copied)


def _end(owner: int, pool: WorkerPool, channels: list[socket.socket]) -> None:
    if owner != os.getpid():
        return  # a forked child: they are its parent's
    pool.refuse()
    for channel in channels:
        with contextlib.suppress(OSError):  # the other side is gone
            channel.shutdown(socket.SHUT_RDWR)  # not only our copy: workers forked later have theirs
        channel.close()
    pool.end()
