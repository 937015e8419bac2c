"""Exceptions on their way from a worker to the trainer."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

#: The attribute of an exception on its way to the trainer that has what the worker's copy of the dataset has come to.
_TOLD = "_sutler_told"


@dataclass(frozen=True)
class Raised:
    """What was raised: its class, its traceback in words, and where. The exception would keep its frames alive."""

    cls: Any
    text: str
    where: str
    #: The exception itself as bytes, where it can be had so.
    pickled: bytes | None = None
    #: What the worker's copy of the dataset has come to, where that is told.
    told: Any = None


def last_line(error: BaseException) -> str:
    """What a traceback ends with."""
    return traceback.format_exception_only(error)[-1].strip()


def describe_here(error: BaseException, worker: int, told: Any = None) -> Raised:
    """What a worker thread raised, and what its copy of the dataset has come to."""
    text = "".join(traceback.format_exception(error))
    return Raised(type(error), text, f"worker thread {worker}", _pickled(error), told)


def describe_trainers(error: BaseException) -> Raised:
    """What was raised in the trainer's process, where nobody was to hear of it then."""
    text = "".join(traceback.format_exception(error))
    return Raised(type(error), text, "with num_workers=0", _pickled(error))


def describe(error: BaseException, worker: int, told: Any = None) -> bytes:
    """What a worker process raised, as bytes, and what its copy of the dataset has come to."""
    text = "".join(traceback.format_exception(error))
    return pickle.dumps((_pickled_class(type(error)), text, worker, _pickled(error), told))


def _pickled_class(cls: type) -> bytes:
    """A class, or of one that only the worker knows, as a function's own, the nearest that others know."""
    for known in cls.__mro__:
        try:
            return pickle.dumps(known)
        except Exception:
            continue
    return pickle.dumps(RuntimeError)


def _pickled(error: BaseException) -> bytes | None:
    """An exception as bytes, where these make another one that says the same."""
    for way in (error, _Parts(type(error), error.args, vars(error))):
        try:
            data = pickle.dumps(way)
            made = _unpickled(data)
        except Exception:  # a class that only the worker knows, or one whose constructor wants something else
            continue
        if type(made) is type(error) and str(made) == str(error):
            return data
    return None


@dataclass(frozen=True)
class _Parts:
    """What an exception is made of whose constructor cannot be called again with the arguments that it keeps."""

    cls: type[BaseException]
    args: tuple[Any, ...]
    attributes: dict[str, Any]

    def put_together(self) -> BaseException:
        error = self.cls.__new__(self.cls)
        error.args = self.args
        vars(error).update(self.attributes)
        return error


def _unpickled(data: bytes) -> Any:
    found = pickle.loads(data)
    return found.put_together() if isinstance(found, _Parts) else found


def _read(data: bytes) -> Raised:
    kind, text, worker, pickled, told = pickle.loads(data)
    try:
        cls: Any = pickle.loads(kind)
    except Exception:  # a module that only the worker has
        cls = RuntimeError
    return Raised(cls, text, f"worker process {worker}", pickled, told)


class _KeyErrorMessage(str):
    """`KeyError` shows its message quoted, which makes a traceback of many lines unreadable."""

    def __repr__(self) -> str:
        return str(self)


def rebuild(data: bytes | Raised) -> BaseException:
    """The exception to raise in the trainer: the same class, with the worker's traceback in its message.

    One whose class wants other arguments is the very exception, with the traceback as a note.
    """
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
        error = _rebuilt(raised, message)
    error = error if isinstance(error, BaseException) else RuntimeError(message)
    if raised.told is not None:
        error.__dict__[_TOLD] = raised.told
    return error


def take_told(error: BaseException) -> Any:
    """What the copy of the dataset has come to of the worker that raised, if it has told."""
    return error.__dict__.pop(_TOLD, None)


def _rebuilt(raised: Raised, message: str) -> BaseException:
    """The exception as the worker had it, where that can be made."""
    try:
        error = None if raised.pickled is None else _unpickled(raised.pickled)
    except Exception:  # a class that only the worker can make one of
        error = None
    if not isinstance(error, BaseException):
        return RuntimeError(message)
    error.add_note(message)
    return error
