"""What code in a worker can find out about where it runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from sutler._worker_rng import WorkerRng


@dataclass
class WorkerInfo:
    """A worker, as `get_worker_info` describes it: the fields of PyTorch's `WorkerInfo`."""

    id: int
    num_workers: int
    seed: int
    dataset: Any
    #: Generators that no other worker draws from, for every sample seeded anew.
    rng: WorkerRng
    #: "multiprocessing" or "thread".
    worker_method: str = "multiprocessing"


#: What this process is a worker of.
_current: WorkerInfo | None = None

#: What this thread is a worker of, and the same for PyTorch. Threads that a worker starts inherit it on free-threaded
#: Python, as those in a worker process see what the process is.
_thread: ContextVar[WorkerInfo | None] = ContextVar("sutler_worker", default=None)
_torchs_thread: ContextVar[Any] = ContextVar("sutler_torch_worker", default=None)

_patching = threading.Lock()


def get_worker_info() -> Any:
    """In a worker its `id`, `num_workers`, `seed`, `dataset`, `rng` and `worker_method`; `None` in the trainer.

    A worker process has a copy of the dataset, and so has a worker thread that goes through a stream; other threads
    share the trainer's. `rng` has generators that are the worker's own and start anew for every sample:
    `random_generator`, `numpy_generator` and `torch_generator`. `worker_method` is `"multiprocessing"` or `"thread"`.

    PyTorch's `torch.utils.data.get_worker_info` tells the same inside Sutler's workers.
    """
    info = _thread.get() or _current
    if info is not None:
        return info
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data.get_worker_info() if torch_data is not None else None


def enter_worker(info: WorkerInfo) -> None:
    """Makes this process a worker, for our `get_worker_info` and PyTorch's."""
    global _current
    _current = info
    worker: Any = sys.modules.get("torch.utils.data._utils.worker")
    if worker is not None:
        worker._worker_info = _as_torchs(worker.WorkerInfo, info)


def enter_thread(info: WorkerInfo) -> None:
    """Makes this thread a worker, for our `get_worker_info` and PyTorch's."""
    _thread.set(info)
    worker: Any = sys.modules.get("torch.utils.data._utils.worker")
    if worker is not None:
        _teach_torch(worker)
        _torchs_thread.set(_as_torchs(worker.WorkerInfo, info))


def _as_torchs(cls: Any, info: WorkerInfo) -> Any:
    """The same in PyTorch's class, whose last two fields came later."""
    values = {field.name: getattr(info, field.name) for field in fields(info)}
    known = {field.name for field in fields(cls)} if is_dataclass(cls) else set(values)
    return cls(**{name: value for name, value in values.items() if name in known})


def _teach_torch(worker: Any) -> None:
    """Lets PyTorch's `get_worker_info` know of threads.

    It reads a variable that the whole process has, so a thread cannot have its own there; and others hold the function
    itself, by a name of theirs. So what changes is what the function does.
    """
    with _patching:
        function = worker.get_worker_info
        if function.__code__ is not _torchs_get_worker_info.__code__:
            function.__code__ = _torchs_get_worker_info.__code__


def _torchs_get_worker_info() -> Any:
    # Runs in PyTorch's module, so nothing of this one has a name there.
    import sutler._worker_info

    found = sutler._worker_info._torchs_thread.get()
    return globals()["_worker_info"] if found is None else found


@contextmanager
def as_if_no_worker() -> Iterator[None]:
    """Lets PyTorch's own code believe for a while that it runs in the trainer."""
    worker: Any = sys.modules.get("torch.utils.data._utils.worker")
    if worker is None:
        yield
    elif _thread.get() is not None:
        token = _torchs_thread.set(None)
        try:
            yield
        finally:
            _torchs_thread.reset(token)
    else:
        info, worker._worker_info = worker._worker_info, None
        try:
            yield
        finally:
            worker._worker_info = info
