"""Pictures with boxes through the host agent are those of the embedded engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sutler

from .test_batches import contents, make


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[str]:
    """The socket of an agent that keeps samples."""
    path = str(tmp_path / "agent.sock")
    command = [sys.executable, "-m", "sutler", "serve", "--socket", path, "--memory", "32MiB", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert '"ready":true' in process.stdout.readline().replace(" ", "")
        yield path
        process.terminate()


def test_an_agent_serves_the_same_pictures_and_boxes(shapes: Path, agent: str) -> None:
    dataset = make(shapes)

    def epochs(**options: Any) -> list[list[dict[int, bytes]]]:
        with sutler.Loader(dataset, 7, shuffle=True, return_ids=True, **options) as loader:
            return [[contents(batch) for batch in loader] for _ in range(2)]

    assert epochs(agent=agent) == epochs()
    served: dict[int, bytes] = {}
    for batch in epochs(agent=agent, order="shared")[0]:
        assert not served.keys() & batch.keys()
        served |= batch
    assert len(served) == 30
