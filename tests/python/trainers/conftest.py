"""Programs that use the trainers' libraries, started without importing these each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

WARM = Path(__file__).with_name("warm.py")

#: How long programs may take.
PATIENCE = 240.0

#: One core for each process, no network, and no accelerator.
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "ACCELERATE_USE_CPU": "true",
    "JAX_PLATFORMS": "cpu",
}


@dataclass
class Program:
    """A file to run, with its arguments."""

    command: Sequence[str | Path]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Ended:
    """How a program ended, and what it wrote."""

    code: int
    output: str
    errors: str

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.output[-4000:]}\n{self.errors[-8000:]}"


#: What PyTorch says now and then when a process ends whose group has been destroyed. Programs that do nothing but train
#: a model with DistributedDataParallel over gloo, without Sutler, end like this as well: one in six did.
ABORTED = "terminate called without an active exception"


def run_command(words: Sequence[str | Path], folder: Path) -> Ended:
    """Runs Python with these words on its command line."""
    ended = subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        cwd=folder,
        env={**os.environ, **SETTINGS},
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


#: Runs programs at the same time and returns how each ended.
RunPrograms = Callable[[Sequence[Program]], list[Ended]]


@pytest.fixture(scope="session")
def run_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunPrograms]:
    """Runs programs in processes for which the libraries are there already; see `warm.py`."""
    outputs = tmp_path_factory.mktemp("outputs")
    with subprocess.Popen(
        [sys.executable, str(WARM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **SETTINGS},
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        stdin, stdout = server.stdin, server.stdout
        written = 0

        def run(programs: Sequence[Program]) -> list[Ended]:
            nonlocal written
            requests: list[dict[str, Any]] = []
            for program in programs:
                written += 1
                requests.append(
                    {
                        "command": [str(word) for word in program.command],
                        "folder": str(program.folder),
                        "environment": program.environment,
                        "output": str(outputs / f"{written}.out"),
                        "errors": str(outputs / f"{written}.err"),
                    }
                )
            print(json.dumps({"programs": requests, "seconds": PATIENCE}), file=stdin, flush=True)
            answer = stdout.readline()
            assert answer, f"{WARM.name} has ended with {server.wait()}"
            return [
                Ended(
                    code, *(Path(request[name]).read_text(errors="replace") for name in ("output", "errors"))
                )
                for code, request in zip(json.loads(answer), requests, strict=True)
            ]

        yield run
        server.kill()  # it has nothing to finish
