"""The type change and normalisation that can be left to the device, so that bytes instead of floats cross the bus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def device_finisher(operations: list[dict[str, Any]], device: Any) -> Callable[[Any], Any] | None:
    """A function that applies trailing ``to_dtype`` and ``normalize`` operations to a batch's images on its device."""
    if not operations:
        return None
    import torch

    prepared: list[tuple[str, Any, Any]] = []
    for operation in operations:
        if operation["op"] == "normalize":
            shape = (1, 3, 1, 1)
            mean = torch.tensor(operation["mean"], device=device).view(shape)
            std = torch.tensor(operation["std"], device=device).view(shape)
            prepared.append(("normalize", mean, std))
        else:
            prepared.append(("to_dtype", operation["dtype"], operation["scale"]))

    def to_float(images: Any, scale: bool) -> Any:
        was_bytes = images.dtype == torch.uint8
        images = images.to(torch.float32)
        return images.mul_(1 / 255) if was_bytes and scale else images

    def finish(batch: Any) -> Any:
        images, *rest = batch
        for kind, first, second in prepared:
            if kind == "normalize":
                images = to_float(images, scale=True).sub_(first).div_(second)
            elif first == "float32":
                images = to_float(images, scale=second)
        return type(batch)([images, *rest])

    return finish
