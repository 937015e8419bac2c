"""Runs programs in processes that have imported what trainers are made of already.

PyTorch, Lightning and Transformers take seconds to import, longer than anything that these tests do with them, and each
process would do it again. So one process imports them, and every program is a fork of it.

Usage: warm.py. A request is a line of JSON on standard input: programs that run at the same time, each with the
``command`` (a file and its arguments), the ``folder`` to run in, the ``environment`` that it has besides and the files
for its ``output`` and ``errors``; and the ``seconds`` that they have. The answer is a line with their exit codes, on
standard output.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import runpy
import signal
import sys
import time
from typing import Any

#: Modules, and what they import only when it is asked for. JAX is none of them: it warns whoever forks after it.
LIBRARIES = {
    "sutler": ("Loader",),
    "torch": ("nn",),
    "torch.distributed": ("init_process_group",),
    "torch.nn.parallel": ("DistributedDataParallel",),
    "accelerate": ("Accelerator",),
    "lightning.fabric": ("Fabric",),
    "lightning.pytorch": ("Trainer",),
    "transformers": ("Trainer", "ResNetForImageClassification"),
}


def import_all() -> None:
    """Imports what is installed."""
    for name, parts in LIBRARIES.items():
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            module = importlib.import_module(name)
            for part in parts:
                getattr(module, part)


def become(program: dict[str, Any]) -> None:
    """Makes this process look like one that was started with the program."""
    os.setsid()  # so that what it starts can be ended with it
    os.chdir(program["folder"])
    os.environ.update(program["environment"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(program["output"], os.O_WRONLY | os.O_CREAT)
    errors = os.open(program["errors"], os.O_WRONLY | os.O_CREAT)
    for theirs, ours in ((nothing, 0), (output, 1), (errors, 2)):
        os.dup2(theirs, ours)
    sys.argv = list(program["command"])


def wait(pids: list[int], seconds: float) -> list[int]:
    """The exit codes of processes. When one fails, or none has ended in time, the others are ended."""
    deadline = time.monotonic() + seconds
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                codes[pid] = os.waitstatus_to_exitcode(ended[1])
        if any(codes.values()) or time.monotonic() > deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        time.sleep(0.01)
    return [codes[pid] for pid in pids]


def serve() -> None:
    """Answers requests until there are no more; in a process that is forked for a program, returns to run that."""
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        pids = []
        for program in request["programs"]:
            pid = os.fork()
            if pid == 0:
                become(program)
                return
            pids.append(pid)
        print(json.dumps(wait(pids, request["seconds"])), flush=True)
    sys.exit()


if __name__ == "__main__":
    import_all()
    serve()
    # At the end of this module the interpreter ends, as it does after any program.
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
