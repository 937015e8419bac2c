"""Batches on a device: the same values, ahead of the trainer, and no thread left behind."""

from __future__ import annotations

import gc
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sutler
from sutler import Loader
from sutler import transforms as T  # noqa: N812 - as users write it

torch = pytest.importorskip("torch")

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
        ],
    ),
]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def copying_threads() -> int:
    return sum(thread.name == "sutler-copy" for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 5
    while copying_threads():
        assert time.monotonic() < deadline, "a copying thread is left"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def normalized(photos: Path) -> sutler.ImageFolder:
    steps = [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToDtype("float32"), T.Normalize(MEAN, STD)]
    return sutler.ImageFolder(photos, T.Compose(steps))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("device_normalize", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_values_are_those_of_the_host(
    normalized: sutler.ImageFolder, device: str, device_normalize: bool, channels_last: bool
) -> None:
    arguments: dict[str, Any] = {"shuffle": True, "channels_last": channels_last, "return_ids": True}
    loader = Loader(normalized, 6, device=device, device_normalize=device_normalize, **arguments)
    host = Loader(normalized, 6, **arguments)
    for _ in range(2):
        for batch, expected in zip(loader, host, strict=True):
            assert all(part.device.type == device for part in batch)
            assert batch[0].dtype == torch.float32
            assert batch[0].is_contiguous(memory_format=torch.channels_last) is channels_last
            assert torch.allclose(batch[0].cpu(), expected[0], atol=1e-5)
            assert torch.equal(batch[1].cpu(), expected[1])
            assert torch.equal(batch[2].cpu(), expected[2])


@pytest.mark.parametrize("device", DEVICES)
def test_batches_held_are_not_overwritten(normalized: sutler.ImageFolder, device: str) -> None:
    held = list(Loader(normalized, 4, device=device, num_workers=2))
    for (images, _), (expected, _) in zip(held, Loader(normalized, 4), strict=True):
        assert torch.equal(images.cpu(), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_leaving_the_loop_ends_the_copying(normalized: sutler.ImageFolder, device: str) -> None:
    gc.disable()
    try:
        loader = Loader(normalized, 4, device=device)
        for _ in range(3):
            for _ in loader:
                break
        iterator = iter(loader)
        next(iterator)
        assert copying_threads() == 1
        del iterator
        assert copying_threads() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("device", DEVICES)
def test_a_state_counts_what_the_trainer_has_and_not_what_was_copied_ahead(
    normalized: sutler.ImageFolder, device: str
) -> None:
    loader = Loader(normalized, 6, True, device=device, return_ids=True)
    iterator = iter(loader)
    first = [next(iterator)[2].tolist() for _ in range(2)]
    time.sleep(0.1)
    state = loader.state_dict()
    assert state["consumed"] == 12
    resumed = Loader(normalized, 6, True, device=device, return_ids=True)
    resumed.load_state_dict(state)
    served = first + [ids.tolist() for _, _, ids in resumed]
    assert sorted(i for ids in served for i in ids) == list(range(41))


@pytest.mark.parametrize("device", DEVICES)
def test_an_error_stays_and_closing_is_no_end(own_photos: Path, device: str) -> None:
    dataset = sutler.ImageFolder(own_photos, T.Compose([T.Resize(8), T.CenterCrop(8)]))
    Path(dataset.path(5)).write_bytes(b"broken")
    loader = Loader(dataset, 2, device=device)
    iterator = iter(loader)
    next(iterator), next(iterator)
    for _ in range(3):
        with pytest.raises(sutler.DecodeError, match="photo_000005"):
            next(iterator)
        assert loader.state_dict()["consumed"] == 4
    good = Loader(dataset, 2, device=device, errors="skip")
    iterator = iter(good)
    next(iterator)
    good.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            next(iterator)


Pair = namedtuple("Pair", "image label")


@pytest.mark.parametrize("device", DEVICES)
def test_whatever_a_collate_fn_makes_is_moved(normalized: sutler.ImageFolder, device: str) -> None:
    def collate(samples: list[Any]) -> dict[str, Any]:
        images = torch.stack([image for image, _ in samples])
        return {"pair": Pair(images, [label for _, label in samples]), "list": [images.sum()], "name": "x"}

    loader = Loader(normalized, 8, device=device, device_normalize=True, collate_fn=collate)
    for batch, (images, labels) in zip(loader, Loader(normalized, 8), strict=True):
        assert isinstance(batch["pair"], Pair)
        assert batch["pair"].image.device.type == device
        assert torch.equal(batch["pair"].image.cpu(), images)
        assert batch["pair"].label == labels.tolist()
        assert batch["list"][0].device.type == device
        assert batch["name"] == "x"


@pytest.mark.parametrize("device", DEVICES)
def test_a_python_tail_runs_before_the_copy(photos: Path, device: str) -> None:
    steps = [T.Resize(20), T.CenterCrop(16), T.Normalize(MEAN, STD), T.Lambda(lambda image: image + 1)]
    dataset = sutler.ImageFolder(photos, T.Compose(steps))
    loader = Loader(dataset, 8, device=device, device_normalize=True)
    for (images, _), (expected, _) in zip(loader, Loader(dataset, 8), strict=True):
        assert torch.equal(images.cpu(), expected)


def test_pinning_without_a_device_warns_as_pytorch_does(normalized: sutler.ImageFolder) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    with pytest.warns(UserWarning, match="no accelerator is found"):
        list(Loader(normalized, 8, pin_memory=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_pinned_batches_are_pinned(normalized: sutler.ImageFolder) -> None:
    loader = Loader(normalized, 8, pin_memory=True)
    for images, _ in loader:
        assert images.is_pinned()
    loader.close()
