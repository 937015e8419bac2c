"""What code in a worker process can find out about where it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class WorkerInfo:
    """A worker process, as `get_worker_info` describes it: the fields of PyTorch's `WorkerInfo`."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_current: WorkerInfo | None = None


def get_worker_info() -> Any:
    """In a worker process its `id`, `num_workers`, `seed` and copy of the `dataset`; `None` in the trainer.

    PyTorch's `torch.utils.data.get_worker_info` tells the same inside Sutler's workers.
    """
    if _current is not None:
        return _current
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data.get_worker_info() if torch_data is not None else None


def enter_worker(info: WorkerInfo) -> None:
    """Makes this process a worker, for our `get_worker_info` and PyTorch's."""
    global _current
    _current = info
    worker: Any = sys.modules.get("torch.utils.data._utils.worker")
    if worker is not None:
        worker._worker_info = worker.WorkerInfo(
            id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=info.dataset
        )


@contextmanager
def as_if_no_worker() -> Iterator[None]:
    """Lets PyTorch's own code believe for a while that it runs in the trainer."""
    worker: Any = sys.modules.get("torch.utils.data._utils.worker")
    if worker is None:
        yield
        return
    info, worker._worker_info = worker._worker_info, None
    try:
        yield
    finally:
        worker._worker_info = info
