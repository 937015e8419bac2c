"""One round: a training job drawn from a seed, what is done to it and when, and what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TRAINER = Path(__file__).with_name("trainer.py")
#: Every process of a round has this in its environment, whoever its parent is by then.
MARK = "SUTLER_LEFT_BEHIND"
#: What the thread is called by which a worker watches its trainer; the kernel keeps 15 characters.
WATCH = "sutler-lifeline"
#: What the command of Python's fork server, and of all it forks, says.
SERVER = "multiprocessing.forkserver"
#: How long a job may take to come to its end, whatever was done to it. Workers that do not end get five seconds first.
END_SECONDS = 60.0
#: How long a worker may stay after the trainer, and how long anything may. A process that is still starting finds out
#: when it has imported what it needs, which takes its time on a busy machine. Samples that are stuck take far longer.
GONE_SECONDS = 20.0
STARTED_SECONDS = 60.0

#: What may be done to a job, and the exit codes that are right afterwards. A job that was already done ends with 0.
DEEDS: dict[str, set[int]] = {
    "nothing": {0},
    "kill the trainer": {-signal.SIGKILL, 0},
    "terminate the trainer": {-signal.SIGTERM, 0},
    "interrupt the trainer": {-signal.SIGINT, 0},
    "interrupt the group": {-signal.SIGINT, 0},
    "interrupt the group twice": {-signal.SIGINT, 0},
    "stop and continue the trainer": {0},
    "stop and continue the group": {0},
    "kill a worker": {0, 3},
    "stop a worker and interrupt the trainer": {-signal.SIGINT, 0},
}
DEEDS_WITHOUT_WORKERS = [deed for deed in DEEDS if "worker" not in deed]
MOMENTS = ["starting", "epoch 0", "middle 0", "ending 0", "epoch 1", "middle 1", "ending 1", "closing"]


@dataclass(frozen=True)
class Round:
    """What a round is made of."""

    seed: int
    deed: str
    moment: str
    #: How long after the moment, in seconds.
    delay: float
    settings: dict[str, Any]

    @classmethod
    def drawn(cls, seed: int, photos: Path) -> Round:
        """The round of a seed."""
        draw = random.Random(seed)
        dataset = draw.choice(["map", "map", "stream", "stream", "native"])
        large = draw.random() < 0.3
        stuck = dataset != "native" and draw.random() < 0.15
        settings = {
            "dataset": dataset,
            "context": draw.choice(["fork", "spawn", "forkserver"]),
            "persistent": draw.random() < 0.5,
            "workers": draw.randint(1, 3),
            "samples": 41 if dataset == "native" else draw.choice([12, 60]),
            "batch_size": draw.choice([1, 4]),
            "sample_bytes": (4 << 20) if large else draw.choice([8, 4096]),
            "sample_seconds": draw.choice([0.0, 0.0, 0.003, 0.02]),
            "stuck_at": draw.randrange(12) if stuck else -1,
            "stuck_seconds": 600.0,
            "ragged": dataset != "native" and draw.random() < 0.3,
            "errors": draw.choice(["raise", "skip"]),
            "photos": str(photos),
            "photo_size": draw.choice([16, 224]),
        }
        deeds = DEEDS_WITHOUT_WORKERS if dataset == "native" else list(DEEDS)
        if stuck:  # it would wait for its sample, and rightly so
            ending = ("kill the trainer", "terminate", "interrupt")
            deeds = [deed for deed in deeds if any(word in deed for word in ending)]
        moment = draw.choice(["starting", "epoch 0"] if stuck else MOMENTS)
        span = draw.choice([0.0, 0.005, 0.05, 0.5])
        return cls(seed, draw.choice(deeds), moment, draw.uniform(0.0, span), settings)

    def __str__(self) -> str:
        return json.dumps(asdict(self), indent=1)


class Fault(AssertionError):  # noqa: N818 - the name the reports use
    """Something that should not be."""


def state_of(pid: int) -> tuple[str, int] | None:
    """A process's state and its parent; `None` for one that has ended."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state in "ZX" else (state, int(parent))


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def threads_of(pid: int) -> set[str]:
    """The names of a process's threads."""
    names = set()
    for file in Path(f"/proc/{pid}/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # one that has just ended
            names.add(file.read_text().strip())
    return names


def mapped_by(pid: int) -> set[str]:
    """The named shared memory that a process has."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line}


def marked(mark: str) -> list[int]:
    """The living processes of a round."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # one that has just ended, or is not ours to look at
            continue
        if wanted in environment and state_of(int(folder.name)) is not None:
            found.append(int(folder.name))
    return found


class Job:
    """The training job of a round, under way."""

    def __init__(self, each: Round, folder: Path) -> None:
        self.mark = f"{os.getpid()}-{each.seed}-{time.monotonic_ns()}"
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        #: When the deed was done: did Python's fork server run, and which shared memory had a name?
        self.had_server = False
        self.shared: set[str] = set()
        self.said: list[str] = []
        self._heard = threading.Condition()
        with (folder / "stderr").open("wb") as errors:
            self.trainer = subprocess.Popen(
                [sys.executable, str(TRAINER), json.dumps(each.settings)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env={**os.environ, MARK: self.mark, "TMPDIR": str(self.temporary)},
            )
        self.errors = folder / "stderr"
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.trainer.stdout is not None
        for line in self.trainer.stdout:
            with self._heard:
                self.said.append(line.strip())
                self._heard.notify_all()
        with self._heard:
            self.said.append("silence")
            self._heard.notify_all()

    def wait_for(self, moment: str) -> None:
        """Returns when the trainer has said so, or can say nothing any more."""
        with self._heard:
            if not self._heard.wait_for(lambda: {moment, "silence"} & set(self.said), END_SECONDS):
                raise Fault(f"it never came to `{moment}`; it said {self.said}\n{self.stacks()}")

    def workers(self) -> list[int]:
        """The workers that are there: those that watch their trainer."""
        return [pid for pid in marked(self.mark) if WATCH in threads_of(pid)]

    def worker(self) -> int | None:
        """One of the workers, as soon as there is one; `None` where none comes."""
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and self.trainer.poll() is None:
            if found := self.workers():
                return found[0]
        return None

    def signal(self, number: int, pid: int | None = None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid or self.trainer.pid, number)

    def signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.trainer.pid, number)

    def do(self, deed: str, pause: float) -> None:
        """Does to the job what the round says; `pause` lies between the two halves of a deed that has two."""
        pids = marked(self.mark)
        self.had_server = any(SERVER in command_of(pid) for pid in pids)
        self.shared = {name for pid in pids for name in mapped_by(pid)}
        acts: dict[str, Callable[[], None]] = {
            "nothing": lambda: None,
            "kill the trainer": lambda: self.signal(signal.SIGKILL),
            "terminate the trainer": lambda: self.signal(signal.SIGTERM),
            "interrupt the trainer": lambda: self.signal(signal.SIGINT),
            "interrupt the group": lambda: self.signal_group(signal.SIGINT),
        }
        if deed in acts:
            acts[deed]()
        elif deed == "interrupt the group twice":
            self.signal_group(signal.SIGINT)
            time.sleep(pause)
            self.signal_group(signal.SIGINT)
        elif deed == "stop and continue the trainer":
            self.signal(signal.SIGSTOP)
            time.sleep(pause)
            self.signal(signal.SIGCONT)
        elif deed == "stop and continue the group":
            self.signal_group(signal.SIGSTOP)
            time.sleep(pause)
            self.signal_group(signal.SIGCONT)
        elif deed == "kill a worker":
            if (pid := self.worker()) is not None:
                self.signal(signal.SIGKILL, pid)
        else:
            if (pid := self.worker()) is not None:
                self.signal(signal.SIGSTOP, pid)
            time.sleep(pause)
            self.signal(signal.SIGINT)

    def stacks(self) -> str:
        """Where every process of the round is."""
        pids = marked(self.mark)
        for pid in pids:
            self.signal(signal.SIGUSR1, pid)
        time.sleep(0.5)
        names = [f"{pid}: {state_of(pid)} {command_of(pid)[:100]}" for pid in pids]
        return "\n".join([*names, self.errors.read_text()])

    def check_end(self, deed: str) -> None:
        """Raises unless the job ends in time, as it should, and everything of it."""
        try:
            code = self.trainer.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            raise Fault(f"it hangs; it said {self.said}\n{self.stacks()}") from None
        for seconds, look in ((GONE_SECONDS, self.workers), (STARTED_SECONDS, self.left)):
            deadline = time.monotonic() + seconds
            while (left := look()) and time.monotonic() < deadline:
                time.sleep(0.01)
            if left:
                raise Fault(f"there remain {left}\n{self.stacks()}")
        errors = self.errors.read_text()
        if code not in DEEDS[deed]:
            raise Fault(f"exit code {code}; it said {self.said}\n{errors}")
        # What Python itself says about a second Ctrl-C while the first ends the program, or one while its fork server
        # is being started, is no complaint of ours.
        bad = ["panicked"] if "group" in deed else ["panicked", "Fatal Python error", "Exception ignored"]
        for word in bad:
            if word in without_last_words(errors):
                raise Fault(f"it complained\n{errors}")

    def left(self) -> list[str]:
        """What the job has left so far."""
        processes = [f"process {pid} ({command_of(pid)[:80]})" for pid in marked(self.mark)]
        files = [str(path) for path in self.temporary.rglob("*")]
        if not self.had_server and self.trainer.returncode in (-signal.SIGKILL, -signal.SIGTERM):
            # Python makes this folder in the moment before it starts its fork server, which deletes it.
            files = [path for path in files if "/pymp-" not in path]
        return [*processes, *files, *(name for name in self.shared if os.path.exists(name))]

    def clear(self) -> None:
        """Ends whatever is left of the job."""
        for pid in marked(self.mark):
            self.signal(signal.SIGKILL, pid)
        self.trainer.wait(END_SECONDS)
        self._listener.join(END_SECONDS)
        assert self.trainer.stdout is not None
        self.trainer.stdout.close()


#: What Python says of a Ctrl-C that comes when the program is over and it waits for threads, before 3.13 and since.
LAST_WORDS = re.compile(
    r"Exception ignored (?:in: <module 'threading'|on threading shutdown).*?^KeyboardInterrupt: *$",
    re.DOTALL | re.MULTILINE,
)


def without_last_words(errors: str) -> str:
    """What a job said, less what Python itself said at its very end, where no line of ours was running."""
    return LAST_WORDS.sub(lambda words: words[0] if "sutler" in words[0] else "", errors)


def run(each: Round, folder: Path) -> None:
    """Runs a round; raises `Fault` when something is not as it should be."""
    job = Job(each, folder)
    try:
        job.wait_for(each.moment)
        time.sleep(each.delay)
        job.do(each.deed, random.Random(each.seed + 1).uniform(0.0, 0.4))
        job.check_end(each.deed)
    finally:
        job.clear()
