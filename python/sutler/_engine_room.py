"""What a loader's epochs run on: the engine's threads, the job with its memory, and the workers behind them."""

from __future__ import annotations

import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

from sutler import _sutler
from sutler._arguments import is_cuda
from sutler._backend import Backend, end_all
from sutler._cuda import BATCHES_AHEAD, PinnedArena

if TYPE_CHECKING:
    from sutler.loader import Loader

#: With ``num_workers="auto"``, the most threads to a core: those that wait for storage take none.
THREADS_MAX = 8
#: The same for worker processes, each of which takes memory besides.
PROCESSES_MAX = 4

#: Delivered batches for which memory is kept ready: the one in use and the one just before it.
BATCHES_HELD = 2


class EngineRoom:
    """Threads, workers and memory: made when first needed, again after a fork, and anew when they no longer fit.

    Only its loader refers to it, so that dropping the loader ends all of them.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.engine: _sutler.Engine | None = None
        self.job: _sutler.Job | None = None
        #: Whether the job was made for several ranks, so that it may not leave a batch out.
        self._in_step = False
        #: The ``num_workers`` that the engine was made for.
        self._team = 0
        self._pinned: PinnedArena | None = None
        self._owner = os.getpid()
        self._abandoned: weakref.finalize[..., EngineRoom] | None = None

    @property
    def is_here(self) -> bool:
        """Whether what was made belongs to this process, rather than to one that this was forked from."""
        return self._owner == os.getpid()

    def enter_epoch(self, loader: Loader, batch_size: int) -> tuple[_sutler.Engine, _sutler.Job]:
        """The engine and the job for an epoch that is about to begin."""
        if not self.is_here:
            # A forked child has none of the threads, and their locks may be held for ever: start afresh.
            self._owner = os.getpid()
            self.engine = self.job = self._pinned = None
            self._backend.forget()
            loader._forget_parent()
        job = self.job or self._make_job(loader, batch_size)
        engine = self.engine or self._make_engine(loader, job)
        self._backend.enter_epoch(loader, job)
        return engine, job

    def _make_job(self, loader: Loader, batch_size: int) -> _sutler.Job:
        held = BATCHES_HELD + (2 * BATCHES_AHEAD if loader.device is not None else 0)
        ahead = loader._batches_ahead(batch_size)
        self._in_step = loader.world_size > 1
        pinned = loader.pin_memory or is_cuda(loader.device)
        # Memory that is registered with the device is taken whether or not it is used, so there is none to grow into.
        # Batches of worker processes are not in such memory.
        grows = loader._ahead_grows and not (pinned and loader._has_native_threads())
        self.job = self._backend.make_job(batch_size, ahead, held, grows=grows, in_step=self._in_step)
        if pinned and self.job.arena is not None:
            self._pinned = PinnedArena(*self.job.arena)
        return self.job

    def _make_engine(self, loader: Loader, job: _sutler.Job) -> _sutler.Engine:
        self._team = loader.num_workers
        if self._backend.agent is not None:
            self.engine = _sutler.Engine(0)
        elif loader._auto_workers == loader.num_workers:
            self.engine = _sutler.Engine(self._team, loader._most_workers())
        else:
            self.engine = _sutler.Engine(self._team)
        # Threads that run on their own end with their engine. Those with a worker process each must be waited for: they
        # call Python when one dies, which nobody may do once the interpreter is on the way out.
        if not loader._has_native_threads():
            self._abandoned = weakref.finalize(self, end_all, self._backend, self.engine, job, self._owner)
        return self.engine

    def end_what_is_outdated(self, loader: Loader) -> None:
        """Ends threads and workers of another number than the loader is to have now, and a job of another world.

        Users may change ``num_workers`` between two epochs, and a process group may come after the first one. Where
        another epoch is still under way, what it runs on serves the next one, too.
        """
        engine, job = self.engine, self.job
        if engine is None or job is None or not self.is_here or loader._is_under_way():
            return
        other_team = self._backend.agent is None and self._team != loader.num_workers
        other_world = self._in_step != (loader.world_size > 1)
        if not other_team and not other_world:
            return
        loader._remember_figures()
        if not loader._has_native_threads():
            self._end(engine, job)
            return
        if other_team:
            engine.close()
            self.engine = None
        if other_world:
            self._backend.hang_up(job)
            self._unpin()
            self.job = None

    def workers(self, loader: Loader) -> int:
        """How many threads prepare, or will."""
        if self.engine is not None and self.is_here and loader._auto_workers == self._team:
            return self.engine.threads
        return loader.num_workers

    def worker_changes(self) -> list[dict[str, Any]]:
        """How the number of threads came about where it follows the demand."""
        if self.engine is None or not self.is_here:
            return []
        return [
            {"seconds": seconds, "workers": workers, "reason": reason}
            for seconds, workers, reason in self.engine.crew_changes()
        ]

    def close(self) -> None:
        """Ends everything; batches already delivered stay valid."""
        if self.is_here:
            if self.engine is not None and self.job is not None:
                self._end(self.engine, self.job)
            self._unpin()
        self.engine = self.job = self._pinned = None

    def _end(self, engine: _sutler.Engine, job: _sutler.Job) -> None:
        if self._abandoned is not None:
            self._abandoned.detach()
        end_all(self._backend, engine, job, self._owner)
        self.engine = self.job = None

    def _unpin(self) -> None:
        pinned, self._pinned = self._pinned, None
        if pinned is not None:
            pinned.close()

    def __del__(self) -> None:
        if not sys.is_finalizing() and self.is_here:
            self._unpin()
