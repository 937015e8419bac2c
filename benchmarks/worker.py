"""One process per contender.

Contenders must not share a process: threads of one would be forked into the workers of another, and allocators, thread
pools and interpreter locks would mix. A contender waits on its pipe while another has its turn.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.contenders import CONTENDERS, Epoch, Settings, load, make


class ContenderError(RuntimeError):
    """A contender failed; the message says how."""


class Worker:
    """A contender in a process of its own."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.title = CONTENDERS[name].title
        # Started afresh, not forked: a child must not inherit what this process has imported.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, settings))
        self._process.start()
        theirs.close()
        #: Seconds for listing the files, and for the whole construction with it.
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

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("the kernel does not say how much memory this process holds")


def _serve(connection: Connection, name: str, settings: Settings) -> None:
    """Answers questions until the other side is gone."""
    try:
        load(name)
        started = time.perf_counter()
        contender = make(name, settings)
        connection.send((False, (contender.listing_seconds, time.perf_counter() - started)))
        answers: dict[str, Any] = {
            "epoch": contender.epoch,
            "first_batch": contender.first_batch,
            "facts": contender.facts,
            "resident_bytes": _resident_bytes,
        }
        while True:
            question, arguments = connection.recv()
            connection.send((False, answers[question](*arguments)))
    except (EOFError, BrokenPipeError):
        return
    except Exception:
        connection.send((True, traceback.format_exc()))
