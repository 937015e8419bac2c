"""What figures are worth, in sentences: too few batches, broken samples, measurements that scatter."""

from __future__ import annotations

from sutler.analysis.passes import Series
from sutler.analysis.wording import spread
from sutler.errors import Failure

#: How many broken samples are named.
NAMED_MAX = 3


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


def nothing_good(failures: list[Failure], tried: int) -> str:
    """Why there is nothing to analyse, where not one batch came."""
    if not failures:
        return "the loader has no batches to analyse: its stream ended at once"
    return (
        f"the loader has no batches to analyse: of the {tried} samples that were tried, none could be prepared. "
        f"{named(failures)} `sutler inspect` lists all that are broken"
    )


def named(failures: list[Failure]) -> str:
    """The first of the broken samples, each with what is wrong with it."""
    first = [f"{failure.path} ({failure.reason})" for failure in failures[:NAMED_MAX]]
    return f"The first: {'; '.join(first)}." if len(failures) > 1 else f"It is {first[0]}."


def of_noise(series: dict[str, Series]) -> list[str]:
    """What measurements that scatter make of all figures; by what was measured, in words."""
    if not series:
        return []
    known = [
        f"{words} ({spread(each.seconds())} after {len(each.values)} passes)"
        for words, each in series.items()
    ]
    listed = " and ".join(filter(None, [", ".join(known[:-1]), known[-1]]))
    return [
        f"It is not well known what these take: {listed}. Something else is using this machine, or the passes are too "
        "short. Shares and what-ifs are no better known than that; measure again on a quiet machine, or for longer "
        "(time=)."
    ]
