"""A transform called on an image, outside of any pipeline.

Native operations work on whole pipelines, from encoded bytes to a batch. For a look at a single step,
torchvision has the same transforms under the same names; so that is what runs.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from sutler.transforms.base import Transform
from sutler.transforms.geometry import Resize
from sutler.transforms.interpolation import InterpolationMode
from sutler.transforms.values import Normalize, RandomErasing, ToBGR255, ToDtype, ToImage, ToPureTensor

__all__ = ["apply"]


def apply(transform: Transform, image: Any) -> Any:
    """Run torchvision's transform of the same name and parameters on a PIL image, a tensor or an array.

    An array has the shape (height, width, channels) and counts as an image; the result is a tensor.
    """
    try:
        v2 = importlib.import_module("torchvision.transforms.v2")
    except ImportError as error:
        raise TypeError(
            "Sutler's transforms describe a pipeline; pass them to a dataset. Calling "
            f"{type(transform).__name__} on an image runs torchvision's transform of that name, and "
            "torchvision cannot be imported here."
        ) from error
    if not _is_image(image):
        raise TypeError(
            "Sutler's transforms describe a pipeline; pass them to a dataset, or call them on a PIL image, a "
            f"tensor or a numpy array, not on {type(image).__name__}."
        )
    torch = importlib.import_module("torch")
    if _is_instance(image, "numpy", "ndarray"):
        image = v2.functional.to_image(image.copy())  # a tensor over read-only memory is undefined behaviour
    if isinstance(transform, (ToBGR255, ToDtype, Normalize, RandomErasing)) and not isinstance(
        image, torch.Tensor
    ):
        image = v2.functional.pil_to_tensor(image)
    if isinstance(transform, Normalize) and not image.is_floating_point():
        image = v2.functional.to_dtype(image, torch.float32, scale=True)
    if isinstance(transform, ToBGR255):
        return v2.functional.to_dtype(image, torch.float32).flip(-3)
    name = "Resize" if isinstance(transform, Resize) else type(transform).__name__
    return getattr(v2, name)(**_arguments(transform, torch))(image)


def _arguments(transform: Transform, torch: Any) -> dict[str, Any]:
    """The arguments to make torchvision's transform with."""
    if isinstance(transform, (ToImage, ToPureTensor)):
        return {}
    arguments = dict(vars(transform))
    if isinstance(transform, ToDtype):
        arguments["dtype"] = getattr(torch, transform.dtype)
    if isinstance(transform, RandomErasing) and transform.value is None:
        arguments["value"] = "random"
    if isinstance(mode := arguments.get("interpolation"), InterpolationMode):
        arguments["interpolation"] = mode.value
    return arguments


def _is_image(image: object) -> bool:
    return (
        _is_instance(image, "PIL.Image", "Image")
        or _is_instance(image, "numpy", "ndarray")
        or _is_instance(image, "torch", "Tensor")
    )


def _is_instance(value: object, module: str, name: str) -> bool:
    """Whether a value is of a class that may not be imported. If it is not, nothing can be of it."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)
