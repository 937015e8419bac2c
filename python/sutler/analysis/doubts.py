"""What figures are worth, in sentences: too few batches, broken samples, measurements that scatter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sutler import _sutler
from sutler.analysis.passes import Series
from sutler.analysis.wording import duration, spread
from sutler.errors import Failure

#: How many broken samples are named.
NAMED_MAX = 3
#: How many times as long as it should an emulated step may take; and by how many seconds a pause is late on a quiet
#: machine, about twice what Linux allows itself.
STEP_LATE_MAX = 1.1
PAUSE_LATE = 1e-4


#: How many times as long as it was given an analysis may take before that is worth a sentence; and how many seconds
#: longer.
LONGER, LONGER_SECONDS = 1.5, 3.0


#: By what part a mean over all samples may be off before that is worth a sentence; a busy machine makes for a little.
OFF_MIN = 0.25


#: Which part of an epoch the start of its workers may take before that is worth a sentence.
START_MAX = 0.05


#: Which part of the trainer's time functions in its process may take before that is worth a sentence.
IN_TRAINER_MIN = 0.05


#: Where a cache keeps what a dataset prepares.
CACHE_AS_IT_IS = (
    "The cache keeps what the dataset prepares, so it spares preparation as well as reading. It was left as it is in "
    "all that was measured, P included, and what a larger or smaller one would bring is not predicted."
)


#: Where a cache keeps what native threads have read of sound, volumes or text.
NATIVE_CACHE_AS_IT_IS = (
    "The cache was left as it is in all that was measured, P included. What a larger or smaller one would bring is "
    "predicted for images only."
)


#: Where samples are pieces of files.
LINES = (
    "Samples are lines of text, which are read as pieces of large files. An analysis neither drops such files from the "
    "page cache nor reads them whole, so they were read from wherever they are, most likely from memory: reading "
    "counts as preparing, what storage alone delivers was not measured, and no other storage or cache is predicted or "
    "tried. The first epoch over files that do not fit into memory may be slower than this."
)
PACKED_IN_ORDER = (
    "Lines were packed in the order of the files, and not in that of an epoch that shuffles them: reading lines from "
    "all over the files may take longer."
)


#: Where other jobs and other machines cannot help as things are.
ALONE = (
    "Jobs share what an agent prepares (`sutler serve`), and an agent prepares native datasets, such as "
    "sutler.ImageFolder. So what is said of jobs that share and of further machines is what that would bring once "
    "this dataset were one of those; as it is, every job prepares for itself."
)

#: Where Python functions follow the native part of samples, so that worker processes make them.
FUNCTIONS = (
    "Worker processes run the functions behind the native transforms. With a cache, and with an agent for jobs that "
    "share, the trainer's process would run them, one sample after the other: what is predicted of either holds where "
    "transforms of sutler.transforms take their place."
)

#: Where workers are threads and there is an interpreter lock.
IN_TURNS = (
    "Workers are threads of one interpreter, which run Python one at a time: more of them, or more cores, help only as "
    "far as samples wait for something or are made outside of Python. Leave multiprocessing_context out to have "
    "processes, which do not wait for one another."
)


#: Where a recommendation would be about a run that nobody makes.
ONE_BATCH = (
    "Nothing can be recommended: there is a single batch, so none is read or prepared while another is trained on, as "
    "it would be in a longer run. What binds there these figures do not tell."
)


def no_batches(samples: int | None, batch_size: int) -> str:
    """Why a loader that is no stream has not a single batch.

    Examples:
        >>> no_batches(0, 16)
        'the loader has no batches to analyse: its dataset is empty'
    """
    why = (
        f"its dataset has {samples} samples, and a batch {batch_size}; with drop_last an incomplete batch is left out"
        if samples
        else "its dataset is empty"
    )
    return f"the loader has no batches to analyse: {why}"


def used_up(sampler: Any) -> str:
    """Why a sampler cannot be drawn from.

    Examples:
        >>> used_up(number for number in [1, 2]).partition(":")[0]
        'the loader draws from a generator, which can be gone through only once'
    """
    return (
        f"the loader draws from a {type(sampler).__name__}, which can be gone through only once: the batches that are "
        "analysed would be missing in training. Give the loader a list of what it draws (sampler=list(...), "
        "batch_sampler=list(...)), or a sampler whose __iter__ begins anew each time it is called"
    )


def used_up_stream(stream: Any) -> str:
    """Why a stream cannot be gone through.

    Examples:
        >>> used_up_stream(number for number in [1, 2]).partition(":")[0]
        'the dataset is a stream (generator) that can be gone through only once'
    """
    return (
        f"the dataset is a stream ({type(stream).__name__}) that can be gone through only once: an analysis goes "
        "through it many times, and nothing would be left for training. Let its __iter__ begin anew each time it is "
        "called, as a generator function does"
    )


def not_copied(name: str, why: str) -> str:
    """What it means that something of the user's had to be used as it is.

    Examples:
        >>> not_copied("dataset", "it takes more than 1 GiB").partition(",")[0]
        'The dataset could not be copied (it takes more than 1 GiB)'
    """
    return (
        f"The {name} could not be copied ({why}), so the analysis has used the one that your "
        "loader has, in this process. What that remembers from sample to sample or from epoch to epoch, such as a "
        "random generator of its own, is not as it was."
    )


def few_batches(count: int) -> str:
    """Where there are hardly more batches than workers.

    Examples:
        >>> few_batches(1).partition(",")[0]
        'There is only 1 batch to look at'
    """
    there = "There is only 1 batch" if count == 1 else f"There are only {count} batches"
    return (
        f"{there} to look at, so what it takes to get going is part of every figure: figures say little about a longer "
        "run."
    )


def of_length(wanted: float, least: float, batches: int, starting: float = 0.0) -> list[str]:
    """That an analysis takes longer than it was given; and how much of that goes into starting workers.

    Examples:
        >>> of_length(2.0, 16.2, 14)[0].partition(":")[0]
        'The analysis is going to take about 16.2 s, and not 2 s'
        >>> of_length(2.0, 16.2, 14, starting=8.0)[0].rpartition(". ")[2]
        'Of all that, 8 s go into starting workers.'
        >>> of_length(20.0, 16.2, 14)
        []
    """
    if least <= max(LONGER * wanted, wanted + LONGER_SECONDS):
        return []
    return [
        f"The analysis is going to take about {duration(least)}, and not {duration(wanted)}: fewer than {batches} "
        "batches say little about the trainer's waits, each thing that is compared needs two passes over them, and a "
        "pass takes its time. What rests on two passes is not well known; it is better known after a longer analysis "
        "(time=)."
        + (f" Of all that, {duration(starting)} go into starting workers." if starting > least / 4 else "")
    ]


def of_files(cut_short: bool) -> str:
    """What it means that nobody knows the files of the samples.

    Examples:
        >>> of_files(True).rpartition(":")[2]
        ' a longer analysis (time=) would find the files.'
    """
    told = (
        "Which files the samples lie in could not be found out, so the page cache could not be kept out and reading "
        "cannot be told apart from preparing: what is fetched counts as prepared."
    )
    if not cut_short:
        return told
    return (
        f"{told} Samples have to be prepared for that, which takes longer than half of this analysis: a longer "
        "analysis (time=) would find the files."
    )


def of_files_alone(read_seconds: float | None, readers: int) -> str:
    """What it means that storage was no limit for the loader; with what a read takes a worker that reads alone.

    Examples:
        >>> of_files_alone(0.03, 8).partition(":")[0]
        'The files alone, each in one piece, 8 at a time'
    """
    if read_seconds is None:
        return "The files alone, each in one piece: the dataset itself was not held up by storage."
    return (
        f"The files alone, each in one piece, {readers} at a time: storage delivers more than the dataset asks for. "
        f"But a read keeps a worker waiting for {duration(read_seconds)} even when no other reads, so more workers, "
        "which wait at the same time, get more."
    )


def perhaps_not_cold(expected: float, read: int | None) -> str:
    """Where bytes that should have come from a device did not, or nobody knows whether they did.

    Examples:
        >>> perhaps_not_cold(4e6, None).partition(".")[0]
        'Whether the page cache was kept out is not known: nobody counts here what devices deliver'
        >>> perhaps_not_cold(4e6, 0).partition(".")[0]
        'The page cache could not be kept out: 4,000,000 bytes should have come from the device, and none did'
    """
    if read is None:
        return (
            "Whether the page cache was kept out is not known: nobody counts here what devices deliver. If it was not, "
            "storage is slower than this figure once the dataset no longer fits into memory."
        )
    came = f"only {read:,} did" if read else "none did"
    return (
        f"The page cache could not be kept out: {expected:,.0f} bytes should have come from the device, and {came}. "
        "Storage is slower than this figure once the dataset no longer fits into memory."
    )


def of_step(wanted: float, took: float) -> list[str]:
    """What it means that an emulated step took longer than it was to take, where that is more than a pause is late by.

    Examples:
        >>> of_step(0.004, 0.006)[0].partition(":")[0]
        'The emulated step was to take 4 ms and took 6 ms'
        >>> of_step(0.004, 0.0041), of_step(0.0, 1e-6)
        ([], [])
    """
    if not wanted or took <= STEP_LATE_MAX * wanted + PAUSE_LATE:
        return []
    return [
        f"The emulated step was to take {duration(wanted)} and took {duration(took)}: this machine has too much else "
        "to do to wait for just so long. All figures are those of the longer step, and an accelerator of the shorter "
        "one would be busy for a smaller part of the time."
    ]


def of_crowd(step_busy: float, workers: int, cores: int) -> list[str]:
    """What it means that the step and the workers want the same processors.

    Examples:
        >>> of_crowd(0.97, 2, 2)[0].partition(",")[0]
        'The step keeps a processor of this machine busy for 97 % of its time'
        >>> of_crowd(0.97, 2, 4), of_crowd(0.01, 2, 2)
        ([], [])
    """
    if step_busy <= _sutler.STEP_BUSY or workers < cores:
        return []
    return [
        f"The step keeps a processor of this machine busy for {100 * step_busy:.0f} % of its time, and there are as "
        "many workers as cores: they get into each other's way, so together they do less than each does alone. How "
        "much less that is with other numbers of workers or cores, what-ifs do not know."
    ]


def of_functions(seconds: Mapping[str, float], sample_seconds: float, batch: float) -> list[str]:
    """What functions in the trainer's process cost, by name and for each sample; with what a sample takes in training.

    Examples:
        >>> of_functions({"soften": 0.002}, 0.0025, 8)[0].partition(":")[0]
        "soften runs in the trainer's process and takes 16 ms of the 20 ms that a batch takes"
        >>> of_functions({"soften": 0.00001}, 0.0025, 8)
        []
    """
    # Both are means of passes that scatter.
    taken = min(sum(seconds.values()), sample_seconds)
    if taken < IN_TRAINER_MIN * sample_seconds:
        return []
    runs, takes = ("runs", "takes") if len(seconds) == 1 else ("run", "together take")
    it = "it" if len(seconds) == 1 else "them"
    return [
        f"{' and '.join(seconds)} {runs} in the trainer's process and {takes} {duration(taken * batch)} of the "
        f"{duration(sample_seconds * batch)} that a batch takes: native threads run no Python. Neither more workers "
        f"nor more cores make {it} faster. To have worker processes do it, pass a dataset written in Python whose "
        "__getitem__ returns a sample of this one, with num_workers; or use transforms of sutler.transforms, and no "
        "collate_fn where samples have one size. The guide on slow samples shows how."
    ]


def of_few_samples(scatter: float, seen: int, samples: int | None) -> list[str]:
    """Where samples take such different times that those which were looked at say little about the others.

    ``scatter`` is the standard deviation of what a sample takes, in means of it.

    Examples:
        >>> of_few_samples(3.3, 84, 512)[0].partition(":")[0]
        'Samples take very different times, and only 84 of 512 were looked at'
        >>> of_few_samples(3.3, 512, 512), of_few_samples(0.3, 84, 512)
        ([], [])
    """
    left = 1.0 if samples is None else max(0.0, 1.0 - seen / samples)
    if (off := 1.96 * scatter * math.sqrt(left / seen)) < OFF_MIN:
        return []
    there = f"only {seen}" if samples is None else f"only {seen} of {samples}"
    return [
        f"Samples take very different times, and {there} were looked at: over all of them, a sample may well take "
        f"{min(100 * off, 100):.0f} % more or less than figures say, and other things may bind. A longer analysis "
        "(time=) looks at more of them."
    ]


def of_start(start: float, epoch: float) -> list[str]:
    """What it means that workers are started anew for every epoch, which takes so long at the measured rate.

    Examples:
        >>> print(of_start(0.5, 0.64)[0].partition(". ")[0])
        Workers take 500 ms to start, and they are started anew for every epoch
        >>> of_start(0.02, 0.64)
        []
    """
    if start <= START_MAX * epoch:
        return []
    return [
        f"Workers take {duration(start)} to start, and they are started anew for every epoch. At the measured rate an "
        f"epoch takes {duration(epoch)}, so that is another {100 * start / epoch:.0f} % of it, which no figure here "
        "has: they are all of workers that are there. Pass persistent_workers=True, and workers stay from one epoch to "
        "the next."
    ]


def nothing_good(failures: list[Failure], tried: int) -> str:
    """Why there is nothing to analyse, where not one batch came."""
    if not failures:
        return "the loader has no batches to analyse: its stream ended at once"
    return (
        f"the loader has no batches to analyse: of the {tried} samples that were tried, none could be prepared. "
        f"{named(failures)}{listed(failures)}"
    )


def listed(failures: list[Failure]) -> str:
    """Where all that are broken are listed: files are, and not what a dataset written in Python raises."""
    files = all(failure.kind != "exception" for failure in failures)
    return " `sutler inspect` lists all that are broken." if files else ""


def named(failures: list[Failure]) -> str:
    """The first of the broken samples, each with what is wrong with it."""
    first = [f"{failure.path} ({failure.reason})" for failure in failures[:NAMED_MAX]]
    return f"The first: {'; '.join(first)}." if len(failures) > 1 else f"It is {first[0]}."


def of_noise(series: dict[str, Series]) -> list[str]:
    """What measurements that scatter make of all figures; by what was measured, in words.

    How well they are known is told of their rates, as in the table of those: of the times it would be another figure.
    """
    if not series:
        return []
    known = [
        f"{words} ({spread(each.rate())} after {len(each.values)} passes)" for words, each in series.items()
    ]
    listed = " and ".join(filter(None, [", ".join(known[:-1]), known[-1]]))
    return [
        f"It is not well known what these take: {listed}. Something else is using this machine, or the passes are too "
        "short. Shares and what-ifs are no better known than that; measure again on a quiet machine, or for longer "
        "(time=)."
    ]
