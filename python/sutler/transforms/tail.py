"""The part of a pipeline that runs in Python, behind the native operations."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from sutler._functions import in_turn
from sutler._seeding import seeded

if TYPE_CHECKING:
    import numpy as np

    from sutler.transforms.torchvision import Kind

__all__ = ["run_tail"]


def run_tail(
    tail: Iterable[Callable[[Any], Any]],
    tail_input: Kind,
    array: np.ndarray[Any, Any],
    seed: int | None = None,
) -> Any:
    """Run the Python tail of a pipeline over what the native operations made.

    Args:
        tail: the functions, from `lower(...).tail`.
        tail_input: what they take, from `lower(...).tail_input`.
        array: the image: (height, width, channels) of 8-bit values, or (channels, height, width) of float32
            for `"tensor_float32"`. It is not copied if it can be written to, so functions may write to it.
        seed: where random numbers come from; the same seed gives the same result. None draws from the
            generators as they are.

    Returns:
        What the last function returned; a PIL image as a tensor of 8-bit values, as native pipelines end.
        Without torch, arrays stand for tensors.

    Examples:
        >>> import numpy as np
        >>> image = np.full((2, 3, 3), 255, dtype=np.uint8)
        >>> tuple(run_tail([lambda picture: picture.resize((6, 4))], "pil", image).shape)
        (3, 4, 6)
    """
    value = _for_tail(tail_input, array)
    with contextlib.nullcontext() if seed is None else seeded(seed):
        for function in in_turn(tail):
            value = function(value)
    return _from_tail(value)


def _for_tail(tail_input: Kind, array: np.ndarray[Any, Any]) -> Any:
    expected = "float32" if tail_input == "tensor_float32" else "uint8"
    if array.dtype.name != expected or array.ndim != 3:
        raise ValueError(
            f"A tail that takes {tail_input} needs a {expected} array of three dimensions, got "
            f"{array.dtype.name} and shape {array.shape}."
        )
    if tail_input == "pil":
        return importlib.import_module("PIL.Image").fromarray(array)
    channels_first = array if tail_input == "tensor_float32" else array.transpose(2, 0, 1)
    return _tensor(channels_first)


def _from_tail(value: Any) -> Any:
    pillow = sys.modules.get("PIL.Image")
    if pillow is None or not isinstance(value, pillow.Image):
        return value
    numpy = importlib.import_module("numpy")
    array = numpy.array(value)
    return _tensor(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))


def _tensor(channels_first: np.ndarray[Any, Any]) -> Any:
    numpy = importlib.import_module("numpy")
    # A tensor over memory that must not be written to cannot say so; it gets its own.
    writable = numpy.require(channels_first, requirements=["C", "W"])
    torch = _torch()
    return writable if torch is None else torch.from_numpy(writable)


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None
