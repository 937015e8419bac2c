"""A host agent in a process of its own, its clients, and what they compare."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sutler
import sutler.testing
from sutler import _sutler
from sutler import transforms as T  # noqa: N812 - as users write it


class Agent:
    """`sutler serve` in a process of its own."""

    def __init__(self, socket: Path, *options: str) -> None:
        self.socket = socket
        self.options = options
        self.start()

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "sutler",
            "serve",
            "--socket",
            self.socket,
            "--threads",
            "2",
            "--json",
            *self.options,
        ]
        self.process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        #: Where it serves.
        self.ready: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert (self.ready["ready"], self.ready["socket"]) == (True, str(self.socket))

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def pause(self) -> None:
        """Stops it until it is told to go on; what it was at when it was told goes on for a moment."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def stop(self, signal_number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(signal_number)
        _, errors = self.process.communicate(timeout=120)
        return self.process.returncode, errors

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(_sutler.agent_status(self.socket))
        return found

    def jobs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.status()["jobs"]
        return found

    def datasets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.status()["shared"]["datasets"]
        return found

    def wait_for(self, condition: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 120
        while not condition(jobs := self.jobs()):
            assert time.monotonic() < deadline, jobs
            time.sleep(0.02)
        return jobs


TRANSFORM = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToDtype("float32")])


def dataset(folder: Path, transform: Any = TRANSFORM) -> sutler.ImageFolder:
    return sutler.ImageFolder(folder, transform=transform)


def batches(loader: sutler.Loader) -> list[tuple[Any, ...]]:
    return [tuple(np.array(part) for part in batch) for batch in loader]


def assert_same(one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> None:
    assert len(one) == len(other)
    for ours, theirs in zip(one, other, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


COMMON: dict[str, Any] = {"batch_size": 4, "shuffle": True, "output": "numpy", "return_ids": True}


SHARED: dict[str, Any] = {**COMMON, "order": "shared"}


def client(script: str, *arguments: object) -> subprocess.Popen[str]:
    """A training process that prints as it goes."""
    prelude = """
        import os, signal, sys, time
        # Whoever runs the tests in the background may have had Ctrl-C ignored, and children inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        import sutler
        from sutler import transforms as T
        folder, socket = sys.argv[1:3]
        data = sutler.ImageFolder(folder, transform=T.Compose([T.Resize([32, 32])]))
        def loader(**arguments):
            return sutler.Loader(data, batch_size=4, output="numpy", return_ids=True, agent=socket, **arguments)
    """
    code = textwrap.dedent(prelude) + textwrap.dedent(script)
    command = [sys.executable, "-u", "-c", code, *map(str, arguments)]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, **pipes, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def take_turns(loaders: list[sutler.Loader], epochs: int) -> list[list[dict[int, bytes]]]:
    """Epochs of several loaders, a batch of each in turn: for each loader and epoch the bytes of every sample."""
    found: list[list[dict[int, bytes]]] = []
    for _ in range(epochs):
        iterators = [iter(loader) for loader in loaders]
        epoch: list[dict[int, bytes]] = [{} for _ in loaders]
        running = list(range(len(loaders)))
        while running:
            for number in list(running):
                batch = next(iterators[number], None)
                if batch is None:
                    running.remove(number)
                    continue
                images, _, ids = batch
                for index, image in zip(ids.tolist(), images, strict=True):
                    assert index not in epoch[number], "twice in an epoch"
                    epoch[number][index] = image.tobytes()
        found.append(epoch)
    return found
