"""Agents that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .serving import Agent


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    started = Agent(tmp_path / "agent.sock")
    yield started
    if started.process.poll() is None:
        started.stop()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """Starts agents with options of their own."""
    started: list[Agent] = []

    def start(*options: str) -> Agent:
        started.append(Agent(tmp_path / f"{len(started)}.sock", *options))
        return started[-1]

    yield start
    for agent in started:
        assert agent.stop()[0] == 0
