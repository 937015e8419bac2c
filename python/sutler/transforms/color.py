"""Transforms that change what pixels look like and leave them where they are."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence

from sutler.transforms.base import Op, Transform
from sutler.transforms.parameters import finite, pair_of_range, probability, setup_size, size_pair

__all__ = ["ColorJitter", "GaussianBlur", "RandomGrayscale"]

Strength = float | Sequence[float] | None


class ColorJitter(Transform):
    """Change brightness, contrast, saturation and hue by random factors, in random order.

    Args:
        brightness: how much: `x` for factors between `max(0, 1 - x)` and `1 + x`, or `(low, high)`.
        contrast: the same for contrast.
        saturation: the same for saturation.
        hue: `x` for shifts between `-x` and `x`, or `(low, high)`; within -0.5 and 0.5.

    Examples:
        >>> from sutler import transforms as T
        >>> T.ColorJitter(brightness=0.5, hue=0.1)
        ColorJitter(brightness=(0.5, 1.5), hue=(-0.1, 0.1))
    """

    random = True

    def __init__(
        self,
        brightness: Strength = None,
        contrast: Strength = None,
        saturation: Strength = None,
        hue: Strength = None,
    ) -> None:
        self.brightness = _factors(brightness, "brightness")
        self.contrast = _factors(contrast, "contrast")
        self.saturation = _factors(saturation, "saturation")
        self.hue = _factors(hue, "hue", center=0.0, bound=(-0.5, 0.5))

    @property
    def ops(self) -> list[Op]:
        """One colour jitter."""
        ranges = {
            name: None if value is None else list(value)
            for name, value in (
                ("brightness", self.brightness),
                ("contrast", self.contrast),
                ("saturation", self.saturation),
                ("hue", self.hue),
            )
        }
        return [{"op": "color_jitter", **ranges}]


def _factors(
    value: Strength, name: str, center: float = 1.0, bound: tuple[float, float] = (0.0, math.inf)
) -> tuple[float, float] | None:
    """The range to draw a factor from, or None where every factor would change nothing."""
    if value is None:
        return None
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        reach = finite(value, name)
        if reach < 0:
            raise ValueError(f"If {name} is a single number, it must be non negative.")
        low, high = center - reach, center + reach
        if center > 0:  # a factor below zero means nothing; a hue shift does
            low = max(low, 0.0)
    elif isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        low, high = (finite(end, name) for end in value)
    else:
        raise TypeError(f"{name}={value} should be a single number or a sequence with length 2.")
    if not bound[0] <= low <= high <= bound[1]:
        raise ValueError(f"{name} values should be between {bound} and increasing, but got {[low, high]}.")
    return None if low == high == center else (low, high)


class RandomGrayscale(Transform):
    """Drop the colour and keep three channels.

    Args:
        p: how likely.

    Examples:
        >>> from sutler import transforms as T
        >>> T.RandomGrayscale(0.2).ops
        [{'op': 'random_grayscale', 'p': 0.2}]
    """

    random = True

    def __init__(self, p: float = 0.1) -> None:
        self.p = probability(p)

    @property
    def ops(self) -> list[Op]:
        """One random loss of colour."""
        return [{"op": "random_grayscale", "p": float(self.p)}]


class GaussianBlur(Transform):
    """Blur with a Gaussian of random width.

    Args:
        kernel_size: an odd number, or two for x and y.
        sigma: the width in pixels, or the range to draw it from.

    Examples:
        >>> from sutler import transforms as T
        >>> T.GaussianBlur(23, sigma=(0.1, 2.0)).ops
        [{'op': 'gaussian_blur', 'kernel_size': [23, 23], 'sigma': [0.1, 2.0]}]
    """

    random = True

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)) -> None:
        self.kernel_size = setup_size(kernel_size, "Kernel size should be a tuple/list of two integers")
        if any(side % 2 == 0 for side in self.kernel_size):
            raise ValueError("Kernel size value should be an odd and positive number.")
        if isinstance(sigma, numbers.Real) and not isinstance(sigma, bool):
            ends = [finite(sigma, "sigma")]
        elif isinstance(sigma, Sequence) and not isinstance(sigma, str):
            if len(sigma) not in (1, 2):
                raise ValueError(f"If sigma is a sequence its length should be 1 or 2. Got {len(sigma)}")
            ends = pair_of_range(sigma, "sigma")
        else:
            raise TypeError(f"sigma should be a number or a sequence of numbers. Got {type(sigma)}")
        self.sigma = [ends[0], ends[-1]]
        if not 0.0 < self.sigma[0] <= self.sigma[1]:
            raise ValueError(f"sigma values should be positive and of the form (min, max). Got {self.sigma}")

    @property
    def ops(self) -> list[Op]:
        """One blur."""
        return [
            {"op": "gaussian_blur", "kernel_size": size_pair(self.kernel_size), "sigma": list(self.sigma)}
        ]
