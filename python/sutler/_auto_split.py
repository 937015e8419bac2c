"""A cache that finds its own split: measured before the first epoch, looked at again before every other."""

from __future__ import annotations

import json
import time
import warnings
from typing import TYPE_CHECKING, Any

from sutler import _sutler

if TYPE_CHECKING:
    from sutler._selection import Selection

#: How long the measurement before the first epoch may take, roughly. An epoch of a dataset that is worth caching takes
#: minutes, and a wrong split costs a good part of each.
MEASURE_SECONDS = 1.0


class AutoSplit:
    """Keeps the split of a native cache where the planner wants it."""

    def __init__(
        self,
        dataset: _sutler.Dataset,
        pipeline: _sutler.Pipeline,
        cache: _sutler.Cache,
        memory: int,
        threads: int,
        selection: Selection | None = None,
    ) -> None:
        self._dataset = dataset
        self._pipeline = pipeline
        self._cache = cache
        self._memory = memory
        self._threads = max(1, threads)
        self._selection = selection
        self._profile: str | None = None
        #: All of the budget is for encoded samples until something is known.
        self._split = (100, 0)
        self._facts: dict[str, Any] | None = None
        self._totals: dict[str, float] = {}
        self._kept = -1

    def facts(self) -> dict[str, Any] | None:
        """The plan in force, once there is one."""
        return self._facts

    def enter_epoch(self, job: _sutler.Job) -> None:
        """Plans, or looks whether the plan still holds."""
        if self._facts is None:
            self._first()
        else:
            self._look_again(job)

    def _first(self) -> None:
        served = len(self._dataset) if self._selection is None else self._selection.distinct()
        if served == 0:
            return
        started = time.perf_counter()
        try:
            self._profile, _ = _sutler.measure_profile(
                self._dataset,
                self._pipeline,
                threads=self._threads,
                jobs=1,
                device_samples_per_s=None,
                copies_bytes_max=self._memory,
                seconds=MEASURE_SECONDS,
                served=served,
            )
        except ValueError as error:
            # Whether bad samples end the training is for `errors=` to say, not for the planner.
            warnings.warn(
                f"split='auto' could not plan, so all samples are kept encoded: {error}", stacklevel=2
            )
            self._facts = {"split": "100-0-0", "reason": str(error)}
            return
        self._choose(None)
        if self._facts is not None:
            self._facts |= {"seconds": time.perf_counter() - started, "changes": 0}

    def _choose(self, in_force: tuple[int, int] | None) -> None:
        if self._profile is None:
            return
        chosen = json.loads(_sutler.choose_split(self._profile, self._memory, in_force))
        self._split = (chosen["encoded"], chosen["decoded"])
        self._cache.set_split(*self._split)
        self._facts = (self._facts or {}) | {
            "split": f"{self._split[0]}-{self._split[1]}-0",
            "predicted": chosen["predicted"],
            "bound_by": chosen["bound_by"],
        }

    def _look_again(self, job: _sutler.Job) -> None:
        """Compares the last epoch with the profile, unless samples came into the cache in it: that costs extra."""
        figures = json.loads(self._cache.figures())
        kept = figures["encoded"]["entries"] + figures["decoded"]["entries"]
        settled, self._kept = kept == self._kept, kept
        metrics = json.loads(job.metrics())
        stages = dict(metrics["stages"])
        totals = {
            **{form: metrics["served"][form] for form in ("storage", "encoded", "decoded")},
            "fetch_s": stages["fetch"]["mean"] * stages["fetch"]["count"],
            "prepare_s": sum(stages[name]["mean"] * stages[name]["count"] for name in ("decode", "augment")),
        }
        observed = {name: max(0, value - self._totals.get(name, 0)) for name, value in totals.items()}
        self._totals = totals
        if not settled or self._profile is None or self._facts is None:
            return
        corrected = _sutler.correct_profile(self._profile, json.dumps(observed))
        if corrected is None:
            return
        self._profile = corrected
        before = self._split
        self._choose(before)
        self._facts["changes"] += self._split != before
