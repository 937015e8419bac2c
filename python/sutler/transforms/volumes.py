"""Transforms on volumes: those of MLPerf's 3D-UNet, with its defaults. Each works on an image and its labels alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from sutler.transforms.base import Medium, Op
from sutler.transforms.media import MediaTransform

__all__ = [
    "Cast",
    "ClipNormalize",
    "GaussianNoise",
    "RandBalancedCrop",
    "RandFlip",
    "RandomBrightness",
    "VolumeTransform",
]


class VolumeTransform(MediaTransform):
    """The base of the transforms on volumes. They describe a step, which native threads of a loader run."""

    medium: Medium = "volumes"


class RandBalancedCrop(VolumeTransform):
    """Cut a block out of image and labels: at times over something that is labelled, else anywhere.

    To place it over something, one of the labels above 0 that the volume has is drawn, and one of the two largest
    connected parts of it: connected along the axes, not over corners, and the largest by the block they fill. What the
    crop has beyond the part is split at random over both sides, as far as the volume goes; if the part is longer than
    the crop, the crop lies somewhere in it. Volumes without labels are cropped anywhere. Where the parts are is found
    once for each sample and kept.

    Args:
        patch_size: the three sides of the block; a single number stands for all.
        oversampling: how likely it is placed over something.

    Examples:
        >>> from sutler import transforms as T
        >>> T.RandBalancedCrop(128)
        RandBalancedCrop(patch_size=[128, 128, 128], oversampling=0.4)
    """

    random = True

    def __init__(self, patch_size: int | Sequence[int] = (128, 128, 128), oversampling: float = 0.4) -> None:
        sides = list(patch_size) if isinstance(patch_size, Iterable) else [patch_size] * 3
        if len(sides) != 3 or any(not isinstance(side, int) or side < 1 for side in sides):
            raise ValueError(
                f"patch_size should be one whole number above 0 or three, depth, height and width, got {patch_size!r}"
            )
        self.patch_size = sides
        self.oversampling = oversampling
        self._check()

    @property
    def ops(self) -> list[Op]:
        """One crop."""
        return [{"op": "rand_balanced_crop", **vars(self)}]


class RandFlip(VolumeTransform):
    """Turn each axis around, or leave it as it is, independently of the others.

    Args:
        p: how likely an axis is turned around.
        axes: which axes may be: 0 is depth, 1 height, 2 width.

    Examples:
        >>> from sutler import transforms as T
        >>> T.RandFlip(p=0.5, axes=[2]).ops
        [{'op': 'rand_flip', 'p': 0.5, 'axes': [2]}]
    """

    random = True

    def __init__(self, p: float = 1 / 3, axes: Sequence[int] = (0, 1, 2)) -> None:
        self.p = p
        self.axes = list(axes)
        self._check()

    @property
    def ops(self) -> list[Op]:
        """Up to three flips."""
        return [{"op": "rand_flip", **vars(self)}]


class Cast(VolumeTransform):
    """Say of which type values are to be. They are so already: images are float32 and labels uint8.

    It is there so that MLPerf's chain can be written as it is. For another type, convert in the training step or in a
    :class:`Lambda` behind it.

    Args:
        image: ``"float32"``.
        label: ``"uint8"``.

    Examples:
        >>> from sutler import transforms as T
        >>> T.Cast()
        Cast(image=float32, label=uint8)
    """

    def __init__(self, image: Literal["float32"] = "float32", label: Literal["uint8"] = "uint8") -> None:
        if (image, label) != ("float32", "uint8"):
            raise ValueError(
                f"Cast knows float32 images and uint8 labels, got {image!r} and {label!r}; convert in the training "
                "step, or in a Lambda at the end of the transform"
            )
        self.image = image
        self.label = label

    @property
    def ops(self) -> list[Op]:
        """One conversion."""
        return [{"op": "cast", **vars(self)}]


class RandomBrightness(VolumeTransform):
    """Multiply the image by 1 + a random number.

    Args:
        factor: the number is between 1 - ``factor`` and 1 + ``factor``.
        p: how likely it happens at all.

    Examples:
        >>> from sutler import transforms as T
        >>> T.RandomBrightness(factor=0.3, p=0.1).ops
        [{'op': 'random_brightness', 'factor': 0.3, 'p': 0.1}]
    """

    random = True

    def __init__(self, factor: float = 0.3, p: float = 0.1) -> None:
        self.factor = factor
        self.p = p
        self._check()

    @property
    def ops(self) -> list[Op]:
        """One multiplication."""
        return [{"op": "random_brightness", **vars(self)}]


class GaussianNoise(VolumeTransform):
    """Add normal noise to the image, of a deviation that is random itself.

    Args:
        mean: the mean of the noise.
        std: its deviation is between 0 and this.
        p: how likely it happens at all.

    Examples:
        >>> from sutler import transforms as T
        >>> T.GaussianNoise()
        GaussianNoise(mean=0.0, std=0.1, p=0.1)
    """

    random = True

    def __init__(self, mean: float = 0.0, std: float = 0.1, p: float = 0.1) -> None:
        self.mean = mean
        self.std = std
        self.p = p
        self._check()

    @property
    def ops(self) -> list[Op]:
        """One addition."""
        return [{"op": "gaussian_noise", **vars(self)}]


class ClipNormalize(VolumeTransform):
    """Cut the image's values off at both ends, subtract a mean and divide by a deviation.

    The defaults are those for kidneys in CT scans, in Hounsfield units.

    Args:
        min: the least value that is kept.
        max: the largest.
        mean: what is subtracted then.
        std: what is divided by then.

    Examples:
        >>> from sutler import transforms as T
        >>> T.ClipNormalize()
        ClipNormalize(min=-79.0, max=304.0, mean=101.0, std=76.9)
    """

    def __init__(
        self,
        min: float = -79.0,  # noqa: A002 - the word users expect
        max: float = 304.0,  # noqa: A002
        mean: float = 101.0,
        std: float = 76.9,
    ) -> None:
        self.min = min
        self.max = max
        self.mean = mean
        self.std = std
        self._check()

    @property
    def ops(self) -> list[Op]:
        """One normalisation."""
        return [{"op": "clip_normalize", **vars(self)}]
