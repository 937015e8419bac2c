"""What a worker says of a sample of a native dataset that it could not make, and what the trainer makes of it.

The engine knows of exceptions in workers, and takes a sentence for each. A bad file has a kind and a path besides.
"""

from __future__ import annotations

from collections.abc import Callable

from sutler._worker_errors import last_line
from sutler.errors import Failure, SampleError, sample_error

#: What the engine calls an exception in a worker, and the end of one.
_ENGINES = ("exception", "worker_lost")

#: Stands between the kind of a failure and its reason; no sentence has it.
_AND = "\x1f"


def said_of(error: Exception) -> str:
    """What a worker says of a sample whose file is bad: its kind and the reason, else what a traceback ends with."""
    return f"{error.kind}{_AND}{error.reason}" if isinstance(error, SampleError) else last_line(error)


def understood(failure: Failure, path_of: Callable[[int], str]) -> Failure:
    """A failure as native threads would have told of it."""
    kind, found, reason = failure.reason.partition(_AND)
    told = failure._replace(kind=kind, reason=reason) if found else failure
    return told._replace(path=path_of(failure.id))


def understood_error(error: SampleError, path_of: Callable[[int], str]) -> SampleError:
    """The same for what is raised; what a worker itself has raised says all there is to say."""
    if error.kind not in _ENGINES:
        return error
    told = understood(Failure(error.sample, error.path, error.kind, error.reason), path_of)
    return sample_error(told.id, told.path, told.reason, told.kind)
