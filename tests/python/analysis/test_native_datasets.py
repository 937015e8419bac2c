"""`sutler.analyze` of every kind of native dataset, verified or not."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sutler
from sutler.testing import make_detection, make_tones, make_volumes, throttled, word_tokenizer
from torch.utils.data import Subset

from tests.python.analysis.conftest import BRIEF

WORDS = {"[UNK]": 0, "line": 1, "be": 2}


def make_text(folder: Path, name: str = "lines.txt", **arguments: Any) -> sutler.TextLines:
    lines = [f"line {number} {'be ' * (number % 7)}" for number in range(160)]
    path = folder / name
    if name.endswith(".jsonl"):
        path.write_text("\n".join(json.dumps({"text": line}) for line in lines))
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress("\n".join(lines).encode()))
    else:
        path.write_text("\n".join(lines))
    wanted: dict[str, Any] = {"tokenizer": word_tokenizer(WORDS), "pad": 0} | arguments
    return sutler.TextLines(path, cache_folder=folder / "index", **wanted)


def make_sound(folder: Path) -> sutler.AudioFolder:
    make_tones(folder, 24)
    return sutler.AudioFolder(folder)


def make_pictures(folder: Path) -> sutler.CocoDetection:
    return sutler.CocoDetection(folder, make_detection(folder, 24))


def make_cases(folder: Path) -> sutler.VolumeFolder:
    make_volumes(folder, 24, shape=(8, 8, 8))
    return sutler.VolumeFolder(folder)


TEXTS: dict[str, Callable[[Path], Any]] = {
    "plain": lambda folder: make_text(folder, tokenizer=None, pad=None),
    "tokenized": make_text,
    "by a function": lambda folder: make_text(folder, tokenizer=lambda text: [1] * len(text.split())),
    "JSON": lambda folder: make_text(folder, "lines.jsonl"),
    "compressed": lambda folder: make_text(folder, "lines.txt.gz"),
    "packed": lambda folder: make_text(folder, pad=None, pack=8, eos=0),
    "a subset": lambda folder: Subset(make_text(folder), range(0, 160, 2)),
}
OTHERS: dict[str, Callable[[Path], Any]] = {
    "sound": make_sound,
    "pictures": make_pictures,
    "volumes": make_cases,
}


@pytest.mark.parametrize(
    ("kind", "cache"), [*((kind, None) for kind in TEXTS), ("tokenized", "1MiB"), ("packed", "1MiB")]
)
def test_lines_are_analysed_without_their_storage(kind: str, cache: str | None, tmp_path: Path) -> None:
    with sutler.Loader(TEXTS[kind](tmp_path), 4, shuffle=True, num_workers=2, cache=cache) as loader:
        report = sutler.analyze(loader, 0.001, time=BRIEF, verify=True)
    found = report.findings
    # Worker processes run a function.
    assert found.subject.kind == ("python" if kind == "by a function" else "native")
    assert found.subject.dataset == "TextLines"
    assert found.stalls.fetch == 0.0
    assert not {"S", "F", "C"} & found.rates.keys()
    assert not {"cache", "storage_mbps"} & found.what_if.keys()
    assert any(point.verified for point in found.what_if["cores"])
    told = "\n".join(found.warnings)
    assert "reading counts as preparing" in told
    assert ("packed in the order of the files" in told) == (kind == "packed")
    assert ("The cache was left as it is" in told) == (cache is not None)


@pytest.mark.parametrize("kind", OTHERS)
def test_native_datasets_of_files_are_analysed_with_their_storage(kind: str, tmp_path: Path) -> None:
    with sutler.Loader(OTHERS[kind](tmp_path), 1, num_workers=2) as loader:
        report = sutler.analyze(loader, 0.001, time=BRIEF, verify=True)
    assert "S" in report.rates
    assert "storage_mbps" in report.findings.what_if


def test_a_part_of_a_native_dataset_is_analysed_as_one(forty_photos: Path) -> None:
    whole = sutler.ImageFolder(forty_photos, sutler.transforms.Resize((16, 16)))
    part = Subset(whole, range(10, 34))
    with sutler.Loader(part, 4, shuffle=True, num_workers=2, cache="16MiB") as loader:
        report = sutler.analyze(loader, 0.001, time=BRIEF, storage_mbps=50.0)
    subject = report.findings.subject
    assert subject.kind == "native"
    assert subject.samples == len(part)
    assert subject.cached == 1.0


def test_lines_cannot_be_held_to_a_rate(tmp_path: Path) -> None:
    text = make_text(tmp_path)
    with pytest.raises(TypeError, match="its samples are pieces of files"):
        throttled(text, 1e6)
    with (
        sutler.Loader(text, 4) as loader,
        pytest.raises(ValueError, match="lines of text are read as pieces"),
    ):
        sutler.analyze(loader, storage_mbps=1.0)
