"""ResNet-18 for machines without torchvision: the same layers, so that it takes the same time."""

from __future__ import annotations

import torch
from torch import nn


def _convolve(channels_in: int, channels_out: int, side: int, stride: int) -> nn.Sequential:
    """A convolution and the normalisation that stands in for its bias."""
    convolution = nn.Conv2d(channels_in, channels_out, side, stride, side // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels_out))


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.first = _convolve(channels_in, channels_out, 3, stride)
        self.second = _convolve(channels_out, channels_out, 3, 1)
        same = channels_in == channels_out and stride == 1
        self.around: nn.Module = nn.Identity() if same else _convolve(channels_in, channels_out, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.first(images))
        return torch.relu(self.second(inner) + self.around(images))


def resnet18(classes: int = 1000) -> nn.Module:
    layers: list[nn.Module] = [_convolve(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for wider, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(channels, wider, stride), Block(wider, wider, 1)]
        channels = wider
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
