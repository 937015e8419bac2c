"""A host agent for as long as a benchmark needs one."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.worker import ContenderError


class Agent:
    """`sutler serve` in a process of its own."""

    def __init__(self, socket: Path, *words: object) -> None:
        self.socket = str(socket)
        command = ["serve", "--socket", self.socket, "--json", *map(str, words)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sutler", *command], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        if not json.loads(self._process.stdout.readline() or "{}").get("ready"):
            self.end()
            raise ContenderError(f"the agent did not start: `sutler {' '.join(command)}`")

    @property
    def pid(self) -> int:
        return self._process.pid

    def status(self) -> dict[str, Any]:
        """What it is doing, for all its clients."""
        from sutler import _sutler

        facts: dict[str, Any] = json.loads(_sutler.agent_status(self.socket))
        return facts

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def serving(*words: object) -> Iterator[Agent]:
    """An agent with these arguments, on a socket of its own."""
    with tempfile.TemporaryDirectory(prefix="sutler-bench-") as folder:
        agent = Agent(Path(folder) / "agent.sock", *words)
        try:
            yield agent
        finally:
            agent.end()
