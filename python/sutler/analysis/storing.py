"""What storage and the cache deliver, alone or as far as it can be told from what a loader reaches with them."""

from __future__ import annotations

import itertools
import json
import math
import operator
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from sutler import _sutler
from sutler.analysis import doubts
from sutler.analysis.benches import Config, Probe
from sutler.analysis.dealing import representative
from sutler.analysis.model import Interval, Rate
from sutler.analysis.passes import Series, plain, repeat
from sutler.analysis.proof import device_bytes
from sutler.analysis.sutler_bench import SutlerProbe
from sutler.datasets import NativeDataset
from sutler.testing import throttled

if TYPE_CHECKING:
    from sutler.analysis.measuring import Measurement

#: What may be missing of the bytes that a cold pass should have read: files end inside of blocks, and some are small.
PROOF_MIN = 0.5
#: Of the time of an analysis, what single reads may take; how many samples that needs at least, and when there are
#: enough.
PART_ONE_READ = 0.05
READS_MIN, READS_ENOUGH = 8, 100
#: How many reads must be under way at a time, on average, for storage to be said to serve several at once.
OVERLAP_MIN = 1.1
#: How many times as many as there are workers read where reads wait for nothing but themselves: recommendations are for
#: no more workers than that.
MORE_READERS = 4
#: How many workers are tried at the most, unless twice the user's are more.
MANY_WORKERS = 16


def storage_and_cache(
    measurement: Measurement, facts: dict[str, Any], rates: dict[str, Rate], memory: Probe
) -> None:
    """Storage and the cache alone, with the loader's threads and nothing prepared."""
    dataset = measurement.bench.dataset
    if measurement.storage is not None:
        dataset = throttled(dataset, measurement.storage)
    native = dataset._native
    indices = [index for batch in measurement.batches for index in batch]
    threads = measurement.bench.workers
    storage, single, recall = Series(), Series(), Series()
    assert isinstance(memory, SutlerProbe)
    cache = memory.cache()

    def read(series: Series, threads: int) -> None:
        measurement.onto_storage()
        before = device_bytes()
        samples, bytes_, seconds = _sutler.read_samples(native, indices, threads=threads)
        after = device_bytes()
        read = None if before is None or after is None else after - before
        series.add(seconds / samples, samples, bytes_ if measurement.storage is not None else read)

    # A few samples are copied in no time, so they are copied often.
    _, _, once = _sutler.recall_samples(cache, indices, threads=threads)
    often = indices * min(1000, math.ceil(measurement.pass_seconds / 4 / max(once, 1e-6)))

    def recalled() -> None:
        samples, _, seconds = _sutler.recall_samples(cache, often, threads=threads)
        recall.add(seconds / max(1, samples), samples, 0)

    repeat(
        {"S": lambda: read(storage, threads), "S, one thread": lambda: read(single, 1), "C": recalled},
        {"S": storage, "S, one thread": single, "C": recall},
        measurement.seconds * 0.15,
    )
    rates["S"] = _cold_rate(measurement, "S", storage)
    rates["C"] = Rate("C", recall.rate(), len(recall.values), recall.samples, 0, True)
    # All samples were read, and what-ifs are about those that count, which may be a little larger or smaller.
    factor = (measurement.pages.sample_bytes or 1.0) / facts["sample_bytes"]
    facts["storage"] = {name: factor * rate for name, rate in plain(rates["S"].samples_per_s).items()}
    facts["recall"] = plain(rates["C"].samples_per_s)
    facts["read_s"] = max(single.seconds().value, 1e-9)


def storage_from_passes(
    measurement: Measurement, facts: dict[str, Any], rates: dict[str, Rate], cold: Series
) -> None:
    """Storage from what the loader reaches with it: of somebody else's dataset no read can be made alone."""
    if not measurement.pages.known:
        if isinstance(measurement.bench.dataset, NativeDataset):
            return  # samples are pieces of files, which the report says
        measurement.warnings.append(doubts.of_files(measurement.cut_short))
        if cold.bytes_read:
            measurement.warnings.append(
                f"{cold.bytes_read:,} bytes came from the device in the measured run."
            )
        return
    if measurement.bench.workers > 0:
        recalled = Series()

        def recall() -> None:
            measurement.pages.read()
            recalled.add(
                _read_files(measurement.pages.paths, measurement.bench.workers) / sum(measurement.sizes),
                sum(measurement.sizes),
                0,
            )

        repeat({"C": recall}, {"C": recalled}, measurement.seconds * 0.05)
        rates["C"] = Rate("C", recalled.rate(), len(recalled.values), recalled.samples, 0, None)
        facts["recall"] = plain(rates["C"].samples_per_s)
    reached = cold.rate()
    known = _storage_behind(facts, reached)
    # If storage serves one after the other, one queue for all workers says what more of them get. Where it serves
    # several at once, as on the other side of a network, a part of a read is waiting that is in nobody's way.
    if known is not None and (read := _one_read(measurement, reached.value)) is not None:
        most = _most_reached(measurement, reached.value, read.low)
        if most * read.low > OVERLAP_MIN:
            facts["read_s"] = read.value
            known = _at_least(most, _storage_behind(facts, reached))
            # Workers that reach a few percent less than their reads explain, as they do by chance, would make a narrow
            # queue of any storage. If more of them get more than that would let through, there is no such queue.
            if known is not None and _reached_by(measurement, _many_workers(measurement)) > known.value:
                known = None
    proven = _cold_rate(measurement, "F", cold)
    if known is not None:
        facts["storage"] = plain(known)
        rates["S"] = Rate(
            "S", known, proven.passes, proven.samples, proven.bytes_read, proven.proven, proven.note
        )
        return

    # Storage was no limit, so all that is known is that it delivers more. Where every read takes its time, however few
    # there are, as many have to be under way as there may be with more workers.
    readers = max(1, measurement.bench.workers) * (1 if facts["read_s"] is None else MORE_READERS)

    def drop_and_read() -> float:
        measurement.pages.drop()
        return _read_files(measurement.pages.paths, readers) / sum(measurement.sizes)

    alone = Series()
    repeat(
        {"S": lambda: alone.add(drop_and_read(), sum(measurement.sizes), 0)},
        {"S": alone},
        measurement.seconds * 0.05,
    )
    rates["S"] = Rate(
        "S",
        alone.rate(),
        len(alone.values),
        alone.samples,
        proven.bytes_read,
        proven.proven,
        proven.note or doubts.of_files_alone(facts["read_s"], readers),
    )
    facts["storage"] = plain(rates["S"].samples_per_s)


def _storage_behind(facts: dict[str, Any], reached: Interval) -> Interval | None:
    """What storage delivers if a loader reaches that with it; ``None`` where it is no limit."""
    value, low, high = (
        _sutler.storage_behind(json.dumps(facts), rate) for rate in (reached.value, reached.low, reached.high)
    )
    if value is None:
        return None
    return Interval(value, min(low or value, value), max(high or value * 1.1, value))


def _one_read(measurement: Measurement, reached: float) -> Interval | None:
    """Seconds that a read keeps a worker when no other reads; ``None`` where that cannot be told.

    What a single worker takes longer for a sample that is on storage than for the same in memory.
    """
    workers = measurement.bench.workers
    if measurement.native or measurement.keeps_prepared or workers < 2:
        return None
    # No worker takes longer alone than each of them does beside the others.
    count = max(READS_MIN, int(measurement.seconds * PART_ONE_READ * reached / workers))
    samples = [index for batch in measurement.batches for index in batch]
    chosen = representative(samples, min(count, len(samples)), measurement.pages.bytes_of)
    longer: list[float] = []
    begun = time.monotonic()
    with ExitStack() as stack:
        probe = measurement.open(stack, Config(workers=1), [[index] for index in chosen])
        _each(probe)  # which the worker is started for
        while len(longer) < READS_ENOUGH and (
            not longer or time.monotonic() - begun < measurement.seconds * PART_ONE_READ
        ):
            measurement.onto_storage()
            cold = _each(probe)
            # Now they are in memory, as they have just been read.
            longer += map(operator.sub, cold, _each(probe))
    known = _sutler.confidence(longer)
    if known is None:
        return None
    read = Interval(*known)
    return read if read.low > 0 else None


def _most_reached(measurement: Measurement, reached: float, read_seconds: float) -> float:
    """What workers reach from storage: the user's, or twice as many where these seldom read at the same time.

    Workers that prepare for about as long as they read hardly meet, so they reach as much of a disk that serves one
    after the other as of one that serves all at once. Which of them it is, only more workers tell.
    """
    if reached * read_seconds > OVERLAP_MIN:
        return reached
    return max(reached, _reached_by(measurement, 2 * measurement.bench.workers))


def _many_workers(measurement: Measurement) -> int:
    """As many times the user's workers as are recommended at the most, but hardly more than anybody has."""
    workers = measurement.bench.workers
    return min(MORE_READERS * workers, max(2 * workers, MANY_WORKERS))


def _reached_by(measurement: Measurement, workers: int) -> float:
    """Samples per second that so many workers get from storage, for a trainer that wants each at once."""
    samples = [index for batch in measurement.batches for index in batch]
    chosen = representative(samples, min(READS_MIN * workers, len(samples)), measurement.pages.bytes_of)
    with ExitStack() as stack:
        probe = measurement.open(stack, Config(workers=workers), [[index] for index in chosen])
        _each(probe)  # which the workers are started for
        measurement.onto_storage()
        begun = time.perf_counter()
        _each(probe)
        return len(chosen) / (time.perf_counter() - begun)


def _at_least(most: float, known: Interval | None) -> Interval | None:
    """What storage delivers where it has delivered as much as that."""
    if known is None:
        return None
    return Interval(max(most, known.value), max(most, known.low), max(most, known.high))


def _each(probe: Probe) -> list[float]:
    """Seconds from each batch to the next, for a trainer that wants it at once."""
    had = []
    for batch in probe.epoch():
        had.append(time.perf_counter())
        del batch
    return [later - earlier for earlier, later in itertools.pairwise(had)]


def _cold_rate(measurement: Measurement, name: str, series: Series) -> Rate:
    """A rate that is one only if the bytes came from the device."""
    expected = measurement.pages.bytes * len(series.values)
    if measurement.storage is not None:
        return Rate(name, series.rate(), len(series.values), series.samples, series.bytes_read, True)
    proven = series.bytes_read is not None and series.bytes_read >= PROOF_MIN * expected
    note = ""
    if not proven:
        note = doubts.perhaps_not_cold(expected, series.bytes_read)
        measurement.warnings.append(f"{name}: {note}")
    return Rate(name, series.rate(), len(series.values), series.samples, series.bytes_read, proven, note)


def _read_files(paths: list[str], threads: int) -> float:
    """Seconds that reading files takes so many threads."""

    def read(path: str) -> None:
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 20):
                pass

    with ThreadPoolExecutor(max(1, threads)) as pool:
        started = time.perf_counter()
        list(pool.map(read, paths))
        return max(1e-9, time.perf_counter() - started)
