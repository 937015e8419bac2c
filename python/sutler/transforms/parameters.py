"""The forms in which torchvision takes sizes, paddings, colours and ranges, each brought to one form.

Nothing here knows a particular transform. The messages are torchvision's where torchvision checks the same
thing; what it leaves to fail at the first image is checked here as well, while the line at fault is still on
the stack.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence
from typing import SupportsIndex, cast

__all__ = [
    "dtype_name",
    "fill_color",
    "finite",
    "integer",
    "numbers_of",
    "padding_sides",
    "pair_of_range",
    "probability",
    "setup_size",
    "size_pair",
]

PADDING_MODES = ("constant", "edge", "reflect", "symmetric")

SIDE_MAX = 65_535
"""The longest side: no image format that is read has longer ones."""

Fill = int | float | Sequence[int] | Sequence[float] | None


def integer(value: object, name: str, least: int = 0) -> int:
    """Take a whole number from `least` to `SIDE_MAX`, numpy's integers too."""
    if isinstance(value, bool):
        raise TypeError(f"{name} should be an integer, got {value!r}.")
    try:
        number = operator.index(cast(SupportsIndex, value))
    except TypeError:
        raise TypeError(f"{name} should be an integer, got {value!r}.") from None
    if not least <= number <= SIDE_MAX:
        raise ValueError(f"{name} should be between {least} and {SIDE_MAX}, got {number}.")
    return number


def finite(value: object, name: str) -> float:
    """Take a number that is neither infinite nor missing; a tensor of one number as well."""
    if hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} should be a number, got {value!r}.")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} should be finite, got {number}.")
    return number


def probability(p: object) -> float:
    """Take a probability."""
    if not isinstance(p, numbers.Real) or not 0.0 <= float(p) <= 1.0:
        raise ValueError(f"`p` should be a floating point value in the interval [0.0, 1.0], got {p!r}.")
    return cast(float, p)


def setup_size(size: object, message: str) -> Sequence[int]:
    """Take a side or `(height, width)`, and keep a pair as it was given, as torchvision does.

    Examples:
        >>> setup_size(224, ""), setup_size([224], ""), setup_size([224, 160], "")
        ((224, 224), (224, 224), [224, 160])
    """
    if isinstance(size, numbers.Number):
        side = integer(size, "size", least=1)
        return side, side
    if not isinstance(size, Sequence) or isinstance(size, str):
        raise TypeError(f"{message} Got {size!r}.")
    sides = [integer(side, "size", least=1) for side in size]
    if len(sides) == 1:
        return sides[0], sides[0]
    if len(sides) != 2:
        raise ValueError(message)
    return size


def size_pair(size: Sequence[int]) -> list[int]:
    """The native form of what `setup_size` has accepted."""
    return [int(side) for side in size]


def padding_sides(padding: object) -> list[int]:
    """`[left, top, right, bottom]` of a padding in any of its forms.

    Examples:
        >>> padding_sides(4), padding_sides([1, 2]), padding_sides((1, 2, 3, 4))
        ([4, 4, 4, 4], [1, 2, 1, 2], [1, 2, 3, 4])
    """
    message = f"Padding must be an int or a 1, 2, or 4 element of tuple or list, got {padding}."
    if isinstance(padding, Sequence) and not isinstance(padding, str):
        if len(padding) not in (1, 2, 4):
            raise ValueError(message)
        given = padding
    elif isinstance(padding, numbers.Integral) and not isinstance(padding, bool):
        given = [padding]
    else:
        raise ValueError(message)
    sides = [integer(side, "padding") for side in given]
    if len(sides) == 4:
        return sides
    # One value stands for all sides, two for left and right, top and bottom.
    return [sides[0], sides[-1], sides[0], sides[-1]]


def check_padding_mode(padding_mode: str) -> None:
    """Refuse a padding mode that does not exist."""
    if padding_mode not in PADDING_MODES:
        raise ValueError("Padding mode should be either constant, edge, reflect or symmetric")


def fill_color(fill: object) -> list[int]:
    """Red, green and blue of a fill in any of its forms, cut to whole numbers as Pillow does.

    Examples:
        >>> fill_color(0), fill_color([127.9]), fill_color((124, 116, 104)), fill_color(None)
        ([0, 0, 0], [127, 127, 127], [124, 116, 104], [0, 0, 0])
    """
    if fill is None:
        return [0, 0, 0]
    if isinstance(fill, dict):
        raise TypeError(
            "Argument fill should be one colour: Sutler's pipelines hold images and nothing else."
        )
    if not isinstance(fill, (numbers.Real, tuple, list)):
        raise TypeError("Got inappropriate fill arg, only Numbers, tuples and lists are allowed.")
    channels = [int(finite(value, "fill")) for value in (fill if isinstance(fill, (tuple, list)) else [fill])]
    if len(channels) not in (1, 3):
        raise ValueError(f"Argument fill should be one value or three, for red, green and blue, got {fill}.")
    if not all(0 <= value <= 255 for value in channels):
        raise ValueError(f"Argument fill should be between 0 and 255, got {fill}.")
    return channels * 3 if len(channels) == 1 else channels


def pair_of_range(values: Sequence[float], name: str) -> list[float]:
    """The native form of a `(low, high)` range."""
    return [finite(value, name) for value in values]


def numbers_of(values: object, name: str) -> list[float]:
    """The numbers of a sequence, a numpy array or a tensor, without importing either library.

    Examples:
        >>> numbers_of((0.5, 1), "mean")
        [0.5, 1.0]
    """
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"{name} should be a sequence of numbers, got {values!r}.")
    return [finite(value, name) for value in values]


def dtype_name(dtype: object) -> str:
    """The name of a type of values: a string, numpy's or torch's.

    Examples:
        >>> dtype_name("float32"), dtype_name("uint8")
        ('float32', 'uint8')
    """
    if isinstance(dtype, str):
        name = dtype
    elif isinstance(dtype, type):
        name = dtype.__name__
    else:
        name = str(dtype)
    name = name.removeprefix("torch.")
    if name not in ("uint8", "float32"):
        raise ValueError(
            f'dtype must be "uint8" or "float32", as a name or a torch or numpy dtype, got {dtype!r}.'
        )
    return name
