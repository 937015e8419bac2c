"""Starts, replaces and ends the worker threads of a loader."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from sutler import _worker_errors
from sutler._interrupts import interrupts_put_off
from sutler._thread_worker import Seat, run_worker_thread
from sutler._worker import Hangup, WorkerOptions

#: The name that asks for threads where processes are started by another.
THREAD = "thread"

#: How long workers may take to end by themselves before nobody waits for them any more.
END_SECONDS = 5.0


def wants_threads(context: Any) -> bool:
    """Whether workers are threads: where the user says so, or says nothing and Python runs threads at the same time."""
    return context == THREAD or (context is None and not getattr(sys, "_is_gil_enabled", lambda: True)())


def runs_in_turns(context: Any) -> bool:
    """Whether workers are threads that an interpreter lock lets run Python one at a time."""
    return wants_threads(context) and getattr(sys, "_is_gil_enabled", lambda: True)()


class ThreadPool:
    """The worker threads of one loader, and the sockets to them."""

    def __init__(
        self,
        dataset: Any,
        options: WorkerOptions,
        run: Callable[..., None] = run_worker_thread,
        *,
        own_copies: bool = False,
        state_of: Callable[[int], bytes | None] | None = None,
    ) -> None:
        self._run = run
        self._dataset = dataset
        self._options = options
        #: Whether each worker has a dataset of its own, as a process would.
        self._own_copies = own_copies
        #: What a worker's copy is to begin from, where the dataset has a state of its own.
        self._state_of = state_of
        self._lock = threading.RLock()  # the collector may end us in the middle of starting a worker
        self._threads: list[threading.Thread | None] = [None] * options.num_workers
        self._seats = [Seat(worker) for worker in range(options.num_workers)]
        #: Each becomes ready when its worker ends.
        self._sentinels: list[socket.socket | None] = [None] * options.num_workers
        self._refusing = False

    def connect(self, worker: int, dataset_state: bytes | None = None) -> tuple[int, Any, int | None]:
        """Starts (or replaces) a worker: the socket's descriptor, where it hands things over, and its number."""
        descriptor = self.start(worker, dataset_state)
        thread = self._threads[worker]
        return descriptor, self._seats[worker].handover, None if thread is None else thread.native_id

    def start(self, worker: int, dataset_state: bytes | None = None) -> int:
        """Starts (or replaces) a worker and returns the descriptor of the socket to it."""
        with interrupts_put_off(), self._lock:
            if self._refusing:
                raise RuntimeError("the workers are being ended")
            dataset = self._copy() if self._own_copies else self._dataset
            state = dataset_state or (None if self._state_of is None else self._state_of(worker))
            options = dataclasses.replace(self._options, worker=worker, dataset_state=state)
            seat = self._seats[worker] = Seat(worker)
            ours, theirs = socket.socketpair()
            sentinel, life = socket.socketpair()
            thread = threading.Thread(
                target=_live,
                args=(self._run, dataset, theirs, options, seat, life),
                name=f"sutler-worker-{worker}",
                daemon=True,  # one that is stuck must not keep the process
            )
            thread.start()
            self._sentinels[worker] = sentinel
            self._threads[worker] = thread
            return ours.detach()

    def _copy(self) -> Any:
        try:
            return copy.deepcopy(self._dataset)
        except Exception as error:
            raise TypeError(
                f"{type(self._dataset).__qualname__} cannot be copied ({_worker_errors.last_line(error)}), and each "
                "worker thread goes through a copy of its own. Give it a __deepcopy__ that returns one, or pass "
                'multiprocessing_context="fork" for worker processes'
            ) from error

    def has_lost_one(self) -> bool:
        """Whether a worker has died; one that was told to end has not."""
        return any(seat is not None and seat.ended_by is not None for seat in self._seats)

    def post_mortem(self, worker: int) -> str:
        """How a worker ended, as the end of a sentence."""
        thread, seat = self._threads[worker], self._seats[worker]
        if thread is not None:
            thread.join(timeout=1.0)
        if seat.ended_by is None:
            return "(a thread) stopped answering"
        return f"(a thread) was ended by {_worker_errors.last_line(seat.ended_by)}"

    def failed_start(self) -> None:
        """Threads always begin."""

    def sentinel(self, worker: int) -> int:
        """A descriptor that becomes ready when a worker ends."""
        sentinel = self._sentinels[worker]
        return -1 if sentinel is None else sentinel.fileno()

    def is_alive(self, worker: int) -> bool:
        """Whether a worker runs."""
        thread = self._threads[worker]
        return thread is not None and thread.is_alive()

    @property
    def processes(self) -> list[Any]:
        """There are none."""
        return []

    def batches(self, worker: int) -> Any:
        """What a worker that goes through a stream has handed over."""
        return self._seats[worker].batches

    def doing(self) -> str:
        """What the workers of a stream are at, as the end of a message."""
        return "".join(
            f"; worker thread {seat.worker} is at {seat.doing}" for seat in self._seats if seat.doing
        )

    def at_samples(self, under_way: list[tuple[int, str]]) -> str:
        """The same where the workers are asked for samples."""
        return "".join(f"; worker thread {worker} is at {name}" for worker, name in under_way)

    def refuse(self) -> None:
        """Starts no worker from now on, and lets none write to batches."""
        with self._lock:
            self._refusing = True
        for seat in self._seats:
            seat.close()

    def end(self) -> None:
        """Waits for workers that were hung up on, and says so if one does not end: nobody can end a thread."""
        self.refuse()
        deadline = time.monotonic() + END_SECONDS
        stuck = []
        try:
            for thread, seat in zip(self._threads, self._seats, strict=True):
                # The collector may come upon an abandoned loader in any thread, also in one of these.
                if thread is None or thread is threading.current_thread():
                    continue
                thread.join(timeout=max(0.0, deadline - time.monotonic()))
                if thread.is_alive():
                    stuck.append(f"worker thread {seat.worker} is at {seat.doing or 'worker_init_fn'}")
        finally:  # also when whoever waits is interrupted
            for sentinel in self._sentinels:
                if sentinel is not None:
                    sentinel.close()
        if stuck:
            warnings.warn(
                f"{', '.join(stuck)} and has not ended within {END_SECONDS:g} seconds. A thread cannot be ended from "
                "outside: it goes on until the sample is done, which is then dropped, and does not keep the process "
                'from exiting. multiprocessing_context="fork" gives workers that can be ended.',
                RuntimeWarning,
                stacklevel=2,
            )


def _live(
    run: Callable[..., None],
    dataset: Any,
    channel: socket.socket,
    options: WorkerOptions,
    seat: Seat,
    life: socket.socket,
) -> None:
    """The life of a worker thread; nothing here refers to the pool, so that dropping it is possible."""
    # Whoever sees the channel closed may ask why at once, so that is known first.
    with life, channel:
        try:
            with contextlib.suppress(Hangup, BrokenPipeError, ConnectionResetError):
                run(dataset, channel, options, seat)
        except BaseException as error:  # such as SystemExit, which in a process would end the process
            seat.ended_by = error
        seat.doing = ""
