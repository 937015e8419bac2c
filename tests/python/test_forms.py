"""`cache=` for sound, volumes and text: the same batches from copies; and arguments that make no sense."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
import sutler.testing
from sutler import transforms as T  # noqa: N812 - as users write it


def sound(folder: Path) -> Any:
    sutler.testing.make_tones(folder, count=24, classes=2)
    return sutler.AudioFolder(folder, T.Compose([T.Resample(new_freq=8000), T.Dither(1e-3)]))


def volumes(folder: Path) -> Any:
    sutler.testing.make_volumes(folder, count=24, shape=(10, 11, 12))
    return sutler.VolumeFolder(folder, T.Compose([T.RandBalancedCrop((8, 8, 8)), T.RandFlip()]))


TOKENIZER = sutler.testing.word_tokenizer({str(word): word for word in range(50)}, unknown="0")


def lines(folder: Path, **arguments: Any) -> Any:
    path = folder / "lines.txt"
    path.write_text("".join(f"{line} {line % 7} 3\n" for line in range(24)))
    return sutler.TextLines(path, TOKENIZER, pad=0, cache_folder=folder, **arguments)


def blocks(folder: Path) -> Any:
    return lines(folder, pack=8, eos=1)


def batches(loader: Any) -> list[list[Any]]:
    return [[np.asarray(part).tolist() for part in batch] for batch in loader]


@pytest.mark.parametrize("make", [sound, volumes, lines, blocks])
@pytest.mark.parametrize(("form", "split"), [("encoded", "100-0-0"), ("decoded", "0-100-0")])
def test_copies_change_no_batch(make: Callable[[Path], Any], form: str, split: str, tmp_path: Path) -> None:
    dataset = make(tmp_path)
    arguments: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": 2, "seed": 3}
    with (
        sutler.Loader(dataset, **arguments) as plain,
        sutler.Loader(dataset, cache=sutler.Cache("32MiB", split=split), **arguments) as cached,
    ):
        first = batches(plain)
        assert batches(cached) == first
        read = cached.stats()["storage_bytes"]
        assert batches(cached) == batches(plain) != first
        stats = cached.stats()
    assert stats["served"][form] == stats["served"]["storage"] == len(dataset)
    assert stats["storage_bytes"] == read
    assert stats["cache"][form]["entries"] == 24
    assert not stats["cache"]["decoded" if form == "encoded" else "encoded"]["entries"]


def test_detection_has_both_forms(tmp_path: Path) -> None:
    annotations = sutler.testing.make_detection(tmp_path, count=6)
    dataset = sutler.CocoDetection(tmp_path, annotations, transform=T.RandomHorizontalFlip())
    for split, form in (("100-0-0", "encoded"), ("0-100-0", "decoded")):
        loader = sutler.Loader(dataset, batch_size=2, cache=sutler.Cache("4MiB", split=split))
        for _ in range(2):
            assert len(list(loader)) == 3
        assert loader.stats()["served"] == {"storage": 6, "encoded": 0, "decoded": 0, "augmented": 0} | {
            form: 6
        }


@pytest.mark.parametrize("make", [sound, volumes, lines])
def test_what_is_measured_are_images(make: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="split='auto' measures what decoding images costs, and the dataset holds"
    ):
        sutler.Loader(make(tmp_path), cache=sutler.Cache("32MiB", split="auto"))


def test_native_steps_are_timed(tmp_path: Path) -> None:
    loader = sutler.Loader(sound(tmp_path), batch_size=4)
    assert len(list(loader)) == 6
    steps = loader.stats()["steps"]
    assert [(step["name"], step["count"]) for step in steps] == [
        ("decode", 24),
        ("Resample", 24),
        ("Dither", 24),
    ]


def test_what_is_no_number_is_a_bad_sample(tmp_path: Path) -> None:
    values = np.ones((4, 4, 4), np.float32)
    np.save(tmp_path / "good_x.npy", values)
    np.save(tmp_path / "good_y.npy", values.astype(np.uint8))
    values[1, 2, 3] = math.nan
    np.save(tmp_path / "wrong_x.npy", values)
    np.save(tmp_path / "wrong_y.npy", np.ones((4, 4, 4), np.uint8))
    dataset = sutler.VolumeFolder(tmp_path)
    with pytest.raises(sutler.DecodeError, match=r"wrong_x.*a value is NaN"):
        list(sutler.Loader(dataset, batch_size=1))
    loader = sutler.Loader(dataset, batch_size=1, errors="skip")
    assert len(list(loader)) == 1
    assert [failure.kind for failure in loader.failures()] == ["not_finite"]


@pytest.mark.parametrize("size", [(-1, 2, 2), 0, (1.5, 2, 2), (1, 2), "abc"])
def test_a_crop_has_three_sides_above_zero(size: Any) -> None:
    with pytest.raises(ValueError, match="patch_size should be one whole number above 0 or three"):
        T.RandBalancedCrop(size)


def test_a_parameter_of_another_kind_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"RandFlip has a parameter of a kind that it does not take: .*axes=\[-1\]"
    ):
        T.RandFlip(axes=[-1])


def test_thresholds_are_positive_numbers() -> None:
    for wrong in (-1, "ab", [None]):
        with pytest.raises(TypeError, match="thresholds should be a list of numbers"):
            sutler.AspectGroups([1.5, 0.7], 1, thresholds=wrong)  # type: ignore[arg-type]
    for bad in ([math.nan], [-1.0], [0.0], [math.inf]):
        with pytest.raises(ValueError, match=r"should be positive numbers such as 1\.0"):
            sutler.AspectGroups([1.5, 0.7], 1, thresholds=bad)


def test_a_token_has_no_negative_number(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("1 2\n")
    with pytest.raises(ValueError, match="pad is the number of a token, which is never negative, got -1"):
        sutler.TextLines(path, TOKENIZER, pad=-1, cache_folder=tmp_path)


def test_a_file_is_no_folder_of_volumes(tmp_path: Path) -> None:
    file = tmp_path / "case_x.npy"
    file.write_bytes(b"")
    with pytest.raises(NotADirectoryError, match="below which the files and those that belong to them lie"):
        sutler.VolumeFolder(file)
