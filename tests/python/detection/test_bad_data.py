"""Annotation files that lie, pictures that are not what they are said to be, arguments that make no sense."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sutler
from sutler import transforms as T  # noqa: N812 - as users write it
from torchvision.transforms import v2

Rewrite = Callable[[Callable[[Any], None]], Path]


def test_a_picture_of_another_size_is_a_bad_sample(shapes: Path, rewrite: Rewrite) -> None:
    def lie(annotations: Any) -> None:
        annotations["images"][4]["width"] += 1

    dataset = sutler.CocoDetection(shapes, rewrite(lie), T.Resize(32))
    with pytest.raises(sutler.SampleError, match="the annotations say that it has") as raised:
        list(sutler.Loader(dataset, batch_size=4))
    assert "000004.png" in str(raised.value)
    loader = sutler.Loader(dataset, batch_size=4, errors="skip")
    assert sum(len(targets) for _, targets in loader) == 29
    (failure,) = loader.failures()
    assert failure.path.endswith("000004.png")
    assert "so its boxes would be in the wrong places" in failure.reason


def test_pictures_that_are_missing_or_broken_are_bad_samples(shapes: Path) -> None:
    (shapes / "000002.png").unlink()
    broken = shapes / "000003.png"
    broken.write_bytes(broken.read_bytes()[:200])
    dataset = sutler.CocoDetection(shapes, shapes / "annotations.json", T.Resize(32))
    with pytest.raises(sutler.ReadError, match=r"000002\.png"):
        dataset[30 - 1 - 2]  # ids go down while names go up
    loader = sutler.Loader(dataset, batch_size=4, errors=sutler.Errors(max=2), return_ids=True)
    served = [index for _, _, ids in loader for index in ids.tolist()]
    assert sorted(served) == sorted(set(range(30)) - {26, 27})
    assert len(loader.failures()) == 2


def test_boxes_without_area_are_dropped_or_refused(shapes: Path, rewrite: Rewrite) -> None:
    def damage(annotations: Any) -> None:
        annotations["annotations"][0]["bbox"] = [3, 3, -5, 4]
        annotations["annotations"][1]["bbox"] = [900, 3, 5, 4]
        annotations["annotations"][2]["image_id"] = 5

    path = rewrite(damage)
    dataset = sutler.CocoDetection(shapes, path)
    assert dataset.left_out == {"invalid_boxes": 2, "crowds": 0, "strays": 1, "empty_images": 0}
    with pytest.raises(
        ValueError, match=r"annotations\[0\] \(id 1\) has the box \[3, 3, -5, 4\], which has no area"
    ):
        sutler.CocoDetection(shapes, path, invalid_boxes="raise")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda a: a.pop("images"), 'there is no list "images" in it'),
        (lambda a: a["images"][3].pop("file_name"), r"images\[3\] \(id 1081\) has no file_name"),
        (lambda a: a["annotations"][3].pop("bbox"), r"annotations\[3\] \(id 4\) has no bbox"),
        (
            lambda a: a["annotations"][3].update(id=1),
            "has the id of an annotation before it",
        ),
        (
            lambda a: a["annotations"][3].update(category_id=2),
            "is of category 2, which is not among the categories",
        ),
        (lambda a: a["images"][3].update(height=-1), "has a height of -1"),
        (lambda a: a["images"][3].update(id="x"), "expected a whole number"),
    ],
)
def test_entries_that_make_no_sense_are_named(rewrite: Rewrite, damage: Any, message: str) -> None:
    path = rewrite(lambda annotations: damage(annotations) and None)
    with pytest.raises(ValueError, match=message):
        sutler.CocoDetection(path.parent, path)


def test_files_that_are_no_annotations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json"):
        sutler.CocoDetection(tmp_path, tmp_path / "nowhere.json")
    for text, message in (
        ("", "ends too early"),
        ("[]", "an object with the lists"),
        ('{"a": NaN}', "line 1"),
    ):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            sutler.CocoDetection(tmp_path, tmp_path / "a.json")
    with pytest.raises(ValueError, match="this is a folder"):
        sutler.CocoDetection(tmp_path, tmp_path)


def test_transforms_that_boxes_cannot_follow_are_refused(shapes: Path) -> None:
    path = shapes / "annotations.json"
    for transform, message in (
        (T.RandAugment(), "RandAugment turns and shears pictures"),
        (T.Compose([T.Resize(32), T.TrivialAugmentWide()]), "TrivialAugmentWide turns and shears pictures"),
        (v2.RandomRotation(10), "RandomRotation has no native form here"),
        (T.Compose([T.Lambda(divmod), T.Resize(32)]), "Resize has no native form here behind divmod"),
    ):
        with pytest.raises(ValueError, match=message):
            sutler.CocoDetection(shapes, path, transform)
    with pytest.raises(TypeError, match="LogMel is a transform on sound"):
        sutler.CocoDetection(shapes, path, T.LogMel())


def test_a_function_must_return_both(shapes: Path) -> None:
    def forget(image: Any, target: Any) -> Any:
        return image

    dataset = sutler.CocoDetection(shapes, shapes / "annotations.json", T.Lambda(forget))
    with pytest.raises(TypeError, match="forget should return the picture and the target"):
        dataset[0]


def test_arguments_that_make_no_sense_are_refused(shapes: Path) -> None:
    path = shapes / "annotations.json"
    for options, message in (
        ({"labels": "names"}, "labels should be 'category_id' or 'contiguous', got 'names'"),
        ({"invalid_boxes": "keep"}, "invalid_boxes should be 'drop' or 'raise', got 'keep'"),
        (
            {"size_divisible": 0},
            "size_divisible should be a positive integer value, but got size_divisible=0",
        ),
        ({"size_divisible": 5000}, "size_divisible should be at most 4096"),
        ({"transform": T.Resize(32), "transforms": T.Resize(32)}, "Only transform or transforms"),
        ({"io": "fast"}, "io should be 'buffered' or 'direct'"),
    ):
        with pytest.raises(ValueError, match=message):
            sutler.CocoDetection(shapes, path, **options)
    with pytest.raises(ValueError, match="batch_size should be a positive integer value"):
        sutler.AspectGroups([1.0], 0)
    with pytest.raises(ValueError, match="should be a positive number"):
        sutler.AspectGroups([1.0, float("nan")], 2)
    with pytest.raises(IndexError, match="sample 30 of a dataset with 30 samples"):
        sutler.CocoDetection(shapes, path)[30]
