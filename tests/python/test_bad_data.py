"""Bad data: an error that names the file and the reason, or the policy chosen; never a hang, never a blank image."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sutler
import sutler.testing
from sutler import DecodeError, ErrorBudgetExceeded, Errors, Loader, ReadError, SampleError
from sutler import transforms as T  # noqa: N812 - as users write it

CROP = T.Compose([T.Resize(12), T.CenterCrop(12)])


def jpeg_that_promises(width: int, height: int, original: bytes) -> bytes:
    """The same JPEG with another size in its frame header."""
    start = original.index(b"\xff\xc0")
    size = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return original[: start + 5] + size + original[start + 9 :]


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def looped(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def rewrite(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: void(path.write_bytes(change(path.read_bytes())))


def void(_: object) -> None:
    return None


#: What is done to a file after it was listed, the class of the error, and its kind.
SPOILED: dict[str, tuple[Callable[[Path], None], type[SampleError], set[str]]] = {
    "deleted": (Path.unlink, ReadError, {"missing"}),
    "a pipe": (fifo, ReadError, {"not_a_file"}),
    "a folder": (directory, ReadError, {"not_a_file"}),
    "a loop of links": (looped, ReadError, {"io"}),
    "empty": (rewrite(lambda _: b""), DecodeError, {"empty"}),
    "text": (rewrite(lambda _: b"no image, just words\n" * 50), DecodeError, {"unrecognised"}),
    "one byte": (rewrite(lambda _: b"\xff"), DecodeError, {"unrecognised", "truncated"}),
    "cut in its header": (rewrite(lambda data: data[:100]), DecodeError, {"truncated", "corrupt"}),
    "cut in the middle": (rewrite(lambda data: data[: len(data) // 2]), DecodeError, {"truncated"}),
    "65000 x 65000": (
        rewrite(lambda data: jpeg_that_promises(65000, 65000, data)),
        DecodeError,
        {"too_large"},
    ),
    "0 x 0": (rewrite(lambda data: jpeg_that_promises(0, 0, data)), DecodeError, {"corrupt", "unsupported"}),
}


@pytest.mark.parametrize("name", SPOILED)
@pytest.mark.parametrize("threads", [0, 2])
def test_a_spoiled_file_is_named_with_its_reason(own_photos: Path, name: str, threads: int) -> None:
    spoil, error_class, kinds = SPOILED[name]
    dataset = sutler.ImageFolder(own_photos, CROP)
    path = Path(dataset.path(7))
    spoil(path)
    with pytest.raises(error_class) as caught:
        list(Loader(dataset, 4, num_workers=threads))
    error = caught.value
    assert type(error) is error_class
    assert isinstance(error, OSError), "code that guards a Pillow loader guards this one"
    assert (error.sample, error.path) == (7, str(path))
    assert error.kind in kinds
    assert str(path) in str(error)
    assert len(error.reason) > 15, error.reason
    with pytest.raises(error_class):
        dataset[7]

    loader = Loader(dataset, 4, num_workers=threads, errors="skip", return_ids=True)
    served = [ids.tolist() for _, _, ids in loader]
    assert served == [[0, 1, 2, 3], [4, 5, 6], [8, 9, 10, 11]]
    assert [(failure.id, failure.path, failure.kind) for failure in loader.failures()] == [
        (7, str(path), error.kind)
    ]
    assert loader.failures()[0].reason == error.reason
    assert loader.stats()["failed"] == 1


def test_flipped_bits_are_an_image_or_an_error_but_never_a_crash(own_photos: Path) -> None:
    import random

    chance = random.Random(1)
    dataset = sutler.ImageFolder(own_photos, CROP)
    originals = {index: Path(dataset.path(index)).read_bytes() for index in range(12)}
    for _ in range(25):
        for index, original in originals.items():
            spoiled = bytearray(original)
            for _ in range(chance.choice([1, 4, 40])):
                spoiled[chance.randrange(len(spoiled))] ^= 1 << chance.randrange(8)
            Path(dataset.path(index)).write_bytes(spoiled)
        loader = Loader(dataset, 4, errors="skip", return_ids=True, output="numpy")
        served = [i for _, _, ids in loader for i in ids.tolist()]
        failed = [failure.id for failure in loader.failures()]
        assert sorted(served + failed) == list(range(12))
        assert all(failure.path and failure.reason for failure in loader.failures())


@pytest.mark.parametrize("count", [0, 1, 3, 12])
@pytest.mark.parametrize("threads", [0, 2])
def test_served_and_failed_add_up_under_every_policy(own_photos: Path, count: int, threads: int) -> None:
    dataset = sutler.ImageFolder(own_photos, CROP)
    for index in range(count):
        Path(dataset.path(index)).write_bytes(b"broken")
    policies: list[tuple[Any, int]] = [
        ("skip", 12),
        (Errors(), 12),
        (Errors(max=3), 3),
        (Errors(max=0), 0),
        (Errors(rate=0.25), 3),
        (Errors(rate=0), 0),
        (Errors(max=100, rate=0.1), 1),
    ]
    for policy, allowed in policies:
        loader = Loader(dataset, 5, True, num_workers=threads, errors=policy, return_ids=True, output="numpy")
        for _ in range(2):
            if count <= allowed:
                served = [i for _, _, ids in loader for i in ids.tolist()]
                assert sorted(served + [failure.id for failure in loader.failures()]) == list(range(12))
                assert len(loader.failures()) == count
                continue
            iterator = iter(loader)
            with pytest.raises(ErrorBudgetExceeded, match=r"loader\.failures\(\)") as caught:
                list(iterator)
            assert caught.value.failed > caught.value.allowed == allowed
            assert caught.value.last.kind == "unrecognised"
            assert len(loader.failures()) == caught.value.failed
            with pytest.raises(ErrorBudgetExceeded):
                next(iterator)


def test_a_batch_without_a_good_sample_is_passed_over(own_photos: Path) -> None:
    dataset = sutler.ImageFolder(own_photos, CROP)
    for index in (4, 5, 6, 7):
        Path(dataset.path(index)).write_bytes(b"broken")
    loader = Loader(dataset, 4, errors="skip", return_ids=True, output="numpy")
    assert [ids.tolist() for _, _, ids in loader] == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert loader.stats()["batches"] == 2
    alone = Loader(dataset, None, errors="skip", return_ids=True, output="numpy")
    assert [index for _, _, index in alone] == [0, 1, 2, 3, 8, 9, 10, 11]


def test_content_decides_and_not_the_name(own_photos: Path) -> None:
    from PIL import Image

    dataset = sutler.ImageFolder(own_photos, CROP, dct_scaling=False)
    path = Path(dataset.path(2))
    before, _ = dataset[2]
    Image.open(path).convert("RGB").save(path, format="PNG")
    after, _ = dataset[2]
    assert bool((before == after).all()), "the same picture, losslessly saved under a wrong name"


def test_limits_are_the_users_to_set(own_photos: Path) -> None:
    with pytest.raises(DecodeError, match="pixels"):
        sutler.ImageFolder(own_photos, CROP, pixels_max=100)[0]
    with pytest.raises(DecodeError) as caught:
        sutler.ImageFolder(own_photos, CROP, bytes_max=100)[0]
    assert caught.value.kind == "too_large"


def test_folders_that_hold_nothing_say_so(tmp_path: Path, own_photos: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        sutler.ImageFolder(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    with pytest.raises(FileNotFoundError, match="bare"):
        sutler.ImageFolder(tmp_path / "bare")
    with pytest.raises(NotADirectoryError, match="photo_000000"):
        sutler.ImageFolder(own_photos / "class_0" / "photo_000000.jpg")
    (own_photos / "class_none").mkdir()
    (own_photos / "class_none" / "notes.txt").write_text("not an image")
    with pytest.raises(FileNotFoundError, match="class_none"):
        sutler.ImageFolder(own_photos)
    allowed = sutler.ImageFolder(own_photos, allow_empty=True)
    assert (len(allowed), allowed.classes[-1]) == (12, "class_none")


@pytest.mark.parametrize(
    "root", ["s3://bucket/train", "gs://bucket/train", "https://host/train", Path("s3://bucket/x")]
)
@pytest.mark.parametrize("dataset", [sutler.ImageFolder, sutler.AudioFolder, sutler.Manifest])
def test_a_url_is_said_to_be_none_that_can_be_read(dataset: Any, root: Any) -> None:
    scheme = str(root).partition(":")[0]
    root = f"{root}/list.csv" if dataset is sutler.Manifest else root
    with pytest.raises(
        ValueError, match=f"{scheme}:// is not supported yet, only folders and files .* Mount the storage"
    ):
        dataset(root)


def test_files_of_another_kind_are_said_to_be_another_datasets(own_photos: Path, tmp_path: Path) -> None:
    sutler.testing.make_tones(tmp_path / "tones", count=4, classes=2)
    with pytest.raises(
        FileNotFoundError, match=r"4 files, all ending in \.wav; sutler\.AudioFolder reads those"
    ):
        sutler.ImageFolder(tmp_path / "tones")
    with pytest.raises(
        FileNotFoundError, match=r"12 files, all ending in \.jpg; sutler\.ImageFolder reads those"
    ):
        sutler.AudioFolder(own_photos)


def test_an_unknown_format_is_told_all_that_are_known(own_photos: Path) -> None:
    dataset = sutler.ImageFolder(own_photos)
    Path(dataset.path(0)).write_bytes(b"no picture at all")
    with pytest.raises(DecodeError, match=r"\(jpeg, png, webp, bmp, gif, tiff, pbm, pgm, ppm\)"):
        dataset[0]


def test_a_transform_on_sound_is_refused_by_name(own_photos: Path) -> None:
    for transform in (T.LogMel(), T.Compose([T.Resize(8), T.PreEmphasis()])):
        with pytest.raises(
            TypeError, match=r"(LogMel|PreEmphasis) is a transform on sound, and ImageFolder holds images"
        ):
            sutler.ImageFolder(own_photos, transform)


def test_a_dataset_that_vanishes_fails_sample_by_sample(own_photos: Path) -> None:
    dataset = sutler.ImageFolder(own_photos, CROP)
    shutil.rmtree(own_photos)
    loader = Loader(dataset, 4, errors="skip")
    with pytest.warns(
        RuntimeWarning, match=r"Every sample of epoch 0 failed, .* The first was sample 0 \(`.*\.jpg`\)"
    ):
        assert list(loader) == []
    assert {failure.kind for failure in loader.failures()} == {"missing"}
    assert len(loader.failures()) == 12


class HalfBad:
    """Of 24 samples the first half is bad."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        if index < 12:
            raise OSError(f"sample {index} cannot be read")
        return index


@pytest.mark.parametrize("order", ["strict", "ready"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drawn", ["sampler", "batch_sampler"])
@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
def test_batches_without_a_good_sample_are_drawn_past(
    own_photos: Path, native: bool, drawn: str, workers: int, order: Any
) -> None:
    """Many of them in a row, more than are prepared ahead: what a sampler draws for them has to be drawn in time."""
    dataset: Any = HalfBad()
    if native:
        files = sorted(own_photos.rglob("*.jpg"))
        for path in files[:6]:
            path.write_bytes(b"broken")
        dataset = sutler.ImageFolder(own_photos, CROP)
    bad, every = len(dataset) // 2, len(dataset)
    indices = list(range(every)) * 4
    batches = [indices[at : at + 2] for at in range(0, len(indices), 2)]
    chosen: dict[str, Any] = (
        {"batch_sampler": batches} if drawn == "batch_sampler" else {"sampler": indices, "batch_size": 2}
    )
    with Loader(
        dataset, **chosen, num_workers=workers, order=order, errors="skip", prefetch_factor=2, timeout=20
    ) as loader:
        for _ in range(2):
            assert sum(len(batch[-1] if native else batch) for batch in loader) == 4 * (every - bad)
            assert len(loader.failures()) == 4 * bad


def test_a_transform_that_does_not_fit_names_the_sample(own_photos: Path) -> None:
    dataset = sutler.ImageFolder(own_photos, T.Compose([T.RandomCrop(4000)]))
    with pytest.raises(SampleError, match="class_0/photo_000000") as caught:
        next(iter(Loader(dataset, 4)))
    assert caught.value.kind == "transform"
    assert not isinstance(caught.value, OSError)


def test_samples_and_paths_are_those_of_torchvision(photos: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    theirs = torchvision.datasets.ImageFolder(str(photos))
    ours = sutler.ImageFolder(photos)
    assert ours.samples == ours.imgs == theirs.samples
    assert (ours.classes, ours.class_to_idx, ours.targets) == (
        theirs.classes,
        theirs.class_to_idx,
        theirs.targets,
    )


def test_a_manifest_without_a_first_line_of_names(own_photos: Path, tmp_path: Path) -> None:
    files = sorted(own_photos.rglob("*.jpg"))
    manifest = tmp_path / "bare.csv"
    manifest.write_text("".join(f"{file},{index}\n" for index, file in enumerate(files)))
    with pytest.raises(ValueError, match="columns="):
        sutler.Manifest(manifest)
    dataset = sutler.Manifest(manifest, columns=["path", "label"])
    assert dataset.targets == list(range(len(files)))


def test_a_label_too_large_for_a_number_is_refused(own_photos: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "large.csv"
    manifest.write_text(f"path,label\n{next(own_photos.rglob('*.jpg'))},99999999999999999999\n")
    with pytest.raises(ValueError, match=r"large\.csv, line 2.*64 bits"):
        sutler.Manifest(manifest)
