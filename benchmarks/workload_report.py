"""What the workloads say: a table for each mix, and Sutler beside its targets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from benchmarks import report
from benchmarks.slow_items import percentile
from benchmarks.workload_feeds import CONTENDERS, Turn, Workload

#: How busy the accelerator should be where the work fits the cores.
BUSY = 0.95
#: How far apart equals may be.
PARITY = 0.03


def summary(
    workload: Workload,
    cost: float,
    step: float,
    epochs: int,
    turns: dict[str, list[Turn]],
    notes: Sequence[str],
) -> str:
    """The table of a mix with its verdicts; each turn of a contender had so many epochs."""
    mix = workload.mix
    slow = (
        f"{mix.slow_share:.0%} of the crops over something labelled"
        if workload.kind == "volumes"
        else f"{len(mix.slow):,} of them slow"
    )
    pace = f"a step of {step * 1000:.1f} ms" if step else "no step"
    head = (
        f"{workload.kind}: {mix.samples:,} samples, {slow}; batches of {workload.batch_size}, {workload.workers} "
        f"workers, {pace}; {min(map(len, turns.values()))} interleaved rounds"
        f"{f' of {epochs} epochs' if epochs > 1 else ''}, every sample once{' in each epoch' if epochs > 1 else ''}\n"
        f"A sample takes {cost * 1000:.1f} ms of processor time through torch's loader.\n"
    )
    rows = [_row(name, measured, step) for name, measured in turns.items()]
    header = [
        "",
        "epoch" if epochs == 1 else f"{epochs} epochs",
        "min..max",
        "busy",
        "later",
        "wait p99",
        "first batch",
        "slow in a batch",
    ]
    return "\n".join([head, report.table(header, rows), *notes, "", *verdicts(workload, step, turns)])


def _row(name: str, measured: Sequence[Turn], step: float) -> list[str]:
    totals = [turn.total for turn in measured]
    waits = [wait for turn in measured for wait in turn.waits]
    return [
        CONTENDERS[name].title,
        f"{report.median(totals):.2f} s",
        report.spread(totals, 2),
        f"{_busy(measured, step):.1%}" if step else "",
        f"{report.median([turn.busy_later(step) for turn in measured]):.1%}" if step else "",
        f"{percentile(waits, 0.99) * 1000:,.0f} ms",
        f"{report.median([turn.first_batch for turn in measured]) * 1000:,.0f} ms",
        slow_in_a_batch(measured[-1]),
    ]


def _busy(measured: Sequence[Turn], step: float) -> float:
    return report.median([turn.busy(step) for turn in measured])


def slow_in_a_batch(turn: Turn) -> str:
    """The mean share of slow samples, and how far batches deviate from it; nothing where a loader does not tell."""
    series = turn.slow_share.get("series", [])
    if len(series) < 2:
        return ""
    return f"{turn.slow_share['mean']:.1%} ± {statistics.stdev(series):.1%}"


def verdicts(workload: Workload, step: float, turns: dict[str, list[Turn]]) -> list[str]:
    """What each of Sutler's reached; turns against the best peer's, round by round."""
    lines = []
    ours = [name for name in turns if CONTENDERS[name].is_ours]
    if step:
        for name in ours:
            busy = _busy(turns[name], step)
            lines.append(
                _verdict(f"{CONTENDERS[name].title} ≥ {BUSY:.0%} busy", busy, BUSY - busy, "{:.1%}".format)
            )
    peers = [name for name in turns if name not in ours]
    if not peers:
        return lines
    best = min(peers, key=lambda name: report.median([turn.total for turn in turns[name]]))
    theirs = [turn.total for turn in turns[best]]
    bound = 1.0 if step else 1 + PARITY
    for name in ours:
        # Two digits are what a round is good for.
        reached = round(report.median(report.ratios([turn.total for turn in turns[name]], theirs)), 2)
        claim = f"{CONTENDERS[name].title} ≤ {bound:g} × {CONTENDERS[best].title}"
        lines.append(_verdict(claim, reached, reached - bound, "{:.2f}".format))
    return lines


def _verdict(claim: str, reached: float, short: float, form: Callable[[float], str]) -> str:
    return f"target: {claim}: {form(reached)}, " + ("reached" if short <= 1e-9 else f"missed by {short:.1%}")
