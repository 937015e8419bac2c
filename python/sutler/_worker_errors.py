"""Exceptions on their way from a worker to the trainer."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Raised:
    """What was raised: its class, its traceback in words, and where. The exception would keep its frames alive."""

    cls: Any
    text: str
    where: str


def last_line(error: BaseException) -> str:
    """What a traceback ends with."""
    return traceback.format_exception_only(error)[-1].strip()


def describe_here(error: BaseException, worker: int) -> Raised:
    """What a worker thread raised."""
    return Raised(type(error), "".join(traceback.format_exception(error)), f"worker thread {worker}")


def describe(error: BaseException, worker: int) -> bytes:
    """What a worker process raised, as bytes."""
    text = "".join(traceback.format_exception(error))
    try:
        kind = pickle.dumps(type(error))
    except Exception:  # a class that only the worker knows
        kind = pickle.dumps(RuntimeError)
    return pickle.dumps((kind, text, worker))


def _read(data: bytes) -> Raised:
    kind, text, worker = pickle.loads(data)
    try:
        cls: Any = pickle.loads(kind)
    except Exception:  # a class that only the worker knows
        cls = RuntimeError
    return Raised(cls, text, f"worker process {worker}")


class _KeyErrorMessage(str):
    """`KeyError` shows its message quoted, which makes a traceback of many lines unreadable."""

    def __repr__(self) -> str:
        return str(self)


def rebuild(data: bytes | Raised) -> BaseException:
    """The exception to raise in the trainer: the same class, with the worker's traceback in its message."""
    raised = data if isinstance(data, Raised) else _read(data)
    cls = raised.cls
    message: Any = f"Caught {cls.__name__} in DataLoader {raised.where}.\nOriginal {raised.text}"
    if isinstance(cls, type) and issubclass(cls, StopIteration):
        cls = RuntimeError  # it would pass for the end of the epoch
    if cls is KeyError:
        message = _KeyErrorMessage(message)
    try:
        error = cls(message)
    except Exception:  # a class that wants other arguments
        error = RuntimeError(message)
    return error if isinstance(error, BaseException) else RuntimeError(message)
