"""The hand-written stub of the native module says what the module has."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_the_stub_is_the_modules() -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy.stubtest", "sutler._sutler"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
