"""Every test of streams must leave as many processes as it found."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["*.py"]


@pytest.fixture(autouse=True)
def no_processes_left(no_other_workers: None) -> None:
    pass
