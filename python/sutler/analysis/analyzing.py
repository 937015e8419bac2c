"""`sutler.analyze`: measure, attribute, predict, recommend."""

from __future__ import annotations

import json
import math
import time as clock
from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from typing import Any
from warnings import warn

from sutler import _sutler
from sutler.analysis import doubts, what_ifs, wording
from sutler.analysis.accelerators import DATASET_TO_MEMORY, Published
from sutler.analysis.accelerators import accelerator as published
from sutler.analysis.benches import Bench, keeping_random_state
from sutler.analysis.measuring import Measured, Measurement
from sutler.analysis.model import (
    CAUSES,
    Accelerator,
    Findings,
    Interval,
    Recommendation,
    StageTimes,
    Stalls,
    Subject,
)
from sutler.analysis.passes import Step
from sutler.analysis.proof import memory_bytes, memory_free_bytes
from sutler.analysis.report import Report
from sutler.analysis.sutler_bench import SutlerBench
from sutler.analysis.verifying import verified, without_transforms
from sutler.loader import Loader
from sutler.text import TextLines

#: Of the memory that is free, what a recommended cache may take: trainers need some of it, too.
MEMORY_FOR_CACHE = 0.8
#: How the code of a recommendation begins that is about another loader than the user's.
_LOADER_CALL = "sutler.Loader(..., "
#: Where a loader prepares more than this many times what the trainer takes, no transform is worth leaving out.
AMPLE = 2.0


class LongAnalysisWarning(UserWarning):
    """An analysis that takes longer than it was given."""


def analyze(
    loader: Any,
    step: Callable[[Any], Any] | float | None = None,
    batches: int | None = None,
    *,
    accelerator: str | None = None,
    verify: bool = False,
    time: float = 20.0,
    storage_mbps: float | None = None,
) -> Report:
    """Measures where a trainer's time goes: into its own work, or waiting for storage, preparation or transport.

    The same batches are trained on when they are simply there, when their samples are in memory, and when they come
    from where they really are, past the page cache; the differences are what the trainer waits for. The loader itself
    is not touched: others like it are built and closed again, with copies of its dataset and ``collate_fn`` where these
    run in this process; what cannot be copied is used as it is, and the report says so. The random generators of
    Python, NumPy and PyTorch are afterwards as they were before; what a real step does to its model stays done.

    Args:
        loader: A :class:`sutler.Loader` or a ``torch.utils.data.DataLoader``.
        step: Your training step, called with a batch as the loader yields it; or the seconds that one takes, which are
            then waited. Without it the trainer is no limit.
        batches: How many batches to look at, at the most.
        accelerator: Instead of ``step``, an accelerator with a published step time, such as ``"resnet50-h100"``.
        verify: Run some of the predicted configurations, and put what they gave beside the predictions.
        time: How many seconds to measure, roughly.
        storage_mbps: Hold storage to so many megabytes per second meanwhile; for native datasets.

    Raises:
        TypeError: The loader is none of these, the step is neither a function nor a number, or another argument is of
            the wrong kind.
        ValueError: An argument is out of range, there are no batches, or the loader draws from something that can be
            gone through only once, so that an analysis would leave nothing for training.
        Exception: Whatever the step raises, with a note that it was the step.

    Examples:
        >>> import sutler, sutler.testing, tempfile
        >>> from sutler import transforms as T
        >>> folder = tempfile.mkdtemp()
        >>> sutler.testing.make_photos(folder, count=24)
        >>> loader = sutler.Loader(sutler.ImageFolder(folder, transform=T.RandomResizedCrop(32)), batch_size=4)
        >>> report = sutler.analyze(loader, step=0.01, time=0.5)
        >>> round(sum([report.stalls.fetch, report.stalls.prep, report.stalls.transport, report.stalls.trainer]), 6)
        1.0
    """
    emulated = None
    if accelerator is not None:
        if step is not None:
            raise ValueError("give either step or accelerator: an accelerator is a step time with a name")
        emulated = published(accelerator)
        step = emulated.step_seconds
    _check(step, batches, time, storage_mbps)
    if isinstance(step, Real):
        step = float(step)
    with keeping_random_state():
        mbps = None if storage_mbps is None else float(storage_mbps)
        return _analyze(bench_for(loader), step, batches, emulated, verify, float(time), mbps)


def _analyze(
    bench: Bench,
    step: Callable[[Any], Any] | float | None,
    batches: int | None,
    emulated: Published | None,
    verify: bool,
    time: float,
    storage_mbps: float | None,
) -> Report:
    """The same with arguments that have been looked at."""
    begun = clock.monotonic()
    if storage_mbps is not None and not bench.throttles:
        reads = (
            "lines of text are read as pieces of files, which"
            if bench.kind == "native"
            else "what worker processes read, for a dataset or for functions that are written in Python,"
        )
        raise ValueError(
            "storage_mbps holds the storage of native datasets (sutler.ImageFolder, sutler.Manifest) to a rate; "
            f"{reads} cannot be slowed down from here"
        )
    not_copied = bench.use_copies()
    measurement = Measurement(
        bench,
        Step(0.0 if step is None else step),
        batches_max=batches,
        seconds=time,
        storage_bytes_per_s=None if storage_mbps is None else storage_mbps * 1e6,
        verify=verify,
    )
    longer = doubts.of_length(
        time, measurement.least_seconds, len(measurement.sizes), measurement.starting_seconds
    )
    for sentence in longer:
        warn(sentence, LongAnalysisWarning, stacklevel=3)  # now, and not when it is over
    measured = measurement.run()
    facts = measured.facts
    facts["memory_bytes"] = memory_free_bytes() * MEMORY_FOR_CACHE
    stalls = Stalls(**{cause: facts["stalls"][cause] for cause in CAUSES})
    advice = _recommendation(measurement, facts)
    questions = what_ifs.table(facts, bench.cache_bytes, advice.amounts)
    if measurement.keeps_prepared:
        questions.pop("cache", None)
    warnings = longer + not_copied + measured.warnings + _limits(bench)
    if not bench.shareable and doubts.FUNCTIONS not in warnings:
        warnings.append(doubts.ALONE)
    if bench.in_turns and bench.workers > 1:
        warnings.append(doubts.IN_TURNS)
    if measurement.keeps_prepared:
        warnings.append(doubts.NATIVE_CACHE_AS_IT_IS if measurement.native else doubts.CACHE_AS_IT_IS)
    if isinstance(step, (int, float)):
        warnings += doubts.of_step(step, measured.step.value * measured.batch_samples)
    found = Interval(**facts["measured"])
    again: tuple[float, ...] = ()
    if verify:
        tried = verified(measurement, facts, questions, advice)
        questions, again = tried.questions, tried.again
        warnings += tried.notes
        # Once more, as predictions are known no better now than they turned out to be.
        advice = _as_tried(_recommendation(measurement, facts), tried.recommended, found.value)
    if measurement.slow_start:
        advice = _with_workers_that_stay(advice)
    if stalls.waiting > 0.02 and facts["prepare"]["value"] < AMPLE * facts["ingest"]["value"]:
        left_out = without_transforms(measurement, facts)
        if left_out:
            questions["without"] = left_out
    subject = _subject(bench, measurement, measured, storage_mbps)
    device = _accelerator(emulated, step, bench, stalls, measured)
    if emulated is not None:
        warnings += _too_small(emulated.batch_size, bench, subject)
    return Report(
        Findings(
            subject=subject,
            rates=measured.rates,
            stalls=stalls,
            measured=found,
            what_if=questions,
            recommendation=advice,
            stages=_stages(measured.stages),
            timeline=measured.timeline,
            accelerator=device,
            measured_again=again,
            warnings=tuple(warnings),
            seconds=clock.monotonic() - begun,
            facts=facts,
        ),
        measured.record,
    )


def _check(step: Any, batches: Any, time: Any, storage_mbps: Any) -> None:
    """Whether the arguments of an analysis are such.

    Raises:
        TypeError: One is of another kind.
        ValueError: One is out of range.
    """
    if step is not None and not callable(step) and not _is_number(step):
        raise TypeError(f"step should be a function of a batch, or a number of seconds, got {step!r}")
    if _is_number(step) and not 0 <= step < 3600:
        raise ValueError(f"step should be a number of seconds from 0 to an hour, got {step!r}")
    if batches is not None and (isinstance(batches, bool) or not isinstance(batches, int) or batches < 1):
        raise ValueError(f"batches should be a positive number, got {batches!r}")
    if not _is_number(time):
        raise TypeError(f"time should be a positive number of seconds, got {time!r}")
    if not 0 < time < 86_400:
        raise ValueError(f"time should be a positive number of seconds, up to a day, got {time!r}")
    if storage_mbps is not None and not _is_number(storage_mbps):
        raise TypeError(
            f"storage_mbps should be a positive number of megabytes per second, got {storage_mbps!r}"
        )
    if storage_mbps is not None and not 0 < storage_mbps < math.inf:
        raise ValueError(
            f"storage_mbps should be a positive number of megabytes per second, got {storage_mbps!r}"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)  # NumPy's numbers are real ones, too


def _recommendation(measurement: Measurement, facts: dict[str, Any]) -> Recommendation:
    if len(measurement.sizes) == 1:
        return Recommendation(doubts.ONE_BATCH, binding="unknown", change="", code="", gain=1.0)
    setting = "stream" if measurement.streams else measurement.bench.kind
    if measurement.keeps_prepared:
        # Of these nobody can say what a larger cache would bring, so none is recommended.
        facts = {**facts, "memory_bytes": 0.0}
    advice = Recommendation(**json.loads(_sutler.advise(json.dumps(facts), setting)))
    return replace(advice, code=_in_one_call(advice.code))


def _in_one_call(code: str) -> str:
    """Recommended code with all of its arguments in the call, where it has one: as it can be pasted.

    Examples:
        >>> _in_one_call('num_workers=3, persistent_workers=True, sutler.Loader(..., cache="27MiB")')
        'sutler.Loader(..., num_workers=3, persistent_workers=True, cache="27MiB")'
        >>> _in_one_call('num_workers=3, cache="27MiB"')
        'num_workers=3, cache="27MiB"'
    """
    before, call, inside = code.partition(_LOADER_CALL)
    return f"{call}{before}{inside}"


def _as_tried(advice: Recommendation, run: float | None, measured: float) -> Recommendation:
    """The same with what it gave where it was run, so that nobody has to rely on the prediction."""
    if run is None:
        return advice
    gain = run / measured
    verdict = "" if gain >= _sutler.GAIN_MIN else ", so it does not help"
    told = f"{advice.text} Tried here it gave {wording.rate(run)}, {gain:.2f} times as many{verdict}."
    return replace(advice, text=told, gain=gain, tried=True)


def _with_workers_that_stay(advice: Recommendation) -> Recommendation:
    """The same where workers should not be started anew for every epoch, if that is not part of it already.

    Examples:
        >>> def code(recommended):
        ...     advice = Recommendation("Do it.", "device", "", recommended, 1.0)
        ...     return _with_workers_that_stay(advice).code
        >>> code("")
        'persistent_workers=True'
        >>> code("num_workers=8")
        'persistent_workers=True, num_workers=8'
        >>> code('sutler.Loader(..., cache="1GiB")')
        'sutler.Loader(..., persistent_workers=True, cache="1GiB")'
    """
    stay = "persistent_workers=True"
    if stay in advice.code:
        return advice
    code = _in_one_call(", ".join(filter(None, [stay, advice.code])))
    return replace(
        advice,
        text=f"{advice.text} Apart from that, let workers stay from one epoch to the next ({stay}): starting them "
        "takes a good part of each.",
        change=advice.change or "let workers stay from one epoch to the next",
        code=code,
    )


def bench_for(loader: Any) -> Bench:
    """The loader on the bench.

    Raises:
        TypeError: It is no loader that can be rebuilt.
    """
    if isinstance(loader, Loader):
        return SutlerBench(loader)
    if any(f"{kind.__module__}.{kind.__qualname__}" == _TORCH_LOADER for kind in type(loader).__mro__):
        from sutler.analysis.torch_bench import TorchBench

        return TorchBench(loader)
    raise TypeError(
        "analyze takes a sutler.Loader or a torch.utils.data.DataLoader, and "
        f"{type(loader).__module__}.{type(loader).__qualname__} is neither"
    )


_TORCH_LOADER = "torch.utils.data.dataloader.DataLoader"


def _limits(bench: Bench) -> list[str]:
    """What an analysis of this loader leaves out."""
    notes = []
    if isinstance(bench, SutlerBench) and bench.has_agent:
        notes.append(
            "The loader takes its samples from an agent. It was analysed without: as if it were alone on this machine, "
            "with its own number of workers."
        )
    if bench.kind == "stream" or getattr(bench, "is_stream", False):
        notes.append(
            "The dataset is a stream: nobody knows its length, and it is always gone through from its beginning, so "
            "figures are of its first batches, and a second pass finds in the page cache what the first has read."
        )
    if isinstance(bench, SutlerBench) and bench.loader._functions_in_workers:
        notes.append(doubts.FUNCTIONS)
    if isinstance(bench.dataset, TextLines):
        notes.append(doubts.LINES)
        if bench.dataset.pack is not None and bench.loader.shuffle:
            notes.append(doubts.PACKED_IN_ORDER)
    return notes


def _subject(
    bench: Bench, measurement: Measurement, measured: Measured, storage_mbps: float | None
) -> Subject:
    sample_bytes = measurement.pages.sample_bytes
    samples = bench.samples
    return Subject(
        kind=bench.kind,
        dataset=bench.name,
        samples=samples,
        sample_bytes=sample_bytes,
        dataset_bytes=sample_bytes * samples if sample_bytes is not None and samples is not None else None,
        batch_size=bench.batch_size,
        workers=bench.workers,
        cores=_sutler.usable_cores(),
        cache_bytes=bench.cache_bytes,
        cached=measured.cached,
        storage_mbps=storage_mbps,
        memory_bytes=memory_bytes(),
    )


def _accelerator(
    emulated: Any, step: Any, bench: Bench, stalls: Stalls, measured: Measured
) -> Accelerator | None:
    if step is None or step == 0:
        return None
    return Accelerator(
        name="given" if emulated is None else emulated.name,
        step_seconds=measured.step.value * measured.batch_samples,
        batch_size=bench.batch_size,
        source="" if emulated is None else emulated.source,
        utilisation=stalls.trainer,
        pass_line=None if emulated is None else emulated.pass_line,
        passed=None if emulated is None else stalls.trainer >= emulated.pass_line,
    )


def _too_small(batch_size: int, bench: Bench, subject: Subject) -> list[str]:
    """What makes the utilisation of an emulated accelerator mean less than it seems."""
    notes = []
    if bench.batch_size != batch_size:
        notes.append(
            f"The published step time is that of a batch of {batch_size}, and the loader's batches have "
            f"{bench.batch_size}: the utilisation is not that of the published workload."
        )
    least = DATASET_TO_MEMORY * subject.memory_bytes
    if subject.dataset_bytes is None:
        notes.append(
            "How large the dataset is could not be found out. MLPerf Storage asks for five times the memory of the "
            "host; with less, a real training run would find in the page cache what was read from storage here."
        )
    elif subject.dataset_bytes < least:
        notes.append(
            f"The dataset has about {what_ifs.size_label(subject.dataset_bytes)}, and this machine "
            f"{what_ifs.size_label(subject.memory_bytes)} of memory. MLPerf Storage asks for five times the memory "
            f"({what_ifs.size_label(least)}), so the utilisation says what this storage would do for a dataset that "
            "does not fit; of this one the page cache would serve most after the first epoch, and it would be no "
            "result there."
        )
    return notes


def _stages(stages: dict[str, Any]) -> tuple[StageTimes, ...]:
    return tuple(
        StageTimes(
            name,
            times["count"],
            times["mean"],
            times["p50"],
            times.get("p95", times["p99"]),
            times["p99"],
            tuple((fraction, seconds) for fraction, seconds in times.get("quantiles", ())),
        )
        for name, times in stages.items()
    )
