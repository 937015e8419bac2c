"""Figures as people read them, the same in tables, pages and plots."""

from __future__ import annotations

from sutler.analysis.model import Accelerator, Interval, Subject

#: A rate from here on is that of a step that was not given: no accelerator takes so many samples per second.
NO_LIMIT = 1e8

#: What a cause is called where a person reads it.
CAUSE_NAMES = {
    "fetch": "waiting for storage",
    "prep": "waiting for decoding and transforms",
    "transport": "waiting for finished batches to arrive",
    "trainer": "training",
}

#: What an axis of a what-if is called, as the title of its plot and the label under it.
AXIS_NAMES = {
    "cache": ("More or less cache", "cache"),
    "cores": ("More or fewer workers, each with a core", "workers"),
    "storage_mbps": ("Faster or slower storage", "MB/s from storage"),
    "without": ("Transforms left out", "left out"),
    "remote": ("Further machines", "machines beside this one"),
    "jobs": ("Jobs that share", "jobs"),
}


def number(value: float) -> str:
    """Three significant digits, thousands apart.

    Examples:
        >>> [number(each) for each in (0, 0.01234, 9.876, 123.4, 123456.7)]
        ['0', '0.0123', '9.88', '123', '123,457']
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def rate(value: float) -> str:
    """Samples per second.

    Examples:
        >>> [rate(each) for each in (812.3, 1e9)]
        ['812/s', 'no limit']
    """
    return f"{number(value)}/s" if value < NO_LIMIT else "no limit"


def duration(seconds: float) -> str:
    """Seconds in the unit that leaves a number one can read.

    Examples:
        >>> [duration(each) for each in (0.0, 3.2e-6, 0.0123, 1.5, 75.0)]
        ['0 s', '3.2 µs', '12.3 ms', '1.5 s', '75 s']
    """
    for unit, scale in (("µs", 1e-6), ("ms", 1e-3)):
        if 0 < abs(seconds) < 999.5 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{number(seconds)} s"


def size(count: float) -> str:
    """Bytes in binary units.

    Examples:
        >>> [size(each) for each in (0, 1536, 24 * 2**30)]
        ['0 B', '1.5 KiB', '24 GiB']
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    step = 0
    while abs(count) >= 1000 and step < len(units) - 1:
        count /= 1024
        step += 1
    return f"{number(count)} {units[step]}"


def percent(fraction: float) -> str:
    """A share, to a tenth of a percent.

    Examples:
        >>> percent(0.4128)
        '41.3 %'
    """
    return f"{100 * fraction:.1f} %"


def spread(interval: Interval) -> str:
    """How well a figure is known, as it stands behind the figure; two passes that differ hardly tell anything.

    Examples:
        >>> spread(Interval(100.0, 98.0, 102.0)), spread(Interval(1e9, 1e9, 1e9))
        ('± 2.0 %', '')
    """
    if interval.value >= NO_LIMIT:
        return ""  # which is no figure
    return f"± {100 * interval.error:.1f} %" if interval.error <= 1 else "over ± 100 %"


def proof(proven: bool | None) -> str:
    """Whether a rate has been shown to be what it says."""
    return {True: "shown", False: "not shown", None: "–"}[proven]


def busy(accelerator: Accelerator) -> str:
    """How long a step takes and how busy that keeps the accelerator, as a sentence."""
    samples = "one sample" if accelerator.batch_size == 1 else f"{number(accelerator.batch_size)} samples"
    step = f"{duration(accelerator.step_seconds)} for a step of {samples}"
    who = "The trainer" if accelerator.name == "given" else f"The accelerator {accelerator.name}"
    return f"{who} takes {step} and is busy {percent(accelerator.utilisation)} of the time."


def about(subject: Subject) -> list[tuple[str, str]]:
    """What was analysed, as pairs of a name and a value."""
    pairs = [("dataset", subject.dataset)]
    if subject.samples is not None:
        pairs.append(("samples", number(subject.samples)))
    if subject.sample_bytes is not None:
        pairs.append(("size of a sample", size(subject.sample_bytes)))
    pairs += [
        ("batch size", number(subject.batch_size)),
        ("workers", number(subject.workers)),
        ("cores", number(subject.cores)),
    ]
    if subject.cache_bytes:
        pairs.append(("cache", f"{size(subject.cache_bytes)}, {percent(subject.cached)} of the samples"))
    else:
        pairs.append(("cache", "none"))
    if subject.storage_mbps is not None:
        pairs.append(("storage held to", f"{number(subject.storage_mbps)} MB/s"))
    pairs.append(("memory of the machine", size(subject.memory_bytes)))
    return pairs
