"""Transforms that move pixels: scaling, cropping, mirroring, padding."""

from __future__ import annotations

from collections.abc import Sequence

from sutler.transforms.base import NotNativeError, Op, Transform
from sutler.transforms.interpolation import InterpolationMode, parse_filter
from sutler.transforms.parameters import (
    Fill,
    check_padding_mode,
    fill_color,
    integer,
    padding_sides,
    pair_of_range,
    probability,
    setup_size,
    size_pair,
)

__all__ = [
    "CenterCrop",
    "Pad",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ResizeShortest",
]

_SIZE_MESSAGE = "Please provide only two dimensions (h, w) for size."


class Resize(Transform):
    """Scale the whole image.

    Args:
        size: the length of the shorter side, or `(height, width)`. None leaves the choice to `max_size`.
        interpolation: a name, an `InterpolationMode`, torchvision's, or a Pillow number.
        max_size: the most the longer side may get. Only with a single length, or with None.
        antialias: whether scaling down averages over all pixels it covers. None means True.

    Examples:
        >>> from sutler import transforms as T
        >>> T.Resize(256)
        Resize(size=[256], interpolation=bilinear, antialias=True)
        >>> T.Resize(256).ops
        [{'op': 'resize', 'size': 256, 'max_size': None, 'interpolation': 'bilinear', 'antialias': True}]
    """

    def __init__(
        self,
        size: int | Sequence[int] | None,
        interpolation: str | int | InterpolationMode | object = InterpolationMode.BILINEAR,
        max_size: int | None = None,
        antialias: bool | None = True,
    ) -> None:
        self.size: list[int] | None
        if size is None:
            if max_size is None:
                raise ValueError(
                    f"max_size must be an integer when size is None, but got {max_size} instead."
                )
            self.size = None
        elif isinstance(size, Sequence) and not isinstance(size, str) and len(size) in (1, 2):
            self.size = [integer(side, "size", least=1) for side in size]
        else:
            try:
                self.size = [integer(size, "size", least=1)]
            except TypeError:
                raise ValueError(
                    "size can be an integer, a sequence of one or two integers, or None, "
                    f"but got {size} instead."
                ) from None
        self.interpolation = parse_filter(interpolation, antialias)
        self.max_size = None if max_size is None else integer(max_size, "max_size", least=1)
        self.antialias = antialias
        if self.max_size is not None and self.size is not None:
            if len(self.size) == 2:
                raise ValueError(
                    "max_size should only be passed if size is None or specifies the length of the smaller "
                    "edge, i.e. size should be an int or a sequence of length 1."
                )
            if self.max_size <= self.size[0]:
                raise ValueError(
                    f"max_size = {self.max_size} must be strictly greater than the requested size for the "
                    f"smaller edge size = {self.size[0]}"
                )

    @property
    def ops(self) -> list[Op]:
        """One resize."""
        if self.size is None:
            raise NotNativeError("a Resize by the longer side alone (size=None) has no native form")
        return [
            {
                "op": "resize",
                "size": self.size[0] if len(self.size) == 1 else list(self.size),
                "max_size": self.max_size,
                "interpolation": self.interpolation.native,
                "antialias": self.antialias is not False,
            }
        ]


class ResizeShortest(Resize):
    """Scale the whole image by its shorter side, as far as the longer one allows: a :class:`Resize` for detection.

    The result is that of torchvision's ``Resize(size, max_size=max_size)``.

    Args:
        size: the length of the shorter side.
        max_size: the most the longer side may get.
        interpolation: a name, an `InterpolationMode`, torchvision's, or a Pillow number.
        antialias: whether scaling down averages over all pixels it covers. None means True.

    Examples:
        >>> from sutler import transforms as T
        >>> T.ResizeShortest(800, max_size=1333).ops == T.Resize(800, max_size=1333).ops
        True
    """

    def __init__(
        self,
        size: int,
        max_size: int | None = None,
        interpolation: str | int | InterpolationMode | object = InterpolationMode.BILINEAR,
        antialias: bool | None = True,
    ) -> None:
        super().__init__(integer(size, "size", least=1), interpolation, max_size, antialias)


class CenterCrop(Transform):
    """Cut the middle out, with black around it where the image is smaller.

    Args:
        size: a side, or `(height, width)`.

    Examples:
        >>> from sutler import transforms as T
        >>> T.CenterCrop(224).ops
        [{'op': 'center_crop', 'size': [224, 224]}]
    """

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = setup_size(size, _SIZE_MESSAGE)

    @property
    def ops(self) -> list[Op]:
        """One centre crop."""
        return [{"op": "center_crop", "size": size_pair(self.size)}]


class RandomCrop(Transform):
    """Cut a window out, anywhere.

    Args:
        size: a side, or `(height, width)`.
        padding: a border added first: one value, `(left and right, top and bottom)` or
            `(left, top, right, bottom)`.
        pad_if_needed: whether an image smaller than the window is padded rather than refused.
        fill: the colour of the border, for `padding_mode="constant"`.
        padding_mode: `"constant"`, `"edge"`, `"reflect"` or `"symmetric"`.

    Examples:
        >>> from sutler import transforms as T
        >>> T.RandomCrop(32, padding=4).ops[0]["padding"]
        [4, 4, 4, 4]
    """

    random = True

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: Fill = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.size = setup_size(size, _SIZE_MESSAGE)
        self.padding = None if padding is None else padding_sides(padding)
        check_padding_mode(padding_mode)
        fill_color(fill)
        self.pad_if_needed = bool(pad_if_needed)
        self.fill = fill
        self.padding_mode = padding_mode

    @property
    def ops(self) -> list[Op]:
        """One random crop."""
        return [
            {
                "op": "random_crop",
                "size": size_pair(self.size),
                "padding": self.padding,
                "pad_if_needed": self.pad_if_needed,
                "fill": fill_color(self.fill),
                "padding_mode": self.padding_mode,
            }
        ]


class RandomResizedCrop(Transform):
    """Cut a random area of random aspect out and scale it.

    Args:
        size: the side that comes out, or `(height, width)`.
        scale: the least and the largest share of the image's area.
        ratio: the least and the largest width over height.
        interpolation: a name, an `InterpolationMode`, torchvision's, or a Pillow number.
        antialias: whether scaling down averages over all pixels it covers. None means True.

    Examples:
        >>> from sutler import transforms as T
        >>> T.RandomResizedCrop(224, scale=(0.35, 1.0))
        RandomResizedCrop(size=(224, 224), scale=(0.35, 1.0), ratio=(0.75, 1.333...), ...)
    """

    random = True

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: str | int | InterpolationMode | object = InterpolationMode.BILINEAR,
        antialias: bool | None = True,
    ) -> None:
        self.size = setup_size(size, _SIZE_MESSAGE)
        if not isinstance(scale, Sequence) or len(scale) != 2:
            raise TypeError("Scale should be a sequence of two floats.")
        if not isinstance(ratio, Sequence) or len(ratio) != 2:
            raise TypeError("Ratio should be a sequence of two floats.")
        check_ranges(scale, ratio)
        self.scale = scale
        self.ratio = ratio
        self.interpolation = parse_filter(interpolation, antialias)
        self.antialias = antialias

    @property
    def ops(self) -> list[Op]:
        """One random resized crop."""
        return [
            {
                "op": "random_resized_crop",
                "size": size_pair(self.size),
                "scale": pair_of_range(self.scale, "scale"),
                "ratio": pair_of_range(self.ratio, "ratio"),
                "interpolation": self.interpolation.native,
                "antialias": self.antialias is not False,
            }
        ]


def check_ranges(scale: Sequence[float], ratio: Sequence[float]) -> None:
    """Refuse areas and aspects that cannot be drawn."""
    low, high = pair_of_range(scale, "scale")
    narrow, wide = pair_of_range(ratio, "ratio")
    if low > high or narrow > wide:
        raise ValueError(
            f"Scale and ratio should be of kind (min, max), got scale={scale} and ratio={ratio}."
        )
    if low < 0:
        raise ValueError(f"Scale is a share of the area and cannot be negative, got {scale}.")
    if narrow <= 0:
        raise ValueError(f"Ratio is width over height and should be positive, got {ratio}.")


class RandomHorizontalFlip(Transform):
    """Mirror left and right.

    Args:
        p: how likely.

    Examples:
        >>> from sutler import transforms as T
        >>> T.RandomHorizontalFlip().ops
        [{'op': 'random_horizontal_flip', 'p': 0.5}]
    """

    random = True

    def __init__(self, p: float = 0.5) -> None:
        self.p = probability(p)

    @property
    def ops(self) -> list[Op]:
        """One horizontal flip."""
        return [{"op": "random_horizontal_flip", "p": float(self.p)}]


class RandomVerticalFlip(Transform):
    """Mirror top and bottom.

    Args:
        p: how likely.

    Examples:
        >>> from sutler import transforms as T
        >>> T.RandomVerticalFlip(0.1).ops
        [{'op': 'random_vertical_flip', 'p': 0.1}]
    """

    random = True

    def __init__(self, p: float = 0.5) -> None:
        self.p = probability(p)

    @property
    def ops(self) -> list[Op]:
        """One vertical flip."""
        return [{"op": "random_vertical_flip", "p": float(self.p)}]


class Pad(Transform):
    """Add a border.

    Args:
        padding: one value, `(left and right, top and bottom)` or `(left, top, right, bottom)`.
        fill: the colour of the border, for `padding_mode="constant"`.
        padding_mode: `"constant"`, `"edge"`, `"reflect"` or `"symmetric"`.

    Examples:
        >>> from sutler import transforms as T
        >>> T.Pad([2, 4], padding_mode="reflect").ops
        [{'op': 'pad', 'padding': [2, 4, 2, 4], 'fill': [0, 0, 0], 'padding_mode': 'reflect'}]
    """

    def __init__(self, padding: int | Sequence[int], fill: Fill = 0, padding_mode: str = "constant") -> None:
        padding_sides(padding)
        check_padding_mode(padding_mode)
        fill_color(fill)
        self.padding = padding if isinstance(padding, int) else list(padding)
        self.fill = fill
        self.padding_mode = padding_mode

    @property
    def ops(self) -> list[Op]:
        """One padding."""
        return [
            {
                "op": "pad",
                "padding": padding_sides(self.padding),
                "fill": fill_color(self.fill),
                "padding_mode": self.padding_mode,
            }
        ]
