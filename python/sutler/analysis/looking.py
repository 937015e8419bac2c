"""One look at each sample before anything is measured: the files that it lies in, and a few that are ready."""

from __future__ import annotations

import pickle
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from sutler.analysis.benches import Batches, Bench, Config
from sutler.analysis.files import files_of, opened_here
from sutler.datasets import NativeDataset


@dataclass(frozen=True)
class Looked:
    """What a look at the samples of some batches gave."""

    #: The files of each sample, as far as they are known.
    files: dict[Any, list[str]]
    #: As many samples as the first batch has, as the dataset makes them, without those that cannot leave a worker; of a
    #: native one none, as nobody needs them.
    samples: list[Any]
    #: Whether time was up before every sample had been looked at.
    cut_short: bool = False


def look_at(bench: Bench, batches: Batches, seconds_max: float) -> Looked:
    """Looks at the samples of these batches, for so long at the most where only that tells which files they lie in.

    It is the user's workers that prepare them, where they are processes. A dataset may well open an archive with its
    first sample and keep it open: if this process did so, workers that are forked later would share its place in that
    file with one another, and read each other's bytes.
    """
    indices = list(dict.fromkeys(index for batch in batches for index in batch))
    files = files_of(bench.dataset, indices)
    if isinstance(bench.dataset, NativeDataset):
        return Looked(files, [])
    wanted = len(batches[0])
    seen = _seen_here(bench, indices) if bench.in_process else _seen_by_workers(bench, indices, wanted)
    samples: list[Any] = []
    watches, cut_short = not files, False
    deadline = None
    with closing(seen):
        for count, (index, opened, ready) in enumerate(seen, 1):
            # The first one comes when workers have started, which is no news about the others.
            deadline = deadline or time.monotonic() + seconds_max
            if count <= wanted:
                samples += ready
            if watches and not opened:  # it opens none, or not through Python
                watches, files = False, {}
            if watches:
                files[index] = opened
                cut_short = time.monotonic() > deadline and len(files) < len(indices)
            if count >= wanted and (cut_short or not watches):
                break
    return Looked(files, samples, cut_short and watches)


#: A sample's index, the files that were opened for it, and itself, if it is to be had.
_Seen = tuple[Any, list[str], list[Any]]


def _seen_here(bench: Bench, indices: list[Any]) -> Generator[_Seen]:
    """Each sample with the files that it lies in, prepared in this process, where the user's loader does so as well."""
    bad: Exception | None = None
    seen = 0
    for index in indices:
        try:
            opened, sample = opened_here(bench.dataset, index)
        except Exception as error:
            bad = error  # a bad sample, of which the loader has its own opinion
            continue
        seen += 1
        yield index, opened, [sample]
    if bad is not None and not seen:
        raise bad


def _seen_by_workers(bench: Bench, indices: list[Any], wanted: int) -> Generator[_Seen]:
    """The same, prepared by the user's workers; so many of the samples are to be had, if they can leave a worker.

    Samples that the loader leaves out are missing.
    """
    probe = bench.open([indices], Config(watched=True))
    try:
        left = iter(indices)
        for count, (opened, pickled) in enumerate(probe.epoch()):
            bad = {failure.id for failure in probe.failures()}
            ready = [pickle.loads(pickled)] if pickled is not None and count < wanted else []
            yield next(index for index in left if index not in bad), opened, ready
    finally:
        probe.close()
