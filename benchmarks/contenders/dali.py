"""NVIDIA DALI on the CPU, in its two ways to crop at random: after decoding, and while decoding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types

from benchmarks.contenders.base import MEAN, STD, Contender, Settings

#: Batches in the making, DALI's own default and what the other contenders have.
BATCHES_AHEAD = 2


def _normalize(images: Any, settings: Settings, mirror: Any) -> Any:
    return fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="CHW",
        crop=(settings.size, settings.size),
        mean=[value * 255 for value in MEAN],
        std=[value * 255 for value in STD],
        mirror=mirror,
    )


@pipeline_def  # type: ignore[untyped-decorator]
def _prepare(settings: Settings, fused: bool) -> tuple[Any, Any]:
    encoded, labels = fn.readers.file(
        file_root=settings.root,
        random_shuffle=settings.shuffle,
        # Without it, the last batch of an epoch would borrow samples from the next, and none would be whole.
        pad_last_batch=True,
        name="files",
    )
    if settings.pipeline == "eval":
        images = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
        images = fn.resize(images, resize_shorter=settings.shorter_side)
        return _normalize(images, settings, 0), labels
    if fused:
        images = fn.decoders.image_random_crop(encoded, device="cpu", output_type=types.RGB)
        images = fn.resize(images, resize_x=settings.size, resize_y=settings.size)
    else:
        images = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
        images = fn.random_resized_crop(images, size=settings.size)
    return _normalize(images, settings, fn.random.coin_flip(probability=0.5)), labels


class Epochs:
    """A pipeline that is run an epoch at a time.

    ``run()`` would prepare batches of the next epoch while another contender has its turn. Scheduling by hand starts
    every epoch empty and ends it drained, as the others do.
    """

    def __init__(self, pipeline: Any, reader: str, batch_size: int, ahead: int = BATCHES_AHEAD) -> None:
        self._pipeline = pipeline
        self._pipeline.build()
        self._samples = self._pipeline.reader_meta(reader)["epoch_size"]
        self._batch_size = batch_size
        self._ahead = ahead
        self._has_run = False

    def batches(self) -> Iterator[tuple[int, Any]]:
        """The outputs of each batch of an epoch, valid until the next is asked for, and how many samples they hold."""
        wanted = -(-self._samples // self._batch_size)
        scheduled = 0
        left = self._samples
        for taken in range(wanted):
            while scheduled < min(wanted, taken + self._ahead):
                scheduled += self._schedule()
            outputs = self._pipeline.share_outputs()
            valid = min(left, self._batch_size)
            left -= valid
            try:
                yield valid, outputs
            finally:
                self._pipeline.release_outputs()

    def _schedule(self) -> int:
        """Starts the next batch; the very first call fills the queue by itself. Returns how many it started."""
        self._pipeline.schedule_run()
        if self._has_run:
            return 1
        self._has_run = True
        return self._ahead


class Dali(Contender):
    """A pipeline over the photos."""

    fused = False

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        pipeline = _prepare(
            settings,
            self.fused,
            batch_size=settings.batch_size,
            num_threads=settings.threads,
            device_id=None,
            prefetch_queue_depth=BATCHES_AHEAD,
            seed=0,
        )
        self._epochs = Epochs(pipeline, "files", settings.batch_size)

    def batches(self, number: int) -> Iterator[tuple[int, int]]:
        for valid, (_, labels) in self._epochs.batches():
            yield valid, int(np.asarray(labels.as_tensor())[:valid].sum())


class DaliPlain(Dali):
    """Decodes whole photos."""


class DaliFused(Dali):
    """Decodes what the crop needs."""

    fused = True
