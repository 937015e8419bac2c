"""Pictures and boxes are torchvision's: the pictures to within a rounding, the boxes to the last bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
import torch
from PIL import Image
from sutler import transforms as T  # noqa: N812 - as users write it
from torchvision import tv_tensors
from torchvision.transforms import v2

MEAN = [102.9801, 115.9465, 122.7717]


def annotated(folder: Path) -> list[tuple[Any, torch.Tensor, list[dict[str, Any]]]]:
    """Every picture, its boxes as left, top, right and bottom, and its annotations, as torchvision has them."""
    content = json.loads((folder / "annotations.json").read_text())
    found = []
    for image in sorted(content["images"], key=lambda image: image["id"]):
        own = [entry for entry in content["annotations"] if entry["image_id"] == image["id"]]
        picture = Image.open(folder / image["file_name"]).convert("RGB")
        corners = tv_tensors.BoundingBoxes(
            torch.tensor([entry["bbox"] for entry in own], dtype=torch.float32).reshape(-1, 4),
            format="XYWH",
            canvas_size=(picture.height, picture.width),
        )
        boxes = v2.functional.convert_bounding_box_format(corners, new_format="XYXY")
        found.append((picture, v2.functional.clamp_bounding_boxes(boxes), own))
    return found


def samples(dataset: sutler.CocoDetection) -> Iterator[tuple[Any, Any]]:
    return (dataset[index] for index in range(len(dataset)))


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(("size", "max_size"), [(70, 90), (200, 250), (80, None)])
def test_the_chain_of_mask_rcnn_is_torchvisions(
    shapes: Path, size: int, max_size: int | None, mirrored: bool
) -> None:
    ours = T.Compose(
        [
            T.ResizeShortest(size, max_size=max_size),
            T.RandomHorizontalFlip(p=float(mirrored)),
            T.ToBGR255(),
            T.Normalize(MEAN, [1.0, 1.0, 1.0]),
        ]
    )
    theirs = v2.Compose(
        [
            v2.ToImage(),
            v2.Resize(size, max_size=max_size, antialias=True),
            v2.RandomHorizontalFlip(float(mirrored)),
        ]
    )
    dataset = sutler.CocoDetection(shapes, shapes / "annotations.json", transform=ours, dct_scaling=False)
    expected = annotated(shapes)
    assert len(dataset) == len(expected) == 30
    for (image, target), (picture, boxes, own) in zip(samples(dataset), expected, strict=True):
        pixels, moved = theirs(picture, boxes)
        reference = pixels.to(torch.float32).flip(0) - torch.tensor(MEAN).view(3, 1, 1)
        assert image.dtype == torch.float32
        # Both round to 8 bits after each of two passes; a level is 1 here.
        assert (image - reference).abs().max() <= 1.01
        assert (image - reference).abs().mean() < 0.05
        assert torch.equal(target["boxes"], moved.as_subclass(torch.Tensor))
        assert target["labels"].tolist() == [entry["category_id"] for entry in own]
        assert target["area"].tolist() == [entry["area"] for entry in own]
        assert target["iscrowd"].tolist() == [entry["iscrowd"] for entry in own]
        assert target["size"].tolist() == list(image.shape[1:])
        assert target["orig_size"].tolist() == [picture.height, picture.width]


def test_fractions_are_rounded_as_torchvision_rounds_them(shapes: Path) -> None:
    path = shapes / "annotations.json"
    content = json.loads(path.read_text())
    random = np.random.default_rng(5)
    sizes = {image["id"]: (image["width"], image["height"]) for image in content["images"]}
    for entry in content["annotations"]:
        width, height = sizes[entry["image_id"]]
        low, high = random.uniform(-0.1, 0.6, 2), random.uniform(0.2, 0.6, 2)
        entry["bbox"] = [*(low * (width, height)), *(high * (width, height))]
    path.write_text(json.dumps(content))
    steps = [
        T.RandomVerticalFlip(1.0),
        T.ResizeShortest(61, max_size=83),
        T.RandomHorizontalFlip(1.0),
        T.Pad(3),
    ]
    theirs = v2.Compose(
        [v2.RandomVerticalFlip(1.0), v2.Resize(61, max_size=83), v2.RandomHorizontalFlip(1.0), v2.Pad(3)]
    )
    dataset = sutler.CocoDetection(shapes, path, transforms=T.Compose(steps))
    for (_, target), (picture, boxes, _) in zip(samples(dataset), annotated(shapes), strict=True):
        _, moved = theirs(picture, boxes)
        assert torch.equal(target["boxes"], moved.as_subclass(torch.Tensor))


def test_crops_cut_boxes_as_torchvision_does(shapes: Path) -> None:
    dataset = sutler.CocoDetection(shapes, shapes / "annotations.json", transform=T.CenterCrop(32))
    clean = v2.Compose([v2.CenterCrop(32), v2.ClampBoundingBoxes()])
    cut = 0
    for (image, target), (picture, boxes, own) in zip(samples(dataset), annotated(shapes), strict=True):
        pixels, moved = clean(v2.functional.to_image(picture), boxes)
        assert torch.equal(image, pixels.as_subclass(torch.Tensor))
        kept = (moved[:, 2] > moved[:, 0]) & (moved[:, 3] > moved[:, 1])
        assert torch.equal(target["boxes"], moved[kept].as_subclass(torch.Tensor))
        labels = torch.tensor([entry["category_id"] for entry in own], dtype=torch.int64)
        assert torch.equal(target["labels"], labels[kept])
        cut += int((~kept).sum())
    assert cut > 0, "otherwise nothing was tried"


def test_a_torchvision_pipeline_is_lowered(shapes: Path) -> None:
    pipeline = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomHorizontalFlip(1.0),
            v2.Resize(64, max_size=90),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    dataset = sutler.CocoDetection(shapes, shapes / "annotations.json", transforms=pipeline)
    for (image, target), (picture, boxes, _) in zip(samples(dataset), annotated(shapes), strict=True):
        pixels, moved = pipeline(picture, boxes)
        assert (image - pixels).abs().max() <= 1.01 / 255
        assert torch.equal(target["boxes"], moved.as_subclass(torch.Tensor))


COLOURS = {1: (220, 30, 30), 3: (30, 200, 60), 7: (40, 60, 230)}


@pytest.mark.parametrize("seed", range(3))
def test_what_is_coloured_stays_in_its_box(shapes: Path, seed: int) -> None:
    """The last rectangle of a picture lies on top: wherever it goes, its colour fills its box."""
    pipeline = T.Compose(
        [T.RandomHorizontalFlip(), T.ResizeShortest(90, max_size=140), T.RandomVerticalFlip()]
    )
    dataset = sutler.CocoDetection(shapes, shapes / "annotations.json", transform=pipeline, keep_empty=False)
    loader = sutler.Loader(dataset, batch_size=5, shuffle=True, seed=seed)
    still = sutler.CocoDetection(
        shapes, shapes / "annotations.json", transform=T.ResizeShortest(90, max_size=140), keep_empty=False
    )
    places = {index: still[number][1]["boxes"][-1].tolist() for number, index in enumerate(still.ids)}
    moved = set()
    for images, targets in loader:
        for image, target in zip(images, targets, strict=True):
            left, top, right, bottom = target["boxes"][-1].tolist()
            colour = torch.tensor(COLOURS[int(target["labels"][-1])], dtype=torch.int16).view(3, 1, 1)
            inner = image[:, int(top) + 2 : int(bottom) - 2, int(left) + 2 : int(right) - 2].to(torch.int16)
            assert inner.numel() > 0
            assert (inner - colour).abs().max() <= 2
            before = places[int(target["image_id"])]
            moved.add((left != before[0], top != before[1]))
    assert len(moved) == 4, "otherwise not every pair of flips was tried"
