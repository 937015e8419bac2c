"""How far Sutler's pixels are from those of torchvision on Pillow's images, photo by photo.

Random crops are compared too: Sutler says what it drew, and torchvision cuts the same windows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sutler
from sutler import _sutler
from sutler import transforms as T  # noqa: N812 (the name that torchvision's users expect)

from benchmarks import report
from benchmarks.outcome import Outcome
from benchmarks.photos import photo_tree
from benchmarks.worker import ContenderError

SIZE = 224
SHORTER_SIDE = 256
FILTERS = ("bilinear", "bicubic")


@dataclass
class Difference:
    """How two sets of images of bytes differ, value by value."""

    values: int = 0
    differing: int = 0
    beyond_one: int = 0
    total: int = 0
    largest: int = 0

    def add(self, ours: np.ndarray, theirs: np.ndarray) -> None:
        if ours.shape != theirs.shape:
            raise ContenderError(f"the images differ in shape: {ours.shape} and {theirs.shape}")
        distance = np.abs(ours.astype(np.int16) - theirs.astype(np.int16))
        self.values += distance.size
        self.differing += int(np.count_nonzero(distance))
        self.beyond_one += int(np.count_nonzero(distance > 1))
        self.total += int(distance.sum(dtype=np.int64))
        self.largest = max(self.largest, int(distance.max(initial=0)))

    def row(self) -> list[str]:
        return [
            f"{self.differing / self.values:.3%}",
            f"{self.beyond_one / self.values:.3%}",
            f"{self.total / self.values:.4f}",
            str(self.largest),
        ]

    def facts(self) -> dict[str, float]:
        return {
            "differing": self.differing / self.values,
            "beyond_one": self.beyond_one / self.values,
            "mean": self.total / self.values,
            "largest": self.largest,
        }


#: What torchvision makes of a photo, given the index of the sample and the operations that Sutler ran.
Reference = Callable[[Any, int, str], Any]


def _cases() -> dict[str, tuple[Any, Reference]]:
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional

    def decoded(image: Any, index: int, operations: str) -> Any:
        return image

    def resized(mode: InterpolationMode) -> Reference:
        return lambda image, index, operations: functional.resize(image, [SIZE, SIZE], mode)

    def evaluated(mode: InterpolationMode) -> Reference:
        return lambda image, index, operations: functional.center_crop(
            functional.resize(image, [SHORTER_SIDE], mode), [SIZE, SIZE]
        )

    def trained(mode: InterpolationMode) -> Reference:
        def reference(image: Any, index: int, operations: str) -> Any:
            drawn = _sutler.draw(operations, image.width, image.height, seed=0, epoch=0, sample=index)
            crop, flip = json.loads(drawn)
            window = [crop[side] for side in ("top", "left", "height", "width")]
            cut = functional.resized_crop(image, *window, size=[SIZE, SIZE], interpolation=mode)
            return functional.horizontal_flip(cut) if flip["applied"] else cut

        return reference

    cases: dict[str, tuple[Any, Reference]] = {"decode": (None, decoded)}
    for name in FILTERS:
        mode = InterpolationMode(name)
        cases[f"resize to {SIZE}×{SIZE}, {name}"] = (T.Resize((SIZE, SIZE), name), resized(mode))
        evaluation = T.Compose([T.Resize(SHORTER_SIDE, name), T.CenterCrop(SIZE)])
        cases[f"eval pipeline, {name}"] = (evaluation, evaluated(mode))
        training = T.Compose([T.RandomResizedCrop(SIZE, interpolation=name), T.RandomHorizontalFlip()])
        cases[f"train pipeline, {name}"] = (training, trained(mode))
    return cases


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, help="compare only this many photos; all by default")


def measure(arguments: argparse.Namespace) -> Outcome:
    for module in ("torchvision", "PIL"):
        if importlib.util.find_spec(module) is None:
            raise ContenderError(
                f"there is nothing to compare with: `{module}` is not installed; `make bench` installs it"
            )
    with photo_tree(arguments.data, samples=arguments.samples) as photos:
        found = {}
        for title, (transform, reference) in _cases().items():
            for dct_scaling in (False, True) if transform is not None else (False,):
                scaling = ", DCT scaling" if dct_scaling else ""
                found[title + scaling] = _compare(photos.root, transform, dct_scaling, reference)
        header = ["against torchvision on PIL", "values that differ", "by more than 1", "mean", "largest"]
        rows = [[title, *difference.row()] for title, difference in found.items()]
        summary = f"quality: {photos.description}; values from 0 to 255\n\n{report.table(header, rows)}"
        raw = {
            "benchmark": "quality",
            "data": photos.description,
            "differences": {title: difference.facts() for title, difference in found.items()},
        }
        return Outcome(summary, raw, photos.root.parent)


def _compare(root: Path, transform: Any, dct_scaling: bool, reference: Reference) -> Difference:
    from PIL import Image

    dataset = sutler.ImageFolder(root, transform=transform, dct_scaling=dct_scaling, progress=False)
    operations = json.dumps(dataset.lowered.ops)
    difference = Difference()
    for index in range(len(dataset)):
        with Image.open(dataset.path(index)) as opened:
            theirs = reference(opened.convert("RGB"), index, operations)
        ours = np.asarray(dataset[index][0]).transpose(1, 2, 0)
        difference.add(ours, np.asarray(theirs))
    return difference
