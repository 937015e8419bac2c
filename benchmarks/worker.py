"""One process per contender.

Contenders must not share a process: threads of one would be forked into the workers of another, and allocators, thread
pools and interpreter locks would mix. A contender waits on its pipe while another has its turn.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from benchmarks.contenders import CONTENDERS, Epoch, Settings, load


class ContenderError(RuntimeError):
    """A contender failed; the message says how."""


class Delivered(Protocol):
    """What is known of an epoch that somebody delivered."""

    @property
    def samples(self) -> int:
        """How many samples it had."""

    @property
    def label_sum(self) -> int | None:
        """What their labels add up to; ``None`` of a contender that cannot tell."""


def check_delivered(epochs: Mapping[str, Sequence[Delivered]], samples: int) -> None:
    """Raises unless every epoch of every contender had all samples: or a rate means nothing."""
    every = [epoch for of_one in epochs.values() for epoch in of_one]
    counts = {epoch.samples for epoch in every}
    sums = {epoch.label_sum for epoch in every} - {None}
    if counts != {samples} or len(sums) > 1:
        raise ContenderError(
            f"the contenders did not deliver the same samples: {sorted(counts)} of {samples} samples, "
            f"labels adding up to {sorted(sums, key=str)}"
        )


class Direct:
    """A contender in this process, and what one may ask of it."""

    def __init__(self, name: str, settings: Settings) -> None:
        contender = load(name)
        self.pid = os.getpid()
        started = time.perf_counter()
        self._contender = contender(settings)
        #: Seconds for listing the files, and for the whole construction with it.
        self.construction_seconds = time.perf_counter() - started
        self.listing_seconds = self._contender.listing_seconds

    def epoch(self, number: int) -> Epoch:
        return self._contender.epoch(number)

    def first_batch(self) -> float:
        return self._contender.first_batch()

    def facts(self) -> dict[str, Any]:
        return self._contender.facts()

    def resident_bytes(self) -> int:
        """The memory that this process holds."""
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise OSError("the kernel does not say how much memory this process holds")

    def close(self) -> None:
        """Nothing to end: the process goes on."""


class Worker:
    """A contender in a process of its own: asks there what one may ask of :class:`Direct`."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.title = CONTENDERS[name].title
        # Started afresh, not forked: a child must not inherit what this process has imported.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, settings))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        theirs.close()
        self.listing_seconds, self.construction_seconds = self._receive()

    def epoch(self, number: int) -> Epoch:
        result: Epoch = self._ask("epoch", number)
        return result

    def first_batch(self) -> float:
        result: float = self._ask("first_batch")
        return result

    def resident_bytes(self) -> int:
        result: int = self._ask("resident_bytes")
        return result

    def facts(self) -> dict[str, Any]:
        result: dict[str, Any] = self._ask("facts")
        return result

    def _ask(self, question: str, *arguments: Any) -> Any:
        self._connection.send((question, arguments))
        return self._receive()

    def _receive(self) -> Any:
        try:
            failed, answer = self._connection.recv()
        except EOFError:
            self._process.join()
            raise ContenderError(
                f"{self.title} ended without an answer (exit code {self._process.exitcode})"
            ) from None
        if failed:
            raise ContenderError(f"{self.title} failed:\n{answer}")
        return answer

    def close(self) -> None:
        self._connection.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


def _serve(connection: Connection, name: str, settings: Settings) -> None:
    """Answers questions until the other side is gone."""
    try:
        direct = Direct(name, settings)
        connection.send((False, (direct.listing_seconds, direct.construction_seconds)))
        while True:
            question, arguments = connection.recv()
            connection.send((False, getattr(direct, question)(*arguments)))
    except (EOFError, BrokenPipeError):
        return
    except Exception:
        connection.send((True, traceback.format_exc()))
