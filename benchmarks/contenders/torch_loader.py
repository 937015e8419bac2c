"""PyTorch's DataLoader with torchvision's two ways of preparing a photo."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2

from benchmarks.contenders.base import MEAN, STD, Contender, Settings


def pil_dataset(settings: Settings) -> ImageFolder:
    """Pillow decodes, torchvision's transforms work on its images: the pipeline of most training scripts."""
    first: list[Any] = (
        [transforms.RandomResizedCrop(settings.size), transforms.RandomHorizontalFlip()]
        if settings.pipeline == "train"
        else [transforms.Resize(settings.shorter_side), transforms.CenterCrop(settings.size)]
    )
    prepare = transforms.Compose([*first, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    return ImageFolder(settings.root, prepare)


def read_jpeg(path: str) -> torch.Tensor:
    """A photo as bytes (channels, height, width)."""
    image: torch.Tensor = decode_jpeg(read_file(path), mode=ImageReadMode.RGB)
    return image


def v2_dataset(settings: Settings) -> ImageFolder:
    """torchvision decodes into a tensor of bytes and its v2 transforms keep it one to the end: its fastest pipeline."""
    first: list[Any] = (
        [v2.RandomResizedCrop(settings.size, antialias=True), v2.RandomHorizontalFlip()]
        if settings.pipeline == "train"
        else [v2.Resize(settings.shorter_side, antialias=True), v2.CenterCrop(settings.size)]
    )
    prepare = v2.Compose([*first, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    return ImageFolder(settings.root, prepare, loader=read_jpeg)


class TorchLoader(Contender):
    """A DataLoader whose worker processes stay between epochs."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        started = time.perf_counter()
        dataset = self.dataset(settings)
        self.listing_seconds = time.perf_counter() - started
        self.loader = DataLoader(
            dataset,
            batch_size=settings.batch_size,
            shuffle=settings.shuffle,
            num_workers=settings.threads,
            persistent_workers=True,
            # The quickest start. Left alone, it would inherit the slow one of the process that each contender runs in.
            multiprocessing_context="fork",
        )

    @abstractmethod
    def dataset(self, settings: Settings) -> ImageFolder:
        """The files and what is done to them."""

    def batches(self, number: int) -> Iterator[tuple[int, int]]:
        for _, labels in self.loader:
            yield len(labels), int(labels.sum())


class TorchPil(TorchLoader):
    """On Pillow's images."""

    def dataset(self, settings: Settings) -> ImageFolder:
        return pil_dataset(settings)


class TorchV2(TorchLoader):
    """On tensors of bytes."""

    def dataset(self, settings: Settings) -> ImageFolder:
        return v2_dataset(settings)
