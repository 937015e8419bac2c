"""What the tests of pictures with boxes share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sutler.testing


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    """Thirty pictures of coloured rectangles, upright and oblong, and their annotation file."""
    sutler.testing.make_detection(tmp_path, count=30, longer_side=120)
    return tmp_path


@pytest.fixture
def rewrite(shapes: Path) -> Callable[[Callable[[Any], None]], Path]:
    """Changes the annotation file."""

    def change(by: Callable[[Any], None]) -> Path:
        path = shapes / "annotations.json"
        annotations = json.loads(path.read_text())
        by(annotations)
        path.write_text(json.dumps(annotations))
        return path

    return change
