"""`sutler inspect` tells what is in a folder of sound."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sutler
import sutler.testing


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


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("picture.mp3", "photo", "wav, flac"),
        ("words.wav", "words", "wav, flac"),
        ("sound.jpg", "tone", "jpeg, png"),
    ],
)
def test_files_are_looked_at_as_what_their_names_say(
    tones: Path, tmp_path_factory: pytest.TempPathFactory, name: str, content: str, told: str
) -> None:
    photos = tmp_path_factory.mktemp("photos")
    sutler.testing.make_photos(photos, count=2, classes=1)
    photo = next(photos.rglob("*.jpg"))
    tone = tones / "class_0" / "tone_000003.wav"
    folder = photo.parent if name.endswith(".jpg") else tone.parent
    made = {"photo": photo.read_bytes(), "tone": tone.read_bytes(), "words": b"words that are no sound"}
    (folder / name).write_bytes(made[content])
    facts = json.loads(inspect(folder.parent, "--json", code=1))
    [broken] = facts["broken"]
    assert (Path(broken["path"]).name, broken["kind"]) == (name, "unrecognised")
    assert told in broken["reason"]
    assert ("jpeg" in broken["reason"]) == name.endswith(".jpg"), (
        "only what the dataset could serve is listed"
    )
    kind = sutler.ImageFolder if name.endswith(".jpg") else sutler.AudioFolder
    with sutler.Loader(kind(folder.parent), batch_size=None, errors="skip") as loader:
        list(loader)
        [failure] = loader.failures()
        assert (failure.path, failure.reason) == (broken["path"], broken["reason"]), "as a loader says it"
