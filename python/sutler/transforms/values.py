"""Transforms that work on values rather than on a picture: types, scaling, erasing."""

from __future__ import annotations

import numbers
from collections.abc import Sequence

from sutler.transforms.base import Op, Transform
from sutler.transforms.geometry import check_ranges
from sutler.transforms.parameters import dtype_name, finite, numbers_of, pair_of_range, probability

__all__ = ["Normalize", "RandomErasing", "ToBGR255", "ToDtype", "ToImage", "ToPureTensor"]


class ToImage(Transform):
    """Say that from here on the image is a tensor.

    Native operations know no difference and skip it. It matters for what a `Lambda` further on is given: a
    tensor (channels, height, width) of 8-bit values instead of a PIL image.

    Examples:
        >>> from sutler import transforms as T
        >>> T.ToImage().ops
        []
    """

    @property
    def ops(self) -> list[Op]:
        """None: a native pipeline holds tensors from the start."""
        return []


class ToPureTensor(Transform):
    """Say that from here on a tensor is torch's own, without torchvision's wrapping.

    Native pipelines hold no wrapped tensors, so there is nothing to do. It is here so that a torchvision
    pipeline that ends with it can be written with Sutler's names.

    Examples:
        >>> from sutler import transforms as T
        >>> T.ToPureTensor().ops
        []
    """

    @property
    def ops(self) -> list[Op]:
        """None: there is nothing to unwrap."""
        return []


class ToDtype(Transform):
    """Change the type of the values.

    Args:
        dtype: `"float32"` or `"uint8"`; numpy's and torch's types of these names do as well.
        scale: whether 0 to 255 becomes 0 to 1.

    Examples:
        >>> from sutler import transforms as T
        >>> T.ToDtype("float32", scale=True)
        ToDtype(dtype=float32, scale=True)
    """

    def __init__(self, dtype: str | object, scale: bool = False) -> None:
        self.dtype = dtype_name(dtype)
        self.scale = bool(scale)

    @property
    def ops(self) -> list[Op]:
        """One change of type."""
        return [{"op": "to_dtype", "dtype": self.dtype, "scale": self.scale}]


class ToBGR255(Transform):
    """Make floats from 0 to 255 of the values, and put blue first and red last.

    Networks whose weights began in Caffe take pictures like that, Mask R-CNN's among them. A `Normalize` behind it
    has its mean and deviation on the same scale and in the same order.

    Examples:
        >>> from sutler import transforms as T
        >>> T.Compose([T.ToBGR255(), T.Normalize([102.9801, 115.9465, 122.7717], [1.0])]).ops[0]
        {'op': 'to_bgr255'}
    """

    @property
    def ops(self) -> list[Op]:
        """One change of type and order."""
        return [{"op": "to_bgr255"}]


class Normalize(Transform):
    """Subtract the mean and divide by the standard deviation, channel by channel.

    Both are on the scale of 0 to 1, or on that of a `ToBGR255` before. Other than in torchvision, 8-bit values need
    no `ToDtype` before: they are brought to the scale of 0 to 1 first.

    Args:
        mean: one value, or three for red, green and blue.
        std: the same; none of them zero.
        inplace: accepted for torchvision's sake; a native pipeline has no copy to save.

    Examples:
        >>> from sutler import transforms as T
        >>> T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]).ops
        [{'op': 'normalize', 'mean': [0.485, 0.456, 0.406], 'std': [0.229, 0.224, 0.225]}]
    """

    def __init__(
        self, mean: Sequence[float] | object, std: Sequence[float] | object, inplace: bool = False
    ) -> None:
        self.mean = numbers_of(mean, "mean")
        self.std = numbers_of(std, "std")
        self.inplace = bool(inplace)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, 3):
                raise ValueError(
                    f"{name} should be one value or three, for red, green and blue, got {values}."
                )
        # What rounds to zero in 32 bits is zero.
        if any(abs(value) <= 2.0**-150 for value in self.std):
            raise ValueError(f"std={self.std} has a zero, leading to division by zero.")

    @property
    def ops(self) -> list[Op]:
        """One normalisation."""
        return [{"op": "normalize", "mean": _three(self.mean), "std": _three(self.std)}]


def _three(values: list[float]) -> list[float]:
    return values * 3 if len(values) == 1 else list(values)


class RandomErasing(Transform):
    """Overwrite a random rectangle.

    Args:
        p: how likely.
        scale: the least and the largest share of the image's area.
        ratio: the least and the largest height over width.
        value: what is written, on the scale the values have at that point: one number, three, or `"random"`
            for normal noise.
        inplace: accepted for torchvision's sake; a native pipeline has no copy to save.

    Examples:
        >>> from sutler import transforms as T
        >>> T.RandomErasing(0.25, value="random").ops
        [{'op': 'random_erasing', 'p': 0.25, 'scale': [0.02, 0.33], 'ratio': [0.3, 3.3], 'value': 'random'}]
    """

    random = True

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | str | Sequence[float] = 0.0,
        inplace: bool = False,
    ) -> None:
        self.p = probability(p)
        if not isinstance(value, (numbers.Real, str, tuple, list)):
            raise TypeError("Argument value should be either a number or str or a sequence")
        if isinstance(value, str) and value != "random":
            raise ValueError("If value is str, it should be 'random'")
        if not isinstance(scale, Sequence) or len(scale) != 2:
            raise TypeError("Scale should be a sequence")
        if not isinstance(ratio, Sequence) or len(ratio) != 2:
            raise TypeError("Ratio should be a sequence")
        check_ranges(scale, ratio)
        if scale[0] < 0 or scale[1] > 1:
            raise ValueError("Scale should be between 0 and 1")
        self.scale = scale
        self.ratio = ratio
        # None stands for noise, as in torchvision.
        self.value: list[float] | None
        if isinstance(value, str):
            self.value = None
        else:
            given = value if isinstance(value, (tuple, list)) else [value]
            self.value = [finite(channel, "value") for channel in given]
            if len(self.value) not in (1, 3):
                raise ValueError("If value is a sequence, it should have either a single value or 3")
        self.inplace = bool(inplace)

    @property
    def ops(self) -> list[Op]:
        """One erasing."""
        return [
            {
                "op": "random_erasing",
                "p": float(self.p),
                "scale": pair_of_range(self.scale, "scale"),
                "ratio": pair_of_range(self.ratio, "ratio"),
                "value": "random" if self.value is None else list(self.value),
            }
        ]
