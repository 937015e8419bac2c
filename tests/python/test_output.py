"""Zero copies: what is handed out is the engine's own memory, valid as long as anyone holds it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
from sutler import Loader
from sutler import transforms as T  # noqa: N812 - as users write it

torch = pytest.importorskip("torch")

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def cropped(photos: Path) -> sutler.ImageFolder:
    return sutler.ImageFolder(photos, T.Compose([T.Resize(20), T.CenterCrop((16, 20))]))


@pytest.fixture(scope="module")
def normalized(photos: Path) -> sutler.ImageFolder:
    return sutler.ImageFolder(
        photos, T.Compose([T.Resize(20), T.CenterCrop((16, 20)), T.Normalize(MEAN, STD)])
    )


def address(images: Any) -> int:
    if isinstance(images, np.ndarray):
        return int(images.__array_interface__["data"][0])
    return int(torch.from_dlpack(images).data_ptr())


@pytest.mark.parametrize("output", ["torch", "numpy", "dlpack"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_batch_is_the_engines_memory(cropped: sutler.ImageFolder, output: Any, channels_last: bool) -> None:
    loader = Loader(cropped, 8, num_workers=2, output=output, channels_last=channels_last)
    iterator = iter(loader)
    assert loader._room.job is not None
    assert loader._room.job.arena is not None
    start, size = loader._room.job.arena
    for _ in range(4):
        images, _ = next(iterator)
        assert start <= address(images) < start + size


@pytest.mark.parametrize("channels_last", [False, True])
def test_shape_type_and_strides(
    cropped: sutler.ImageFolder, normalized: sutler.ImageFolder, channels_last: bool
) -> None:
    for dataset, dtype in ((cropped, torch.uint8), (normalized, torch.float32)):
        images, labels = next(iter(Loader(dataset, 8, channels_last=channels_last)))
        assert (tuple(images.shape), images.dtype) == ((8, 3, 16, 20), dtype)
        assert images.is_contiguous(memory_format=torch.channels_last) is channels_last
        assert images.is_contiguous() is not channels_last
        assert (tuple(labels.shape), labels.dtype) == ((8,), torch.int64)
        as_numpy, numpy_labels = next(iter(Loader(dataset, 8, channels_last=channels_last, output="numpy")))
        assert as_numpy.strides == tuple(step * images.element_size() for step in images.stride())
        np.testing.assert_array_equal(as_numpy, images.numpy())
        assert numpy_labels.dtype == np.int64


def test_the_layout_changes_no_value(normalized: sutler.ImageFolder) -> None:
    first, _ = next(iter(Loader(normalized, 41)))
    last, _ = next(iter(Loader(normalized, 41, channels_last=True)))
    assert torch.equal(first, last)


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_batches_can_be_written_to_and_outlive_their_loader(cropped: sutler.ImageFolder, output: Any) -> None:
    loader = Loader(cropped, 8, num_workers=2, output=output)
    batches = list(loader)
    expected = [np.array(images) for images, _ in Loader(cropped, 8, output="numpy")]
    loader.close()
    del loader
    gc.collect()
    for (images, _), right in zip(batches, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(images), right)
        images[0] = 7
        assert (np.asarray(images)[0] == 7).all()
        np.testing.assert_array_equal(np.asarray(images)[1:], right[1:])


def test_a_view_keeps_its_batch_and_writing_to_it_disturbs_no_other(cropped: sutler.ImageFolder) -> None:
    views: list[Any] = []
    for images, _ in Loader(cropped, 5, num_workers=2):
        images.fill_(len(views))
        views.append(images[0, 1])
    del images
    gc.collect()
    for number, view in enumerate(views):
        assert (view == number).all()


@pytest.mark.parametrize("output", ["torch", "numpy", "dlpack"])
def test_memory_goes_round_when_batches_are_let_go(cropped: sutler.ImageFolder, output: Any) -> None:
    loader = Loader(cropped, 4, num_workers=2, output=output)
    seen = set()
    for _ in range(6):
        for images, _ in loader:
            seen.add(address(images))
            del images
    slots = loader.stats()["memory_bytes"] // 4096
    assert 2 <= len(seen) <= slots, "66 batches share a few slots"


def test_dlpack_arrays_are_taken_by_anyone(cropped: sutler.ImageFolder) -> None:
    images, labels, ids = next(iter(Loader(cropped, 8, output="dlpack", return_ids=True)))
    expected, expected_labels = next(iter(Loader(cropped, 8, output="numpy")))
    assert images.shape == (8, 3, 16, 20)
    assert images.__dlpack_device__() == (1, 0)
    for take in (np.from_dlpack, np.asarray, torch.from_dlpack):
        np.testing.assert_array_equal(np.asarray(take(images)), expected)
        np.testing.assert_array_equal(np.asarray(take(labels)), expected_labels)
        assert np.asarray(take(ids)).tolist() == list(range(8))
    unused = images.__dlpack__()  # a capsule that nobody takes frees what it holds
    del unused
    with pytest.raises(BufferError, match="copy"):
        images.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="host memory"):
        images.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError, match="stream"):
        images.__dlpack__(stream=1)


@pytest.mark.parametrize("output", ["torch", "numpy", "dlpack"])
@pytest.mark.parametrize(
    "arguments", [{"batch_size": None}, {"batch_size": 4}, {"collate_fn": list}], ids=str
)
@pytest.mark.parametrize("return_ids", [False, True])
def test_every_output_serves_every_way_of_asking(
    photos: Path, output: Any, arguments: dict[str, Any], return_ids: bool
) -> None:
    for transform in (T.Compose([T.Resize(9), T.CenterCrop(8)]), None):
        if transform is None and "collate_fn" not in arguments and arguments["batch_size"]:
            continue  # images of many sizes do not stack
        dataset = sutler.ImageFolder(photos, transform)
        for batch in Loader(dataset, output=output, return_ids=return_ids, num_workers=1, **arguments):
            parts = batch[0] if "collate_fn" in arguments else batch
            assert len(parts) == 2 + return_ids
            image = np.asarray(parts[0])
            assert image.shape[-3] == 3
            if output == "torch":
                assert isinstance(parts[0], torch.Tensor)


def test_a_dataset_item_shares_its_memory_too(cropped: sutler.ImageFolder) -> None:
    image, label = cropped[3]
    assert isinstance(image, torch.Tensor)
    assert type(label) is int
    image[0, 0, 0] = 200
    assert int(image[0, 0, 0]) == 200
