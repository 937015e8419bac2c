"""Runs the Python code blocks of README.md and docs/ as tests, each document in a directory of its own."""

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

#: Files that cannot even be imported without packages that Sutler itself does without.
NEEDS = {
    "docs/guides/trainers.md": ("accelerate", "jax", "lightning", "transformers"),
    "python/sutler/integrations/accelerate.py": ("accelerate",),
    "python/sutler/integrations/transformers.py": ("accelerate", "transformers"),
}
MISSING = {
    path: missing
    for path, packages in NEEDS.items()
    if (missing := [package for package in packages if importlib.util.find_spec(package) is None])
}
collect_ignore = list(MISSING)


def pytest_report_header() -> list[str]:
    return [
        f"left out: {path}, as {' and '.join(missing)} is not installed" for path, missing in MISSING.items()
    ]


def enter_directory(namespace: dict[str, Any]) -> None:
    """Gives a document an empty working directory with the photos that its examples read."""
    from sutler.testing import make_photos

    namespace["_directory"] = tempfile.TemporaryDirectory()
    namespace["_came_from"] = Path.cwd()
    os.chdir(namespace["_directory"].name)
    make_photos("data/train", 48, 4)


def leave_directory(namespace: dict[str, Any]) -> None:
    """Goes back and deletes what the document wrote."""
    os.chdir(namespace["_came_from"])
    namespace["_directory"].cleanup()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
    setup=enter_directory,
    teardown=leave_directory,
).pytest()
