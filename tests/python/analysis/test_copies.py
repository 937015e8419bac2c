"""What runs in the trainer's own process is copied, so that an analysis leaves what objects of the user's remember."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
import torch
from sutler import transforms as T  # noqa: N812 - as users write it
from sutler.analysis import copies
from torch.utils.data import DataLoader, IterableDataset

from tests.python.analysis.conftest import BRIEF


class OwnGenerators:
    """Samples that are drawn from generators of the dataset's own."""

    def __init__(self) -> None:
        self._numpy = np.random.default_rng(7)
        self._torch = torch.Generator().manual_seed(3)

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> list[float]:
        return [index, self._numpy.random(), float(torch.rand((), generator=self._torch))]


class Epochs(IterableDataset[int]):
    """A stream that counts how often it was gone through, in another order each time."""

    def __init__(self) -> None:
        self._epoch = 0

    def __iter__(self) -> Iterator[int]:
        self._epoch += 1
        return iter(np.random.default_rng(self._epoch).permutation(24).tolist())


class Counter:
    """A function that knows how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, value: Any) -> Any:
        self.calls += 1
        return value


class Reading(OwnGenerators):
    """One that has a file open, which cannot be copied."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("rb")


def two_epochs(loader: Any, *, analysed: bool) -> list[str]:
    batches = [repr(batch) for batch in loader]
    if analysed:
        assert not not_copied(sutler.analyze(loader, 0.001, time=BRIEF))
    return batches + [repr(batch) for batch in loader]


def not_copied(report: sutler.Report) -> list[str]:
    return [warning for warning in report.findings.warnings if "could not be copied" in warning]


@pytest.mark.parametrize("dataset", [OwnGenerators, Epochs])
@pytest.mark.parametrize("make", [sutler.Loader, DataLoader])
def test_a_dataset_that_remembers_is_left_as_it_was(make: Any, dataset: Any) -> None:
    expected = two_epochs(make(dataset(), 4, num_workers=0), analysed=False)
    assert two_epochs(make(dataset(), 4, num_workers=0), analysed=True) == expected


@pytest.mark.parametrize("make", [sutler.Loader, DataLoader])
def test_a_collate_function_that_counts_is_left_as_it_was(make: Any) -> None:
    counter = Counter()
    sutler.analyze(make(list(range(24)), 4, collate_fn=counter), 0.001, time=BRIEF)
    assert counter.calls == 0


def test_functions_of_a_native_dataset_are_left_as_they_were(forty_photos: Path) -> None:
    on_image, on_label, on_batch = Counter(), Counter(), Counter()
    transform = T.Compose([T.Resize((8, 8)), T.Lambda(on_image)])
    dataset = sutler.ImageFolder(forty_photos, transform, target_transform=on_label)
    # Worker threads leave functions to the trainer.
    threads: Any = {"num_workers": 2, "multiprocessing_context": "thread"}
    with sutler.Loader(dataset, 4, collate_fn=on_batch, **threads) as loader:
        report = sutler.analyze(loader, 0.001, time=BRIEF)
        assert (on_image.calls, on_label.calls, on_batch.calls) == (0, 0, 0)
        assert "in_trainer_s" in report.findings.facts
        assert not not_copied(report)
        next(iter(loader))
    assert (on_image.calls, on_label.calls, on_batch.calls) == (4, 4, 1)


def test_what_cannot_be_copied_is_used_as_it_is_and_told_of(tmp_path: Path) -> None:
    path = tmp_path / "open"
    path.write_bytes(b"")
    counter = Counter()
    dataset: Any = Reading(path)
    loader = DataLoader(dataset, 4, collate_fn=counter)
    (told,) = not_copied(sutler.analyze(loader, 0.001, time=BRIEF))
    assert told.startswith("The dataset could not be copied (TypeError: cannot pickle")
    assert counter.calls == 0


def test_large_arrays_are_shared_and_small_ones_copied() -> None:
    large, small, function = torch.zeros(1 << 20), np.zeros(4), lambda: None
    mine = {"large": [large], "numpy": np.zeros(1 << 20), "small": small, "function": function}
    other = copies.copied(mine)
    assert other["large"][0] is large
    assert other["numpy"] is mine["numpy"]
    assert other["function"] is function
    other["small"] += 1
    assert small.sum() == 0


def test_what_is_too_large_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "COPY_MAX", 1 << 10)
    many = list(range(1000))
    found, (told,) = copies.copies({"dataset": many})
    assert found["dataset"] is many
    assert told.startswith("The dataset could not be copied (it takes more than")


def test_what_is_a_part_of_another_stays_one() -> None:
    counter = Counter()
    found, notes = copies.copies({"dataset": counter, "collate_fn": counter.__call__})
    found["collate_fn"](1)
    assert (found["dataset"].calls, counter.calls, notes) == (1, 0, [])
