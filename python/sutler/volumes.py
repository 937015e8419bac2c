"""Volumes: a dataset of scans and their labels, of which native threads read just what a crop takes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sutler import _moment, _sutler
from sutler._functions import in_turn, on_behalf_of
from sutler._output import converter, resolve_output
from sutler.datasets import NativeDataset
from sutler.transforms import lower_volumes

#: A volume with more values is refused: a cube of 1024.
VALUES_MAX = 1 << 30
#: A file larger than this is refused. Crops read a small part of a file, so it is more than for other datasets.
BYTES_MAX = 1 << 33


class VolumeFolder(NativeDataset):
    """Volumes and their labels, in pairs of ``.npy``, ``.nii`` or ``.nii.gz`` files anywhere below a folder.

    A sample is an image, a float32 tensor ``[channels, depth, height, width]``, and its labels, a uint8 tensor
    ``[1, depth, height, width]``. Axes come in the order of the file, as NumPy and nibabel have them. A
    :class:`sutler.Loader` makes batches ``[images, labels]`` of them.

    Which file belongs to which shows in their names: ``case_7_x.npy`` and ``case_7_y.npy`` (or ``_image`` and
    ``_label``, ``_imaging`` and ``_segmentation``, ``_img`` and ``_seg``), ``imaging.nii.gz`` and
    ``segmentation.nii.gz`` in a folder of their own, ``images/7.nii.gz`` and ``labels/7.nii.gz``. Other names are left
    out. A file whose partner is missing is a sample, and reading it says so.

    If the first step, but for :class:`~sutler.transforms.ClipNormalize` and the like, is a
    :class:`~sutler.transforms.RandBalancedCrop`, only the slabs of a ``.npy`` or ``.nii`` file that hold the crop
    are read. A ``.nii.gz`` file is read whole and unpacked as far as the crop goes; ``sutler prepare volumes`` makes
    ``.npy`` files of such.

    Args:
        root: The folder below which the files lie.
        transform: A :class:`sutler.transforms.Compose` of transforms on volumes. Functions of a pair ``(image,
            labels)`` may follow, which run in Python and return such a pair.
        extensions: File name endings that count as volumes; by default those above.
        channels: How many channels each image has.
        values_max: Refuse volumes with more values, before memory is taken for them.
        bytes_max: Refuse larger files.
        progress: Show a counter while listing; by default only on a terminal.

    Raises:
        FileNotFoundError: The folder is missing, or there is no pair in it.
        ValueError: Two files are the same part of one sample.

    Examples:
        >>> import sutler, sutler.testing, tempfile
        >>> from sutler import transforms as T
        >>> folder = tempfile.mkdtemp()
        >>> sutler.testing.make_volumes(folder, count=4, shape=(40, 48, 56))
        >>> dataset = sutler.VolumeFolder(folder, transform=T.RandBalancedCrop((32, 32, 32)))
        >>> image, label = dataset[3]
        >>> tuple(image.shape), image.dtype, tuple(label.shape), label.dtype
        ((1, 32, 32, 32), torch.float32, (1, 32, 32, 32), torch.uint8)
        >>> for images, labels in sutler.Loader(dataset, batch_size=2, shuffle=True):
        ...     print(tuple(images.shape), tuple(labels.shape))
        (2, 1, 32, 32, 32) (2, 1, 32, 32, 32)
        (2, 1, 32, 32, 32) (2, 1, 32, 32, 32)
    """

    content = "volumes"

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Any = None,
        extensions: Iterable[str] | None = None,
        *,
        channels: int = 1,
        values_max: int = VALUES_MAX,
        bytes_max: int = BYTES_MAX,
        progress: bool | None = None,
    ) -> None:
        if isinstance(channels, bool) or not isinstance(channels, int) or not 1 <= channels < 1 << 16:
            raise ValueError(f"channels should be a positive number, got {channels!r}")
        self.root = os.fspath(root)
        self.channels = channels
        if isinstance(extensions, str):
            extensions = (extensions,)
        self._listing: dict[str, Any] = {
            "extensions": None if extensions is None else list(extensions),
            "channels": channels,
            "values_max": values_max,
            "bytes_max": bytes_max,
        }
        self._set_up(transform, None, False, progress)

    def _list(self, progress: Callable[[int], None] | None) -> _sutler.Dataset:
        return _sutler.Dataset.volume_folder(self.root, **self._listing, progress=progress)

    def _lower(self) -> None:
        self.lowered = lower_volumes(self.transform)
        self._pipeline = self.pipeline(len(self.lowered.ops))

    def _make_pipeline(self, operations: str) -> _sutler.Pipeline:
        return _sutler.Pipeline.volume(operations)

    @property
    def images(self) -> list[str]:
        """Where every sample's image is."""
        return [self._native.path(index) for index in range(len(self))]

    @property
    def targets(self) -> list[str]:  # type: ignore[override]  # a label is a file here
        """Where every sample's labels are."""
        return [self.labels_path(index) for index in range(len(self))]

    @property
    def samples(self) -> list[tuple[str, str]]:  # type: ignore[override]  # a label is a file here
        """Where every sample's image and labels are."""
        return list(zip(self.images, self.targets, strict=True))

    def labels_path(self, index: int) -> str:
        """Where the labels of sample ``index`` are."""
        path = self._native.labels_path(self._check(index))
        assert path is not None, "a dataset of volumes lists labels"
        return path

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Image and labels as a loader with ``seed=0`` would deliver them in epoch 0.

        Where a dataset written in Python asks for them on behalf of a loader, that loader's seed and epoch count.
        """
        return self._sample(self._check(index), converter(resolve_output(None)))

    def _sample(self, index: int, convert: Callable[[Any], Any]) -> tuple[Any, Any]:
        seed, epoch, repeat = _moment.current()
        draw = {"seed": seed, "epoch": epoch, "repeat": repeat}
        image, label = self._native.load_volume(index, self._pipeline, **draw)
        pair: tuple[Any, Any] = self.finish((convert(image), convert(label)), index, **draw)
        return pair

    def finish(self, image: Any, index: int, *, seed: int, epoch: int, repeat: int = 0) -> Any:
        """What the functions behind the native transforms make of an image and its labels."""
        if not self.lowered.tail:
            return image
        with on_behalf_of(index, seed=seed, epoch=epoch, repeat=repeat):
            for function in in_turn(self.lowered.tail):
                image = function(image)
        if not isinstance(image, (tuple, list)) or len(image) != 2:
            raise TypeError(
                f"a function on volumes takes a pair (image, labels) and returns such a pair; the last one of "
                f"{type(self).__name__}'s transform returned {type(image).__name__}"
            )
        return tuple(image)

    def _describe(self) -> list[str]:
        return [f"Root location: {self.root}"]


def prepare_volumes(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    spacing: Sequence[float] = (1.6, 1.2, 1.2),
    clip: Sequence[float] = (-79.0, 304.0),
    mean: float = 101.0,
    std: float = 76.9,
    min_shape: Sequence[int] = (128, 128, 128),
    channels: int = 1,
    threads: int | None = None,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Makes volumes of different scanners alike, once and before training: what ``sutler prepare volumes`` does.

    Images are resampled to one distance of values (trilinear; labels to the nearest), clipped, brought to a mean and a
    deviation, and padded with their edges. The defaults are those of MLPerf's 3D-UNet on KiTS19. Each pair becomes
    ``NAME_x.npy`` (float32) and ``NAME_y.npy`` (uint8) in ``destination``, which appear only when they are complete.
    What is there already and was made with the same parameters is left alone, so an interrupted run goes on. A file has
    the modification time of its source; where the two differ, the pair is prepared anew.

    Args:
        source: A folder as :class:`VolumeFolder` reads it.
        destination: Where the files go.
        spacing: The distance of values along each axis, in millimetres.
        clip: The least and the largest value.
        mean: What is subtracted then.
        std: What is divided by then.
        min_shape: Volumes that are smaller are padded to this shape.
        channels: How many channels each image has.
        threads: How many volumes to work on at a time; by default one per usable core. Each takes memory for several
            copies of its volume.
        progress: Show a bar; by default only on a terminal.

    Returns:
        ``samples``, ``prepared``, ``unchanged``, and ``broken``: a list of ``path``, ``kind`` and ``reason`` for each
        pair that could not be prepared.

    Raises:
        FileNotFoundError: There is no pair in ``source``.
        ValueError: A parameter makes no sense, or two pairs would have one name.
        OSError: A file cannot be written.

    Examples:
        >>> import sutler, sutler.testing, tempfile
        >>> source, destination = tempfile.mkdtemp(), tempfile.mkdtemp()
        >>> sutler.testing.make_volumes(source, count=2, shape=(20, 24, 28))
        >>> done = sutler.prepare_volumes(source, destination, spacing=(1, 1, 1), min_shape=(32, 32, 32))
        >>> done["prepared"], done["broken"]
        (2, [])
        >>> sutler.VolumeFolder(destination)[0][0].shape
        torch.Size([1, 32, 32, 32])
    """
    report = _sutler.prepare_volumes(
        os.fspath(source),
        os.fspath(destination),
        spacing=_three("spacing", spacing),
        clip=_numbers("clip", clip, 2),
        mean=mean,
        std=std,
        min_shape=_three("min_shape", min_shape),
        channels=channels,
        threads=_sutler.usable_cores() if threads is None else threads,
        progress=progress,
    )
    facts: dict[str, Any] = json.loads(report)
    return facts


def _numbers(name: str, values: Sequence[Any], count: int) -> list[Any]:
    if isinstance(values, str) or len(values) != count:
        raise ValueError(f"{name} should be {count} numbers, got {values!r}")
    return list(values)


def _three(name: str, values: Sequence[Any]) -> list[Any]:
    return _numbers(name, values, 3)


__all__: Sequence[str] = ["VolumeFolder", "prepare_volumes"]
