"""Passes over batches with a clock running, and their repetition until the mean is known well enough."""

from __future__ import annotations

import copy
import itertools
import logging
import sys
import time
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from sutler import _sutler
from sutler.analysis.model import BatchTimes, Interval

#: Tells how far an analysis is, for those who listen (``logging.getLogger("sutler.analysis")``).
PROGRESS = logging.getLogger("sutler.analysis")


class Step:
    """What the trainer does with a batch: a function of it, or so many seconds of somebody else's work."""

    def __init__(self, step: Callable[[Any], Any] | float) -> None:
        self._function = step if callable(step) else None
        #: How long an emulated step takes.
        self.seconds = None if callable(step) else float(step)
        #: How many calls of the function have not raised.
        self._went_well = 0

    @property
    def is_none(self) -> bool:
        """Whether there is nothing to wait for: the trainer wants the next batch at once."""
        return self.seconds == 0

    def __call__(self, batch: Any) -> None:
        """Trains on a batch."""
        if self.seconds is not None:
            # An accelerator leaves the processors alone, so its work is a pause.
            if self.seconds > 0:
                time.sleep(self.seconds)
            return
        assert self._function is not None
        try:
            self._function(batch)
        except Exception as error:
            when = f"after {self._went_well} that went well" if self._went_well else "the first"
            error.add_note(
                f"raised by the step that sutler.analyze was given, in a call ({when}) with a batch of the loader; "
                "there is no report. The step is called with each batch as the loader yields it"
            )
            raise
        self._went_well += 1

    def settle(self) -> None:
        """Waits for work that the step has only begun: a GPU's queue."""
        if self._function is not None:
            torch = sys.modules.get("torch")
            if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
                torch.cuda.synchronize()


#: A trainer that wants the next batch at once.
NO_STEP = Step(0.0)


@dataclass(frozen=True)
class Pass:
    """What one pass gave."""

    #: Seconds for each sample, once the pass had got going.
    seconds_per_sample: float
    #: Samples that this is the mean of.
    samples: int
    batches: int
    #: When each batch was asked for, had and done with, in seconds since the pass began.
    times: tuple[BatchTimes, ...]


#: The fewest batches that say something.
BATCHES_MIN = 10


def counted(count: int, team: int, ahead: int, repeats: int = 1) -> tuple[int, int]:
    """Which of so many batches of a pass count, from the first one to before the second.

    At the beginning of a pass nothing is under way, and at its end workers run out of work, so batches there are
    trained on and not counted. Where workers make whole batches, those of all of them arrive together: the ``team``
    first and last are left out, and of those between them a multiple of it counts. Where a loader prepares batches
    ``ahead`` and begins with what takes long, work for all of these may be done when the first one is there; as much
    must be there to be done after the last one that counts, or the pass seems faster than a longer one would be.

    Of batches that are gone through several times whole rounds count: each sample as often as any other, and what is
    under way at their end is just what was at their beginning.

    Examples:
        >>> counted(24, 1, 2), counted(24, 4, 0), counted(14, 1, 8), counted(3, 2, 2), counted(14, 1, 2, repeats=3)
        ((2, 22), (4, 20), (2, 12), (0, 3), (2, 30))
    """
    if repeats > 1:
        edge = min(max(team, ahead), count // 2)
        return edge, edge + (repeats - 1) * count
    edge = max(team, min(ahead, (count - BATCHES_MIN) // 2) // team * team)
    between = (count - 2 * edge) // team * team
    return (edge, edge + between) if between > 0 else (0, count)


def run_pass(batches: Iterator[Any], sizes: list[int], step: Step, count: tuple[int, int]) -> Pass:
    """Trains on all batches, and tells what a sample took from the first of those that count to the last."""
    clock = time.perf_counter
    first, last = count
    step.settle()
    begun = asked = clock()
    marks = {0: begun}
    times: list[BatchTimes] = []
    for index, batch in enumerate(itertools.islice(batches, len(sizes))):
        received = clock()
        step(batch)
        del batch
        if index + 1 in (first, last):
            step.settle()
            marks[index + 1] = clock()
        trained = clock()
        times.append(BatchTimes(index, asked - begun, received - begun, trained - begun))
        asked = trained
    samples = sum(sizes[first:last])
    # A stream may have ended before.
    if last not in marks:
        return Pass(
            max(1e-9, asked - begun) / max(1, sum(sizes[: len(times)])), len(times), len(times), tuple(times)
        )
    return Pass(max(1e-9, marks[last] - marks[first]) / samples, samples, len(times), tuple(times))


#: Known to 2 % is known.
TIGHT = 0.02
#: What is not even known to this is in doubt.
DOUBTFUL = 0.1
#: Fewer repetitions than this prove nothing, more than that nothing new.
PASSES_MIN, PASSES_MAX = 3, 12
#: Whatever the time: a single one does not even tell whether anything disturbed it.
PASSES_AT_LEAST = 2


@dataclass
class Series:
    """Repeated measurements of one thing, in seconds for each sample."""

    values: list[float] = field(default_factory=list)
    samples: int = 0
    bytes_read: int | None = 0

    def add(self, seconds_per_sample: float, samples: int, bytes_read: int | None) -> None:
        """One more."""
        self.values.append(seconds_per_sample)
        self.samples += samples
        self.bytes_read = (
            None if bytes_read is None or self.bytes_read is None else self.bytes_read + bytes_read
        )

    def seconds(self) -> Interval:
        """The mean."""
        known = _sutler.confidence(self.values)
        assert known is not None
        return Interval(*known)

    @property
    def known(self) -> bool:
        """Whether to measure once more would tell nothing new."""
        count = len(self.values)
        return count >= PASSES_MAX or (count >= PASSES_MIN and self.seconds().error <= TIGHT)

    @property
    def certain(self) -> bool:
        """Whether the mean is known well enough for others to rest on it."""
        return self.seconds().error <= DOUBTFUL

    def rate(self) -> Interval:
        """Samples per second."""
        seconds = self.seconds()
        return Interval(1 / seconds.value, 1 / seconds.high, 1 / seconds.low)


def batch_length(batch: Any, otherwise: int) -> int:
    """How many samples a batch of somebody else's making has."""
    first = batch
    while isinstance(first, (list, tuple, dict)) and first:
        first = next(iter(first.values())) if isinstance(first, dict) else first[0]
    shape = getattr(first, "shape", None)
    return int(shape[0]) if shape else otherwise


def in_fresh_containers(batch: Any) -> Any:
    """The same tensors in other dictionaries, lists and tuples, as a step may well empty those that it gets.

    Examples:
        >>> kept = {"x": [1, 2], "y": (3, {"z": 4})}
        >>> given = in_fresh_containers(kept)
        >>> given["x"].pop(), given.pop("y")[1].pop("z"), kept
        (2, 4, {'x': [1, 2], 'y': (3, {'z': 4})})
    """
    if isinstance(batch, MutableMapping):
        changed = copy.copy(batch)  # which may have more to it than what it maps
        for key, value in batch.items():
            changed[key] = in_fresh_containers(value)
        return changed
    if isinstance(batch, list):
        listed = copy.copy(batch)
        listed[:] = map(in_fresh_containers, batch)
        return listed
    if isinstance(batch, tuple):
        values = map(in_fresh_containers, batch)
        return type(batch)(*values) if hasattr(batch, "_fields") else tuple(values)
    return batch


def plain(interval: Interval) -> dict[str, float]:
    """An interval as the core reads it."""
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def repeat(measures: dict[str, Callable[[], None]], series: dict[str, Series], seconds_max: float) -> None:
    """Measures in turn until each mean is known well enough, or time is up.

    In turn, so that a disturbance of some seconds hits all of them alike: what counts are their differences. Each has
    an equal part of the time, so that one that takes long does not leave the others with two passes each, which say
    next to nothing about how well a mean is known; what the others leave over it may have.
    """
    begun = time.monotonic()
    part = seconds_max / len(measures)
    spent = dict.fromkeys(measures, 0.0)
    while unknown := [name for name in measures if not series[name].known]:
        fewest = min(len(series[name].values) for name in measures)
        if fewest >= PASSES_AT_LEAST and time.monotonic() - begun > seconds_max:
            return
        within = [n for n in unknown if len(series[n].values) < PASSES_AT_LEAST or spent[n] < part]
        for name in within or unknown:
            started = time.monotonic()
            measures[name]()
            spent[name] += time.monotonic() - started
            _tell(name, series[name])


def _tell(name: str, series: Series) -> None:
    """For whoever waits, and for whoever wonders what it was at when it was stopped."""
    if PROGRESS.isEnabledFor(logging.INFO):
        rate = series.rate()
        PROGRESS.info("%s: pass %d, %.1f samples/s so far", name, len(series.values), rate.value)
