"""What a worker thread does otherwise than a worker process: it hands over objects, and leaves what all share alone."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from sutler import _payload, _sutler, _worker_errors
from sutler._collated import Collated, Handed, Told
from sutler._schema_writer import SchemaWriter
from sutler._worker import Broken, Hangup, Worker, WorkerOptions, initialise, load_state
from sutler._worker_info import WorkerInfo, enter_thread
from sutler._worker_rng import WorkerRng

#: The length of what is not in a mailbox, because it was handed over.
HANDED_OVER = 2**64 - 1


class Seat:
    """What a worker thread and those who started it both know."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        #: Where objects go that the engine hands on.
        self.handover = _sutler.Handover()
        #: The batches of a stream, which go to the trainer directly.
        self.batches: deque[Any] = deque()
        #: What the worker is at, for messages.
        self.doing = ""
        #: What ended it before its time.
        self.ended_by: BaseException | None = None
        #: One thread may take it twice: the collector may come upon an abandoned loader, and close it, in the middle of
        #: writing.
        self._lock = threading.RLock()
        self._closed = False

    def close(self) -> None:
        """Lets the worker write nothing from now on: its rows may soon be others'. Waits while it is writing one."""
        with self._lock:
            self._closed = True

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Batch memory is written to inside."""
        with self._lock:
            if self._closed:
                raise Hangup
            yield


class ThreadWorker(Worker):
    """One worker thread's side of the conversation."""

    def __init__(self, dataset: Any, channel: socket.socket, options: WorkerOptions, seat: Seat) -> None:
        self._seat = seat
        super().__init__(dataset, channel, options)

    def _open_mailbox(self) -> None:
        """Nothing travels as bytes."""

    def _leave(self, value: Any) -> tuple[int, int]:
        self._seat.handover.leave(Handed(value))
        return 0, HANDED_OVER

    def _leave_prepared(
        self, number: int, head: bytes, views: list[memoryview], size: int
    ) -> tuple[int, int]:
        if self._options.cache is not None:
            packed = bytearray(size)
            _payload.write(memoryview(packed), head, views)
            self._options.cache.keep(number, packed)
        return 0, 0

    def _leave_collated(self, collated: Collated, offset: int) -> tuple[int, int, int]:
        return 0, *self._leave(collated)

    def _leave_exception(self, exception: Any) -> tuple[int, int]:
        self._seat.handover.leave(exception)
        return 0, HANDED_OVER

    def _describe(self, error: Exception, told: Told | None = None) -> Any:
        return _worker_errors.describe_here(error, self._options.worker, told)

    def _batch_memory(self, size: int, descriptors: list[int]) -> Any:
        return np.asarray(self._seat.handover.memory())

    def _write(self, writer: SchemaWriter, sample: Any, offset: int, row: int) -> list[Any]:
        with self._seat.writing():
            return writer.store(sample, offset, row)

    def _begin(self, key: Any) -> None:
        self._seat.doing = f"index {key}" if type(key) is int else f"key {key!r}"

    def _flush(self) -> None:
        self._seat.doing = ""
        super()._flush()

    def _mark(self, finished: int) -> None:
        self._seat.handover.mark(finished)

    def _seed(self, seed: int) -> None:
        # The generators of Python, NumPy and PyTorch themselves are everybody's: the trainer draws from them, too.
        self._rng.seed(seed)


def set_up_thread(dataset: Any, options: WorkerOptions) -> BaseException | None:
    """Makes this thread a worker; returns what `worker_init_fn` raised."""
    seed = options.base_seed + options.worker
    rng = WorkerRng(seed)
    enter_thread(WorkerInfo(options.worker, options.num_workers, seed, dataset, rng, "thread"))
    return initialise(options)


def run_worker_thread(dataset: Any, channel: socket.socket, options: WorkerOptions, seat: Seat) -> None:
    """The life of a worker thread."""
    init_error = set_up_thread(dataset, options) or load_state(dataset, options)
    ThreadWorker(dataset if init_error is None else Broken(init_error), channel, options, seat).serve()
