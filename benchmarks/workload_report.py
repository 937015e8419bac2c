"""What the workloads say: a table for each mix, and Sutler beside its targets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from benchmarks import report
from benchmarks.slow_items import percentile
from benchmarks.workload_feeds import CONTENDERS, Epoch, Workload

#: How busy the accelerator should be where the work fits the cores.
BUSY = 0.95
#: How far apart equals may be.
PARITY = 0.03


def summary(
    workload: Workload, cost: float, step: float, epochs: dict[str, list[Epoch]], notes: Sequence[str]
) -> str:
    """The table of a mix with its verdicts."""
    mix = workload.mix
    slow = (
        f"{mix.slow_share:.0%} of the crops over something labelled"
        if workload.kind == "volumes"
        else f"{len(mix.slow):,} of them slow"
    )
    pace = f"a step of {step * 1000:.1f} ms" if step else "no step"
    head = (
        f"{workload.kind}: {mix.samples:,} samples, {slow}; batches of {workload.batch_size}, {workload.workers} "
        f"workers, {pace}; {min(map(len, epochs.values()))} interleaved rounds, every sample once\n"
        f"A sample takes {cost * 1000:.1f} ms of processor time through torch's loader.\n"
    )
    rows = [_row(name, measured, step) for name, measured in epochs.items()]
    header = ["", "epoch", "min..max", "busy", "later", "wait p99", "first batch", "slow in a batch"]
    return "\n".join([head, report.table(header, rows), *notes, "", *verdicts(workload, step, epochs)])


def _row(name: str, measured: Sequence[Epoch], step: float) -> list[str]:
    totals = [epoch.total for epoch in measured]
    waits = [wait for epoch in measured for wait in epoch.waits]
    return [
        CONTENDERS[name].title,
        f"{report.median(totals):.2f} s",
        report.spread(totals, 2),
        f"{_busy(measured, step):.1%}" if step else "",
        f"{report.median([epoch.busy_later(step) for epoch in measured]):.1%}" if step else "",
        f"{percentile(waits, 0.99) * 1000:,.0f} ms",
        f"{report.median([epoch.first_batch for epoch in measured]) * 1000:,.0f} ms",
        slow_in_a_batch(measured[-1]),
    ]


def _busy(measured: Sequence[Epoch], step: float) -> float:
    return report.median([epoch.busy(step) for epoch in measured])


def slow_in_a_batch(epoch: Epoch) -> str:
    """The mean share of slow samples, and how far batches deviate from it; nothing where a loader does not tell."""
    series = epoch.slow_share.get("series", [])
    if len(series) < 2:
        return ""
    return f"{epoch.slow_share['mean']:.1%} ± {statistics.stdev(series):.1%}"


def verdicts(workload: Workload, step: float, epochs: dict[str, list[Epoch]]) -> list[str]:
    """What each of Sutler's reached; epochs against the best peer's, round by round."""
    lines = []
    ours = [name for name in epochs if CONTENDERS[name].is_ours]
    if step:
        for name in ours:
            busy = _busy(epochs[name], step)
            lines.append(
                _verdict(f"{CONTENDERS[name].title} ≥ {BUSY:.0%} busy", busy, BUSY - busy, "{:.1%}".format)
            )
    peers = [name for name in epochs if name not in ours]
    if not peers:
        return lines
    best = min(peers, key=lambda name: report.median([epoch.total for epoch in epochs[name]]))
    theirs = [epoch.total for epoch in epochs[best]]
    bound = 1.0 if step else 1 + PARITY
    for name in ours:
        # Two digits are what a round is good for.
        reached = round(report.median(report.ratios([epoch.total for epoch in epochs[name]], theirs)), 2)
        claim = f"{CONTENDERS[name].title} ≤ {bound:g} × {CONTENDERS[best].title}"
        lines.append(_verdict(claim, reached, reached - bound, "{:.2f}".format))
    return lines


def _verdict(claim: str, reached: float, short: float, form: Callable[[float], str]) -> str:
    return f"target: {claim}: {form(reached)}, " + ("reached" if short <= 1e-9 else f"missed by {short:.1%}")
