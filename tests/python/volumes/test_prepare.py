"""Preparation before training: what is made, that it can be interrupted, and what is said of bad files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
import sutler.testing

from . import references

SMALL: dict[str, Any] = {"min_shape": (16, 16, 16)}


def sutler_command(*arguments: object, code: int = 0) -> str:
    command = [sys.executable, "-m", "sutler", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 or done.stdout else done.stderr


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Two scans of different spacing, as KiTS19 has them."""
    random = np.random.default_rng(5)
    for number, (shape, spacing) in enumerate(
        [((12, 30, 30), (3.0, 0.8, 0.8)), ((40, 20, 22), (0.5, 1.5, 1.5))]
    ):
        folder = tmp_path / "scans" / f"case_{number:05}"
        image = random.normal(100, 150, shape).astype(np.float32)
        references.write_nifti(folder / "imaging.nii.gz", image, spacing)
        label = random.integers(0, 3, shape).astype(np.uint8)
        references.write_nifti(folder / "segmentation.nii.gz", label, spacing)
    return tmp_path / "scans"


def expected(scans: Path, least: tuple[int, int, int]) -> list[tuple[Any, Any]]:
    """What NumPy makes of the scans."""
    made = []
    for number, spacing in enumerate([(3.0, 0.8, 0.8), (0.5, 1.5, 1.5)]):
        image, label = (np.asarray(part)[0] for part in sutler.VolumeFolder(scans)[number])
        made.append(references.offline(image, label, np.asarray(spacing, np.float32).tolist(), least=least))
    return made


def test_the_whole_chain_is_what_numpy_makes_of_it(scans: Path, tmp_path: Path) -> None:
    done = sutler.prepare_volumes(scans, tmp_path / "done", **SMALL)
    assert done == {"samples": 2, "prepared": 2, "unchanged": 0, "broken": []}
    names = sorted(path.name for path in (tmp_path / "done").glob("*.npy"))
    assert names == [f"case_0000{number}_{part}.npy" for number in (0, 1) for part in "xy"]
    for number, (image, label) in enumerate(expected(scans, (16, 16, 16))):
        found = np.load(tmp_path / "done" / f"case_0000{number}_x.npy")
        labels = np.load(tmp_path / "done" / f"case_0000{number}_y.npy")
        assert (found.dtype, labels.dtype) == (np.float32, np.uint8)
        np.testing.assert_allclose(found[0], image, atol=2e-5)
        np.testing.assert_array_equal(labels[0], label)
    image, label = sutler.VolumeFolder(tmp_path / "done")[1]
    np.testing.assert_array_equal(image, found)
    np.testing.assert_array_equal(label, labels)


def test_the_command_pads_to_128_by_default(scans: Path, tmp_path: Path) -> None:
    facts = json.loads(sutler_command("prepare", "volumes", scans, tmp_path / "done", "--json"))
    assert facts == {"samples": 2, "prepared": 2, "unchanged": 0, "broken": []}
    for number, (image, label) in enumerate(expected(scans, (128, 128, 128))):
        found = np.load(tmp_path / "done" / f"case_0000{number}_x.npy")
        assert found.shape == (1, 128, 128, 128)
        np.testing.assert_allclose(found[0], image, atol=2e-5)
        np.testing.assert_array_equal(np.load(tmp_path / "done" / f"case_0000{number}_y.npy")[0], label)
    text = sutler_command("prepare", "volumes", scans, tmp_path / "done")
    assert text == "2 volumes: 0 prepared, 2 there already, 0 broken\n"


def test_an_interrupted_run_goes_on(scans: Path, tmp_path: Path) -> None:
    done = tmp_path / "done"
    sutler.prepare_volumes(scans, done, **SMALL)
    whole = {path.name: path.read_bytes() for path in done.iterdir()}
    # As a run leaves it that was killed between the two files of a pair, while it wrote the second.
    (done / "case_00001_x.npy").rename(done / ".case_00001_x.npy.part")
    assert sutler.prepare_volumes(scans, done, **SMALL)["prepared"] == 1
    assert {path.name: path.read_bytes() for path in done.iterdir()} == whole
    # A source that has changed since is prepared again.
    later = (done / "case_00000_y.npy").stat().st_mtime + 10
    os.utime(scans / "case_00000" / "segmentation.nii.gz", (later, later))
    again = sutler.prepare_volumes(scans, done, **SMALL)
    assert (again["prepared"], again["unchanged"]) == (1, 1)


@pytest.mark.parametrize("part", ["imaging", "segmentation"])
@pytest.mark.parametrize("seconds", [-1e6, -1e-3, 1e-3, 1e6])
def test_a_source_of_another_time_is_prepared_anew(
    part: str, seconds: float, scans: Path, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    sutler.prepare_volumes(scans, done, **SMALL)
    # As cp -p and rsync leave it, which bring the time of a file along: an older one, too.
    source = scans / "case_00000" / f"{part}.nii.gz"
    time = source.stat().st_mtime + seconds
    os.utime(source, (time, time))
    again = sutler.prepare_volumes(scans, done, **SMALL)
    assert (again["prepared"], again["unchanged"]) == (1, 1)
    assert sutler.prepare_volumes(scans, done, **SMALL)["unchanged"] == 2


def test_ranks_that_all_prepare_wait_for_one_another(scans: Path, tmp_path: Path) -> None:
    done = tmp_path / "done"
    prepare = "import sys, json, sutler; print(json.dumps(sutler.prepare_volumes(sys.argv[1], sys.argv[2])))"
    command = [sys.executable, "-c", prepare, str(scans), str(done)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    facts = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    assert sorted(fact["prepared"] for fact in facts) == [0, 0, 2], facts
    assert len(sutler.VolumeFolder(done)) == 2


def test_labels_are_written_before_the_image_whose_header_they_follow(scans: Path, tmp_path: Path) -> None:
    done = tmp_path / "done"
    sutler.prepare_volumes(scans, done, **SMALL)
    image, labels = done / "case_00000_x.npy", done / "case_00000_y.npy"
    before = labels.stat().st_ino
    os.utime(scans / "case_00000" / "imaging.nii.gz", (1.7e9, 1.7e9))
    # A run that ends between the two files, since one of them cannot be written.
    image.unlink()
    (image / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match="Cannot write"):
        sutler.prepare_volumes(scans, done, **SMALL)
    assert labels.stat().st_ino != before


def test_bad_pairs_are_listed_and_the_others_prepared(scans: Path, tmp_path: Path) -> None:
    bad = scans / "case_00000" / "imaging.nii.gz"
    bad.write_bytes(bad.read_bytes()[:200])
    sutler.testing.make_volumes(scans / "small", count=1, shape=(4, 4, 4))
    (scans / "small" / "case_00000_y.npy").unlink()
    text = sutler_command("prepare", "volumes", scans, tmp_path / "done", "--min-shape", "16,16,16", code=1)
    assert "3 volumes: 1 prepared, 0 there already, 2 broken" in text
    assert f"{bad}: the nii.gz file cannot be unpacked" in text
    facts = json.loads(
        sutler_command(
            "prepare", "volumes", scans, tmp_path / "done", "--min-shape", "16,16,16", "--json", code=1
        )
    )
    assert facts["unchanged"] == 1
    assert [broken["kind"] for broken in facts["broken"]] == ["damaged", "missing"]
    assert sorted(path.name for path in (tmp_path / "done").glob("*.npy")) == [
        "case_00001_x.npy",
        "case_00001_y.npy",
    ]


def test_a_folder_holds_one_kind_only(scans: Path, tmp_path: Path) -> None:
    sutler.prepare_volumes(scans, tmp_path / "done", **SMALL)
    with pytest.raises(ValueError, match="Choose another folder, or delete this one"):
        sutler.prepare_volumes(scans, tmp_path / "done", spacing=(1, 1, 1), **SMALL)
    (tmp_path / "done" / "sutler-volumes.json").unlink()
    with pytest.raises(ValueError, match="nothing says how it was made"):
        sutler.prepare_volumes(scans, tmp_path / "done", **SMALL)


def test_wrong_arguments_are_refused(scans: Path, tmp_path: Path) -> None:
    done = tmp_path / "done"
    for wrong, told in {
        "--spacing=1,2": "'1,2' for '--spacing <D,H,W>'",
        "--spacing=0,1,1": "--spacing should have distances from 0.001 to 1000 millimetres, but is 0,1,1",
        "--clip=5,4": "--clip should have the lower bound first and then the upper one, but is 5,4",
        "--min-shape=0,1,1": "--min-shape should have sides from 1 to 4096, but is 0,1,1",
        "--std=0": "--std should be from 1e-30 to 1e30, but is 0",
        "--threads=0": "'0' for '--threads <THREADS>'",
    }.items():
        assert told in sutler_command("prepare", "volumes", scans, done, wrong, code=2)
    sutler_command("prepare", "volumes", scans, code=2)
    assert "There is nothing at" in sutler_command("prepare", "volumes", tmp_path / "no", done, code=1)
    assert not done.exists()
    with pytest.raises(ValueError, match="spacing should be 3 numbers"):
        sutler.prepare_volumes(scans, done, spacing=(1, 2))
    with pytest.raises(
        ValueError, match=r"^clip should have the lower bound first and then the upper one, but is 5,4$"
    ):
        sutler.prepare_volumes(scans, done, clip=(5, 4))
    with pytest.raises(FileNotFoundError):
        sutler.prepare_volumes(tmp_path / "no", done)
    for within in (scans / "new" / "prepared", scans, scans / ".." / scans.name):
        with pytest.raises(ValueError, match="is inside of"):
            sutler.prepare_volumes(scans, within, **SMALL)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Cannot"):
        sutler.prepare_volumes(scans, tmp_path / "file", **SMALL)


def test_inspect_tells_what_is_in_a_folder_of_volumes(scans: Path) -> None:
    facts = json.loads(sutler_command("inspect", scans, "--json"))
    assert facts["samples"] == 2
    assert facts["formats"] == {"nii.gz": 2}
    assert (facts["depth"]["min"], facts["depth"]["max"]) == (12, 40)
    assert (facts["width"]["min"], facts["width"]["max"]) == (22, 30)
    assert facts["broken"] == []
    assert facts["bytes"] == sum(path.stat().st_size for path in scans.rglob("*.nii.gz"))
    (scans / "case_00001" / "segmentation.nii.gz").unlink()
    facts = json.loads(sutler_command("inspect", scans, "--json", code=1))
    assert [(broken["path"], broken["kind"]) for broken in facts["broken"]] == [
        (str(scans / "case_00001" / "imaging.nii.gz"), "missing")
    ]
    text = sutler_command("inspect", scans, code=1)
    assert "2 volumes with labels" in text
    assert "depth" in text
    assert "its labels are missing" in text
