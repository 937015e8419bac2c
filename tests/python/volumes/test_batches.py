"""Batches of volumes: images and labels, every volume once, in every order, and resumed exactly."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import sutler
import torch
from sutler import transforms as T  # noqa: N812 - as users write it

from . import references

TRAIN = T.Compose(
    [T.RandBalancedCrop(12), T.RandFlip(), T.Cast(), T.RandomBrightness(p=0.5), T.GaussianNoise(p=0.5)]
)

Order = Literal["strict", "ready", "shared"]


def contents(batch: Any) -> dict[int, bytes]:
    """What a batch with ids has of each sample."""
    images, labels, ids = batch
    return {
        int(number): np.asarray(image).tobytes() + np.asarray(label).tobytes()
        for image, label, number in zip(images, labels, ids, strict=True)
    }


def test_volumes_are_what_the_files_hold(volumes: Path) -> None:
    dataset = sutler.VolumeFolder(volumes)
    assert len(dataset) == 13
    assert dataset.samples[3] == (str(volumes / "case_00003_x.npy"), str(volumes / "case_00003_y.npy"))
    for index, (image_path, label_path) in enumerate(dataset.samples):
        image, label = dataset[index]
        np.testing.assert_array_equal(image, np.load(image_path))
        np.testing.assert_array_equal(label, np.load(label_path))
    with sutler.Loader(dataset, batch_size=1) as loader:
        images, labels = next(iter(loader))
    assert images.shape == (1, 1, 20, 24, 28)
    assert labels.dtype == torch.uint8


def test_batches_are_two_contiguous_tensors_and_what_the_dataset_gives(volumes: Path) -> None:
    dataset = sutler.VolumeFolder(volumes, TRAIN)
    for batch in sutler.Loader(dataset, batch_size=5, return_ids=True, num_workers=3):
        images, labels, ids = batch
        assert images.shape == labels.shape == (len(ids), 1, 12, 12, 12)
        assert (images.dtype, labels.dtype) == (torch.float32, torch.uint8)
        assert images.is_contiguous()
        assert labels.is_contiguous()
        for index, found in contents(batch).items():
            image, label = dataset[index]
            assert found == image.numpy().tobytes() + label.numpy().tobytes()


@pytest.mark.parametrize("order", ["strict", "ready", "shared"])
@pytest.mark.parametrize("workers", [0, 3])
def test_the_same_bytes_on_any_number_of_threads(volumes: Path, order: Order, workers: int) -> None:
    dataset = sutler.VolumeFolder(volumes, TRAIN)

    def epochs(order: Order, workers: int) -> list[dict[int, bytes]]:
        with sutler.Loader(
            dataset, 4, shuffle=True, order=order, num_workers=workers, seed=3, return_ids=True
        ) as loader:
            found = []
            for _ in range(2):
                epoch: dict[int, bytes] = {}
                for batch in loader:
                    assert not epoch.keys() & contents(batch).keys()
                    epoch |= contents(batch)
                found.append(epoch)
            return found

    first, second = epochs(order, workers)
    assert len(first) == len(second) == 13
    assert all(first[index] != second[index] for index in first), "every epoch is another draw"
    assert [first, second] == epochs("strict", 1)


def test_an_epoch_resumes_at_every_batch(volumes: Path) -> None:
    dataset = sutler.VolumeFolder(volumes, TRAIN)

    def make() -> sutler.Loader[Any]:
        return sutler.Loader(dataset, batch_size=4, shuffle=True, num_workers=2, return_ids=True)

    with make() as loader:
        whole = [contents(batch) for batch in loader]
    for stop in range(len(whole) + 1):
        with make() as loader:
            iterator = iter(loader)
            done = [contents(next(iterator)) for _ in range(stop)]
            state = json.loads(json.dumps(loader.state_dict()))
        with make() as loader:
            loader.load_state_dict(state)
            rest = [contents(batch) for batch in loader] if stop < len(whole) else []
        assert done + rest == whole


def test_packed_and_plain_files_of_every_type_give_the_same(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    image = random.integers(0, 200, (9, 10, 11))
    label = random.integers(0, 3, (9, 10, 11)).astype(np.uint8)
    crop = T.RandBalancedCrop((4, 5, 6), oversampling=1.0)
    expected = None
    for number, dtype in enumerate(["uint8", "int16", "int32", "float32", "float64", "uint16"]):
        for name in ("imaging.nii", "imaging.nii.gz", "imaging.npy", "fortran"):
            folder = tmp_path / f"{number}_{name}" / "case"
            folder.mkdir(parents=True)
            values = image.astype(dtype)
            if name == "fortran":
                np.save(folder / "imaging.npy", np.asfortranarray(values))
                np.save(folder / "segmentation.npy", np.asfortranarray(label))
            elif name == "imaging.npy":
                np.save(folder / name, values.astype(values.dtype.newbyteorder(">")))
                np.save(folder / "segmentation.npy", label.astype(np.int64))
            else:
                references.write_nifti(folder / name, values)
                references.write_nifti(folder / f"segmentation{name[7:]}", label)
            whole = sutler.VolumeFolder(folder.parent)[0]
            np.testing.assert_array_equal(whole[0][0], image)
            np.testing.assert_array_equal(whole[1][0], label)
            found = [np.asarray(each) for each in sutler.VolumeFolder(folder.parent, crop)[0]]
            expected = expected or found
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)


def test_nifti_values_are_scaled_and_channels_come_first(tmp_path: Path) -> None:
    values = np.arange(2 * 3 * 4 * 5, dtype=np.int16).reshape(2, 3, 4, 5)
    references.write_nifti(tmp_path / "images" / "a.nii.gz", values, scale=(0.5, -3.0))
    references.write_nifti(tmp_path / "labels" / "a.nii.gz", np.ones((3, 4, 5), np.uint8))
    image, label = sutler.VolumeFolder(tmp_path, channels=2)[0]
    np.testing.assert_array_equal(image, values * 0.5 - 3.0)
    assert image.shape == (2, 3, 4, 5)
    assert label.shape == (1, 3, 4, 5)
    cropped = sutler.VolumeFolder(tmp_path, T.RandBalancedCrop(2), channels=2)
    with sutler.Loader(cropped, batch_size=1) as loader:
        images, labels = next(iter(loader))
    assert images.shape == (1, 2, 2, 2, 2)
    np.testing.assert_array_equal(images[0], cropped[0][0])
    first = int((float(images[0, 0, 0, 0, 0]) + 3) * 2)
    z, y, x = np.unravel_index(first, (3, 4, 5))
    np.testing.assert_array_equal(images[0], (values * 0.5 - 3.0)[:, z : z + 2, y : y + 2, x : x + 2])
    assert labels.all()


def test_functions_get_pairs_and_return_pairs(volumes: Path) -> None:
    def double(pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        image, label = pair
        return image * 2, label.long()

    plain = sutler.VolumeFolder(volumes, T.RandBalancedCrop(8))
    doubled = sutler.VolumeFolder(volumes, T.Compose([T.RandBalancedCrop(8), T.Lambda(double)]))
    for (images, labels), (expected, same) in zip(
        sutler.Loader(doubled, batch_size=4), sutler.Loader(plain, batch_size=4), strict=True
    ):
        assert torch.equal(images, expected * 2)
        assert labels.dtype == torch.int64
        assert torch.equal(labels, same.long())
    wrong = sutler.VolumeFolder(volumes, T.Lambda(lambda pair: pair[0]))
    with pytest.raises(TypeError, match=r"takes a pair .* returned Tensor"):
        wrong[0]


def test_volumes_of_different_shapes_cannot_be_stacked_but_collated(volumes: Path) -> None:
    dataset = sutler.VolumeFolder(volumes)
    with pytest.raises(RuntimeError, match="add a RandBalancedCrop to the transform, or pass a collate_fn"):
        next(iter(sutler.Loader(dataset, batch_size=4)))
    with pytest.raises(ValueError, match="add a RandBalancedCrop"):
        next(iter(sutler.Loader(dataset, batch_size=4, output="numpy")))
    pairs = next(iter(sutler.Loader(dataset, batch_size=4, collate_fn=list)))
    for index, (image, label) in enumerate(pairs):
        assert torch.equal(image, dataset[index][0])
        assert torch.equal(label, dataset[index][1])
    single, label = next(iter(sutler.Loader(dataset, batch_size=None)))
    assert torch.equal(single, dataset[0][0])
    assert torch.equal(label, dataset[0][1])


@pytest.mark.parametrize("output", ["numpy", "dlpack"])
def test_other_outputs(volumes: Path, output: Any) -> None:
    dataset = sutler.VolumeFolder(volumes, TRAIN)
    images, labels = next(iter(sutler.Loader(dataset, batch_size=4, output=output)))
    np.testing.assert_array_equal(np.asarray(images)[2], dataset[2][0])
    np.testing.assert_array_equal(np.asarray(labels)[2], dataset[2][1])


def test_a_dataset_travels(volumes: Path) -> None:
    dataset = sutler.VolumeFolder(volumes, TRAIN)
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy[5][0], dataset[5][0])
    assert copy.fingerprint == dataset.fingerprint
    assert "VolumeFolder" in repr(copy)


def test_a_crop_reads_its_slabs_and_no_more(tmp_path: Path) -> None:
    shape = (40, 48, 52)
    np.save(tmp_path / "a_x.npy", np.zeros(shape, np.float32))
    np.save(tmp_path / "a_y.npy", np.ones(shape, np.uint8))

    def bytes_read(transform: Any, epochs: int = 1) -> list[int]:
        with sutler.Loader(sutler.VolumeFolder(tmp_path, transform), num_workers=0) as loader:
            before, found = 0, []
            for _ in range(epochs):
                next(iter(loader))
                after = loader.stats()["storage_bytes"]
                found.append(after - before)
                before = after
            return found

    places = int(np.prod(shape))
    headers = 2 * 4096
    slabs = 8 * (7 * 52 + 8) * (4 + 1)
    [everything] = bytes_read(None)
    assert everything >= places * 5
    assert set(bytes_read(T.RandBalancedCrop(8, oversampling=0.0), 10)) == {headers + slabs}
    # Where the labelled parts are is looked for once.
    first, *others = bytes_read(T.RandBalancedCrop(8, oversampling=1.0), 10)
    assert first == headers + slabs + places
    assert set(others) == {headers + slabs}
    assert (headers + slabs) * 20 < everything


def test_what_is_not_there_is_refused(volumes: Path) -> None:
    dataset = sutler.VolumeFolder(volumes, TRAIN)
    with pytest.raises(TypeError, match="VolumeFolder holds volumes"):
        sutler.plan(dataset, memory="1GiB")
    with pytest.raises(ValueError, match="channels should be a positive number"):
        sutler.VolumeFolder(volumes, channels=0)
    with pytest.raises(TypeError, match="transform on images"):
        sutler.VolumeFolder(volumes, T.Resize(5))
