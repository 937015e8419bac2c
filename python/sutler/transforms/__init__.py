"""Transforms with torchvision's and torchaudio's names and parameters, as descriptions that the engine runs natively.

    >>> from sutler import transforms as T
    >>> T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.Normalize([0.5], [0.5])]).tail
    []

`lower` does the same for a torchvision pipeline.
"""

from sutler.transforms.audio import (
    Dither,
    FrameStack,
    LogMel,
    MelSpectrogram,
    PreEmphasis,
    SpecAugment,
    SpeedPerturb,
    TrimSilence,
)
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
    ResizeShortest,
)
from sutler.transforms.interpolation import InterpolationMode
from sutler.transforms.lowering import Lowered, lower, lower_audio, lower_detection, lower_volumes
from sutler.transforms.policy import RandAugment, TrivialAugmentWide
from sutler.transforms.resample import Resample
from sutler.transforms.tail import run_tail
from sutler.transforms.values import Normalize, RandomErasing, ToBGR255, ToDtype, ToImage, ToPureTensor
from sutler.transforms.volumes import (
    Cast,
    ClipNormalize,
    GaussianNoise,
    RandBalancedCrop,
    RandFlip,
    RandomBrightness,
)

__all__ = [
    "Cast",
    "CenterCrop",
    "ClipNormalize",
    "ColorJitter",
    "Compose",
    "Dither",
    "FrameStack",
    "GaussianBlur",
    "GaussianNoise",
    "InterpolationMode",
    "Lambda",
    "LogMel",
    "Lowered",
    "MelSpectrogram",
    "Normalize",
    "Pad",
    "PreEmphasis",
    "RandAugment",
    "RandBalancedCrop",
    "RandFlip",
    "RandomBrightness",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resample",
    "Resize",
    "ResizeShortest",
    "SpecAugment",
    "SpeedPerturb",
    "ToBGR255",
    "ToDtype",
    "ToImage",
    "ToPureTensor",
    "Transform",
    "TrimSilence",
    "TrivialAugmentWide",
    "lower",
    "lower_audio",
    "lower_detection",
    "lower_volumes",
    "run_tail",
]
