"""What the tests of the analyser share."""

from __future__ import annotations

from pathlib import Path

import pytest
from sutler.testing import make_photos

#: Seconds of an analysis: enough to see that it works, and far too little for figures.
BRIEF = 0.3


@pytest.fixture(scope="session")
def forty_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos in two classes, larger than those of other tests: that a cache of a few KiB has some of them matters."""
    root = tmp_path_factory.mktemp("photos")
    make_photos(root, 40, 2)
    return root
