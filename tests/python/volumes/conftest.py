"""What the tests of volumes share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
import sutler.testing

from .references import Array


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    """Thirteen volumes of different shapes."""
    sutler.testing.make_volumes(tmp_path / "volumes", count=13, shape=(20, 24, 28))
    return tmp_path / "volumes"


@pytest.fixture
def run_on_volume(tmp_path: Path) -> Callable[..., list[tuple[Array, Array]]]:
    """Runs a transform on an image and its labels, as a loader would, in each of some epochs."""

    def run(transform: Any, image: Array, label: Array, epochs: int = 1) -> list[tuple[Array, Array]]:
        np.save(tmp_path / "one_x.npy", image)
        np.save(tmp_path / "one_y.npy", label)
        dataset = sutler.VolumeFolder(tmp_path, transform)
        with sutler.Loader(dataset, num_workers=0, output="numpy") as loader:
            batches = [next(iter(loader)) for _ in range(epochs)]
            return [(images[0, 0].copy(), labels[0, 0].copy()) for images, labels in batches]

    return run
