"""What can go wrong, as classes to catch, and what to do about bad samples."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "DecodeError",
    "ErrorBudgetExceeded",
    "Errors",
    "Failure",
    "PythonTransformWarning",
    "RankOutOfStep",
    "RankShareWarning",
    "ReadError",
    "SampleError",
    "SutlerError",
    "WorkerError",
    "WorkerStartError",
]

#: Kinds of failure that are about reaching the bytes, not about what they hold.
_READ_KINDS = frozenset({"missing", "denied", "io", "not_a_file", "changed", "direct_refused"})
#: Kinds of failure that are neither about reaching the bytes nor about decoding them.
_OTHER_KINDS = frozenset({"annotation", "transform", "internal", "exception"})
#: Kinds of failure of datasets written in Python, whose samples need not be files.
_PYTHON_KINDS = frozenset({"exception", "worker_lost"})


class SutlerError(Exception):
    """The base of every error that is Sutler's own.

    Wrong arguments raise Python's `ValueError` and `TypeError`, and a missing file `FileNotFoundError`, as
    they do everywhere else.
    """


class SampleError(SutlerError, RuntimeError):
    """One sample could not be prepared.

    Attributes:
        sample: the id of the sample, its position in the dataset.
        path: where the sample is stored.
        reason: what went wrong, as a sentence.
        kind: the same in one word, to count by: `"truncated"`, `"corrupt"`, `"missing"`, ...

    Examples:
        >>> error = SampleError(8123, "train/cat/9.jpg", "the file ends at byte 312 of 9,871", "truncated")
        >>> print(error)
        sample 8123 (`train/cat/9.jpg`): the file ends at byte 312 of 9,871
        >>> error.kind
        'truncated'
    """

    sample: int
    path: str
    reason: str
    kind: str

    def __init__(self, sample: int, path: str, reason: str, kind: str) -> None:
        super().__init__(f"sample {sample} (`{path}`): {reason}")
        self.sample = sample
        self.path = path
        self.reason = reason
        self.kind = kind

    def __reduce__(self) -> tuple[type[SampleError], tuple[int, str, str, str]]:
        # The message is made from the parts, so it is the parts that travel between processes.
        return type(self), (self.sample, self.path, self.reason, self.kind)


class DecodeError(SampleError, OSError):
    """The bytes of a sample are not what Sutler decodes, or exceed a limit such as `pixels_max` or `bytes_max`.

    It is an `OSError` as well, because that is what Pillow raises for a broken file: code that guards a
    Pillow loader with `except OSError` guards this one too.

    Examples:
        >>> try:
        ...     raise DecodeError(7, "train/dog/3.jpg", "the file is empty", "empty")
        ... except OSError as error:
        ...     print(error)
        sample 7 (`train/dog/3.jpg`): the file is empty
    """


class ReadError(SampleError, OSError):
    """The bytes of a sample could not be reached.

    It is an `OSError` as well, as from Python's own `open`.
    """


class WorkerError(SampleError):
    """The worker process that prepared a sample died.

    It is a `RuntimeError`, as from PyTorch's `DataLoader`.
    """


class WorkerStartError(SutlerError, RuntimeError):
    """A worker process died before it could take its first sample, as from a script that it cannot import.

    No sample is at fault, and another worker would fare no better: so it is raised whatever `errors=` says.
    """


class ErrorBudgetExceeded(SutlerError, RuntimeError):  # noqa: N818 - it says what happened
    """More samples failed in an epoch than `errors=` allows.

    Attributes:
        failed: how many failed so far.
        allowed: how many were allowed.
        last: the `SampleError` that was one too many.

    Examples:
        >>> last = DecodeError(7, "train/dog/3.jpg", "the file is empty", "empty")
        >>> print(ErrorBudgetExceeded(2, 1, last))
        2 samples failed in this epoch and only 1 may; the last was sample 7 (`train/dog/3.jpg`): the file is empty. \
loader.failures() lists them all; `sutler inspect` looks at the whole dataset.
    """

    failed: int
    allowed: int
    last: SampleError

    def __init__(self, failed: int, allowed: int, last: SampleError) -> None:
        samples = "sample" if failed == 1 else "samples"
        limit = f"only {allowed} may" if allowed else "none may"
        # Reasons from the operating system come without a full stop.
        end = "" if str(last).endswith(".") else "."
        files = "" if last.kind in _PYTHON_KINDS else "; `sutler inspect` looks at the whole dataset"
        super().__init__(
            f"{failed} {samples} failed in this epoch and {limit}; the last was {last}{end} "
            f"loader.failures() lists them all{files}."
        )
        self.failed = failed
        self.allowed = allowed
        self.last = last

    def __reduce__(self) -> tuple[type[ErrorBudgetExceeded], tuple[int, int, SampleError]]:
        return type(self), (self.failed, self.allowed, self.last)


class RankOutOfStep(SutlerError, RuntimeError):  # noqa: N818 - it says what happened
    """Every sample of a batch failed on one of several ranks.

    A single process passes over such a batch. Of several ranks each must deliver as many batches as the others,
    or they would wait for each other for ever; so this one says what happened instead.

    Attributes:
        batch: the number of the batch in what was left of the epoch.
        last: the `SampleError` of its last sample.
    """

    batch: int
    last: SampleError

    def __init__(self, batch: int, last: SampleError) -> None:
        remedy = (
            "Leave such samples out of the dataset"
            if last.kind in _PYTHON_KINDS
            else "Take the broken files out (`sutler inspect` lists them)"
        )
        super().__init__(
            f"Every sample of batch {batch} failed, and without a batch this rank would fall behind the others. "
            f"The last was {last}. {remedy}, use larger batches, or leave out a small last one (drop_last=True)."
        )
        self.batch = batch
        self.last = last

    def __reduce__(self) -> tuple[type[RankOutOfStep], tuple[int, SampleError]]:
        return type(self), (self.batch, self.last)


def sample_error(sample: int, path: str, reason: str, kind: str) -> SampleError:
    """The exception for a failed sample; called by the native module."""
    if kind == "worker_lost":
        return WorkerError(sample, path, reason, kind)
    if kind in _READ_KINDS:
        return ReadError(sample, path, reason, kind)
    return (SampleError if kind in _OTHER_KINDS else DecodeError)(sample, path, reason, kind)


def about_another(error: Exception, change: Callable[[SampleError], SampleError]) -> Exception:
    """The same error with what it says of a sample changed; any other error as it is."""
    changed: Exception
    if isinstance(error, SampleError):
        changed = change(error)
    elif isinstance(error, ErrorBudgetExceeded):
        changed = ErrorBudgetExceeded(error.failed, error.allowed, change(error.last))
    elif isinstance(error, RankOutOfStep):
        changed = RankOutOfStep(error.batch, change(error.last))
    else:
        return error
    if changed is not error:
        for note in getattr(error, "__notes__", ()):
            changed.add_note(note)
    return changed


class Failure(NamedTuple):
    """A sample that was left out, from `loader.failures()`."""

    #: The index of the sample in the dataset.
    id: int
    #: Where it is stored.
    path: str
    #: What went wrong in one word, to count by.
    kind: str
    #: What went wrong as a sentence.
    reason: str


class PythonTransformWarning(UserWarning):
    """A part of a pipeline runs in Python, because Sutler has no native form of it.

    Given for what was not written as a ``Lambda`` when the dataset is made, and for anything that cannot run in worker
    processes once the trainer spends much of its time with it. The result is right and the speed is Python's. The
    message names the operations, and what to do.
    """


class SameOrderWarning(UserWarning):
    """Two loaders that are iterated at the same time shuffle different datasets of one length into the same order.

    An order follows from the seed and the epoch, and nobody passed a seed. Pass another ``seed`` to one of the loaders.
    """


class RankShareWarning(UserWarning):
    """A rank of several gets more or fewer samples of a loader than it would get of a ``DataLoader``.

    Without a sampler each rank is served its share where `torch.distributed` is initialised, and under Lightning a
    sampler that does not know its rank is served to every rank in full. It is said once in a process; the message says
    how to get the other.
    """


@dataclass(frozen=True)
class Errors:
    """How many bad samples a loader leaves out before it gives up with `ErrorBudgetExceeded`.

    Args:
        max: the most samples that may fail in an epoch.
        rate: the largest share of an epoch's samples that may fail, between 0 and 1, rounded down to whole
            samples: 1 % of 250 samples allows 2.

    With both, the smaller number of samples decides. With neither, any number may fail, as with
    `errors="skip"`. Every epoch starts counting at zero, and so does the rest of one that is resumed. What was left out
    is in `loader.failures()`.

    Examples:
        >>> Errors(max=100)
        Errors(max=100, rate=None)
        >>> Errors(rate=1.5)
        Traceback (most recent call last):
        ValueError: rate is a share between 0 and 1, got 1.5; for a number of samples pass max.
    """

    max: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.max is not None:
            if isinstance(self.max, bool) or not isinstance(self.max, numbers.Integral):
                raise TypeError(
                    f"max is a number of samples, got {self.max!r}; for a share of them pass rate."
                )
            if self.max < 0:
                raise ValueError(f"max is a number of samples and cannot be negative, got {self.max}.")
        if self.rate is not None:
            if isinstance(self.rate, bool) or not isinstance(self.rate, numbers.Real):
                raise TypeError(f"rate is a share between 0 and 1, got {self.rate!r}.")
            if not (math.isfinite(self.rate) and 0 <= self.rate <= 1):
                raise ValueError(
                    f"rate is a share between 0 and 1, got {self.rate}; for a number of samples pass max."
                )
