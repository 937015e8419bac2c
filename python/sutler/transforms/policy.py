"""Transforms that pick from a table of operations: RandAugment and TrivialAugment."""

from __future__ import annotations

from sutler.transforms.base import Op, Transform
from sutler.transforms.interpolation import InterpolationMode, parse_interpolation
from sutler.transforms.parameters import Fill, fill_color, integer

__all__ = ["RandAugment", "TrivialAugmentWide"]

# Rotating and shearing look pixels up one by one, for which the averaging filters mean nothing.
_LOOK_UPS = (
    InterpolationMode.NEAREST,
    InterpolationMode.NEAREST_EXACT,
    InterpolationMode.BILINEAR,
)


def _look_up(interpolation: object) -> InterpolationMode:
    mode = parse_interpolation(interpolation)
    if mode not in _LOOK_UPS:
        raise ValueError(f'"{mode}" cannot rotate or shear an image; take "nearest" or "bilinear".')
    return mode


def _optional_color(fill: Fill) -> list[int] | None:
    return None if fill is None else fill_color(fill)


class RandAugment(Transform):
    """Apply a few random operations, all of one strength.

    Args:
        num_ops: how many operations.
        magnitude: how strong: the position in a row of `num_magnitude_bins` strengths.
        num_magnitude_bins: how many strengths there are.
        interpolation: a name, an `InterpolationMode`, torchvision's, or a Pillow number.
        fill: the colour that comes in where an operation moves the image; None for black.

    Examples:
        >>> from sutler import transforms as T
        >>> T.RandAugment(magnitude=10)
        RandAugment(interpolation=nearest, num_ops=2, magnitude=10, num_magnitude_bins=31)
    """

    random = True

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: str | int | InterpolationMode | object = InterpolationMode.NEAREST,
        fill: Fill = None,
    ) -> None:
        self.interpolation = _look_up(interpolation)
        _optional_color(fill)
        self.fill = fill
        if not isinstance(num_ops, int) or num_ops < 0:
            raise ValueError(f"num_ops should be a non-negative integer, but got {num_ops} instead.")
        self.num_ops = num_ops
        self.magnitude = integer(magnitude, "magnitude")
        self.num_magnitude_bins = integer(num_magnitude_bins, "num_magnitude_bins", least=2)
        if self.magnitude >= self.num_magnitude_bins:
            raise ValueError(
                f"magnitude is a position among {self.num_magnitude_bins} strengths and so at most "
                f"{self.num_magnitude_bins - 1}, got {self.magnitude}."
            )

    @property
    def ops(self) -> list[Op]:
        """One RandAugment."""
        return [
            {
                "op": "rand_augment",
                "num_ops": self.num_ops,
                "magnitude": self.magnitude,
                "num_magnitude_bins": self.num_magnitude_bins,
                "interpolation": self.interpolation.native,
                "fill": _optional_color(self.fill),
            }
        ]


class TrivialAugmentWide(Transform):
    """Apply one random operation of random strength.

    Args:
        num_magnitude_bins: how many strengths there are to draw from.
        interpolation: a name, an `InterpolationMode`, torchvision's, or a Pillow number.
        fill: the colour that comes in where an operation moves the image; None for black.

    Examples:
        >>> from sutler import transforms as T
        >>> T.TrivialAugmentWide().ops
        [{'op': 'trivial_augment_wide', 'num_magnitude_bins': 31, 'interpolation': 'nearest', 'fill': None}]
    """

    random = True

    def __init__(
        self,
        num_magnitude_bins: int = 31,
        interpolation: str | int | InterpolationMode | object = InterpolationMode.NEAREST,
        fill: Fill = None,
    ) -> None:
        self.interpolation = _look_up(interpolation)
        _optional_color(fill)
        self.fill = fill
        self.num_magnitude_bins = integer(num_magnitude_bins, "num_magnitude_bins", least=2)

    @property
    def ops(self) -> list[Op]:
        """One TrivialAugment."""
        return [
            {
                "op": "trivial_augment_wide",
                "num_magnitude_bins": self.num_magnitude_bins,
                "interpolation": self.interpolation.native,
                "fill": _optional_color(self.fill),
            }
        ]
