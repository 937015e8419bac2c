"""Starts, replaces and ends the worker processes of a loader."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from sutler import _fork_server
from sutler._interrupts import interrupts_put_off
from sutler._worker import WorkerOptions, run_worker
from sutler.errors import WorkerStartError

#: How long workers may take to end by themselves before they are killed.
END_SECONDS = 5.0

#: The same where one was lost: whoever is to be told of it waits for the others to end. And for one that has not begun:
#: it cannot see that it was hung up on before it has imported what it takes, and has nothing to lose.
END_SECONDS_AT_ONCE = 0.5


class WorkerPool:
    """The worker processes of one loader, and the sockets to them."""

    def __init__(
        self,
        dataset: Any,
        options: WorkerOptions,
        context: Any,
        run: Callable[..., None] = run_worker,
        *,
        may_shrink: bool = False,
        state_of: Callable[[int], bytes | None] | None = None,
    ) -> None:
        self._run = run
        self._may_shrink = may_shrink
        #: What a worker's copy of the dataset is to begin from, where it has a state of its own.
        self._state_of = state_of
        self._dataset = dataset
        self._options = options
        self._context: Any = context or multiprocessing.get_context()
        self._lock = threading.Lock()
        self._processes: list[Any] = [None] * options.num_workers
        #: Where each worker tells that it has begun; none once it has.
        self._beginnings: list[Connection | None] = [None] * options.num_workers
        #: How workers ended that had not begun, until they are replaced.
        self._never_began: dict[int, str] = {}
        #: Workers that were killed before they had begun, and were given another chance.
        self._second_tries: set[int] = set()
        self._refusing = False

    def connect(self, worker: int, dataset_state: bytes | None = None) -> tuple[int, None, int]:
        """Starts (or replaces) a worker: the descriptor of the socket to it, nothing else between us, and its pid."""
        if not self._may_begin(worker):
            raise RuntimeError("workers cannot begin")
        descriptor = self.start(worker, dataset_state)
        return descriptor, None, self._processes[worker].pid

    def start(self, worker: int, dataset_state: bytes | None = None) -> int:
        """Starts (or replaces) a worker and returns the descriptor of the socket to it."""
        with interrupts_put_off(), self._lock:
            if self._refusing:
                raise RuntimeError("the workers are being ended")
            traces = _traces(self._context)
            beginning, began = multiprocessing.Pipe(duplex=False)
            state = dataset_state or (None if self._state_of is None else self._state_of(worker))
            options = dataclasses.replace(
                self._options, worker=worker, traces=traces, began=began, dataset_state=state
            )
            ours, theirs = multiprocessing.Pipe(duplex=True)
            process = self._context.Process(
                target=self._run,
                args=(self._dataset, theirs, options),
                name=f"sutler-worker-{worker}",
                daemon=True,
            )
            try:
                with _interrupts_blocked(self._context):
                    process.start()
            except (EOFError, ConnectionError) as error:
                if self._context.get_start_method() != "forkserver":
                    raise
                # From Python 3.14 on the server itself imports the main module, and ends where that raises.
                raise WorkerStartError(
                    f"Python's fork server ended before it could start DataLoader worker {worker}; what it printed "
                    f"says why. {_start_advice(self._context)} num_workers=0 loads in this process."
                ) from error
            theirs.close()
            began.close()
            self._processes[worker] = process
            self._beginnings[worker] = beginning
            self._never_began.pop(worker, None)
            descriptor = os.dup(ours.fileno())
            ours.close()
            return socket.socket(fileno=descriptor).detach()

    def post_mortem(self, worker: int) -> str:
        """How a worker ended, as the end of a sentence."""
        process = self._processes[worker]
        process.join(timeout=1.0)
        if process.exitcode is None:
            return "stopped answering"
        story = _how_it_ended(process)
        if not self._has_begun(worker):
            self._never_began[worker] = story
        return story

    def _has_begun(self, worker: int) -> bool:
        beginning = self._beginnings[worker]
        # One that ended without a word is at the end of what it has to say.
        with contextlib.suppress(EOFError):
            if beginning is not None and beginning.poll():
                beginning.recv_bytes()
                self._beginnings[worker] = None
        return self._beginnings[worker] is None

    def _may_begin(self, worker: int) -> bool:
        """Whether to start a worker; not where its predecessor could not begin, as it would fare no better.

        One that was killed meanwhile gets a second try: that may have been chance.
        """
        if worker not in self._never_began:
            self._second_tries.discard(worker)
            return True
        if self._processes[worker].exitcode >= 0 or worker in self._second_tries:
            return False
        self._second_tries.add(worker)
        return True

    def failed_start(self) -> WorkerStartError | None:
        """What to raise where a worker died before it had begun, and was not replaced."""
        lost = sorted(self._never_began.items())
        if not lost:
            return None
        worker, story = lost[0]
        return WorkerStartError(
            f"DataLoader worker {worker} {story} before it could take its first sample; what it printed says why. "
            f"{_start_advice(self._context)} num_workers=0 loads in this process."
        )

    def has_lost_one(self) -> bool:
        """Whether a worker has died; one that was told to end, as happens where their number changes, has not."""
        codes = [process.exitcode for process in self.processes]
        return any(code is not None and (code != 0 or not self._may_shrink) for code in codes)

    def sentinel(self, worker: int) -> int:
        """A descriptor that becomes ready when a worker ends."""
        return int(self._processes[worker].sentinel)

    def is_alive(self, worker: int) -> bool:
        """Whether a worker runs."""
        return bool(self._processes[worker].is_alive())

    @property
    def processes(self) -> list[Any]:
        """The workers that were started, as multiprocessing knows them."""
        return [process for process in self._processes if process is not None]

    def doing(self) -> str:
        """What the workers of a stream are at, as the end of a message: nobody knows."""
        return ""

    def at_samples(self, under_way: list[tuple[int, str]]) -> str:
        """What the workers are at, as the end of a message."""
        return "".join(
            f"; worker {worker} (pid {self._processes[worker].pid}) "
            + (f"is at {name}" if self._has_begun(worker) else "has not begun yet")
            for worker, name in under_way
        )

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [process.pid for process in self.processes]

    def refuse(self) -> None:
        """Starts no worker from now on."""
        with self._lock:
            self._refusing = True

    def end(self) -> None:
        """Waits for workers that were hung up on, and kills those that do not end."""
        self.refuse()
        processes = self.processes
        lost_one = any(process.exitcode not in (None, 0) for process in processes)
        now = time.monotonic()
        soon, late = now + END_SECONDS_AT_ONCE, now + END_SECONDS
        try:
            for worker, process in enumerate(self._processes):
                if process is not None:
                    deadline = soon if lost_one or not self._has_begun(worker) else late
                    process.join(timeout=max(0.0, deadline - time.monotonic()))
        finally:  # also when whoever waits is interrupted
            for process in processes:
                if process.is_alive():
                    process.kill()
            for process in processes:
                process.join()


def _how_it_ended(process: Any) -> str:
    code = process.exitcode
    if code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else "unknown"
        return f"(pid {process.pid}) was killed by signal {-code} ({name})"
    return f"(pid {process.pid}) ended with exit code {code}"


def _start_advice(context: Any) -> str:
    method = context.get_start_method()
    if method == "fork":
        return (
            "Look at worker_init_fn, for an out-of-memory kill, and for threads that draw random numbers while workers "
            "are forked: one that is just drawing leaves the generator locked in them."
        )
    return (
        f"Workers that are started by {method!r} import the main module anew: a script has to iterate over its loaders "
        'under `if __name__ == "__main__":`, and what the dataset consists of has to be importable there.'
    )


@contextlib.contextmanager
def _interrupts_blocked(context: Any) -> Iterator[None]:
    """What is started meanwhile begins with Ctrl-C blocked: it could not yet ignore it, and would print a traceback."""
    if context.get_start_method() == "forkserver":
        yield  # its processes are no children of ours, and it must not pass this on to those of others
        return
    if context.get_start_method() == "spawn":
        resource_tracker.ensure_running()  # started here for the first time, it would lift the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _traces(context: Any) -> tuple[str, ...]:
    """The files that Python keeps for starting processes, and deletes unless it is killed."""
    if context.get_start_method() != "forkserver":
        return ()
    address = _fork_server.start()
    return () if address is None else (address,)
