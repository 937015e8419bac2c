"""The phases of an analysis: which loader each is about, what is timed, and what proves that it was as it should be."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from sutler import _sutler
from sutler.analysis import doubts, evenness
from sutler.analysis.benches import Batches, Bench, Config, Pages, Probe, ReadySamples
from sutler.analysis.dealing import in_batches, representative
from sutler.analysis.in_place import of_latest, with_causes
from sutler.analysis.looking import Looked, look_at
from sutler.analysis.model import CAUSES, BatchTimes, Interval, Rate
from sutler.analysis.passes import (
    BATCHES_MIN,
    NO_STEP,
    PROGRESS,
    Pass,
    Series,
    Step,
    batch_length,
    counted,
    in_fresh_containers,
    plain,
    repeat,
    run_pass,
)
from sutler.analysis.proof import device_bytes, processor_seconds, processor_waits
from sutler.analysis.storing import storage_and_cache, storage_from_passes
from sutler.analysis.sutler_bench import UNTHROTTLED
from sutler.cache import DEFAULT_SPLIT
from sutler.errors import Failure

#: A cache gives out memory in blocks of a little more than this.
CACHE_BLOCK = 4200
#: A smaller one holds next to nothing.
CACHE_MIN = 4 * CACHE_BLOCK
#: What may have been read while everything was in memory: a directory, a library that is used for the first time.
STRAY_BYTES = 64 << 10
#: Batches to look at where the user does not say.
BATCHES_MAX = 256
#: How often each of twice as many workers makes a batch where predictions are verified.
ROUNDS_TO_VERIFY = 5
#: Calls of the user's step before the clock runs.
STEPS_WARMING_UP = 3
#: Seconds that a pass takes at the most, if it has enough batches: many passes tell more than long ones, as they also
#: tell how well their mean is known.
PASS_SECONDS_MAX = 1.0
#: Of the time of an analysis, what a pass of a single worker may take. It is the slowest of all.
PART_ALONE = 1 / 12
#: And what a look at all samples may take, where only that tells which files they lie in. It is about one pass of many.
PART_LOOKING_MAX = 0.5
#: And what a look at further samples may take, where the loader tells nothing of single ones: those that take long may
#: be so few that hardly one is among the batches that are gone through again and again. These are gone through a few
#: times, too, to tell them from what the machine does besides.
PART_FURTHER, TIMES_FURTHER = 1 / 10, 3
#: How many passes there are at least with the loader alone, with the step as well, and with the step and samples that
#: are ready: two of each thing that is compared, and of the first kind three that warm up.
PASSES_ALONE, PASSES_TRAINING, PASSES_READY = 7, 4, 2
#: And how often a single worker goes through its batches: twice to get going, and twice in each of two passes.
ROUNDS_OF_ONE_WORKER = 6
#: How often batches are repeated in a pass at the most.
REPEATS_MAX = 100

#: What has to be known well for shares to be, in words.
_DOUBTED = {
    "step": "the step alone",
    "memory": "preparing alone",
    "memory+step": "training from memory",
    "real+step": "training as it is",
}


@dataclass
class Phase:
    """A loader that is gone through again and again under the same circumstances."""

    probe: Probe
    step: Step
    #: Brings samples to where they should be before each pass.
    prepare: Callable[[], None]
    #: How many workers it has, where not as many as the user's.
    workers: int | None = None
    #: How often it goes through the batches in a pass, where samples are in memory and do not wear out.
    repeats: int = 1
    #: How many samples each of its batches has, where they are not those of the analysis.
    sizes: list[int] | None = None
    series: Series = field(default_factory=Series)
    last: Pass | None = None
    #: When the batches of each pass came.
    times: list[tuple[BatchTimes, ...]] = field(default_factory=list)
    #: Samples of all passes, those that are not counted included.
    served: int = 0
    #: Seconds of processors, and of being in line for one, over all passes.
    work_seconds: float = 0.0
    #: Seconds that the trainer waited for finished batches to arrive, where the loader keeps count.
    transport_seconds: float = 0.0
    #: Seconds that each function of the user's took in the trainer's process, beside workers, by its name.
    function_seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class Measured:
    """All that the phases gave."""

    rates: dict[str, Rate]
    #: Seconds for each sample: the step alone, handed over, prepared, fetched.
    step: Interval
    handed: Interval
    prepared: Interval
    fetched: Interval
    timeline: tuple[BatchTimes, ...]
    #: The same and their samples, as the loader wrote them down, where it does.
    record: dict[str, Any] | None
    stages: dict[str, Any]
    facts: dict[str, Any]
    cached: float
    #: How many samples the batches had, on average.
    batch_samples: float
    warnings: list[str]


class Measurement:
    """One analysis while it is measured."""

    def __init__(
        self,
        bench: Bench,
        step: Step,
        *,
        batches_max: int | None,
        seconds: float,
        storage_bytes_per_s: float | None,
        verify: bool = False,
    ) -> None:
        self.bench = bench
        self.step = step
        self.seconds = seconds
        self.storage = storage_bytes_per_s
        self.warnings: list[str] = []
        self.native = bench.kind == "native"
        #: Whether its samples can be kept in a cache of ours.
        self.keeps = self.native and bench.dataset.content == "images"
        #: Whether it has a cache of something else, as of what a dataset in Python prepares. That is left as it is in
        #: all that is measured: no model says what another one would bring.
        self.keeps_prepared = bool(bench.cache_bytes) and not self.keeps
        self.streams = bench.kind == "stream" or bool(getattr(bench, "is_stream", False))
        self._stack = ExitStack()
        self._verifies = verify
        self.batches: Batches = []
        self.sizes: list[int] = []
        self._choose_batches(batches_max)
        looked = Looked({}, []) if self.streams else look_at(bench, self.batches, seconds * PART_LOOKING_MAX)
        #: Whether time was up before the files of all samples were known.
        self.cut_short = looked.cut_short
        if self.cut_short:
            self._only_known(looked.files)
        #: As many samples as a batch has, prepared.
        self._ready = looked.samples
        self.pages = Pages(looked.files, self.batches)
        #: Seconds of this process's processors, and of the clock, that the step alone has taken.
        self._step_work = self._step_time = 0.0
        #: What a sample takes in a cache, once one has been filled.
        self.kept_bytes: float | None = None
        #: Which part of the samples the user's cache has.
        self.cached = 0.0
        #: Whether starting the user's workers for every epoch takes a part of it that is felt.
        self.slow_start = False

    # --- which batches ---------------------------------------------------------------------------------------------

    def _choose_batches(self, batches_max: int | None) -> None:
        """As many batches as fit into a pass of reasonable length, in the order that the loader draws them."""
        bench, limit = self.bench, batches_max or BATCHES_MAX
        drawn = bench.draw(limit)
        if not drawn and not self.streams:
            raise ValueError(doubts.no_batches(bench.samples, bench.batch_size))
        team = self._team(None)
        failures: list[Failure] = []
        self.pass_seconds = pass_seconds = min(PASS_SECONDS_MAX, max(0.05, self.seconds / 30))
        with ExitStack() as stack:
            probe = self.open(stack, Config(storage_bytes_per_s=self.storage), drawn)
            started, count = 0.0, 0
            least = 2 * max(team, probe.ahead if self.native else 0) + BATCHES_MIN
            if bench.whole_batches and self._verifies:
                # Twice as many workers may be tried. They make twice as many batches at a time, of which the first and
                # the last do not count, and of the others it takes a few rounds to know a mean.
                least = ROUNDS_TO_VERIFY * 2 * team + BATCHES_MIN
            sizes = []
            opened = time.perf_counter()
            for batch in itertools.islice(probe.epoch(), limit):
                sizes.append(batch_length(batch, bench.batch_size))
                if count == 0:
                    #: A batch as the step gets it, to be trained on again and again.
                    self.batch = batch
                    # Libraries are loaded and workers started for the first one, which is no news about the others.
                    started = time.perf_counter()
                count += 1
                enough = count >= least and count % team == 0
                if enough and time.perf_counter() - started > pass_seconds:
                    break
                if time.perf_counter() - started > self.seconds and count >= 2:
                    break
            failures = probe.failures()
            if count == 0:
                raise ValueError(doubts.nothing_good(failures, sum(map(len, drawn))))
            each = (time.perf_counter() - started) / max(1, count - 1)
            # A worker takes longer for its first batch than all of them from one to the next.
            start = max(0.0, started - opened - each * team)
        if step_seconds := self._step_seconds():
            fit = max(least, int(pass_seconds / max(step_seconds, each)))
            count = min(count, math.ceil(fit / team) * team)
        count = max(1, count - count % team) if count > team else count
        #: How many batches it takes to say something.
        self._enough = least
        #: What it takes to start workers, as often as that is done.
        self.starting_seconds = self._starts() * start
        #: What the analysis takes, roughly, if it is given hardly any time.
        self.least_seconds = self._least(count, each, step_seconds) + self.starting_seconds
        self.batches = self._good(drawn, count, failures)
        #: What the loader draws after them.
        self._further = drawn[len(self.batches) :] if not failures else []
        self.sizes = [len(batch) for batch in self.batches] or sizes[:count]
        PROGRESS.info("looks at %d batches with %d samples", len(self.sizes), sum(self.sizes))
        if count <= 2 * team:
            self.warnings.append(doubts.few_batches(count))
        samples = bench.samples
        if samples is not None and samples < bench.batch_size:
            self.warnings.append(
                f"The dataset has {samples} samples, fewer than a batch of {bench.batch_size}: figures are those of "
                "one incomplete batch, and mean little for a larger dataset."
            )

    def _least(self, count: int, each: float, step: float) -> float:
        """Seconds that the fewest passes over so many batches take, with what the loader and the step take for each."""
        workers = self.bench.workers
        # Workers prepare while the trainer trains.
        together = max(each, step) if workers else each + step
        ready = 0 if self.native or self.streams else PASSES_READY
        seconds = count * (PASSES_ALONE * each + PASSES_TRAINING * together + ready * step)
        if workers > 1:
            # One pass tells how many batches a single worker gets, which takes so much longer for each.
            slower = min(workers, _sutler.usable_cores())
            seconds += (count + slower * ROUNDS_OF_ONE_WORKER * min(count, BATCHES_MIN // 2)) * each
        return seconds

    def _starts(self) -> int:
        """How many more times workers are started, where they are processes."""
        if self.native or self.bench.in_process:
            return 0
        starts = 2  # for what is in memory, and for what is not
        if not self.streams:
            starts += 2  # to look at samples, and for those that are ready
        if self.bench.workers > 1:
            starts += 1  # a single one
        return starts

    def _good(self, drawn: Batches, count: int, failures: list[Failure]) -> Batches:
        """So many of the drawn batches, without the samples that the loader leaves out."""
        bad = {failure.id: failure for failure in failures}
        good: Batches = []
        tried, found = 0, []
        for batch in drawn:
            if len(good) == count:
                break
            tried += len(batch)
            found += [bad[index] for index in batch if index in bad]
            # A batch of which nothing is left is passed over.
            if left := [index for index in batch if index not in bad]:
                good.append(left)
        if found:
            self.warnings.append(
                f"{len(found)} of the {tried} samples that were looked at could not be prepared. The loader leaves "
                "such samples out, and so does this: they count neither as samples nor as time. "
                f"{doubts.named(found)}{doubts.listed(found)}"
            )
        return good

    def _only_known(self, files: dict[Any, list[str]]) -> None:
        """Only batches of samples whose files are all known, if these are enough to say something."""
        known = [batch for batch in self.batches if all(index in files for index in batch)]
        count = len(known) - len(known) % self._team(None)
        if count >= self._enough:
            self.batches = known[:count]
            self.sizes = [len(batch) for batch in self.batches]
            PROGRESS.info("the files of %d batches are known, and only these are looked at", count)

    def _team(self, workers: int | None) -> int:
        """How many batches are under way at the same time, with so many workers."""
        workers = max(1, self.bench.workers if workers is None else workers)
        return workers if self.bench.whole_batches else -(-workers // max(1, self.bench.batch_size))

    def open(self, stack: ExitStack, config: Config, batches: Batches | None = None) -> Probe:
        """A loader over the batches of the analysis."""
        probe = self.bench.open(self.batches if batches is None else batches, config)
        stack.callback(probe.close)
        return probe

    # --- phases ----------------------------------------------------------------------------------------------------

    def run(self) -> Measured:
        """All phases."""
        with self._stack:
            return self._run()

    def _run(self) -> Measured:
        bench = self.bench
        memory = self.open_in_memory(self._stack, Config())
        # Storage that is held to a rate is as slow the second time, so whole rounds can be counted.
        rounds = 1 if self.storage is None else 2
        self.counted = (0, len(self.sizes))
        if rounds == 1:
            self.counted = counted(len(self.sizes), self._team(None), memory.ahead)
        real, self.cached = self.open_as_it_is(self._stack, Config(storage_bytes_per_s=self.storage))
        ready = self._ready_probe()
        repeats = self._repeats(memory)
        phases = {
            "memory": Phase(memory, NO_STEP, self.into_memory, repeats=repeats),
            "memory+step": Phase(memory, self.step, self.into_memory),
            "real": Phase(real, NO_STEP, self.onto_storage, repeats=rounds),
            "real+step": Phase(real, self.step, self.onto_storage, repeats=rounds),
        }
        if ready is not None:
            phases["ready"] = Phase(ready, NO_STEP, _nothing, repeats=self._repeats(ready))
            phases["ready+step"] = Phase(ready, self.step, _nothing)
        if bench.workers > 1:
            phases["alone"] = self._alone(memory)
        series = {name: phase.series for name, phase in phases.items()}
        measures: dict[str, Callable[[], None]] = {}
        if not self.step.is_none:  # or there is nothing to measure, and nothing to doubt
            series["step"] = Series()
            measures["step"] = lambda: self._step_alone(series["step"])
        for name, phase in phases.items():
            measures[name] = lambda phase=phase: self.measure(phase)  # type: ignore[misc]
        repeat(measures, series, self.seconds * 0.7)
        return self._conclude(series, phases)

    def open_in_memory(self, stack: ExitStack, config: Config, batches: Batches | None = None) -> Probe:
        """A loader whose samples are all in memory: in a cache of ours, or in the page cache."""
        if self.keeps:
            config = replace(config, cache_bytes=self._room(), split=DEFAULT_SPLIT)
        if self.native:
            config = replace(config, storage_bytes_per_s=UNTHROTTLED)
        if self.keeps_prepared:
            return self.open_as_it_is(stack, config)[0]
        probe = self.open(stack, config, batches)
        self._go_through(probe)
        kept = probe.kept()
        if kept is not None and kept[0] and self.keeps and batches is None:
            self.kept_bytes = kept[1] / kept[0]
        return probe

    def open_warm(self, stack: ExitStack, config: Config) -> Probe:
        """A loader that has been gone through once: its workers are there, and their memory has been touched.

        Its first pass would take longer than any later one, and where few are made that is felt.
        """
        probe = self.open(stack, config)
        if self.streams:
            self._go_through(probe)
        else:
            self.pages.read()
            probe.fill(self.batches)
        return probe

    def open_as_it_is(self, stack: ExitStack, config: Config) -> tuple[Probe, float]:
        """The loader as it stands, and the part of these batches in its cache, as large as it would be of all."""
        bench = self.bench
        if not bench.cache_bytes or not bench.samples:
            return self.open_warm(stack, config), 0.0
        if not self.keeps or self.kept_bytes is None:
            scaled = int(bench.cache_bytes * min(1.0, sum(self.sizes) / bench.samples))
            probe = self.open(stack, replace(config, cache_bytes=max(CACHE_MIN, scaled)))
            self._go_through(probe)
            kept = probe.kept()
            probe.spread(self.sizes)
            return probe, (kept[0] / sum(self.sizes) if kept else 0.0)
        cached = min(1.0, bench.cache_bytes / self.kept_bytes / bench.samples)
        return self.open_cached(stack, cached, config), cached

    def open_cached(self, stack: ExitStack, cached: float, config: Config) -> Probe:
        """A loader that has this fraction of the samples in its cache."""
        chosen = self.chosen(cached)
        wanted = len(chosen)
        if wanted == 0 or self.kept_bytes is None:
            return self.open_warm(stack, config)
        config = replace(config, cache_bytes=self._room())
        if wanted == sum(self.sizes):
            probe = self.open(stack, config)
            probe.fill(self.batches)
            return probe
        batches = in_batches(chosen, self.sizes)
        with ExitStack() as roomy:
            probe = self.open(roomy, config)
            probe.fill(batches)
            kept = probe.kept()
            room = kept[1] if kept else 0
        # Just as much room, so that no other sample is kept; a little more where they happen to come in another order,
        # or where many workers have room held for what they are about to keep.
        spares = sorted({blocks * CACHE_BLOCK for blocks in (0, 1, 2, 4, 16, 64)} | {room // 50})
        for spare in spares:
            attempt = ExitStack()
            probe = self.open(attempt, replace(config, cache_bytes=room + spare))
            probe.fill(batches)
            kept = probe.kept()
            if kept and kept[0] >= wanted:
                break
            attempt.close()
        else:
            raise RuntimeError(
                f"a cache of {room} bytes did not keep the {wanted} samples that had taken as much in another"
            )
        stack.push(attempt.pop_all())
        # What else may fit gets in now, and not while it is measured.
        probe.fill(self.batches)
        return probe

    def chosen(self, fraction: float) -> list[Any]:
        """Samples that stand for this fraction of all: of those that count, and likewise of the others."""
        first, last = self.counted
        parts = [self.batches[first:last], self.batches[:first] + self.batches[last:]]
        found = []
        for batches in parts:
            samples = [index for batch in batches for index in batch]
            found += representative(samples, round(fraction * len(samples)), self.pages.bytes_of)
        return found

    def _room(self) -> int:
        """More than a cache needs for all samples of the batches."""
        tables = 16 * len(self.bench.dataset) + (8 << 20)
        return int(self.pages.bytes * 1.2) + sum(self.sizes) * 8192 + tables

    def _ready_probe(self) -> Probe | None:
        """Samples that are ready, where a dataset written in Python can be exchanged for them."""
        if self.native or self.streams or not self._ready:
            return None
        probe = self.open(
            self._stack, Config(ready=ReadySamples(self._ready, self.batches, lent=self.bench.in_process))
        )
        self._go_through(probe)
        return probe

    def _go_through(self, probe: Probe) -> None:
        started = time.perf_counter()
        for batch in itertools.islice(probe.epoch(), len(self.sizes)):
            if probe.first_seconds is None:
                probe.first_seconds = time.perf_counter() - started
            del batch

    def _repeats(self, probe: Probe) -> int:
        """How often to go through the batches until a pass is long enough to be timed."""
        if self.streams:
            return 1
        return min(REPEATS_MAX, max(1, math.ceil(self.pass_seconds / self._seconds_from_memory(probe))))

    def _seconds_from_memory(self, probe: Probe) -> float:
        self.into_memory()
        started = time.perf_counter()
        self._go_through(probe)
        return max(1e-9, time.perf_counter() - started)

    def _alone(self, memory: Probe) -> Phase:
        """A single worker: on a part of the samples that stands for all of them, as it takes so long."""
        config = Config(workers=1)
        if self.streams or self.keeps_prepared:
            rounds = 1 if self.streams else 2
            return Phase(self.open_in_memory(self._stack, config), NO_STEP, self.into_memory, 1, rounds)
        together = self._seconds_from_memory(memory) / len(self.sizes)
        each = together * min(self.bench.workers, _sutler.usable_cores())
        # Two rounds, so that one counts in which each sample comes once, whatever the other has begun with.
        count = max(BATCHES_MIN // 2, int(self.seconds * PART_ALONE / 2 / each))
        if count >= len(self.sizes):
            alone = self.open_in_memory(self._stack, config)
            return Phase(alone, NO_STEP, self.into_memory, 1, max(2, self._repeats(alone)))
        sizes = self.sizes[:count]
        samples = [index for batch in self.batches for index in batch]
        batches = in_batches(representative(samples, sum(sizes), self.pages.bytes_of), sizes)
        alone = self.open_in_memory(self._stack, config, batches)
        return Phase(alone, NO_STEP, self.into_memory, 1, max(2, self._repeats(alone)), sizes)

    def into_memory(self) -> None:
        """From now on samples come from memory."""
        if not self.keeps:
            self.pages.read()

    def onto_storage(self) -> None:
        """From now on samples come from storage; from the one that is emulated, where it is held to a rate.

        That takes as long as it should whether or not the page cache has the bytes, and what the device below is busy
        with otherwise does not matter if it has.
        """
        if self.storage is None:
            self.pages.drop()
        else:
            self.pages.read()

    def _step_seconds(self) -> float:
        """Roughly what a step takes. The first calls compile, choose kernels and find memory, as no later one does."""
        if self.step.seconds is not None:
            return self.step.seconds
        for _ in range(STEPS_WARMING_UP):
            self.step(in_fresh_containers(self.batch))
        self.step.settle()
        started = time.perf_counter()
        for _ in range(STEPS_WARMING_UP):
            self.step(in_fresh_containers(self.batch))
        self.step.settle()
        return (time.perf_counter() - started) / STEPS_WARMING_UP

    def _step_alone(self, series: Series) -> None:
        """The step on a batch that is there: as many times as there are batches, up to a few seconds of it."""
        batches = [in_fresh_containers(self.batch) for _ in self.sizes]
        samples, started = 0, time.perf_counter()
        self.step.settle()
        first, work = time.perf_counter(), time.process_time()
        for count, (size, batch) in enumerate(zip(self.sizes, batches, strict=True)):
            self.step(batch)
            samples += size
            if count >= 4 and time.perf_counter() - started > self.seconds / 24:
                break
        self.step.settle()
        took = max(1e-9, time.perf_counter() - first)
        self._step_work += time.process_time() - work
        self._step_time += took
        series.add(took / samples, samples, 0)

    def measure(self, phase: Phase) -> None:
        """One more pass."""
        phase.prepare()
        before, work = device_bytes(), processor_seconds() + processor_waits()
        asked, waited = phase.probe.storage_bytes(), phase.probe.transport_seconds()
        in_functions = phase.probe.function_seconds()
        sizes = (phase.sizes or self.sizes) * phase.repeats
        each = len(phase.sizes or self.sizes)
        count = counted(each, self._team(phase.workers), phase.probe.ahead, phase.repeats)
        done = run_pass(phase.probe.epoch(phase.repeats), sizes, phase.step, count)
        phase.served += sum(sizes)
        after = device_bytes()
        # Work that others keep from a processor is work all the same: more workers would not get it done sooner.
        phase.work_seconds += max(0.0, processor_seconds() + processor_waits() - work)
        phase.transport_seconds += phase.probe.transport_seconds() - waited
        for name, seconds in phase.probe.function_seconds().items():
            taken = seconds - in_functions.get(name, 0.0)
            phase.function_seconds[name] = phase.function_seconds.get(name, 0.0) + taken
        phase.last = done
        phase.times.append(done.times)
        read = None if before is None or after is None else after - before
        if self.storage is not None and asked is not None:
            # Storage is held to a rate whether or not the page cache has the bytes: what went through it is the proof.
            read = (phase.probe.storage_bytes() or 0) - asked
        phase.series.add(done.seconds_per_sample, done.samples, read)

    # --- what follows ----------------------------------------------------------------------------------------------

    def _conclude(self, series: dict[str, Series], phases: dict[str, Phase]) -> Measured:
        bench = self.bench
        fetched = series["real+step"].seconds()
        # Where nobody knows the files, both passes are the same, and no difference between them means anything.
        from_memory = "memory" if self.keeps or self.pages.known else "real"
        prepared = series[f"{from_memory}+step"].seconds()
        if self.step.is_none:
            unlimited = Interval(1e9, 1e9, 1e9)
            rates = {"G": Rate("G", unlimited, 0, 0, None, None, "No step was given: it is no limit.")}
            step = Interval(1e-9, 1e-9, 1e-9)
        else:
            rates = {"G": self._rate("G", series["step"], None)}
            step = series["step"].seconds()
        rates["P"] = self._rate("P", series["memory"], in_memory=True)
        handed = step
        hand_over = None
        if "ready+step" in phases:
            handed = series["ready+step"].seconds()
            hand_over = series["ready"].rate()
            if not bench.workers:
                # One comes after the other, so what they take adds up; and the little that this takes by itself is
                # better known than the difference between two long passes.
                ready = series["ready"].seconds()
                handed = Interval(step.value + ready.value, step.low + ready.low, step.high + ready.high)
        else:
            transport = phases["memory+step"].transport_seconds / max(1, phases["memory+step"].served)
            handed = Interval(step.value + transport, step.low + transport, step.high + transport)
        work = phases["memory"].work_seconds / max(1, phases["memory"].served)
        sample_bytes = self._counted_bytes()
        ahead = phases["memory"].probe.ahead
        shares = _sutler.attribute_stalls(
            step=step.value,
            handed=handed.value,
            prepared=prepared.value,
            fetched=fetched.value,
            alone=(series[from_memory].seconds().value, series["real"].seconds().value)
            if bench.workers
            else None,
        )
        # An emulated step is somebody else's work.
        step_busy = min(1.0, self._step_work / self._step_time) if self.step.seconds is None else 0.0
        self.warnings += doubts.of_crowd(step_busy, bench.workers, _sutler.usable_cores())
        facts: dict[str, Any] = {
            "samples": bench.samples or sum(self.sizes),
            "sample_bytes": sample_bytes or 1.0,
            "kept_bytes": self.kept_bytes or self.pages.sample_bytes or 1.0,
            "cache_bytes": 0.0,
            "workers": bench.workers,
            "cores": _sutler.usable_cores(),
            "in_turns": bench.in_turns,
            "ready": bench.ready,
            "stay": bench.stay,
            "ahead": float(ahead * bench.batch_size) if ahead else None,
            "ingest": plain(self._ingest(rates["G"].samples_per_s, fetched)),
            "step_busy": step_busy,
            "prepare": plain(rates["P"].samples_per_s),
            "prepare_alone": plain(series["alone"].rate()) if "alone" in series else None,
            "work_s": max(work, 1e-9) if work else None,
            "recall": None,
            "storage": None,
            "read_s": None,
            "hand_over": None if hand_over is None else plain(hand_over),
            "measured": plain(Interval(1 / fetched.value, 1 / fetched.high, 1 / fetched.low)),
            "stalls": dict(zip(CAUSES, shares, strict=True)),
            "memory_bytes": 0.0,
        }
        if in_trainer := _function_seconds(phases["memory"]):
            facts["in_trainer_s"] = sum(in_trainer.values())
            in_training = _function_seconds(phases["real+step"])
            self.warnings += doubts.of_functions(
                in_training, fetched.value, sum(self.sizes) / len(self.sizes)
            )
        facts["cache_bytes"] = self.cached * facts["samples"] * facts["kept_bytes"]
        if self.keeps:
            storage_and_cache(self, facts, rates, phases["memory"].probe)
        else:
            storage_from_passes(self, facts, rates, series["real"])
        fraction, *mixed = _sutler.fetch_rate(json.dumps(facts))
        storage = rates.get("S")
        if storage is not None:
            note = storage.note
            rates["F"] = Rate(
                "F",
                Interval(*mixed),
                storage.passes,
                storage.samples,
                storage.bytes_read,
                storage.proven,
                note,
            )
        self._look_at_start(phases)
        self.warnings += doubts.of_noise(
            {
                words: series[name]
                for name, words in _DOUBTED.items()
                if name in series and not series[name].certain
            }
        )
        real = phases["real+step"]
        stages = real.probe.stages()
        scatter = evenness.of_stages(stages) if stages else self._scatter_of_batches(phases["real"])
        self.warnings += doubts.of_few_samples(scatter, sum(self.sizes), bench.samples)
        times, record = real.last.times if real.last else (), real.probe.timeline()
        return Measured(
            rates=rates,
            step=step,
            handed=handed,
            prepared=prepared,
            fetched=fetched,
            timeline=times if record is None else with_causes(times, record),
            record=None if record is None else of_latest(record, len(times)),
            stages=stages,
            facts=facts,
            cached=fraction,
            batch_samples=sum(self.sizes) / len(self.sizes),
            warnings=self.warnings,
        )

    def _scatter_of_batches(self, alone: Phase) -> float:
        """How different samples are by when batches come, these and others; those each by themselves.

        Others may lie on storage while these do not, which makes them slower, and not more different.
        """
        team, size = self._team(None), sum(self.sizes) / len(self.sizes)
        looks = (alone.times, self._look_further(alone.probe))
        return max(evenness.of_batches(times, team, size) for times in looks)

    def _look_further(self, probe: Probe) -> list[list[BatchTimes]]:
        """When batches come that were not looked at, as many as there is time for, in each of a few passes.

        Where samples lie in files, reading these for the first time may take any time, so nothing follows from it.
        """
        looks: list[list[BatchTimes]] = []
        if self.pages.known or not self._further:
            return looks
        with suppress(Exception):  # a bad sample that the analysis would not have met
            for _ in range(TIMES_FURTHER):
                seconds = self.seconds * PART_FURTHER / TIMES_FURTHER
                looks.append(_arrivals(probe.over(self._further), seconds))
        return looks

    def _look_at_start(self, phases: dict[str, Phase]) -> None:
        """What it takes to start the user's workers, where that is done for every epoch."""
        bench = self.bench
        samples = bench.epoch_samples
        if bench.stay or not bench.workers or not samples:
            return
        found = []
        for phase in (phases["memory"], phases.get("ready")):
            if phase is not None and phase.probe.first_seconds is not None:
                # Of the time until the first batch, what it takes to prepare one when workers are there.
                together = bench.batch_size * (bench.workers if bench.whole_batches else 1)
                prepared = max(together, bench.workers) * phase.series.seconds().value
                found.append(phase.probe.first_seconds - prepared)
        # The shorter of them: whatever else the machine does makes it longer.
        start = min(found, default=0.0)
        told = doubts.of_start(start, samples * phases["real+step"].series.seconds().value)
        self.slow_start = bool(told)
        self.warnings += told

    def _ingest(self, alone: Interval, fetched: Interval) -> Interval:
        """What the trainer takes: no less than it has taken while it also waited now and then.

        Less can only be found where something else had the machine while the step was measured alone.
        """
        reached = Interval(1 / fetched.value, 1 / fetched.high, 1 / fetched.low)
        return max(alone, reached, key=lambda rate: rate.value)

    def _counted_bytes(self) -> float | None:
        """Of an average sample among those that count, which is what the measured rates are about."""
        if not self.pages.sample_bytes:
            return None
        first, last = self.counted
        indices = [index for batch in self.batches[first:last] for index in batch]
        return sum(map(self.pages.bytes_of, indices)) / len(indices)

    def _rate(
        self, name: str, series: Series, proven: bool | None = None, *, in_memory: bool = False
    ) -> Rate:
        note = ""
        if in_memory:
            read = series.bytes_read
            proven = read is not None and read <= STRAY_BYTES * len(series.values)
            if read is None:
                note = "Nobody counts what devices deliver here, so it is not proven that all samples were in memory."
            elif not proven:
                note = (
                    f"{read:,} bytes still came from the device, so not all samples were in memory: "
                    "what is prepared may be more than this."
                )
                self.warnings.append(f"P: {note}")
        return Rate(name, series.rate(), len(series.values), series.samples, series.bytes_read, proven, note)


def _function_seconds(phase: Phase) -> dict[str, float]:
    """What each function takes for a sample in the trainer's process."""
    return {name: seconds / max(1, phase.served) for name, seconds in phase.function_seconds.items()}


def _arrivals(batches: Iterator[Any], seconds_max: float) -> list[BatchTimes]:
    """When each batch came, for so long."""
    found: list[BatchTimes] = []
    begun = time.perf_counter()
    for batch in batches:
        del batch
        now = time.perf_counter() - begun
        found.append(BatchTimes(len(found), now, now, now))
        if now > seconds_max:
            break
    return found


def _nothing() -> None:
    """Ready samples are where they are."""
