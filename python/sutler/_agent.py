"""Which agent prepares a loader's samples, if one does."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import dataclass
from typing import Any

from sutler import _sutler
from sutler._selection import origin_of
from sutler.datasets import NativeDataset

#: How many seconds a loader waits for an agent that is gone: a supervisor restarts one within a few, and an accelerator
#: that idles for longer is better off with an error or with the loader's own threads.
PATIENCE = 30.0

_REMEDY = "start one with `sutler serve`"


@dataclass(frozen=True)
class AgentChoice:
    """The agent that a loader is to attach to, as the native side takes it."""

    socket: str
    patience: float
    #: With how many threads to go on alone if the agent stays away; ``None`` where that is an error.
    threads: int | None
    #: How many threads the agent has.
    workers: int


def check_agent(agent: Any, job_name: Any) -> None:
    """Raises for arguments that name no agent or no job."""
    if agent is not None and not isinstance(agent, str | os.PathLike):
        raise TypeError(f"agent should be None, 'auto' or the path of a socket, got {agent!r}")
    if agent is not None and not os.fspath(agent):
        raise ValueError("agent='' names no socket; pass its path, or 'auto', or leave agent out")
    if job_name is not None and not isinstance(job_name, str):
        raise TypeError(f"job_name should be a string, got {job_name!r}")
    if job_name is not None and agent is None:
        raise ValueError("job_name names a job to an agent; pass agent='auto' as well")


def choose_agent(agent: Any, dataset: Any, threads: int, stacklevel: int) -> AgentChoice | None:
    """The agent to attach to; ``None`` where the loader does the work itself, which it says if it was not asked to."""
    if agent is None:
        return None
    origin = origin_of(dataset)
    if not isinstance(origin, NativeDataset):
        _say(
            f"agent={str(agent)!r} has no effect: an agent prepares native datasets, and {type(dataset).__name__} is "
            "Python code of this process",
            stacklevel,
        )
        return None
    if not origin.served_by_agents:
        _say(
            f"agent={str(agent)!r} has no effect: an agent prepares images and sound, and {type(origin).__name__} "
            f"holds {origin.content}; this loader prepares its samples itself",
            stacklevel,
        )
        return None
    auto = agent == "auto"
    socket = os.fspath(_sutler.agent_socket() if auto else agent)
    try:
        workers = json.loads(_sutler.agent_status(socket))["threads"]
    except (ConnectionError, PermissionError) as error:
        if not auto:
            raise ConnectionError(f"{error}; {_REMEDY}, or pass agent='auto' to do without one") from None
        say_alone(error, stacklevel + 1)
        return None
    return AgentChoice(socket, PATIENCE, threads if auto else None, workers)


def warn_of_idle_cache(stacklevel: int) -> None:
    """Tells that a loader's cache is not used where an agent prepares."""
    _say(
        "cache= has no effect with an agent, which keeps samples for all its jobs; give it memory with "
        "`sutler serve --memory`. It counts where no agent runs",
        stacklevel,
    )


def say_alone(error: OSError, stacklevel: int) -> None:
    """Tells that there is no agent, where one was welcome but not required."""
    _say(f"{error}; this loader prepares its samples itself. To share the work, {_REMEDY}", stacklevel + 1)


def _say(text: str, stacklevel: int) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=stacklevel + 1)
