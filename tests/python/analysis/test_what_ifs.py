"""What is predicted is what a run gives: of storage that is held to a rate, so that what binds is known."""

from __future__ import annotations

from pathlib import Path

import sutler
from sutler.analysis.model import WhatIf

from tests.python.analysis.injected import BATCHES, Delays, native_loader, write_photos
from tests.python.analysis.quiet import skip_if_busy, undisturbed

#: How far a prediction may be off, as a fraction of what a run gives.
MISS = 0.05
#: Samples in a batch. While two batches are in the making it matters where in them the few samples happen to be that a
#: cache does not have: with four in a batch and three quarters of the samples kept, what comes out differs by 6 %
#: (standard deviation) from one choice of them to another, and with eight by 1.7 %.
BATCH = 8
#: How often an analysis is repeated before it counts as it is.
ATTEMPTS = 3


def verified(photos: Path, delays: Delays) -> list[WhatIf]:
    """The verified what-ifs in which storage still binds."""
    loader, mbps = native_loader(photos, delays, workers=2, batch_size=BATCH)
    with loader, undisturbed():
        report = sutler.analyze(loader, delays.step * BATCH / 1e3, time=0.5, storage_mbps=mbps, verify=True)
    return [
        point
        for axis in ("cache", "storage_mbps")
        for point in report.findings.what_if[axis]
        if point.verified is not None and point.bound_by == "storage"
    ]


def test_caches_and_storage_are_worth_what_was_predicted(tmp_path: Path) -> None:
    photos = write_photos(tmp_path, BATCH * BATCHES)
    for attempt in range(ATTEMPTS):
        points = verified(photos, Delays(fetch=2, prep=0, step=0.2))
        worst = max(points, key=lambda point: abs(point.miss or 0.0))
        if abs(worst.miss or 0.0) <= MISS or attempt == ATTEMPTS - 1:
            break
    assert {point.axis for point in points} == {"cache", "storage_mbps"}
    if abs(worst.miss or 0.0) > MISS:
        skip_if_busy()
    assert abs(worst.miss or 0.0) <= MISS, points
