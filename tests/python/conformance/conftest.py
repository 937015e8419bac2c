"""Gives each test both loaders, a limit to its time, and a look at what processes it leaves behind."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from . import processes
from .differences import DIFFERENCES

#: Seconds that a test may take. Most take a fraction of one; a loader that hangs should not take CI with it.
TIME_LIMIT = 150.0

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["*.py"]


@pytest.fixture(params=["torch", "sutler"])
def loader_class(request: pytest.FixtureRequest) -> Any:
    """``torch.utils.data.DataLoader`` and ``sutler.Loader``."""
    if request.param == "torch":
        from torch.utils.data import DataLoader

        return DataLoader
    import sutler

    return sutler.Loader


@pytest.fixture
def load(loader_class: Any) -> Callable[..., Any]:
    """Makes a loader whose workers are forked unless the test says otherwise: each fresh one would import torch."""

    def make(dataset: Any, *arguments: Any, **options: Any) -> Any:
        if options.get("num_workers"):
            options.setdefault("multiprocessing_context", "fork")
        return loader_class(dataset, *arguments, **options)

    return make


@pytest.fixture
def differs(loader_class: Any) -> Callable[[str], bool]:
    """Whether this loader is the one that departs from PyTorch in the way of that name."""

    def look_up(name: str) -> bool:
        return name in DIFFERENCES and loader_class.__module__.startswith("sutler")

    return look_up


@pytest.fixture(autouse=True)
def within_time() -> Iterator[None]:
    """Raises in a test that hangs, and again each second, in case the first is swallowed."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test took more than {TIME_LIMIT:g} seconds")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT, 1.0)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)


@pytest.fixture(autouse=True)
def no_processes_left(within_time: None) -> Iterator[None]:
    """Every test must leave as many processes as it found."""
    before = processes.children()
    yield
    left = processes.wait_until_gone(processes.children() - before)
    assert not left, f"{len(left)} worker processes outlive the loader"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What PyTorch's iterators say in their finalizers is PyTorch's business."""
    for item in items:
        if "conformance" in item.nodeid and "torch" in item.name:
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
