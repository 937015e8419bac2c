"""What a torchvision transform is called in Sutler.

torchvision is recognised by the names of its classes and never imported: a process that does not use it
should not wait for it. Only torchvision's own classes count. A class derived from one may do anything, so it
stays Python's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from sutler.transforms.base import NotNativeError, Transform
from sutler.transforms.color import ColorJitter, GaussianBlur, RandomGrayscale
from sutler.transforms.geometry import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from sutler.transforms.interpolation import InterpolationMode, parse_interpolation
from sutler.transforms.policy import RandAugment, TrivialAugmentWide
from sutler.transforms.values import Normalize, RandomErasing, ToBGR255, ToDtype, ToImage, ToPureTensor

__all__ = ["Kind", "Stage", "children", "generation", "translate"]

Kind = Literal["pil", "tensor_uint8", "tensor_float32"]


@dataclass(frozen=True)
class Stage:
    """What torchvision would hold at some point of a pipeline.

    Attributes:
        kind: a PIL image, or a tensor of 8-bit or of 32-bit values.
        tv_image: whether the tensor would be torchvision's `tv_tensors.Image`.
    """

    kind: Kind = "pil"
    tv_image: bool = False

    def after(self, transform: Transform) -> Stage:
        """The stage behind one of Sutler's transforms."""
        if isinstance(transform, ToImage):
            return Stage("tensor_uint8" if self.kind == "pil" else self.kind, tv_image=True)
        if isinstance(transform, ToPureTensor):
            return replace(self, tv_image=False)
        if isinstance(transform, (Normalize, ToBGR255)):
            return replace(self, kind="tensor_float32")
        if isinstance(transform, ToDtype):
            return replace(self, kind="tensor_float32" if transform.dtype == "float32" else "tensor_uint8")
        return self


def generation(step: object) -> Literal[1, 2] | None:
    """Which of torchvision's two interfaces a transform belongs to, or None for anything else."""
    module = type(step).__module__
    if module.startswith("torchvision.transforms.v2."):
        return 2
    if module in (
        "torchvision.transforms.transforms",
        "torchvision.transforms.autoaugment",
        "torchvision.transforms._presets",
    ):
        return 1
    return None


def children(step: Any) -> list[object] | None:
    """The steps inside a plain sequence of torchvision's or torch's, or None for anything else."""
    kind = type(step)
    if generation(step) and kind.__name__ == "Compose":
        return list(step.transforms)
    if kind.__module__ == "torch.nn.modules.container" and kind.__name__ == "Sequential":
        return list(step)
    return None


def translate(step: Any, stage: Stage) -> list[Transform]:
    """Sutler's transforms for one of torchvision's, as it would act at `stage`.

    Raises:
        NotNativeError: there are none, or not with these parameters.
    """
    version = generation(step)
    if type(step).__module__ == "torch.nn.modules.linear" and type(step).__name__ == "Identity":
        return []
    if version is None:
        raise NotNativeError(f"Sutler cannot look into {describe(step)}")
    translator = _TRANSLATORS.get(type(step).__name__)
    if translator is None:
        raise NotNativeError(f"torchvision's {type(step).__name__} has no native form")
    try:
        return translator(step, stage)
    except NotNativeError:
        raise
    except (TypeError, ValueError) as error:
        raise NotNativeError(
            f"{type(step).__name__} has parameters without a native form ({error})"
        ) from error


def describe(step: object) -> str:
    """A name for a step that a user recognises."""
    name = getattr(step, "__name__", None)
    return f"the function `{name}`" if name else f"`{type(step).__name__}`"


def _interpolation(step: Any, stage: Stage) -> InterpolationMode:
    mode = parse_interpolation(step.interpolation)
    if mode is InterpolationMode.NEAREST and stage.kind != "pil":
        raise NotNativeError(
            f'{type(step).__name__} with interpolation="nearest" takes other pixels from a tensor than from '
            'a PIL image; "nearest-exact" takes the same, and is native'
        )
    if mode is InterpolationMode.BICUBIC and not _antialias(step, stage):
        raise NotNativeError(
            f"{type(step).__name__} of a tensor has its own bicubic filter for antialias=False"
        )
    return mode


def _antialias(step: Any, stage: Stage) -> bool:
    # Pillow averages whatever it is told, and None has always meant "as Pillow does" for PIL images alone.
    return stage.kind == "pil" or bool(step.antialias)


def _fill(step: Any, stage: Stage) -> Any:
    fill = step.fill
    if isinstance(fill, dict):
        wanted = {
            "pil": ("PIL.Image", "Image"),
            "tv_image": ("torchvision.tv_tensors._image", "Image"),
            "tensor": ("torch", "Tensor"),
        }["pil" if stage.kind == "pil" else "tv_image" if stage.tv_image else "tensor"]
        fill = _by_type(fill, wanted)
    if stage.kind == "tensor_float32" and fill is not None:
        # 8-bit pixels cannot hold the colour exactly, but for black.
        if any(value != 0 for value in (fill if isinstance(fill, (list, tuple)) else [fill])):
            raise NotNativeError(
                f"{type(step).__name__} with fill={fill} after the conversion to float has no native form"
            )
        return 0
    return fill


def _by_type(table: dict[Any, Any], wanted: tuple[str, str]) -> Any:
    """An entry of one of torchvision's tables from types to parameters."""
    for key, value in table.items():
        if isinstance(key, type) and (key.__module__, key.__name__) == wanted:
            return value
    return table.get("others")


def _resize(step: Any, stage: Stage) -> list[Transform]:
    return [Resize(step.size, _interpolation(step, stage), step.max_size, _antialias(step, stage))]


def _center_crop(step: Any, stage: Stage) -> list[Transform]:
    return [CenterCrop(step.size)]


def _random_crop(step: Any, stage: Stage) -> list[Transform]:
    padding = step.padding
    if padding is not None and generation(step) == 2:
        left, right, top, bottom = padding  # the second interface keeps them in this order
        padding = [left, top, right, bottom]
    return [RandomCrop(step.size, padding, step.pad_if_needed, _fill(step, stage), step.padding_mode)]


def _random_resized_crop(step: Any, stage: Stage) -> list[Transform]:
    return [
        RandomResizedCrop(
            step.size, step.scale, step.ratio, _interpolation(step, stage), _antialias(step, stage)
        )
    ]


def _horizontal_flip(step: Any, stage: Stage) -> list[Transform]:
    return [RandomHorizontalFlip(step.p)]


def _vertical_flip(step: Any, stage: Stage) -> list[Transform]:
    return [RandomVerticalFlip(step.p)]


def _pad(step: Any, stage: Stage) -> list[Transform]:
    return [Pad(step.padding, _fill(step, stage), step.padding_mode)]


def _color_jitter(step: Any, stage: Stage) -> list[Transform]:
    return [ColorJitter(step.brightness, step.contrast, step.saturation, step.hue)]


def _random_grayscale(step: Any, stage: Stage) -> list[Transform]:
    return [RandomGrayscale(step.p)]


def _grayscale(step: Any, stage: Stage) -> list[Transform]:
    if step.num_output_channels != 3:
        raise NotNativeError("Grayscale to one channel has no native form; num_output_channels=3 has")
    return [RandomGrayscale(1.0)]


def _gaussian_blur(step: Any, stage: Stage) -> list[Transform]:
    return [GaussianBlur(step.kernel_size, step.sigma)]


def _rand_augment(step: Any, stage: Stage) -> list[Transform]:
    return [
        RandAugment(
            step.num_ops,
            step.magnitude,
            step.num_magnitude_bins,
            parse_interpolation(step.interpolation),
            _fill(step, stage),
        )
    ]


def _trivial_augment(step: Any, stage: Stage) -> list[Transform]:
    return [
        TrivialAugmentWide(
            step.num_magnitude_bins, parse_interpolation(step.interpolation), _fill(step, stage)
        )
    ]


def _random_erasing(step: Any, stage: Stage) -> list[Transform]:
    value = "random" if step.value is None else step.value
    return [RandomErasing(step.p, step.scale, step.ratio, value)]


def _normalize(step: Any, stage: Stage) -> list[Transform]:
    def values(given: Any) -> Any:
        given = given.tolist() if hasattr(given, "tolist") else given
        return [given] if isinstance(given, (int, float)) else given

    return [Normalize(values(step.mean), values(step.std))]


def _to_dtype(step: Any, stage: Stage) -> list[Transform]:
    dtype = step.dtype
    if isinstance(dtype, dict):
        wanted = ("torchvision.tv_tensors._image", "Image") if stage.tv_image else ("torch", "Tensor")
        dtype = _by_type(dtype, wanted)
        if dtype is None:
            return []
    return [ToDtype(dtype, step.scale)]


def _convert_image_dtype(step: Any, stage: Stage) -> list[Transform]:
    return [ToDtype(step.dtype, scale=True)]


def _to_tensor(step: Any, stage: Stage) -> list[Transform]:
    if stage.kind == "tensor_float32":
        return []
    if stage.kind == "tensor_uint8":
        # It scales PIL images alone, and leaves or refuses a tensor: not what its place suggests.
        raise NotNativeError(
            "ToTensor does not convert what is a tensor already; ToDtype(torch.float32, scale=True) does"
        )
    return [ToDtype("float32", scale=True)]


def _to_image(step: Any, stage: Stage) -> list[Transform]:
    return [ToImage()]


def _to_pure_tensor(step: Any, stage: Stage) -> list[Transform]:
    return [ToPureTensor()]


def _pil_to_tensor(step: Any, stage: Stage) -> list[Transform]:
    return [ToImage(), ToPureTensor()]


def _to_pil_image(step: Any, stage: Stage) -> list[Transform]:
    if stage.kind != "pil":
        raise NotNativeError("ToPILImage turns a tensor back into a PIL image, which only Python can use")
    return []


def _nothing(step: Any, stage: Stage) -> list[Transform]:
    return []


def _preset(step: Any, stage: Stage) -> list[Transform]:
    return [
        Resize(list(step.resize_size), _interpolation(step, stage), None, _antialias(step, stage)),
        CenterCrop(list(step.crop_size)),
        ToDtype("float32", scale=True),
        Normalize(step.mean, step.std),
    ]


def _random_apply(step: Any, stage: Stage) -> list[Transform]:
    if step.p <= 0:
        return []
    inner = _translate_all(step.transforms, stage)
    if step.p >= 1:
        return inner
    if not inner:
        return []
    if len(inner) == 1 and isinstance(
        only := inner[0], (RandomHorizontalFlip, RandomVerticalFlip, RandomGrayscale, RandomErasing)
    ):
        # Two coins in a row are one coin.
        both = copy.copy(only)
        both.p = only.p * step.p
        return [both]
    raise NotNativeError(
        "RandomApply is native for a single flip, grayscale or erasing, and has no native form for more"
    )


def _random_choice(step: Any, stage: Stage) -> list[Transform]:
    if len(step.transforms) != 1:
        raise NotNativeError(f"{type(step).__name__} has no native form")
    return _translate_all(step.transforms, stage)


def _translate_all(steps: Iterable[Any], stage: Stage) -> list[Transform]:
    translated: list[Transform] = []
    for step in steps:
        inside = children(step)
        found = translate(step, stage) if inside is None else _translate_all(inside, stage)
        for transform in found:
            stage = stage.after(transform)
        translated += found
    return translated


_TRANSLATORS: dict[str, Callable[[Any, Stage], list[Transform]]] = {
    "CenterCrop": _center_crop,
    "ColorJitter": _color_jitter,
    "ConvertImageDtype": _convert_image_dtype,
    "GaussianBlur": _gaussian_blur,
    "Grayscale": _grayscale,
    "Identity": _nothing,
    "ImageClassification": _preset,
    "Normalize": _normalize,
    "PILToTensor": _pil_to_tensor,
    "Pad": _pad,
    "RGB": _nothing,  # decoded images are RGB
    "RandAugment": _rand_augment,
    "RandomApply": _random_apply,
    "RandomChoice": _random_choice,
    "RandomCrop": _random_crop,
    "RandomErasing": _random_erasing,
    "RandomGrayscale": _random_grayscale,
    "RandomHorizontalFlip": _horizontal_flip,
    "RandomOrder": _random_choice,
    "RandomResizedCrop": _random_resized_crop,
    "RandomVerticalFlip": _vertical_flip,
    "Resize": _resize,
    "ToDtype": _to_dtype,
    "ToImage": _to_image,
    "ToPILImage": _to_pil_image,
    "ToPureTensor": _to_pure_tensor,
    "ToTensor": _to_tensor,
    "TrivialAugmentWide": _trivial_augment,
}
