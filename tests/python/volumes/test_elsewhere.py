"""Volumes from an agent, of a part of a dataset, and among other datasets: the same as from the dataset itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
from sutler import transforms as T  # noqa: N812 - as users write it
from torch.utils.data import ConcatDataset, Subset

TRAIN = T.Compose([T.RandBalancedCrop(12), T.RandFlip(), T.GaussianNoise(p=0.5)])


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[str]:
    """The socket of an agent of its own."""
    socket = str(tmp_path / "agent.sock")
    command = [sys.executable, "-m", "sutler", "serve", "--socket", socket, "--threads", "2", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["ready"]
        yield socket
        process.terminate()


def batches(dataset: Any, **options: Any) -> list[list[Any]]:
    with sutler.Loader(dataset, return_ids=True, errors="skip", **options) as loader:
        return [[np.asarray(part).tolist() for part in batch] for _ in range(2) for batch in loader]


@pytest.mark.parametrize(("transform", "batch_size"), [(TRAIN, 5), (None, 1)], ids=["crops", "whole volumes"])
def test_an_agent_serves_the_same(volumes: Path, agent: str, transform: Any, batch_size: int) -> None:
    bad = volumes / "case_00003_y.npy"
    bad.write_bytes(bad.read_bytes()[:-1])  # leaves a gap in a batch, which is closed in both blocks
    dataset = sutler.VolumeFolder(volumes, transform)
    embedded = batches(dataset, batch_size=batch_size)
    assert batches(dataset, batch_size=batch_size, agent=agent) == embedded
    assert sum(len(ids) for _, _, ids in embedded) == 2 * 12


def test_a_part_of_a_dataset_stays_native_and_has_its_own_numbers(volumes: Path) -> None:
    dataset = sutler.VolumeFolder(volumes, TRAIN)
    part = Subset(dataset, [7, 2, 11])
    for images, labels, ids in sutler.Loader(part, batch_size=2, return_ids=True):
        for image, label, place in zip(images, labels, ids.tolist(), strict=True):
            np.testing.assert_array_equal(image, part[place][0])
            np.testing.assert_array_equal(label, part[place][1])


def test_datasets_that_are_put_together_draw_anew_in_every_epoch(volumes: Path) -> None:
    dataset = sutler.VolumeFolder(volumes, TRAIN)
    joined: ConcatDataset[Any] = ConcatDataset([dataset, dataset])
    with pytest.warns(RuntimeWarning, match="ConcatDataset puts native datasets together in Python"):
        loader = sutler.Loader(joined, batch_size=13, num_workers=0)
    with loader:
        first, second = ([np.asarray(images) for images, _ in loader] for _ in range(2))
    np.testing.assert_array_equal(first[0][4], dataset[4][0])
    assert not np.array_equal(first[0], second[0])
