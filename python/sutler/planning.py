"""What to keep in memory, and in which form: measured here, predicted for every split."""

from __future__ import annotations

import json
import numbers
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sutler import _sutler
from sutler._selection import origin_of, selection_of
from sutler.cache import read_size
from sutler.datasets import NativeDataset

if TYPE_CHECKING:
    from torch.utils.data import Subset


@dataclass(frozen=True)
class SplitPrediction:
    """What a model says of one split."""

    #: The shares of encoded, decoded and augmented samples in percent, such as ``"58-42-0"``.
    split: str
    #: Samples per second, for all jobs together.
    predicted: float
    #: What is exhausted first: ``"storage"``, ``"cache"``, ``"network"``, ``"processors"``, ``"bus"`` or ``"device"``.
    #: The published model does not say.
    bound_by: str | None


@dataclass(frozen=True)
class PublishedPlan:
    """What the published model (Seneca, FAST'26) says of the same measurements, for comparison."""

    best: SplitPrediction
    splits: list[SplitPrediction] = field(repr=False)


@dataclass(frozen=True)
class Plan:
    """What :func:`plan` found out. Printed, it is a table.

    Attributes:
        memory: The budget that is split, in bytes.
        profile: What was measured, by name: sizes in bytes, rates per second, costs in seconds per sample.
        best: The best split. Of equally good ones, the one with the most encoded samples, which is cheapest to fill.
        splits: All 5,151 splits in steps of one percent, the most encoded first.
        published: What the published model says.
    """

    memory: int
    profile: dict[str, Any]
    best: SplitPrediction
    splits: list[SplitPrediction] = field(repr=False)
    published: PublishedPlan = field(repr=False)
    _text: str = field(repr=False)
    _json: str = field(repr=False)

    def __str__(self) -> str:
        return self._text

    def predicted(self, split: str) -> float:
        """What our model says of one split.

        Raises:
            ValueError: There is no such split.
        """
        for each in self.splits:
            if each.split == split:
                return each.predicted
        raise ValueError(f"split={split!r} is none in whole percents that add up to 100, such as '58-42-0'")

    def to_json(self) -> str:
        """Everything, as ``sutler plan --json`` prints it."""
        return self._json


def plan(
    dataset: NativeDataset | Subset[Any],
    *,
    memory: int | str,
    jobs: int = 1,
    batch_size: int = 64,
    step_time: float | None = None,
    num_workers: int | None = None,
    time: float = 4.0,
) -> Plan:
    """Measures a dataset with its transforms on this machine, and predicts the throughput of every split of ``memory``.

    Samples from all over the dataset are prepared from storage, from an encoded and from a decoded copy, with as many
    threads as a loader would have. Storage is measured past the page cache. Nothing is kept of it. Samples that cannot
    be prepared are left out, with a warning.

    Args:
        dataset: A native dataset, such as :class:`sutler.ImageFolder`, or a ``Subset`` of one: then samples of the
            whole dataset are measured, and as many are planned for as the part has.
        memory: The budget: a number of bytes, or text such as ``"8GiB"``.
        jobs: How many jobs train on the dataset at the same time and share what is prepared.
        batch_size: Samples per batch; it matters only together with ``step_time``.
        step_time: How many seconds an accelerator takes for a batch; without it accelerators are no limit.
        num_workers: How many threads prepare; by default one per usable core.
        time: How many seconds to measure, roughly.

    Raises:
        TypeError: The dataset is not a native one.
        ValueError: An argument is out of range, or not a single sample could be prepared.

    Examples:
        >>> import tempfile, sutler, sutler.testing
        >>> folder = tempfile.mkdtemp()
        >>> sutler.testing.make_photos(folder, count=16)
        >>> found = sutler.plan(sutler.ImageFolder(folder), memory="1GiB", time=0.1)
        >>> len(found.splits), found.profile["samples"], found.best.predicted > 0
        (5151, 16, True)
    """
    native = origin_of(dataset)
    if not isinstance(native, NativeDataset):
        raise TypeError(
            "plan measures native datasets (sutler.ImageFolder, sutler.Manifest), and "
            f"{type(dataset).__module__}.{type(dataset).__qualname__} is none"
        )
    if native.content != "images":
        raise TypeError(
            f"plan measures images, and {type(native).__name__} holds {native.content}, of which nothing is kept"
        )
    for name, value in (("jobs", jobs), ("batch_size", batch_size), ("num_workers", num_workers)):
        if name == "num_workers" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} should be a positive integer, got {value!r}")
        if not 1 <= value < 2**31:
            raise ValueError(f"{name} should be a positive integer, got {value!r}")
    for name, seconds in (("step_time", step_time), ("time", time)):
        if name == "step_time" and seconds is None:
            continue
        if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real):
            raise TypeError(f"{name} should be a number of seconds, such as 0.03, got {seconds!r}")
        if not 0 < float(seconds) < 86_400:
            raise ValueError(f"{name} should be a positive number of seconds, got {seconds!r}")
    threads = _sutler.usable_cores() if num_workers is None else num_workers
    budget = read_size(memory)
    part = selection_of(dataset)
    if part is not None and part.distinct() == 0:
        raise ValueError("the Subset names no sample, so there is nothing to plan for")
    profile, complaint = _sutler.measure_profile(
        native._native,
        native._pipeline,
        threads=threads,
        jobs=jobs,
        device_samples_per_s=None if step_time is None else jobs * batch_size / step_time,
        copies_bytes_max=None,
        seconds=time,
        served=None if part is None else part.distinct(),
    )
    if complaint is not None:
        warnings.warn(complaint, stacklevel=2)
    return _read(*_sutler.compare_plans(profile, budget))


def _read(text: str, story: str) -> Plan:
    facts = json.loads(text)

    def entries(given: list[dict[str, Any]]) -> list[SplitPrediction]:
        return [SplitPrediction(**each) for each in given]

    published = facts["published"]
    return Plan(
        memory=facts["memory_bytes"],
        profile=facts["profile"],
        best=SplitPrediction(**facts["best"]),
        splits=entries(facts["splits"]),
        published=PublishedPlan(SplitPrediction(**published["best"]), entries(published["splits"])),
        _text=story,
        _json=text,
    )
