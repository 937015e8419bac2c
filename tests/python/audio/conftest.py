"""What the tests of sound share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
import sutler.testing

from . import references


@pytest.fixture
def tones(tmp_path: Path) -> Path:
    """Thirty clips of different lengths in three classes."""
    sutler.testing.make_tones(tmp_path, count=30, classes=3)
    return tmp_path


@pytest.fixture
def run_on_clip(tmp_path: Path) -> Callable[..., Any]:
    """Runs a transform on a signal, as a dataset would."""

    def run(transform: Any, values: Any = None, rate: int = references.RATE, **options: Any) -> Any:
        given = references.signal() if values is None else values
        references.write_wav(tmp_path / "clip" / "a" / "clip.wav", given, rate)
        sample, _ = sutler.AudioFolder(tmp_path / "clip", transform, **options)[0]
        return np.asarray(sample)

    return run
