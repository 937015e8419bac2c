"""The workloads that NVIDIA DALI's operators can express, on its CPU pipeline.

It gets what makes it fastest: crops that are decoded as crops, parts of labels that are found once and kept, noise for
those samples alone that get some, and a queue that lets it run ahead of the trainer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types

from benchmarks.contenders.base import MEAN, STD
from benchmarks.contenders.dali import Epochs

#: Batches in the making. Its default is 2; with as few, every slow sample would be seen by the trainer.
BATCHES_AHEAD = 8


@pipeline_def  # type: ignore[untyped-decorator]
def _photos(files: list[str]) -> tuple[Any, ...]:
    encoded, numbers = fn.readers.file(
        files=files,
        labels=list(range(len(files))),
        random_shuffle=True,
        pad_last_batch=True,
        name="files",
    )
    images = fn.decoders.image_random_crop(encoded, device="cpu", output_type=types.RGB)
    images = fn.resize(images, resize_x=224, resize_y=224)
    images = fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="CHW",
        mean=[value * 255 for value in MEAN],
        std=[value * 255 for value in STD],
        mirror=fn.random.coin_flip(probability=0.5),
    )
    return numbers, images


@pipeline_def(enable_conditionals=True)  # type: ignore[untyped-decorator]
def _volumes(images: list[str], labels: list[str], side: int, oversampling: float) -> tuple[Any, ...]:
    # With one seed, both readers shuffle alike.
    reading = {"random_shuffle": True, "pad_last_batch": True, "seed": 1}
    image = fn.readers.numpy(files=images, name="files", **reading)
    label = fn.readers.numpy(files=labels, **reading)
    path = fn.get_property(image, key="source_info")
    start, end = fn.segmentation.random_object_bbox(
        label,
        format="start_end",
        background=0,
        k_largest=2,
        foreground_prob=oversampling,
        cache_objects=True,
    )
    shape = [1, side, side, side]
    corner = fn.cast(
        fn.roi_random_crop(label, roi_start=start, roi_end=end, crop_shape=shape), dtype=types.INT32
    )
    image, label = (
        fn.reshape(fn.slice(each, start=corner, shape=shape, axes=[0, 1, 2, 3]), layout="CDHW")
        for each in (image, label)
    )
    turned = {
        name: fn.random.coin_flip(probability=1 / 3) for name in ("depthwise", "vertical", "horizontal")
    }
    image, label = fn.flip(image, **turned), fn.flip(label, **turned)
    if fn.random.coin_flip(probability=0.1, dtype=types.BOOL):
        image = image * (1 + fn.random.uniform(range=(0.7, 1.3)))
    if fn.random.coin_flip(probability=0.1, dtype=types.BOOL):
        image = image + fn.random.normal(image, stddev=fn.random.uniform(range=(0.0, 0.1)))
    return path, image, label


class DaliFeed:
    """A workload through a pipeline of DALI's: the numbers of the samples in each batch."""

    def __init__(
        self, kind: str, folder: Path, batch_size: int, threads: int, side: int, oversampling: float
    ) -> None:
        options = {
            "batch_size": batch_size,
            "num_threads": threads,
            "device_id": None,
            "prefetch_queue_depth": BATCHES_AHEAD,
            "seed": 0,
        }
        if kind == "photos":
            pipeline = _photos([str(path) for path in sorted(folder.rglob("*.jpg"))], **options)
        else:
            images = sorted(str(path) for path in folder.glob("*_x.npy"))
            labels = sorted(str(path) for path in folder.glob("*_y.npy"))
            pipeline = _volumes(images, labels, side, oversampling, **options)
        self._kind = kind
        self._epochs = Epochs(pipeline, "files", batch_size, BATCHES_AHEAD)

    def __iter__(self) -> Iterator[list[int]]:
        for valid, (tells, *_) in self._epochs.batches():
            if self._kind == "photos":
                numbers = np.asarray(tells.as_tensor()).ravel()[:valid].tolist()
            else:
                numbers = [
                    int(Path(np.asarray(tells.at(row)).tobytes().decode()).name.partition("_")[0])
                    for row in range(valid)
                ]
            yield numbers

    def close(self) -> None:
        """Nothing to end: the pipeline goes with its process or its last reference."""
