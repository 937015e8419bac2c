"""The trainer's side of the conversation with workers that go through a stream."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import time
import weakref
from dataclasses import dataclass, replace
from typing import Any

from sutler import _payload, _worker_errors
from sutler._data_pipes import PipeOrders
from sutler._interrupts import interrupts_put_off
from sutler._processes import WorkerPool
from sutler._stream_memory import BatchMaps
from sutler._stream_progress import StreamProgress
from sutler._stream_reader import ReaderProgress
from sutler._stream_worker import (
    ANSWER,
    BEGAN,
    BEGIN,
    DONE,
    END,
    ERROR,
    HANDED_OVER,
    ORDER,
    READ,
    StreamOptions,
    run_stream_thread,
    run_stream_worker,
)
from sutler._threads import ThreadPool, wants_threads
from sutler.errors import WorkerError, WorkerStartError

#: How often a worker that should be at work is looked for: an orphan of its own may hold what would tell of its death.
LOOK_SECONDS = 1.0


@dataclass
class Answer:
    """What a worker answered."""

    kind: bytes
    progress: ReaderProgress
    payload: memoryview | None = None
    #: Where in it the head is.
    start: int = 0
    #: The batch or exception itself, from a thread.
    handed: Any = None
    #: When the worker was done with it.
    finished: float = 0.0

    def value(self) -> Any:
        """The batch, in memory that lives as long as the batch; raises what the worker raised."""
        value = self.handed if self.payload is None else _payload.load(self.payload, self.start)
        if self.kind == ERROR:
            raise _worker_errors.rebuild(value)
        return value


class StreamWorkers:
    """The workers of one epoch, or of one after the other."""

    def __init__(self, dataset: Any, options: StreamOptions, context: Any) -> None:
        self._pool = (
            ThreadPool(dataset, options, run_stream_thread, own_copies=True)
            if wants_threads(context)
            else WorkerPool(dataset, options, context, run_stream_worker)
        )
        self._channels: list[socket.socket] = []
        self._maps = [BatchMaps() for _ in range(options.num_workers)]
        self._epoch = 0
        #: What the workers' seeds were made from.
        self.base_seed = options.base_seed
        #: Workers that stayed and have not yet told what they drew in earlier epochs.
        self.unheard: list[int] = []
        #: Whether a worker has died, so that these cannot serve another epoch.
        self.broken = False
        self._finalizer = weakref.finalize(self, _end, os.getpid(), self._pool, self._channels)
        try:
            for worker in range(options.num_workers):
                with interrupts_put_off():
                    self._channels.append(socket.socket(fileno=self._pool.start(worker)))
        except BaseException:
            self.end()
            raise

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._channels)

    @property
    def stayed(self) -> bool:
        """Whether they have served an epoch."""
        return self._epoch > 0

    def may_begin_with(self, base_seed: int | None) -> bool:
        """Whether they can serve a pass whose seeds are made from that; ``None`` is any that has not begun."""
        return base_seed is None or (base_seed == self.base_seed and not self.stayed)

    def processes(self) -> list[Any]:
        """The workers, as multiprocessing knows them."""
        return self._pool.processes

    def begin(self, progress: StreamProgress, batches_ahead: int, pipes: PipeOrders | None) -> None:
        """Begins an epoch at some progress, and asks for the first batches."""
        stayed = self.stayed
        self._epoch += 1
        self.unheard = list(range(len(self._channels))) if stayed else []
        for worker, reader in enumerate(progress.readers):
            self._order(worker, BEGIN, pickle.dumps((reader, progress.dataset_epoch, stayed, pipes)))
            for _ in range(0 if reader.ended else batches_ahead):
                self.ask(worker)

    def ask(self, worker: int) -> None:
        """Asks a worker for one more batch."""
        done = self._maps[worker].done
        self._order(worker, READ, b"".join(DONE.pack(*done.popleft()) for _ in range(len(done))))

    def _order(self, worker: int, kind: bytes, body: bytes) -> None:
        # What a dead worker sent before it died is still to be had; its death is an error when that is used up.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channels[worker].sendall(ORDER.pack(kind, self._epoch, len(body)) + body)

    def receive(
        self, candidates: list[int], progress: StreamProgress, timeout: float, stop: socket.socket
    ) -> tuple[int, Answer] | None:
        """The first answer of this epoch that one of some workers has; ``None`` once `stop` is shut down.

        Of several that have one, the first in the list is served: rotating the list keeps a quick worker from crowding
        the others out.
        """
        deadline = time.monotonic() + timeout if timeout else None
        poller = select.poll()
        poller.register(stop, select.POLLIN)
        for worker in candidates:
            poller.register(self._channels[worker], select.POLLIN)
            poller.register(self._pool.sentinel(worker), select.POLLIN)
        while True:
            left = (
                LOOK_SECONDS if deadline is None else min(LOOK_SECONDS, max(0.0, deadline - time.monotonic()))
            )
            ready = {descriptor for descriptor, _ in poller.poll(left * 1000)}
            if stop.fileno() in ready:
                return None
            for worker in candidates:
                if self._channels[worker].fileno() in ready:
                    answer = self._read_answer(worker, progress)
                    if answer is not None:
                        return worker, answer
                    break  # it was of an earlier epoch; there may be more behind it
            else:
                self._look_after(candidates, ready, progress)
                if deadline is not None and time.monotonic() >= deadline:
                    raise RuntimeError(f"DataLoader timed out after {timeout} seconds{self._pool.doing()}")

    def _look_after(self, workers: list[int], ready: set[int], progress: StreamProgress) -> None:
        """Raises if a worker has died and said all it had to say; nothing has been heard of any just now."""
        for worker in workers:
            if self._pool.sentinel(worker) in ready or not self._pool.is_alive(worker):
                # What it said last may have come after we looked.
                last_words = select.poll()
                last_words.register(self._channels[worker], select.POLLIN)
                if not last_words.poll(0):
                    raise self._lost(worker, progress)

    def _read_answer(self, worker: int, progress: StreamProgress) -> Answer | None:
        """An answer that has come; ``None`` if it belongs to an epoch that was left."""
        received = bytearray()
        descriptors: list[int] = []
        try:
            while len(received) < ANSWER.size:
                data, found, _, _ = socket.recv_fds(self._channels[worker], ANSWER.size - len(received), 1)
                descriptors += found
                if not data:
                    raise self._lost(worker, progress)
                received += data
            kind, epoch, slot, start, end, total, finished = ANSWER.unpack(received)
            if slot == HANDED_OVER and isinstance(self._pool, ThreadPool):
                reached, value = self._pool.batches(worker).popleft()
                return self._handed(worker, kind, epoch, reached or progress.readers[worker], value, finished)
            maps = self._maps[worker]
            for descriptor in descriptors:
                maps.add(slot, descriptor)
            if epoch != self._epoch:
                maps.give_back(slot)
                return None
            if kind == BEGAN:
                self.unheard.remove(worker)
            if kind == END and total == 0:
                return Answer(kind, replace(progress.readers[worker], ended=True))
            if not maps.has(slot):
                raise OSError(
                    "a batch came without its memory: this process has too many files open. Raise `ulimit -n`, or "
                    "keep fewer batches"
                )
            payload, described = maps.open(slot, end, total)
            reached = pickle.loads(described) if described else progress.readers[worker]
            return Answer(kind, reached, payload, start, finished=finished)
        except ConnectionResetError:
            raise self._lost(worker, progress) from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _handed(
        self, worker: int, kind: bytes, epoch: int, reached: ReaderProgress, value: Any, finished: float
    ) -> Answer | None:
        """What a thread has handed over; ``None`` if it belongs to an epoch that was left."""
        if epoch != self._epoch:
            return None
        if kind == BEGAN:
            self.unheard.remove(worker)
        return Answer(kind, reached, handed=value, finished=finished)

    def _lost(self, worker: int, progress: StreamProgress) -> WorkerError | WorkerStartError:
        self.broken = True
        story = self._pool.post_mortem(worker)
        return self._pool.failed_start() or WorkerError(
            progress.readers[worker].samples,
            f"stream of worker {worker}",
            f"DataLoader worker {story} before it delivered this sample",
            "worker_lost",
        )

    def end(self) -> None:
        """Hangs up and waits for the processes."""
        self._finalizer()


def _end(owner: int, pool: WorkerPool | ThreadPool, channels: list[socket.socket]) -> None:
    if owner != os.getpid():
        return  # a forked child: they are its parent's
    pool.refuse()
    for channel in channels:
        with contextlib.suppress(OSError):  # the other side is gone
            channel.shutdown(socket.SHUT_RDWR)  # not only our copy: workers forked later have theirs
        channel.close()
    pool.end()
