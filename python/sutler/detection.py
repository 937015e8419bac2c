"""Pictures with boxes: a dataset over a COCO annotation file, and batches of pictures of similar shape."""

from __future__ import annotations

import bisect
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sutler import _moment, _sutler
from sutler._detection_batches import split_targets
from sutler._epoch_batches import EpochBatches, check_positive
from sutler._functions import in_turn, on_behalf_of
from sutler._output import converter, resolve_output
from sutler._selection import origin_of, selection_of
from sutler._words import name_of
from sutler.datasets import BYTES_MAX, PIXELS_MAX, Io, NativeDataset
from sutler.transforms import lower_detection

if TYPE_CHECKING:
    from torch.utils.data import Subset

#: More than any network divides its pictures by, and a batch of it still fits into memory.
SIZE_DIVISIBLE_MAX = 4096


class CocoDetection(NativeDataset):
    """Pictures with boxes, as a COCO annotation file describes them.

    A sample is a picture, ``[3, height, width]``, and a dictionary of what is on it: ``boxes`` (float32 ``[n, 4]``,
    left, top, right and bottom edge in pixels), ``labels`` (int64 ``[n]``), ``image_id``, ``area`` (float32 ``[n]``,
    in pixels of the picture as it was annotated), ``iscrowd`` (int64 ``[n]``), ``size`` (height and width of the
    picture as it comes out) and ``orig_size`` (as it is in its file). Samples come in the order of their ids, as in
    torchvision.

    A :class:`sutler.Loader` makes batches ``[images, targets]`` of them: pictures in the upper left corners of frames
    of one size, with zeros to the right and below, and a list of the dictionaries.

    Transforms move pictures and boxes together. Outlines (``segmentation``) and keypoints are not read.

    Args:
        root: The folder that the file names start from.
        annFile: The annotation file, such as ``instances_train2017.json``.
        transform: A :class:`sutler.transforms.Compose` or a torchvision (v1 or v2) pipeline of transforms that have a
            native form. Functions of ``(image, target)`` that return both may follow, which run in Python.
        target_transform: A function of the dictionary.
        transforms: Another name for ``transform``: torchvision has this one for transforms of pictures and boxes.
        labels: ``"category_id"`` takes the ids of the annotation file; ``"contiguous"`` counts up from 1 in their
            order, which leaves 0 for what is in no box, as torchvision's models have it.
        keep_empty: Whether pictures without boxes are samples.
        keep_crowds: Whether boxes of crowds are kept; ``iscrowd`` tells them from others.
        invalid_boxes: What happens to a box without area inside its picture: ``"drop"`` leaves it out, ``"raise"``
            refuses the file. A box that only reaches over the edge is cut there.
        size_divisible: Height and width of a batch are multiples of this.
        io: As in :class:`ImageFolder`.
        dct_scaling: As in :class:`ImageFolder`.
        pixels_max: As in :class:`ImageFolder`.
        bytes_max: As in :class:`ImageFolder`.
        progress: As in :class:`ImageFolder`.

    Raises:
        FileNotFoundError: The annotation file is missing.
        ValueError: It is not understood; the message names the entry. Or a transform has no native form.

    Examples:
        >>> import sutler, sutler.testing, tempfile
        >>> from sutler import transforms as T
        >>> folder = tempfile.mkdtemp()
        >>> annotations = sutler.testing.make_detection(folder, count=4)
        >>> dataset = sutler.CocoDetection(folder, annotations, transform=T.Resize(64, max_size=100))
        >>> image, target = dataset[0]
        >>> image.shape[0], target["boxes"].shape[1], sorted(dataset.categories.values())
        (3, 4, ['blue', 'green', 'red'])
        >>> for images, targets in sutler.Loader(dataset, batch_size=4):
        ...     print(len(images), len(targets), images.shape[2] % 32, images.shape[3] % 32)
        4 4 0 0
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        annFile: str | os.PathLike[str],  # noqa: N803 - torchvision's name
        transform: Any = None,
        target_transform: Callable[[dict[str, Any]], Any] | None = None,
        transforms: Any = None,
        *,
        labels: Literal["category_id", "contiguous"] = "category_id",
        keep_empty: bool = True,
        keep_crowds: bool = True,
        invalid_boxes: Literal["drop", "raise"] = "drop",
        size_divisible: int = 32,
        io: Io = "buffered",
        dct_scaling: bool = True,
        pixels_max: int = PIXELS_MAX,
        bytes_max: int = BYTES_MAX,
        progress: bool | None = None,
    ) -> None:
        if transform is not None and transforms is not None:
            raise ValueError(
                "Only transform or transforms can be passed as argument: both name what is done to pictures and boxes"
            )
        for name, value, choices in (
            ("labels", labels, ("category_id", "contiguous")),
            ("invalid_boxes", invalid_boxes, ("drop", "raise")),
        ):
            if value not in choices:
                raise ValueError(f"{name} should be {' or '.join(map(repr, choices))}, got {value!r}")
        check_positive("size_divisible", size_divisible)
        if size_divisible > SIZE_DIVISIBLE_MAX:
            raise ValueError(
                f"size_divisible should be at most {SIZE_DIVISIBLE_MAX}, as batches are at least that wide and high, "
                f"got {size_divisible}"
            )
        self.root = os.fspath(root)
        self.annotations = os.fspath(annFile)
        self.size_divisible = size_divisible
        self._listing: dict[str, Any] = {
            "root": self.root,
            "contiguous": labels == "contiguous",
            "keep_empty": bool(keep_empty),
            "keep_crowds": bool(keep_crowds),
            "refuse_empty_boxes": invalid_boxes == "raise",
            "io": io,
            "pixels_max": pixels_max,
            "bytes_max": bytes_max,
        }
        self._set_up(transforms if transform is None else transform, target_transform, dct_scaling, progress)

    def _list(self, progress: Callable[[int], None] | None) -> _sutler.Dataset:
        return _sutler.Dataset.coco(self.annotations, **self._listing, progress=progress)

    def _lower(self) -> None:
        self.lowered = lower_detection(self.transform)
        self._pipeline = self.pipeline(len(self.lowered.ops))
        if self._pipeline.loses_boxes is not None:
            raise ValueError(
                f"{self._pipeline.loses_boxes} turns and shears pictures, and boxes cannot follow it there; leave it "
                "out"
            )

    @property
    def ids(self) -> list[int]:
        """The id of every picture in the annotation file, in order."""
        return [image_id for image_id, _, _ in self._native.pictures]

    @property
    def categories(self) -> dict[int, str]:
        """From a label to the name of its category."""
        return dict(self._native.categories)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """From a category's name to its label."""
        return {name: label for label, name in self._native.categories}

    @property
    def aspect_ratios(self) -> list[float]:
        """Width over height of every picture, by the annotation file."""
        return [width / height for _, width, height in self._native.pictures]

    @property
    def box_count(self) -> int:
        """How many boxes there are on all pictures."""
        return self._native.box_counts[0]

    @property
    def left_out(self) -> dict[str, int]:
        """How much of the annotation file was left out, by reason.

        ``invalid_boxes`` have no area inside their picture, ``crowds`` and ``empty_images`` are those you did not want
        to keep, and ``strays`` are annotations of pictures that the file does not list.
        """
        _, invalid, crowds, strays, empty = self._native.box_counts
        return {"invalid_boxes": invalid, "crowds": crowds, "strays": strays, "empty_images": empty}

    @property
    def targets(self) -> list[int]:
        """Not there: a picture has many labels."""
        raise AttributeError(
            "a picture with boxes has no single label; dataset[i][1]['labels'] has those of its boxes"
        )

    @property
    def samples(self) -> list[tuple[str, int]]:
        """Not there: a picture has many labels."""
        raise AttributeError("a picture with boxes has no single label; dataset.path(i) tells where it is")

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """The sample as a loader with ``seed=0`` would deliver it in epoch 0, before it is put in a frame.

        Where a dataset written in Python asks for it on behalf of a loader, that loader's seed and epoch count.
        """
        return self._sample(self._check(index), converter(resolve_output(None)))

    def _sample(self, index: int, convert: Callable[[Any], Any]) -> tuple[Any, Any]:
        seed, epoch, repeat = _moment.current()
        draw = {"seed": seed, "epoch": epoch, "repeat": repeat}
        array, columns = self._native.load_detection(index, self._pipeline, **draw)
        (target,) = split_targets(columns, convert)
        image, target = self.finish_detection(convert(array), target, index, **draw)
        return image, target if self.target_transform is None else self.target_transform(target)

    def finish_detection(
        self, image: Any, target: dict[str, Any], index: int, *, seed: int, epoch: int, repeat: int = 0
    ) -> tuple[Any, Any]:
        """What the functions behind the native transforms make of a picture and what is on it."""
        if not self.lowered.tail:
            return image, target
        with on_behalf_of(index, seed=seed, epoch=epoch, repeat=repeat):
            for function in in_turn(self.lowered.tail):
                made = function(image, target)
                if not isinstance(made, tuple) or len(made) != 2:
                    raise TypeError(
                        f"{name_of(function)} should return the picture and the target it was called with, or others; "
                        f"it returned {type(made).__name__}"
                    )
                image, target = made
        if isinstance(target, dict) and "size" in target:
            size, made_size = target["size"], tuple(image.shape[-2:])
            target["size"] = (
                size.new_tensor(made_size) if hasattr(size, "new_tensor") else np.array(made_size, np.int64)
            )
        return image, target

    def _describe(self) -> list[str]:
        return [
            f"Root location: {self.root}",
            f"Annotations: {self.annotations}",
            f"Boxes: {self.box_count} in {len(self._native.categories)} categories",
        ]


class AspectGroups(EpochBatches):
    """Batches of pictures of similar shape, for a loader's ``batch_sampler``: upright ones apart from oblong ones.

    Every picture of a batch is followed by zeros up to the widest and the highest, and there are far fewer of them if
    all are of one kind. Which pictures come together, and in which order, is drawn anew in every epoch. Every picture
    is in one batch; each group has at most one that is incomplete, and those come last. Ranks get batches of one group
    in each step, and equally many. The loader tells it the epoch, and resumes exactly.

    Args:
        dataset: A :class:`CocoDetection`, or a ``Subset`` of one, or the width over height of every sample.
        batch_size: Samples in a batch.
        thresholds: Where groups end: a sample belongs behind every threshold that its ratio is greater than.
        shuffle: If not, batches come in the order of their first samples.
        drop_last: Leave incomplete batches out.
        seed: With the epoch, decides everything.
        rank: This process's number in its job; from ``torch.distributed`` when that is initialised.
        world_size: How many processes the job has; likewise.

    Examples:
        >>> import sutler
        >>> sampler = sutler.AspectGroups([1.5, 0.7, 1.3, 0.8, 1.0], batch_size=2, shuffle=False)
        >>> list(sampler)
        [[0, 2], [1, 3], [4]]
    """

    made_of = "shape"

    def __init__(
        self,
        dataset: CocoDetection | Subset[Any] | Sequence[float],
        batch_size: int,
        *,
        thresholds: Sequence[float] = (1.0,),
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__(
            batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed, rank=rank, world_size=world_size
        )
        origin = origin_of(dataset)
        if isinstance(origin, NativeDataset) and not isinstance(origin, CocoDetection):
            raise TypeError(
                f"{type(origin).__name__} does not know the shapes of its pictures without reading them; pass the "
                "width over height of every sample instead"
            )
        part = selection_of(dataset)
        given: Any = origin.aspect_ratios if isinstance(origin, CocoDetection) else dataset
        ratios = [float(ratio) for ratio in (given if part is None else [given[n] for n in part.numbers])]
        try:
            self.thresholds = sorted(float(threshold) for threshold in thresholds)
        except (TypeError, ValueError):
            raise TypeError(
                f"thresholds should be a list of numbers such as [1.0], got {thresholds!r}"
            ) from None
        if not all(0 < threshold < math.inf for threshold in self.thresholds):  # nor a NaN
            raise ValueError(
                "thresholds are widths over heights, and should be positive numbers such as 1.0, which is between "
                f"upright and oblong; got {thresholds!r}"
            )
        if not all(ratio > 0 for ratio in ratios):  # nor a NaN
            raise ValueError(
                "a picture's width over height should be a positive number, and one of these is not"
            )
        self._groups = [bisect.bisect_left(self.thresholds, ratio) for ratio in ratios]

    @property
    def samples(self) -> int:
        """How many samples its batches are drawn from."""
        return len(self._groups)

    def _batches(self, rank: int, world_size: int) -> list[list[int]]:
        return _sutler.group_batches(
            self._groups,
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            seed=self.seed,
            epoch=self.epoch,
            rank=rank,
            world_size=world_size,
        )

    def __len__(self) -> int:
        _, world_size = self._place()
        step = self.batch_size * world_size
        sizes = Counter(self._groups).values()
        return sum(size // step if self.drop_last else -(-size // step) for size in sizes)


__all__: Sequence[str] = ["AspectGroups", "CocoDetection"]
