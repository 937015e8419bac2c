"""`sutler inspect` tells what is in a folder of sound."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def inspect(folder: Path, *options: str, code: int) -> str:
    command = [sys.executable, "-m", "sutler", "inspect", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_lengths_formats_and_broken_files_are_listed(tones: Path) -> None:
    bad = tones / "class_0" / "tone_000003.wav"
    bad.write_bytes(bad.read_bytes()[:100])
    facts = json.loads(inspect(tones, "--json", code=1))
    assert facts["samples"] == 30
    assert facts["formats"] == {"wav": 29}
    assert 200 <= facts["milliseconds"]["min"] <= facts["milliseconds"]["max"] <= 700
    assert [(broken["path"], broken["kind"]) for broken in facts["broken"]] == [(str(bad), "truncated")]
    text = inspect(tones, code=1)
    assert "milliseconds" in text
    assert "width" not in text
