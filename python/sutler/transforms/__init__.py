"""Transforms with torchvision's names and parameters, as descriptions that the engine runs natively.

    >>> from sutler import transforms as T
    >>> T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.Normalize([0.5], [0.5])]).tail
    []

`lower` does the same for a torchvision pipeline.
"""

from sutler.transforms.base import Lambda, Transform
from sutler.transforms.color import ColorJitter, GaussianBlur, RandomGrayscale
from sutler.transforms.compose import Compose
from sutler.transforms.geometry import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from sutler.transforms.interpolation import InterpolationMode
from sutler.transforms.lowering import Lowered, lower
from sutler.transforms.policy import RandAugment, TrivialAugmentWide
from sutler.transforms.tail import run_tail
from sutler.transforms.values import Normalize, RandomErasing, ToDtype, ToImage, ToPureTensor

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "GaussianBlur",
    "InterpolationMode",
    "Lambda",
    "Lowered",
    "Normalize",
    "Pad",
    "RandAugment",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "ToImage",
    "ToPureTensor",
    "Transform",
    "TrivialAugmentWide",
    "lower",
    "run_tail",
]
