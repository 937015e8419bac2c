"""What an analysis hands to its user: the findings, further questions, and ways to show them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sutler.analysis import what_ifs
from sutler.analysis.doubts import CACHE_AS_IT_IS
from sutler.analysis.model import (
    CAUSES,
    Accelerator,
    BatchTimes,
    Findings,
    Rate,
    Recommendation,
    StageTimes,
    Stalls,
    Subject,
    WhatIf,
)
from sutler.analysis.page import render_page
from sutler.analysis.places import writable, write
from sutler.analysis.terminal import render_text
from sutler.analysis.trace import timeline_of_batches, write_trace


class Report:
    """Where a trainer's time goes, what would change it, and what to do about it. Printed, it is a table.

    Made by :func:`sutler.analyze`; or read again from what :meth:`to_json` wrote.

    Attributes:
        findings: All of it as data; what follows are its parts.
    """

    def __init__(self, findings: Findings, timeline: dict[str, Any] | None = None) -> None:
        self.findings = findings
        #: What the loader wrote down of the measured run, sample by sample; not kept in JSON.
        self._timeline = timeline

    @staticmethod
    def from_json(source: str | os.PathLike[str]) -> Report:
        """Reads what :meth:`to_json` wrote.

        Args:
            source: The file, or the text that is in it.

        Raises:
            ValueError: It is no report, or one of a newer release.
        """
        is_text = isinstance(source, str) and source.lstrip().startswith("{")
        try:
            text = str(source) if is_text else Path(source).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{source} is no report: it is not even text") from None
        return Report(Findings.from_json(text))

    @property
    def subject(self) -> Subject:
        """What was analysed."""
        return self.findings.subject

    @property
    def rates(self) -> Mapping[str, Rate]:
        """By name: ``G`` the step, ``P`` preparing, ``F`` fetching, ``C`` the cache, ``S`` storage."""
        return self.findings.rates

    @property
    def stalls(self) -> Stalls:
        """Where the trainer's time goes, as fractions of it."""
        return self.findings.stalls

    @property
    def recommendation(self) -> Recommendation:
        """What to change; printed, it is a paragraph."""
        return self.findings.recommendation

    @property
    def stages(self) -> tuple[StageTimes, ...]:
        """How long samples spent in each stage, where the loader keeps count."""
        return self.findings.stages

    @property
    def timeline(self) -> tuple[BatchTimes, ...]:
        """The batches of the measured run."""
        return self.findings.timeline

    @property
    def accelerator(self) -> Accelerator | None:
        """The emulated accelerator and its utilisation."""
        return self.findings.accelerator

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on what the figures are worth."""
        return self.findings.warnings

    def what_if(
        self,
        *,
        cache: int | str | None = None,
        cores: int | None = None,
        storage_mbps: float | None = None,
        remote: int | None = None,
        jobs: int | None = None,
    ) -> WhatIf:
        """What the trainer would get under other circumstances; what is not given stays as it is.

        Args:
            cache: A cache of so many bytes, or of ``"8GiB"``.
            cores: So many cores, with a worker on each.
            storage_mbps: Storage of so many megabytes per second.
            remote: So many further machines like this one that prepare.
            jobs: So many jobs that share what is prepared.

        Raises:
            ValueError: Nothing is asked for, a value is no amount of it, it is about another cache where the present
                one keeps what a dataset prepares, or about storage where the size of a sample is not known.
        """
        given = {
            "cache": cache,
            "cores": cores,
            "storage_mbps": storage_mbps,
            "remote": remote,
            "jobs": jobs,
        }
        changes = {axis: value for axis, value in given.items() if value is not None}
        if not changes:
            raise ValueError(
                "what_if: say what should be different: cache=, cores=, storage_mbps=, remote= or jobs="
            )
        if "cache" in changes and self.subject.cache_bytes and "cache" not in self.findings.what_if:
            raise ValueError(f"what_if: another cache cannot be asked about. {CACHE_AS_IT_IS}")
        of_files = sorted({"cache", "storage_mbps"} & set(changes))
        if of_files and self.subject.sample_bytes is None:
            raise ValueError(
                f"what_if: {of_files[0]}= cannot be answered: it is not known how many bytes a sample has in storage, "
                "since the dataset is a stream or does not tell its files"
            )
        change = what_ifs.change_of(changes)
        predicted, bound_by = what_ifs.predict(self.findings.facts, change)
        labels = [
            what_ifs.label_of(axis, change["cache_bytes"] if axis == "cache" else value)
            for axis, value in changes.items()
        ]
        first = next(iter(changes))
        if len(changes) == 1 and (known := self._in_table(first, change)):
            return known
        amount = change["cache_bytes"] if first == "cache" else float(changes[first])
        return WhatIf("+".join(changes), amount, ", ".join(labels), predicted, bound_by)

    def _in_table(self, axis: str, change: dict[str, Any]) -> WhatIf | None:
        """What the report says already: of what is so now, and of what was run."""
        (amount,) = change.values()
        wanted = amount / 1e6 if axis == "storage_mbps" else amount
        points = self.findings.what_if.get(axis, ())
        return next((point for point in points if math.isclose(point.value, wanted, rel_tol=1e-3)), None)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return self.findings.to_dict()

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Everything as JSON, which is also written to ``path`` if there is one."""
        text = self.findings.to_json()
        if path is not None:
            write(path, text + "\n")
        return text

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Writes a page for the browser: one file that needs nothing else."""
        write(path, render_page(self.findings))

    def to_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the measured run as a trace, for Perfetto or ``chrome://tracing``.

        It has the samples, too, unless the loader keeps none or the report was read from a file.
        """
        write_trace(writable(path), self._timeline or timeline_of_batches(self.findings.timeline))

    def __str__(self) -> str:
        return render_text(self.findings)

    def __repr__(self) -> str:
        shares = ", ".join(f"{cause} {getattr(self.stalls, cause):.0%}" for cause in CAUSES)
        return f"Report({self.subject.dataset}: {self.findings.measured.value:.0f} samples/s; {shares})"
