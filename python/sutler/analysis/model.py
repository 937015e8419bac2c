"""What an analysis has found, as data: everything that a table, a page, a trace or a program reads.

The measuring code fills it, the rendering code shows it, and neither knows the other. It holds figures and sentences,
no loaders and no functions, so it can be written as JSON, sent elsewhere and read back (:meth:`Findings.to_json`,
:meth:`Findings.from_json`).

Units: seconds, bytes, samples per second; shares are fractions of 1. Where something was not measured it is ``None``,
never 0.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

#: Goes up when a reader of older findings would misunderstand newer ones.
SCHEMA_VERSION = 1

#: The parts of the trainer's time, in the order that a batch meets them.
CAUSES = ("fetch", "prep", "transport", "trainer")

#: The rates that an analysis measures; `Findings.rates` has them by these names.
RATE_MEANINGS = {
    "G": "what the accelerator takes: the training step on a batch that is already there",
    "P": "what the loader prepares when every sample is in memory",
    "F": "what is fetched: from the cache and from storage, as they are mixed now",
    "C": "what the cache delivers, nothing prepared",
    "S": "what storage delivers, nothing prepared",
}

#: What can be changed in a what-if; the value of a point is in the unit given here.
AXES = {
    "cache": "bytes kept in memory",
    "cores": "worker threads or processes",
    "storage_mbps": "megabytes per second from storage",
    "without": "a transform left out",
    "remote": "further machines like this one that prepare",
    "jobs": "jobs that train on the dataset and share what is prepared",
}

_Data = TypeVar("_Data")


@dataclass(frozen=True)
class Interval:
    """A figure and how well it is known: in 95 of 100 repetitions the truth lies between ``low`` and ``high``."""

    value: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Half the width as a fraction of the value."""
        return (self.high - self.low) / 2 / self.value if self.value else 0.0

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Rate:
    """One measured rate and the proof that it measured what it says."""

    #: One of `RATE_MEANINGS`.
    name: str
    #: Samples per second.
    samples_per_s: Interval
    #: How often it was measured, and on how many samples in all.
    passes: int
    samples: int
    #: Bytes that really came from the device meanwhile, where the system says so.
    bytes_read: int | None
    #: Whether the bytes read show that the samples were where they should have been: in memory, or not in memory.
    #: ``None`` where there is nothing to show, as for the training step.
    proven: bool | None
    #: A sentence on what the figure is worth, empty where it needs none.
    note: str = ""

    def __float__(self) -> float:
        return self.samples_per_s.value


@dataclass(frozen=True)
class Stalls(Mapping[str, float]):
    """Where the trainer's time goes, as fractions of it; they add up to 1.

    By attribute or by name, as ``stats()["stalls"]`` has them.
    """

    fetch: float
    prep: float
    transport: float
    trainer: float

    @property
    def waiting(self) -> float:
        """The part that is not the trainer's own work."""
        return self.fetch + self.prep + self.transport

    def __getitem__(self, cause: str) -> float:
        if cause not in CAUSES:
            raise KeyError(cause)
        share: float = getattr(self, cause)
        return share

    def __iter__(self) -> Iterator[str]:
        return iter(CAUSES)

    def __len__(self) -> int:
        return len(CAUSES)


@dataclass(frozen=True)
class StageTimes:
    """How long samples spent in one stage, in seconds."""

    name: str
    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    #: How the times are distributed, as (fraction of samples, seconds): what a plot needs; empty where it is not known.
    quantiles: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class BatchTimes:
    """One batch of the measured run, in seconds since its beginning."""

    batch: int
    #: The trainer asked for it.
    asked: float
    #: The trainer had it. What lies between is waiting.
    received: float
    #: The trainer was done with it.
    trained: float
    #: What the wait was for, one of `CAUSES`; ``None`` where it is not known.
    cause: str | None = None
    #: How many batches were ready when it was asked for; ``None`` where it is not known.
    ready: int | None = None


@dataclass(frozen=True)
class WhatIf:
    """One answered question: what if there were so much of something?"""

    #: One of `AXES`.
    axis: str
    #: How much of it; for ``without`` the number of the transform.
    value: float
    #: The value as a person reads it, such as ``"24.0 GiB"`` or ``"RandAugment"``.
    label: str
    #: Samples per second that the trainer would get, for each job. Where others on this axis were verified and this one
    #: was not, it is known no better than they turned out to be.
    predicted: Interval
    #: What would bind then: ``"storage"``, ``"cache"``, ``"processors"``, ``"device"`` …
    bound_by: str
    #: Whether this is the configuration as it stands.
    now: bool = False
    #: What a run with this configuration gave, where there was one (``verify``).
    verified: float | None = None

    @property
    def miss(self) -> float | None:
        """By which fraction of the measured outcome the prediction was off, where it was verified."""
        return None if not self.verified else self.predicted.value / self.verified - 1.0

    def __float__(self) -> float:
        return self.predicted.value


@dataclass(frozen=True)
class Recommendation:
    """What to change, and what that brings. Printed, it is a paragraph."""

    #: The paragraph: what binds, the cheapest change, its predicted gain.
    text: str
    #: What binds now: ``"storage"``, ``"processors"``, ``"transport"``, ``"device"``; ``"order"`` where batches wait
    #: for single samples, ``"unknown"`` where there is a single batch.
    binding: str
    #: The change in a few words, empty where there is none to make.
    change: str
    #: The same as code to paste, such as ``cache="24GiB"``; empty where it is no matter of code.
    code: str
    #: By which factor the trainer gets faster, 1 where it does not.
    gain: float
    #: The change in figures, by what is changed: ``workers``, ``cores``, ``cache_bytes``, ``storage_bytes_per_s``.
    amounts: dict[str, float] = field(default_factory=dict)
    #: Whether the change was run, so that the gain is what that gave and no prediction.
    tried: bool = False

    def __str__(self) -> str:
        return self.text

    def __contains__(self, words: str) -> bool:
        return words in self.text


@dataclass(frozen=True)
class Accelerator:
    """An emulated accelerator, measured the way MLPerf Storage does."""

    #: Such as ``"resnet50-h100"``, or ``"given"`` where a step time or a function was given.
    name: str
    #: Seconds of a step, and the samples in it.
    step_seconds: float
    batch_size: int
    #: Where the step time was published; empty where it was given.
    source: str
    #: Compute time as a fraction of all time, first batch aside: the utilisation.
    utilisation: float
    #: What it takes to pass, where the workload has such a line.
    pass_line: float | None
    passed: bool | None


@dataclass(frozen=True)
class Subject:
    """What was analysed."""

    #: ``"native"`` (a Sutler loader of files), ``"python"`` (a Sutler loader of a Python dataset), ``"stream"``, or
    #: ``"torch"`` (a PyTorch ``DataLoader``).
    kind: Literal["native", "python", "stream", "torch"]
    #: The dataset in a few words, such as ``"ImageFolder data/train"``. Whatever a file may be called may be in it.
    dataset: str
    #: How many samples it has; ``None`` where nobody knows.
    samples: int | None
    #: The encoded bytes of an average sample, and of all of them.
    sample_bytes: float | None
    dataset_bytes: float | None
    batch_size: int
    workers: int
    #: Processors that this process may use.
    cores: int
    #: The cache's budget, and which fraction of the samples it keeps; 0 without one.
    cache_bytes: int
    cached: float
    #: The rate that storage is held to for the analysis, where it is.
    storage_mbps: float | None
    #: What the machine has.
    memory_bytes: int


@dataclass(frozen=True)
class Findings:
    """All of it."""

    subject: Subject
    #: By name, see `RATE_MEANINGS`; one that could not be measured is missing, and a warning says why.
    rates: dict[str, Rate]
    stalls: Stalls
    #: Samples per second that the trainer really got in the measured run.
    measured: Interval
    what_if: dict[str, tuple[WhatIf, ...]]
    recommendation: Recommendation
    stages: tuple[StageTimes, ...] = ()
    timeline: tuple[BatchTimes, ...] = ()
    accelerator: Accelerator | None = None
    #: Samples per second that it got when the same was run again, before and after predictions were tried (``verify``).
    measured_again: tuple[float, ...] = ()
    #: Sentences on what the figures are worth.
    warnings: tuple[str, ...] = ()
    #: How long the analysis took.
    seconds: float = 0.0
    #: The figures that what-ifs are worked out from, for `sutler_core::analyse`.
    facts: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON.

        ``rates`` are numbers, or ``None`` for a step that was not given; how well they are known stands in
        ``measurements``.
        """
        plain = dataclasses.asdict(self)
        plain["measurements"] = plain["rates"]
        plain["rates"] = {
            name: rate.samples_per_s.value if rate.passes else None for name, rate in self.rates.items()
        }
        return plain

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @staticmethod
    def from_dict(plain: dict[str, Any]) -> Findings:
        """Reads what `to_dict` made.

        Raises:
            ValueError: It was written by a newer release, or is no report.
        """
        version = plain.get("schema_version") if isinstance(plain, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"this is no report that Sutler can read: its schema_version is {version!r}, and this release knows "
                f"{SCHEMA_VERSION}; make the report anew, or read it with the release that wrote it"
            )
        given = dict(plain)
        given["rates"] = given.pop("measurements", {})
        return _read(Findings, given)

    @staticmethod
    def from_json(text: str) -> Findings:
        """Reads what `to_json` made.

        Raises:
            ValueError: It was written by a newer release, or is no report.
        """
        try:
            plain = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"this is no report, as it is no JSON: {error}; give what Report.to_json wrote"
            ) from None
        return Findings.from_dict(plain)


def _read(kind: type[_Data], plain: dict[str, Any]) -> _Data:
    """A dataclass from the dictionary that `dataclasses.asdict` made of it; keys it does not have are passed over."""
    hints = typing.get_type_hints(kind)
    values = {}
    for each in dataclasses.fields(kind):  # type: ignore[arg-type]
        if each.name in plain:
            values[each.name] = _read_value(hints[each.name], plain[each.name])
        elif each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
            raise ValueError(f"this is no report: its {kind.__name__} has no {each.name}")
    return kind(**values)


def _read_value(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            raise ValueError(f"this is no report: {value!r} stands where its {hint.__name__} should be")
        return _read(hint, value)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _read_value(arguments[0], value)
    if origin is dict:
        return {key: _read_value(arguments[1], each) for key, each in value.items()}
    if origin is tuple:
        each_hint = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        return tuple(_read_value(one, each) for one, each in zip(each_hint, value, strict=True))
    return value
