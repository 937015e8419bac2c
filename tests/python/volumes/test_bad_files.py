"""Volumes that cannot be served: each is named with its reason, and handled as the user wants."""

from __future__ import annotations

import gzip
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
from sutler import transforms as T  # noqa: N812 - as users write it

from . import references

CROP = T.RandBalancedCrop(8)


def cut(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])


def patch(path: Path, offset: int, value: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(value)] = value
    path.write_bytes(content)


def wrong_label(path: Path) -> None:
    np.save(path, np.full(np.load(path).shape, 300, np.int16))


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


#: What is done to the third volume, or to its labels, and what is said about it.
DAMAGE: list[tuple[str, Callable[[Path], Any], str, str]] = [
    ("x", lambda path: cut(path, 0), "empty", "the file is empty"),
    ("x", lambda path: cut(path, 60), "corrupt", "npy header is corrupt"),
    ("x", lambda path: cut(path, 5000), "truncated", "the file ends at byte 5000"),
    ("y", lambda path: cut(path, 5000), "truncated", r"its labels, .*_y\.npy, cannot be used: the file ends"),
    ("x", lambda path: path.write_bytes(b"GIF89a" * 99), "unrecognised", "starts with 47 49 46"),
    ("x", lambda path: np.save(path, np.zeros((5, 5))), "unsupported", r"shape \(5, 5\)"),
    ("x", lambda path: np.save(path, np.zeros((4, 5, 6), complex)), "unsupported", "values of type"),
    ("x", lambda path: np.save(path, np.zeros((2, 20, 20, 20))), "channels", "pass channels=2"),
    (
        "y",
        lambda path: np.save(path, np.zeros((2, 20, 24, 28), np.uint8)),
        "channels",
        "cannot be used: labels have one channel, and these have 2; write one number for each place",
    ),
    ("x", lambda path: np.save(path, np.zeros((0, 20, 20))), "corrupt", "no value in a volume"),
    (
        "x",
        lambda path: np.save(path, np.zeros((20, 20, 21))),
        "mismatch",
        "20 × 20 × 21 values and its labels",
    ),
    ("x", lambda path: patch(path, 28, b"fortran_odour"), "corrupt", "has no fortran_order"),
    ("y", wrong_label, "label", r"its labels, .*a label is 300, and labels are whole numbers"),
    ("y", lambda path: np.save(path, np.full((20, 24, 28), np.nan)), "mismatch", "make both of one shape"),
    ("y", lambda path: path.unlink(), "missing", r"its labels are missing\. Cannot read .*00002_y\.npy"),
    ("x", lambda path: path.unlink(), "missing", r"Cannot read .*00002_x\.npy"),
    ("y", make_folder, "not_a_file", r"_y\.npy is a folder"),
]


@pytest.mark.parametrize(("part", "damage", "kind", "told"), DAMAGE)
def test_a_bad_volume_is_named_and_left_out(
    volumes: Path, part: str, damage: Callable[[Path], Any], kind: str, told: str
) -> None:
    if kind != "not_a_file":
        damage(volumes / f"case_00002_{part}.npy")
        dataset = sutler.VolumeFolder(volumes, CROP)
    else:  # it was a file when it was listed
        dataset = sutler.VolumeFolder(volumes, CROP)
        damage(volumes / f"case_00002_{part}.npy")
    assert len(dataset) == 13
    with pytest.raises(sutler.SampleError, match=told) as raised:
        dataset[2]
    assert raised.value.kind == kind
    assert "case_00002_x.npy" in str(raised.value)
    with sutler.Loader(dataset, batch_size=5, errors="skip", return_ids=True) as loader:
        seen = [index for _, _, ids in loader for index in ids.tolist()]
        assert seen == [index for index in range(13) if index != 2]
        [failure] = loader.failures()
        assert (failure.id, failure.kind) == (2, kind)
    with pytest.raises(sutler.ErrorBudgetExceeded):
        list(sutler.Loader(dataset, batch_size=5, errors=sutler.Errors(max=0)))


@pytest.mark.parametrize("wrong", [300.0, -1.0, 2.5])
@pytest.mark.parametrize("suffix", [".npy", ".nii.gz"])
def test_labels_that_are_none_are_noticed_where_a_crop_touches_them(
    tmp_path: Path, wrong: float, suffix: str
) -> None:
    image = np.arange(12**3, dtype=np.float32).reshape(12, 12, 12)
    label = np.zeros((12, 12, 12), np.float32)
    label[0, 0, 0] = wrong
    if suffix == ".npy":
        np.save(tmp_path / "a_x.npy", image)
        np.save(tmp_path / "a_y.npy", label)
    else:
        references.write_nifti(tmp_path / "images" / "a.nii.gz", image)
        references.write_nifti(tmp_path / "labels" / "a.nii.gz", label)
    dataset = sutler.VolumeFolder(tmp_path, T.RandBalancedCrop((11, 12, 12), oversampling=0.0))
    served = []
    with sutler.Loader(dataset, errors="skip", num_workers=0) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # every sample of some epochs failed
        for epoch in range(16):
            loader.set_epoch(epoch)
            served.append([bool((images == 0).any()) for images, _ in loader])
            assert served[-1] or [failure.kind for failure in loader.failures()] == ["label"]
    assert [False] in served, "crops that do not touch it"
    assert [] in served, "crops that do"
    assert [True] not in served


def nifti(folder: Path, **options: Any) -> Path:
    path = folder / "case" / "imaging.nii"
    references.write_nifti(path, np.zeros((9, 9, 9), np.int16), **options)
    references.write_nifti(folder / "case" / "segmentation.nii", np.zeros((9, 9, 9), np.uint8))
    return path


@pytest.mark.parametrize(
    ("offset", "value", "told"),
    [
        (40, struct.pack("<h", -3), "said to have -3 axes"),
        (42, struct.pack("<h", -9), "said to have -9 values"),
        (42, struct.pack("<3h", 32767, 32767, 32767), "raise values_max"),
        (70, struct.pack("<h", 128), "datatype 128"),
        (108, struct.pack("<f", float("nan")), "begin at byte NaN"),
        (108, struct.pack("<f", 1e8), "takes 100001458"),
        (112, struct.pack("<ff", 1.0, float("inf")), "inf is said to be added"),
        (344, b"ni1\0", "two files"),
        (344, b"what", "magic word"),
    ],
)
def test_headers_that_lie_are_refused(tmp_path: Path, offset: int, value: bytes, told: str) -> None:
    patch(nifti(tmp_path), offset, value)
    with pytest.raises(sutler.DecodeError, match=told):
        sutler.VolumeFolder(tmp_path)[0]


@pytest.mark.parametrize("spacing", [0.0, float("nan"), float("inf")])
def test_a_spacing_that_is_none_matters_to_resampling_alone(tmp_path: Path, spacing: float) -> None:
    nifti(tmp_path, spacing=(1.0, spacing, 1.0))
    assert sutler.VolumeFolder(tmp_path)[0][0].shape == (1, 9, 9, 9)
    with pytest.raises(sutler.SampleError, match="correct the file's pixdim"):
        sutler.VolumeFolder(tmp_path, T.Resample(spacing=(1, 1, 1)))[0]


def test_packed_files_that_are_damaged_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "images" / "a.nii.gz"
    references.write_nifti(path, np.random.default_rng(0).normal(size=(9, 9, 9)))
    references.write_nifti(tmp_path / "labels" / "a.nii.gz", np.zeros((9, 9, 9), np.uint8))
    good = path.read_bytes()
    for content in (good[:-9], good[:30], good[:-8] + bytes(8)):
        path.write_bytes(content)
        with pytest.raises(sutler.DecodeError, match="cannot be unpacked"):
            sutler.VolumeFolder(tmp_path)[0]


def packed_pair(folder: Path, *, noisy: str) -> Path:
    """A packed pair whose image or labels can be cut off; the slowest axis is the last."""
    random = np.random.default_rng(0)
    for part, kind in (("images", np.float32), ("labels", np.uint8)):
        values = random.integers(0, 9, (12, 12, 60)) if part == noisy else np.zeros((12, 12, 60))
        references.write_nifti(folder / part / "a.nii.gz", values.astype(kind))
    return folder / noisy / "a.nii.gz"


@pytest.mark.filterwarnings("ignore:Every sample of epoch:RuntimeWarning")
@pytest.mark.parametrize("noisy", ["images", "labels"])
@pytest.mark.parametrize("share", [0.3, 0.7, 0.95, 0.999])
def test_a_packed_file_that_is_cut_off_is_refused_wherever_the_crop_lies(
    tmp_path: Path, noisy: str, share: float
) -> None:
    path = packed_pair(tmp_path, noisy=noisy)
    cut(path, int(path.stat().st_size * share))
    dataset = sutler.VolumeFolder(tmp_path, T.RandBalancedCrop(8, oversampling=0.0))
    with sutler.Loader(dataset, errors="skip", num_workers=1) as loader:
        for epoch in range(12):
            loader.set_epoch(epoch)
            assert list(loader) == []
            assert [failure.kind for failure in loader.failures()] == ["damaged"]


def test_no_flipped_bit_of_a_packed_file_changes_a_value_unnoticed(tmp_path: Path) -> None:
    path = packed_pair(tmp_path, noisy="labels")
    good = path.read_bytes()
    crop = T.RandBalancedCrop(8, oversampling=0.0)
    expected = [np.asarray(part) for part in sutler.VolumeFolder(tmp_path, crop)[0]]
    kinds = []
    for bit in range(80, 8 * len(good), 8 * len(good) // 24):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(damaged)
        try:
            found = [np.asarray(part) for part in sutler.VolumeFolder(tmp_path, crop)[0]]
        except sutler.DecodeError as error:
            kinds.append(error.kind)
        else:
            for values, right in zip(found, expected, strict=True):
                np.testing.assert_array_equal(values, right)
    assert len(kinds) > 20
    assert set(kinds) <= {"damaged", "truncated", "corrupt"}


@pytest.mark.parametrize("noisy", ["images", "labels"])
@pytest.mark.parametrize("form", ["parts", "more behind", "fewer values"])
def test_a_packed_file_whose_end_tells_nothing_is_looked_through(
    tmp_path: Path, noisy: str, form: str
) -> None:
    path = packed_pair(tmp_path, noisy=noisy)
    crop = T.RandBalancedCrop(8, oversampling=0.0)
    expected = [np.asarray(part) for part in sutler.VolumeFolder(tmp_path, crop)[0]]
    content = gzip.decompress(path.read_bytes())
    made = {
        # As bgzip packs, whose last part is empty.
        "parts": b"".join(map(gzip.compress, (content[:3000], content[3000:], b""))),
        "more behind": gzip.compress(content + bytes(100)),
        "fewer values": gzip.compress(content[:-1]),
    }
    path.write_bytes(made[form])
    dataset = sutler.VolumeFolder(tmp_path, crop)
    if form == "fewer values":
        with pytest.raises(sutler.DecodeError, match=f"ends at byte {len(content) - 1}, and") as raised:
            dataset[0]
        assert raised.value.kind == "truncated"
        return
    for found, part in zip(dataset[0], expected, strict=True):
        np.testing.assert_array_equal(np.asarray(found), part)
    with sutler.Loader(dataset, num_workers=1) as loader:
        for _ in range(3):
            assert len(list(loader)) == 1


def test_a_volume_that_is_too_small_for_the_crop_says_so(volumes: Path) -> None:
    with pytest.raises(sutler.SampleError, match="sutler prepare volumes"):
        sutler.VolumeFolder(volumes, T.RandBalancedCrop(25))[0]


def test_limits_are_kept_before_memory_is_taken(volumes: Path) -> None:
    with pytest.raises(sutler.DecodeError, match="the limit is 1000"):
        sutler.VolumeFolder(volumes, values_max=1000)[0]
    with pytest.raises(sutler.SutlerError, match="raise bytes_max"):
        sutler.VolumeFolder(volumes, bytes_max=1000)[0]


def test_folders_without_pairs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="There is nothing at"):
        sutler.VolumeFolder(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="no file with such an ending"):
        sutler.VolumeFolder(tmp_path)
    np.save(tmp_path / "a_x.npy", np.zeros((2, 2, 2)))
    with pytest.raises(FileNotFoundError, match="There is one volume, but nothing that goes with it"):
        sutler.VolumeFolder(tmp_path)
    np.save(tmp_path / "a_y.npy", np.zeros((2, 2, 2)))
    assert len(sutler.VolumeFolder(tmp_path)) == 1
    (tmp_path / "a_x.nii").write_bytes(b"")
    with pytest.raises(ValueError, match="are both the image of one sample"):
        sutler.VolumeFolder(tmp_path)
