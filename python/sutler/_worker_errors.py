"""Exceptions on their way from a worker process to the trainer."""

from __future__ import annotations

import pickle
import traceback
from typing import Any


def describe(error: BaseException, worker: int) -> tuple[str, bytes]:
    """An exception's last line, and the exception as bytes."""
    text = "".join(traceback.format_exception(error))
    last = traceback.format_exception_only(error)[-1].strip()
    try:
        kind = pickle.dumps(type(error))
    except Exception:  # a class that only the worker knows
        kind = pickle.dumps(RuntimeError)
    return last, pickle.dumps((kind, text, worker))


class _KeyErrorMessage(str):
    """`KeyError` shows its message quoted, which makes a traceback of many lines unreadable."""

    def __repr__(self) -> str:
        return str(self)


def rebuild(data: bytes) -> BaseException:
    """The exception to raise in the trainer: the same class, with the worker's traceback in its message."""
    kind, text, worker = pickle.loads(data)
    try:
        cls: Any = pickle.loads(kind)
    except Exception:  # a class that only the worker knows
        cls = RuntimeError
    message: Any = f"Caught {cls.__name__} in DataLoader worker process {worker}.\nOriginal {text}"
    if isinstance(cls, type) and issubclass(cls, StopIteration | StopAsyncIteration):
        cls = RuntimeError  # it would pass for the end of the epoch
    if cls is KeyError:
        message = _KeyErrorMessage(message)
    try:
        error = cls(message)
    except Exception:  # a class that wants other arguments
        error = RuntimeError(message)
    return error if isinstance(error, BaseException) else RuntimeError(message)
