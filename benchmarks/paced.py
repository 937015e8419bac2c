"""Training jobs in processes of their own that take a step when they are told to.

Speeds are then what the one who tells them says, on a busy machine as on a quiet one: jobs of equal speed are given a
step each in every round. They need not go in lockstep: each may be a few steps behind what it was told.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks.contenders.base import MEAN, STD
from benchmarks.worker import ContenderError

#: How many steps a job may be behind.
SLACK = 2

_ROOT = Path(__file__).parent.parent


class PacedJob:
    """One job: a process with a loader in shared order that goes over the dataset again and again."""

    def __init__(self, root: Path, socket: str, *, seed: int, batch_size: int, size: int) -> None:
        settings = {
            "root": str(root),
            "socket": socket,
            "seed": seed,
            "batch_size": batch_size,
            "size": size,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.paced", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=_ROOT,
        )
        self._behind = 0
        self.samples = 0
        #: Epochs that it has finished, each with every sample once; the job itself checks that.
        self.epochs = 0
        self._answer()

    def step(self) -> None:
        """One more batch."""
        if self._behind >= SLACK:
            self._take_answer()
        self._tell("step")
        self._behind += 1

    def catch_up(self) -> None:
        """Waits until every step is taken."""
        while self._behind:
            self._take_answer()

    def stats(self) -> dict[str, Any]:
        """What `Loader.stats()` says."""
        self.catch_up()
        self._tell("stats")
        return self._answer()

    def orders(self) -> list[list[int]]:
        """The samples of the epochs that it has finished, in the order in which they came."""
        self.catch_up()
        self._tell("orders")
        found: list[list[int]] = self._answer()["orders"]
        return found

    def kill(self) -> None:
        """Ends it as an out-of-memory killer would."""
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.communicate()

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")

    def _take_answer(self) -> None:
        answer = self._answer()
        self._behind -= 1
        self.samples += answer["samples"]
        self.epochs = answer["epochs"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ContenderError("a job ended by itself; what it said stands above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def run_rounds(jobs: Sequence[PacedJob], rounds: int, speeds: Sequence[int] | None = None) -> None:
    """Gives every job a step in each round, or as many as its speed says, and waits until all are taken."""
    for _ in range(rounds):
        for job, speed in zip(jobs, speeds or [1] * len(jobs), strict=True):
            for _ in range(speed):
                job.step()
    for job in jobs:
        job.catch_up()


def pipeline(size: int) -> Any:
    """What these jobs do to a sample; who is to share with them does the same."""
    from sutler import transforms as T  # noqa: N812 (the name that torchvision's users expect)

    crop = T.RandomResizedCrop(size, scale=(0.5, 1.0), ratio=(1.0, 1.0))
    return T.Compose([crop, T.Normalize(MEAN, STD)])


def attached_loader(
    root: Path,
    socket: str,
    *,
    seed: int,
    batch_size: int,
    size: int,
    order: Literal["strict", "shared"],
) -> Any:
    """A loader that an agent works for. All that have the same size do the same to their samples."""
    import sutler

    return sutler.Loader(
        sutler.ImageFolder(root, transform=pipeline(size), progress=False),
        batch_size=batch_size,
        shuffle=True,
        seed=seed,
        agent=socket,
        order=order,
        output="numpy",
        return_ids=True,
    )


def _serve(settings: dict[str, Any]) -> None:
    loader = attached_loader(Path(settings.pop("root")), **settings, order="shared")
    everything = list(range(len(loader.dataset)))
    orders: list[list[int]] = []
    epoch: list[int] = []
    batches = iter(loader)

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), flush=True)

    say({"ready": True})
    for line in sys.stdin:
        match line.strip():
            case "step":
                batch = next(batches)
                epoch += batch[2].tolist()
                if len(epoch) >= len(everything):
                    if sorted(epoch) != everything or next(batches, None) is not None:
                        raise ContenderError(f"epoch {len(orders)} did not have every sample once")
                    orders.append(epoch)
                    epoch = []
                    batches = iter(loader)
                say({"samples": len(batch[2]), "epochs": len(orders)})
            case "stats":
                say(loader.stats())
            case "orders":
                say({"orders": orders})
            case other:
                raise ValueError(f"a paced job was told {other!r}")


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
