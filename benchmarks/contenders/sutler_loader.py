"""Sutler's loader, and the native pipelines that the bare loop runs too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import sutler
import torch  # noqa: F401 (or Sutler would, within the first batch)
from sutler import transforms as T  # noqa: N812 (the name that torchvision's users expect)

from benchmarks.contenders.base import MEAN, STD, Contender, Settings


def pipeline(settings: Settings) -> T.Compose:
    """What is done to a photo."""
    first: list[Any] = (
        [T.RandomResizedCrop(settings.size), T.RandomHorizontalFlip()]
        if settings.pipeline == "train"
        else [T.Resize(settings.shorter_side), T.CenterCrop(settings.size)]
    )
    return T.Compose([*first, T.Normalize(MEAN, STD)])


class SutlerLoader(Contender):
    """Batches of torch tensors, as a training loop gets them."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        started = time.perf_counter()
        dataset = sutler.ImageFolder(settings.root, transform=pipeline(settings), progress=False)
        self.listing_seconds = time.perf_counter() - started
        self.loader = sutler.Loader(
            dataset,
            batch_size=settings.batch_size,
            shuffle=settings.shuffle,
            num_workers=settings.threads,
            agent=settings.agent,
        )

    def batches(self, number: int) -> Iterator[tuple[int, int]]:
        self.loader.set_epoch(number)
        for _, labels in self.loader:
            yield len(labels), int(labels.sum())

    def facts(self) -> dict[str, Any]:
        return {"arena_bytes": self.loader.stats()["memory_bytes"]}
