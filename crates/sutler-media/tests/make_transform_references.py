"""Write what torchvision and Pillow make of small images, for the tests of `sutler_media::image`.

Run it with torch, torchvision, Pillow and numpy installed; it overwrites `data/transforms/references.{json,bin}`:

    python crates/sutler-media/tests/make_transform_references.py

The `.bin` file holds pixels (interleaved 8-bit RGB, or float32 planes for `normalize`) one after the other,
the `.json` file says what stands where and how it was made.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from torchvision.transforms import InterpolationMode, v2  # type: ignore[import-untyped]
from torchvision.transforms.v2 import functional  # type: ignore[import-untyped]

TARGET = Path(__file__).parent / "data" / "transforms"
PIL_FILTERS = {
    "bilinear": PIL.Image.Resampling.BILINEAR,
    "bicubic": PIL.Image.Resampling.BICUBIC,
    "lanczos": PIL.Image.Resampling.LANCZOS,
    "box": PIL.Image.Resampling.BOX,
    "hamming": PIL.Image.Resampling.HAMMING,
}
TRIALS = 200_000


class References:
    """Collects cases and their bytes."""

    def __init__(self) -> None:
        self.cases: list[dict[str, Any]] = []
        self.chunks: list[bytes] = []
        self.length = 0

    def add(self, kernel: str, pixels: NDArray[Any], **parameters: Any) -> None:
        """Append one result; `pixels` is height x width x 3, or 3 x height x width floats."""
        height, width = pixels.shape[:2] if pixels.dtype == np.uint8 else pixels.shape[1:]
        data = pixels.tobytes()
        self.cases.append(
            {"kernel": kernel, "width": width, "height": height, "offset": self.length, **parameters}
        )
        self.chunks.append(data)
        self.length += len(data)


def photo(height: int, width: int, seed: int, low: int, high: int) -> NDArray[np.uint8]:
    """Smooth colours with texture, clipped in places, between two levels."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [
        np.sin(x / (3 + 2 * c) + c) + np.cos(y / (4 + c)) + 0.4 * rng.standard_normal((height, width))
        for c in range(3)
    ]
    image = np.stack(waves, axis=-1) * 0.33 + 0.5
    return (low + np.clip(image, 0, 1) * (high - low)).astype(np.uint8)


def tensor(image: NDArray[np.uint8]) -> torch.Tensor:
    """Planes of the pixels, as torchvision takes them."""
    return torch.from_numpy(image).permute(2, 0, 1).contiguous()


def array(image: torch.Tensor) -> NDArray[np.uint8]:
    """Interleaved pixels, as we keep them."""
    return image.permute(1, 2, 0).contiguous().numpy()


def add_resizes(references: References, image: NDArray[np.uint8]) -> None:
    """Every filter of both libraries, down, up and both at once."""
    pil = PIL.Image.fromarray(image)
    for height, width in [(13, 17), (36, 44), (36, 12)]:
        size = {"size": [height, width]}
        for name, resample in PIL_FILTERS.items():
            resized = np.asarray(pil.resize((width, height), resample))
            references.add("resize", resized, like="pillow", interpolation=name, antialias=True, **size)
        for name, antialias in [
            ("bilinear", True),
            ("bicubic", True),
            ("lanczos", True),
            ("nearest", False),
            ("bilinear", False),
            ("bicubic", False),
        ]:
            resized = functional.resize(
                tensor(image), [height, width], InterpolationMode(name), antialias=antialias
            )
            references.add(
                "resize", array(resized), like="torch", interpolation=name, antialias=antialias, **size
            )


def add_colours(references: References, image: NDArray[np.uint8], flat: NDArray[np.uint8]) -> None:
    """Changes of colour and filters."""
    source = tensor(image)
    for factor in (0.3, 1.7):
        references.add("brightness", array(functional.adjust_brightness(source, factor)), factor=factor)
    for factor in (0.4, 1.6):
        references.add("contrast", array(functional.adjust_contrast(source, factor)), factor=factor)
    for factor in (0.0, 0.5, 1.8):
        references.add("saturation", array(functional.adjust_saturation(source, factor)), factor=factor)
    for factor in (-0.4, 0.1, 0.5):
        references.add("hue", array(functional.adjust_hue(source, factor)), factor=factor)
    references.add("greyscale", array(functional.rgb_to_grayscale(source, 3)))
    for bits in (2, 5, 8):
        references.add("posterize", array(functional.posterize(source, bits)), bits=bits)
    for threshold in (0.0, 100.3, 255.0):
        references.add("solarize", array(functional.solarize(source, threshold)), threshold=threshold)
    references.add("autocontrast", array(functional.autocontrast(tensor(flat))), source="flat")
    references.add("equalize", array(functional.equalize(tensor(flat))), source="flat")
    for factor in (0.1, 1.9):
        references.add("sharpness", array(functional.adjust_sharpness(source, factor)), factor=factor)
    for kernel, sigma in (([3, 3], 0.5), ([23, 5], 2.0)):
        references.add(
            "blur",
            array(functional.gaussian_blur(source, kernel, [sigma, sigma])),
            kernel_size=kernel,
            sigma=sigma,
        )


def add_geometry(references: References, image: NDArray[np.uint8]) -> None:
    """Borders, centre crops and warps."""
    source = tensor(image)
    padding = [3, 1, 5, 4]
    for mode in ("constant", "edge", "reflect", "symmetric"):
        fill: Any = [10, 200, 90] if mode == "constant" else 0
        references.add(
            "pad", array(functional.pad(source, padding, fill, mode)), padding=padding, padding_mode=mode
        )
    for size in ([20, 18], [40, 30], [9, 60]):
        references.add("center_crop", array(functional.center_crop(source, size)), size=size)
    base = v2.RandAugment()
    choices = [
        ("ShearX", 0.27), ("ShearX", -0.99), ("ShearY", 0.3), ("TranslateX", 7.9), ("TranslateY", -5.2),
        ("Rotate", 27.0), ("Rotate", -130.5), ("Rotate", 90.0),
    ]  # fmt: skip
    for name, magnitude in choices:
        for interpolation, fill in (
            ("nearest", [10, 200, 90]),
            ("bilinear", None),
            ("bilinear", [10, 200, 90]),
        ):
            if name == "Rotate" and magnitude == 90.0 and interpolation == "nearest":
                continue  # every position lies half way between pixels, so rounding noise decides
            warped = base._apply_image_or_video_transform(
                source, name, magnitude, InterpolationMode(interpolation), {type(source): fill}
            )
            references.add(
                "warp", array(warped), name=name, magnitude=magnitude, interpolation=interpolation, fill=fill
            )
    square = np.ascontiguousarray(image[:20, :20])
    for angle in (90.0, -90.0):
        turned = functional.rotate(tensor(square), angle)
        references.add(
            "warp",
            array(turned),
            source="square",
            name="Rotate",
            magnitude=angle,
            interpolation="nearest",
            fill=None,
        )


def magnitudes() -> list[dict[str, Any]]:
    """The tables of both policies for an image of 375 x 500."""
    tables = []
    for policy, cls in (("rand_augment", v2.RandAugment), ("trivial_augment_wide", v2.TrivialAugmentWide)):
        for bins in (31, 10):
            for name, (table, signed) in cls._AUGMENTATION_SPACE.items():
                values = table(bins, 375, 500)
                listed = [0.0] * bins if values is None else [float(value) for value in values]
                tables.append(
                    {"policy": policy, "bins": bins, "name": name, "signed": signed, "values": listed}
                )
    return tables


def shares(values: NDArray[np.int64]) -> list[list[float]]:
    """Pairs of a threshold and the share of the values that do not pass it."""
    thresholds = sorted({int(value) for value in np.quantile(values, np.linspace(0.05, 0.95, 10))})
    return [[threshold, float(np.mean(values <= threshold))] for threshold in thresholds]


def distributions() -> list[dict[str, Any]]:
    """How often torchvision's draws stay below which values."""
    torch.manual_seed(20)
    found: list[dict[str, Any]] = []
    for height, width in ((375, 500), (90, 700)):
        image = torch.empty(3, height, width, dtype=torch.uint8)
        crop = v2.RandomResizedCrop(224)
        drawn = [crop.make_params([image]) for _ in range(TRIALS)]
        marginals = {
            key: shares(np.array([d[key] for d in drawn])) for key in ("top", "left", "height", "width")
        }
        found.append({"op": "random_resized_crop", "image": [height, width], "shares": marginals})
        erasing = v2.RandomErasing(p=1.0)
        params = [erasing.make_params([image]) for _ in range(TRIALS)]
        kept = [d for d in params if d["v"] is not None]
        keys = {"top": "i", "left": "j", "height": "h", "width": "w"}
        marginals = {ours: shares(np.array([d[theirs] for d in kept])) for ours, theirs in keys.items()}
        applied = len(kept) / len(params)
        found.append(
            {"op": "random_erasing", "image": [height, width], "applied": applied, "shares": marginals}
        )
    return found


def main() -> None:
    """Make everything and write it."""
    references = References()
    image = photo(27, 35, 7, 0, 255)
    flat = photo(27, 35, 8, 60, 190)
    references.add("source", image, source="photo")
    references.add("source", flat, source="flat")
    references.add("source", np.ascontiguousarray(image[:20, :20]), source="square")
    add_resizes(references, image)
    add_colours(references, image, flat)
    add_geometry(references, image)
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    normalized = functional.normalize(
        functional.to_dtype(tensor(image), torch.float32, scale=True), mean, std
    )
    references.add("normalize", normalized.numpy(), mean=mean, std=std)
    TARGET.mkdir(parents=True, exist_ok=True)
    (TARGET / "references.bin").write_bytes(b"".join(references.chunks))
    document = {
        "cases": references.cases,
        "magnitudes": magnitudes(),
        "distributions": distributions(),
        "trials": TRIALS,
    }
    (TARGET / "references.json").write_text(json.dumps(document, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
