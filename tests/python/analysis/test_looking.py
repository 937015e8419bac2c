"""The one look at each sample before anything is measured: who prepares them, and what is found out."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import sutler
from sutler.analysis.analyzing import bench_for
from sutler.analysis.benches import Pages
from sutler.analysis.files import files_of
from sutler.analysis.looking import look_at
from sutler.analysis.measuring import Measurement
from sutler.analysis.passes import Step

from tests.python.analysis.conftest import BRIEF
from tests.python.analysis.injected import BATCH, BATCHES, SAMPLE, Delays, InjectedDataset, write_files

#: Both kinds of loader.
WHOSE = pytest.mark.parametrize("whose", ["sutler", "torch"])
#: The bytes of a sample in one file of many.
RECORD = 4096


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("looking") / "files")


def make_loader(whose: str, dataset: Any, workers: int = 2, **changes: Any) -> Any:
    if whose == "sutler":
        return sutler.Loader(dataset, BATCH, num_workers=workers, output="numpy", **changes)
    data = pytest.importorskip("torch.utils.data")
    return data.DataLoader(dataset, BATCH, num_workers=workers, **changes)


class Opens:
    """A dataset that tells nobody where its samples lie."""

    def __init__(self, files: Path, seconds: float = 0.0) -> None:
        self._names = sorted(files.iterdir())
        self._seconds = seconds
        self.prepared = 0

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        self.prepared += 1
        time.sleep(self._seconds)
        with open(self._names[index], "rb") as file:
            return np.frombuffer(file.read(), np.uint8)[:8]

    def paths(self, indices: range) -> dict[int, list[str]]:
        return {index: [os.path.realpath(self._names[index])] for index in indices}


class Records:
    """Samples in one file, which is opened with the first of them and stays open, as archives are."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.file: BinaryIO | None = None

    def __len__(self) -> int:
        return self._path.stat().st_size // RECORD

    def __getitem__(self, index: int) -> tuple[int, int]:
        if self.file is None:
            self.file = open(self._path, "rb", buffering=0)  # noqa: SIM115 - it stays open
        self.file.seek(index * RECORD)
        time.sleep(0.0005)
        return index, int.from_bytes(self.file.read(8), "little")


@WHOSE
def test_what_a_dataset_opens_lazily_is_not_shared_by_workers_that_are_forked_later(
    whose: str, tmp_path: Path
) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"".join(number.to_bytes(RECORD, "little") for number in range(120)))
    dataset = Records(path)
    loader = make_loader(whose, dataset)
    wrong = 0

    def step(batch: Any) -> None:
        nonlocal wrong
        wrong += int((np.asarray(batch[0]) != np.asarray(batch[1])).sum())

    sutler.analyze(loader, step, time=BRIEF)
    assert dataset.file is None
    for batch in loader:
        step(batch)
    assert wrong == 0


@WHOSE
def test_workers_tell_which_files_they_open_and_have_a_batch_ready(whose: str, files: Path) -> None:
    dataset = Opens(files)
    looked = look_at(bench_for(make_loader(whose, dataset)), [[3, 5], [7, 3]], 60)
    assert looked.files == {index: dataset.paths(range(8))[index] for index in (3, 5, 7)}
    assert [bytes(sample) for sample in looked.samples] == [bytes(Opens(files)[index]) for index in (3, 5)]
    assert not looked.cut_short
    assert dataset.prepared == 0


@pytest.mark.parametrize("changes", [{"workers": 0}, {"multiprocessing_context": "thread"}], ids=str)
def test_where_the_dataset_lives_in_this_process_it_is_looked_at_here(
    changes: dict[str, Any], files: Path
) -> None:
    dataset = Opens(files)
    looked = look_at(bench_for(make_loader("sutler", dataset, **changes)), [[3, 5], [7, 3]], 60)
    assert looked.files == {index: dataset.paths(range(8))[index] for index in (3, 5, 7)}
    assert dataset.prepared == 3


def open_file(_worker: int) -> None:
    """What many give a loader, so that every worker has a handle of its own."""
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    assert info is not None
    records: Any = info.dataset
    records.file = open(records._path, "rb", buffering=0)  # noqa: SIM115 - it stays open


def test_a_function_that_begins_a_worker_finds_the_users_own_dataset(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"".join(number.to_bytes(RECORD, "little") for number in range(40)))
    loader = make_loader("torch", Records(path), worker_init_fn=open_file)
    # The file was opened before the first sample, so it is none that a sample opens.
    looked = look_at(bench_for(loader), [[3, 5]], 60)
    assert (looked.files, looked.samples) == ({}, [(3, 3), (5, 5)])


class Recipes(Opens):
    """A dataset whose samples cannot leave a worker before they are collated."""

    def __getitem__(self, index: int) -> Any:
        content = super().__getitem__(index)
        return lambda: content


def cooked(recipes: list[Any]) -> np.ndarray[Any, Any]:
    """What the user makes of a batch of `Recipes`."""
    return np.stack([recipe() for recipe in recipes])


@WHOSE
def test_samples_that_cannot_leave_a_worker_are_looked_at_there(whose: str, files: Path) -> None:
    dataset = Recipes(files)
    loader = make_loader(whose, dataset, collate_fn=cooked)
    looked = look_at(bench_for(loader), [[3, 5], [7, 3]], 60)
    assert (sorted(looked.files), looked.samples) == ([3, 5, 7], [])
    found = sutler.analyze(loader, 0.001, 12, time=BRIEF)
    assert found.subject.sample_bytes == SAMPLE


@WHOSE
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_are_asked_as_well(whose: str, context: str, files: Path) -> None:
    dataset = Opens(files)
    loader = make_loader(whose, dataset, 1, multiprocessing_context=context)
    looked = look_at(bench_for(loader), [[3, 5], [7, 3]], 60)
    assert looked.files == {index: dataset.paths(range(8))[index] for index in (3, 5, 7)}
    assert len(looked.samples) == 2


def test_datasets_that_know_their_files_are_asked(files: Path) -> None:
    names = [str(path) for path in sorted(files.iterdir())]
    wanted = {3: [names[3]], 5: [names[5]]}
    assert files_of(InjectedDataset(files, Delays(0, 0, 0)), [3, 5]) == wanted
    assert files_of(Opens(files), [3, 5]) == files_of([1, 2, 3], [0, 1]) == {}
    data = pytest.importorskip("torch.utils.data")
    subset = data.Subset(InjectedDataset(files, Delays(0, 0, 0)), [9, 3, 5])
    assert files_of(subset, [1, 2]) == {1: wanted[3], 2: wanted[5]}


@WHOSE
def test_samples_that_take_longer_than_there_is_time_are_known_as_far_as_they_were_looked_at(
    whose: str, files: Path
) -> None:
    dataset = Opens(files, seconds=0.02)
    batches = [[first, first + 1] for first in range(0, 60, 2)]
    looked = look_at(bench_for(make_loader(whose, dataset)), batches, 0.1)
    assert looked.cut_short
    assert 2 <= len(looked.files) < 60
    assert looked.files == dataset.paths(range(len(looked.files)))


def test_a_dataset_that_opens_its_files_itself_is_told_apart_from_what_it_prepares(files: Path) -> None:
    with make_loader("sutler", Opens(files, seconds=0.005)) as loader:
        found = sutler.analyze(loader, 0.001, time=4 * BRIEF)
    assert found.subject.sample_bytes == SAMPLE
    assert found.rates["S"].bytes_read
    assert not any("could not be found out" in warning for warning in found.warnings)


def test_only_batches_whose_files_are_known_are_analysed_if_they_are_enough(files: Path) -> None:
    dataset = Opens(files)

    def batches_left(known: int) -> int:
        with make_loader("sutler", dataset) as loader:
            measurement = Measurement(
                bench_for(loader), Step(0.0), batches_max=None, seconds=60, storage_bytes_per_s=None
            )
            assert len(measurement.batches) == BATCHES
            measurement._only_known(dataset.paths(range(known * BATCH + 1)))
            assert [len(batch) for batch in measurement.batches] == measurement.sizes
            return len(measurement.batches)

    assert batches_left(18) == 18
    assert batches_left(3) == BATCHES


def test_too_little_time_to_find_the_files_is_said_and_nothing_is_dropped(files: Path) -> None:
    with make_loader("sutler", Opens(files, seconds=0.02)) as loader:
        found = sutler.analyze(loader, 0.001, time=0.2)
    assert found.subject.sample_bytes is None
    assert "S" not in found.rates
    assert any("a longer analysis (time=) would find the files" in warning for warning in found.warnings)


def test_pages_of_which_some_are_unknown_are_left_alone(files: Path) -> None:
    path = str(next(files.iterdir()))
    pages = Pages({3: [path]}, [[3, 4]])
    assert (pages.known, pages.paths, pages.bytes, pages.sample_bytes) == (False, [], 0, None)
    assert Pages({3: [path], 5: [path]}, [[3]]).sample_bytes == SAMPLE
