"""`sutler inspect` tells what is in a COCO annotation file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def inspect(*arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "sutler", "inspect", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_boxes_categories_and_broken_files_are_listed(shapes: Path) -> None:
    path = shapes / "annotations.json"
    annotations = json.loads(path.read_text())
    bad = shapes / "000003.png"
    bad.write_bytes(bad.read_bytes()[:200])
    facts = json.loads(inspect(str(path), "--json", code=1))
    assert facts["samples"] == 30
    assert facts["formats"] == {"png": 30}
    assert facts["boxes"] == len(annotations["annotations"])
    assert facts["categories"] == {
        category["name"]: sum(entry["category_id"] == category["id"] for entry in annotations["annotations"])
        for category in annotations["categories"]
    }
    assert facts["images_without_boxes"] == 3
    assert [broken["path"] for broken in facts["broken"]] == [str(bad)]
    text = inspect(str(path), code=1)
    assert f"{facts['boxes']} boxes" in text
    assert "green" in text


def test_pictures_elsewhere_are_found_or_asked_for(shapes: Path) -> None:
    (shapes / "annotations").mkdir()
    path = shapes / "annotations" / "instances_val.json"
    (shapes / "annotations.json").rename(path)
    facts = json.loads(inspect(str(path), "--images", str(shapes), "--json"))
    assert facts["broken"] == []
    facts = json.loads(inspect(str(path), "--json", code=1))
    assert len(facts["broken"]) == 30
    (shapes / "val").mkdir()
    for picture in shapes.glob("*.png"):
        picture.rename(shapes / "val" / picture.name)
    facts = json.loads(inspect(str(path), "--json"))
    assert facts["broken"] == [], "COCO's own layout is known"
