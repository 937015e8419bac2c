"""The reference pipelines of torchvision, through ImageFolder and through torchvision, on the same photos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sutler
import sutler.testing
from sutler import Loader
from sutler import transforms as T  # noqa: N812 - as users write it

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")
v1 = torchvision.transforms
v2 = pytest.importorskip("torchvision.transforms.v2")

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def large_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of the size that the reference pipelines are made for."""
    folder = tmp_path_factory.mktemp("large")
    sutler.testing.make_photos(folder, 16, 2, longer_side=400)
    return folder


def to_float() -> Any:
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]


EVALUATION = {
    "v1": lambda: v1.Compose([v1.Resize(256), v1.CenterCrop(224), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
    "v2": lambda: v2.Compose([v2.Resize(256), v2.CenterCrop(224), *to_float(), v2.Normalize(MEAN, STD)]),
    "v2 bicubic": lambda: v2.Compose(
        [
            v2.Resize(232, interpolation=v2.InterpolationMode.BICUBIC),
            v2.CenterCrop(224),
            *to_float(),
            v2.Normalize(MEAN, STD),
        ]
    ),
    "v1 to one size": lambda: v1.Compose([v1.Resize((96, 130)), v1.ToTensor()]),
}


@pytest.mark.parametrize("name", EVALUATION)
def test_evaluation_pipelines_give_torchvisions_values(large_photos: Path, name: str) -> None:
    theirs = torchvision.datasets.ImageFolder(str(large_photos), EVALUATION[name]())
    ours = sutler.ImageFolder(large_photos, EVALUATION[name](), dct_scaling=False)
    assert not ours.lowered.tail, "all of it runs natively"
    (images, labels) = next(iter(Loader(ours, len(ours))))
    assert labels.tolist() == theirs.targets
    # One level of the 8-bit image, in the units that come out.
    level = 1 / 255 if name.endswith("one size") else 1 / 255 / torch.tensor(STD).view(3, 1, 1)
    within = []
    for index, image in enumerate(images):
        expected, _ = theirs[index]
        assert (image.dtype, image.shape) == (expected.dtype, expected.shape)
        within.append(float(((image - expected).abs() / level <= 1.01).float().mean()))
    assert min(within) >= 0.99, f"values within one level, by image: {within}"


@pytest.mark.parametrize("version", [v1, v2], ids=["v1", "v2"])
def test_training_pipelines_give_torchvisions_distribution(large_photos: Path, version: Any) -> None:
    last = [v1.ToTensor()] if version is v1 else to_float()
    pipeline = version.Compose([version.RandomResizedCrop(64), version.RandomHorizontalFlip(), *last])
    theirs = torchvision.datasets.ImageFolder(str(large_photos), pipeline)
    ours = sutler.ImageFolder(large_photos, pipeline)
    assert not ours.lowered.tail
    loader = Loader(ours, 16)
    mean = torch.stack([images.mean((2, 3)).mean(0) for _ in range(12) for images, _ in loader]).mean(0)
    torch.manual_seed(0)
    expected = torch.stack([theirs[i % 16][0].mean((1, 2)) for i in range(96)]).mean(0)
    assert (mean - expected).abs().max() < 0.04


class Sharpen:
    """An operation that Sutler does not know."""

    def __call__(self, image: Any) -> Any:
        from PIL import ImageFilter

        return image.filter(ImageFilter.SHARPEN)


class Noise:
    """One that draws numbers of its own."""

    def __call__(self, image: Any) -> Any:
        return image + torch.randn(image.shape) * 0.1 + float(np.random.rand())


@pytest.mark.filterwarnings("ignore::sutler.PythonTransformWarning")
@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_what_is_not_known_runs_in_python_and_reproducibly(large_photos: Path, output: Any) -> None:
    pipeline = v1.Compose([v1.RandomResizedCrop(40), Sharpen(), v1.ToTensor(), Noise()])
    dataset = sutler.ImageFolder(large_photos, pipeline)
    assert dataset.lowered.tail

    def epochs(threads: int) -> list[Any]:
        loader = Loader(dataset, 6, True, num_workers=threads, output=output, seed=0)
        return [[np.asarray(images) for images, _ in loader] for _ in range(2)]

    one = epochs(1)
    assert [images.shape for images in one[0]] == [(6, 3, 40, 40), (6, 3, 40, 40), (4, 3, 40, 40)]
    assert one[0][0].dtype == np.float32
    assert (one[0][0] != one[1][0]).any()
    state = torch.get_rng_state()
    for threads in (0, 4):
        for left, right in zip(epochs(threads), one, strict=True):
            for images, expected in zip(left, right, strict=True):
                np.testing.assert_array_equal(images, expected)
    assert torch.equal(torch.get_rng_state(), state), "the trainer's own generator is left alone"
    ids = next(iter(Loader(dataset, 6, True, return_ids=True, output="numpy")))[2]
    np.testing.assert_array_equal(np.asarray(dataset[int(ids[0])][0]), one[0][0][0])


def test_a_lambda_of_ours_runs_in_python(large_photos: Path) -> None:
    crop = [T.Resize(20), T.CenterCrop(16)]
    plain = sutler.ImageFolder(large_photos, T.Compose([*crop, T.ToDtype("float32")]))
    doubled = sutler.ImageFolder(
        large_photos, T.Compose([*crop, T.ToDtype("float32"), T.Lambda(lambda image: image * 2)])
    )
    for (images, _), (expected, _) in zip(Loader(doubled, 5), Loader(plain, 5), strict=True):
        assert torch.equal(images, expected * 2)
