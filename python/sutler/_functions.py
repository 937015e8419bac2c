"""How long the functions behind native transforms take, and a word where the trainer has to wait for them.

They run in the trainer's process, one sample after the other, since native threads run no Python. So what they take is
time of the trainer's that no number of workers and no order takes away.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sutler import _moment, _sutler
from sutler._hand_over import begin_function
from sutler._seeding import seeded
from sutler._words import name_of
from sutler.errors import PythonTransformWarning

if TYPE_CHECKING:
    from sutler._functions_in_workers import InTrainer

#: Of each function the latest times are kept, for percentiles.
TIMES_KEPT = 1024

#: Functions are worth a warning once they took this many seconds, and this share of the time since the first of them
#: ran: below that a trainer hardly notices them.
SECONDS_NOTICED = 0.25
SHARE_NOTICED = 0.1

#: Never emptied: whoever makes a loader per epoch should not be told every epoch.
_warned_of: set[str] = set()


class _Listening(threading.local):
    times: FunctionTimes | None = None
    #: How many functions have been begun and not ended; one that raises does not end.
    begun = 0


_LISTENING = _Listening()


@contextmanager
def on_behalf_of(index: int, *, seed: int, epoch: int, repeat: int) -> Iterator[None]:
    """Functions run inside for a draw of a loader's: with its random numbers.

    A native dataset that one of them asks for a sample has it drawn by the same seed and epoch.
    """
    with _moment.during(seed, epoch, repeat), seeded(_sutler.user_seed(seed, epoch, index, repeat)):
        yield


def in_turn(functions: Iterable[Callable[..., Any]]) -> Iterator[Callable[..., Any]]:
    """The functions one after the other, for whoever calls each before asking for the next.

    Where a loader listens, it notes how long each took. In its worker processes each is a step.
    """
    times = _LISTENING.times
    for place, function in enumerate(functions):
        begin_function(functions, function)
        began = time.perf_counter()
        _LISTENING.begun += 1
        yield function
        _LISTENING.begun -= 1
        if times is not None:
            times.note(place, function, time.perf_counter() - began)


def begin_sample() -> None:
    """This thread is about to make a sample, and is in no function."""
    _LISTENING.begun = 0


def is_in_function() -> bool:
    """Whether a function of the sample at hand has not ended: what was raised since was raised in there."""
    return _LISTENING.begun > 0


class _Function:
    """One function's times."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function  # held, so that no other gets its identity
        self.count = 0
        self.seconds = 0.0
        self.latest: deque[float] = deque(maxlen=TIMES_KEPT)

    def note(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        self.latest.append(seconds)

    def described(self) -> dict[str, Any]:
        """In the shape of the engine's own steps."""
        times = sorted(self.latest)
        places = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
        return {
            "name": name_of(self.function),
            "count": self.count,
            "mean": self.seconds / self.count,
        } | {key: times[int(share * (len(times) - 1))] for key, share in places.items()}


class FunctionTimes:
    """What a loader knows of the functions that it runs in the trainer's process, over all epochs."""

    def __init__(self) -> None:
        self._functions: dict[tuple[int, int], _Function] = {}
        self._began: float | None = None
        self._warned = False
        #: Batches may be made in a thread that copies them to a device, while the trainer asks for figures.
        self._lock = threading.Lock()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Functions that this thread calls inside are noted."""
        if self._began is None:
            self._began = time.perf_counter()
        outer, _LISTENING.times = _LISTENING.times, self
        try:
            yield
        finally:
            _LISTENING.times = outer

    def note_batch(self, functions: list[Callable[..., Any]], began: float) -> None:
        """A batch was made of samples that native threads had ready, from then on until now, for these functions."""
        if self._began is None:
            self._began = began
        for place, function in enumerate(functions):
            self.note(place, function, 0.0 if place else time.perf_counter() - began)

    def note(self, place: int, function: Callable[..., Any], seconds: float) -> None:
        """The function at a place, counted among the functions, has made a sample."""
        with self._lock:
            self._functions.setdefault((place, id(function)), _Function(function)).note(seconds)

    def seconds(self) -> dict[str, float]:
        """What all calls of each function have taken, by its name."""
        taken: dict[str, float] = {}
        with self._lock:
            for function in self._functions.values():
                name = name_of(function.function)
                taken[name] = taken.get(name, 0.0) + function.seconds
        return taken

    def described(self) -> list[dict[str, Any]]:
        """The functions that have run, in order, as further steps of `stats()["steps"]`."""
        with self._lock:
            return [function.described() for function in self._functions.values()]

    def warn_if_noticed(self, in_trainer: InTrainer, stacklevel: int, *, unit: str = "sample") -> None:
        """Warns, once per process, of functions that the trainer spends much of its time with."""
        if self._warned or self._began is None:
            return
        with self._lock:
            functions = list(self._functions.values())
            seconds = sum(function.seconds for function in functions)
        passed = time.perf_counter() - self._began
        if seconds < SECONDS_NOTICED or seconds < SHARE_NOTICED * passed:
            return
        self._warned = True
        names = ", ".join(name_of(function.function) for function in functions)
        which = ", ".join(_whereabouts(function.function) for function in functions)
        if which in _warned_of:
            return
        _warned_of.add(which)
        runs, has = ("runs", "has") if len(functions) == 1 else ("run", "have")
        warnings.warn(
            f"{names} {runs} in the trainer's process, one {unit} after the other, and {has} taken {seconds:.1f} s of "
            f"the last {passed:.1f} s, whatever num_workers is. {in_trainer.reason} {in_trainer.remedy}",
            PythonTransformWarning,
            stacklevel=stacklevel + 1,
        )


def _whereabouts(function: Callable[..., Any]) -> str:
    """What tells a function from others of the same name, such as all lambdas have."""
    code = getattr(function, "__code__", None)
    return (
        name_of(function) if code is None else f"{name_of(function)} {code.co_filename}:{code.co_firstlineno}"
    )


class Timed:
    """A function of one value whose calls are noted, wherever it is called.

    Examples:
        >>> times = FunctionTimes()
        >>> Timed(len, times)("word"), list(times.seconds())
        (4, ['len'])
    """

    def __init__(self, function: Callable[[Any], Any], times: FunctionTimes) -> None:
        self._function = function
        self._times = times

    def __call__(self, value: Any) -> Any:
        """What the function makes of the value."""
        began = time.perf_counter()
        made = self._function(value)
        self._times.note(0, self._function, time.perf_counter() - began)
        return made
