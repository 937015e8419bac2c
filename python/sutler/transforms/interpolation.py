"""How pixels between pixels are found, by all the names that are in use for it."""

from __future__ import annotations

import enum
import operator

__all__ = ["InterpolationMode", "parse_filter", "parse_interpolation"]


class InterpolationMode(enum.StrEnum):
    """The ways to find pixels between pixels, with torchvision's names.

    Examples:
        >>> InterpolationMode("bicubic") is InterpolationMode.BICUBIC
        True
        >>> InterpolationMode.BILINEAR == "bilinear"
        True
    """

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"

    @property
    def native(self) -> str:
        """The name of the native filter.

        Native "nearest" takes the pixel under the centre, as Pillow does. torchvision calls that
        "nearest-exact".
        """
        return "nearest" if self is InterpolationMode.NEAREST_EXACT else self.value


# Pillow's `Image.Resampling` numbers.
_BY_PILLOW_NUMBER = {
    0: InterpolationMode.NEAREST,
    1: InterpolationMode.LANCZOS,
    2: InterpolationMode.BILINEAR,
    3: InterpolationMode.BICUBIC,
    4: InterpolationMode.BOX,
    5: InterpolationMode.HAMMING,
}


def parse_interpolation(value: object) -> InterpolationMode:
    """Take a name, Sutler's or torchvision's enumeration, or Pillow's number.

    Examples:
        >>> parse_interpolation("bilinear"), parse_interpolation(3)
        (<InterpolationMode.BILINEAR: 'bilinear'>, <InterpolationMode.BICUBIC: 'bicubic'>)
    """
    names = ", ".join(f'"{mode.value}"' for mode in InterpolationMode)
    if isinstance(value, enum.Enum) and not isinstance(value, int):
        value = value.value
    if isinstance(value, str):
        try:
            return InterpolationMode(value)
        except ValueError:
            raise ValueError(f'"{value}" is not an interpolation; take one of {names}.') from None
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            "Argument interpolation should be a name, an InterpolationMode or a Pillow integer, "
            f"got {value!r}."
        ) from None
    if number not in _BY_PILLOW_NUMBER:
        raise ValueError(f"{number} is not one of Pillow's resampling filters; take one of {names}.")
    return _BY_PILLOW_NUMBER[number]


def parse_filter(interpolation: object, antialias: bool | None) -> InterpolationMode:
    """Take an interpolation for scaling, where one of them cannot do without averaging."""
    mode = parse_interpolation(interpolation)
    if mode is InterpolationMode.LANCZOS and antialias is False:
        raise ValueError("InterpolationMode.LANCZOS requires antialias=True")
    return mode
