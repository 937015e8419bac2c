"""Datasets whose samples are read, decoded and transformed by native threads."""

from __future__ import annotations

import copy
import json
import operator
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from sutler import _moment, _sutler
from sutler._functions import on_behalf_of
from sutler._output import converter, resolve_output
from sutler._words import counted
from sutler.transforms import Lowered, lower, run_tail
from sutler.transforms.lowering import flatten
from sutler.transforms.media import MediaTransform

if TYPE_CHECKING:
    # So that type checkers let one be the dataset of a `Subset`; PyTorch itself does not look, and need not be there.
    from torch.utils.data import Dataset

    DatasetType = Dataset[tuple[Any, Any]]
else:
    DatasetType = object

Io = Literal["buffered", "direct"]

#: Pillow's threshold for a decompression bomb error: a picture with more pixels is refused.
PIXELS_MAX = 178_956_970
#: A file larger than this is refused before it is read.
BYTES_MAX = 1 << 30


def _listing_progress(enabled: bool | None) -> Callable[[int], None] | None:
    """A counter on the terminal, for listings that take longer than a moment."""
    if enabled is False or (enabled is None and not sys.stderr.isatty()):
        return None

    def show(files: int) -> None:
        sys.stderr.write(f"\rlisting: {files:,} files")
        sys.stderr.flush()

    return show


class NativeDataset(DatasetType):
    """What all native datasets have in common; not made directly."""

    #: What the files hold, in a word for messages.
    content: str = "images"
    _native: _sutler.Dataset
    #: The transform as it was given.
    transform: Any
    #: What is done to the class index, or to what is on a picture, if anything.
    target_transform: Callable[[Any], Any] | None
    #: The transform split into native operations and what runs in Python.
    lowered: Lowered
    #: What follows the shorter samples of a batch, where samples differ in length and are padded.
    padding_value: float | None = None
    #: Whether an agent can prepare them.
    served_by_agents = True

    def _set_up(
        self,
        transform: Any,
        target_transform: Callable[[Any], Any] | None,
        dct_scaling: bool,
        progress: bool | None,
    ) -> None:
        self._native = self._list(_listing_progress(progress))
        self.transform = transform
        self.target_transform = target_transform
        self.dct_scaling = dct_scaling
        self._lower()
        self.lowered.announce(stacklevel=3)

    def _lower(self) -> None:
        for step in flatten(self.transform):
            if isinstance(step, MediaTransform):
                raise TypeError(
                    f"{type(step).__name__} is a transform on {step.medium}, and {type(self).__name__} holds images; "
                    f"take it out of the transform, or read the folder with {step.dataset} if it holds {step.medium}"
                )
        self.lowered = lower(self.transform)
        self._pipeline = self.pipeline(len(self.lowered.ops))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "transform" and "lowered" in vars(self):
            raise AttributeError(
                f"the transform of this {type(self).__name__} is fixed, as native threads have been told of it; "
                "with_transform(...) makes another dataset of the same samples, for another loader"
            )
        super().__setattr__(name, value)

    def with_transform(self, transform: Any) -> Self:
        """Another dataset of the same samples, which are transformed otherwise."""
        other = self._transformed_by(transform)
        other.lowered.announce(stacklevel=2)
        return other

    def _transformed_by(self, transform: Any) -> Self:
        other = copy.copy(self)
        vars(other)["transform"] = transform
        other._lower()
        return other

    def _list(self, progress: Callable[[int], None] | None) -> _sutler.Dataset:
        """Lists the samples."""
        raise NotImplementedError(f"{type(self).__name__} is not made directly")

    def __getstate__(self) -> dict[str, Any]:
        """What travels to another process: how to list the samples again, and how to know them."""
        ours = {"_native", "_pipeline", "lowered"}
        return {key: value for key, value in vars(self).items() if key not in ours} | {
            "_expected": self.fingerprint
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        expected = state.pop("_expected")
        vars(self).update(state)
        self._native = self._list(None)
        if self.fingerprint != expected:
            raise ValueError(
                f"the dataset was sent with fingerprint {expected[:8]} and is {self.fingerprint[:8]} here "
                f"({counted(len(self), 'sample')}); both processes need the same files under the same names"
            )
        self._lower()

    def pipeline(self, operations: int) -> _sutler.Pipeline:
        """The checked native pipeline of the first ``operations`` operations."""
        return self._make_pipeline(json.dumps(self.lowered.ops[:operations]))

    def _make_pipeline(self, operations: str) -> _sutler.Pipeline:
        return _sutler.Pipeline(operations, dct_scaling=self.dct_scaling)

    def __len__(self) -> int:
        return len(self._native)

    @property
    def classes(self) -> list[str]:
        """The names of the classes, sorted; a label is an index into them."""
        return self._native.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """From a class's name to its label."""
        return {name: index for index, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[int]:
        """Every sample's label, in order."""
        return self._native.labels()

    @property
    def samples(self) -> list[tuple[str, int]]:
        """Every sample's path and label, in order."""
        return [(self._native.path(index), label) for index, label in enumerate(self.targets)]

    @property
    def fingerprint(self) -> str:
        """A hash of the listing: two datasets with the same paths, labels and classes share it."""
        return self._native.fingerprint

    def path(self, index: int) -> str:
        """Where sample ``index`` comes from."""
        return self._native.path(self._check(index))

    def __getitem__(self, index: int) -> Any:
        """The sample as a loader with ``seed=0`` would deliver it in epoch 0, and its label.

        Where a dataset written in Python asks for it on behalf of a loader, that loader's seed and epoch count.
        """
        return self._sample(self._check(index), converter(resolve_output(None)))

    def _sample(self, index: int, convert: Callable[[Any], Any]) -> Any:
        """A sample whose native part the functions behind it get as ``convert`` makes it."""
        seed, epoch, repeat = _moment.current()
        loaded = self._native.load(index, self._pipeline, seed=seed, epoch=epoch, repeat=repeat)
        label = self._native.label(index)
        image = self.finish(convert(loaded), index, seed=seed, epoch=epoch, repeat=repeat)
        return image, self.target_transform(label) if self.target_transform else label

    def finish(self, image: Any, index: int, *, seed: int, epoch: int, repeat: int = 0) -> Any:
        """What the Python part of the transform makes of a natively prepared (channels, height, width) image."""
        if not self.lowered.tail:
            return image
        array = np.asarray(image)
        if self.lowered.tail_input != "tensor_float32":
            array = array.transpose(1, 2, 0)
        with on_behalf_of(index, seed=seed, epoch=epoch, repeat=repeat):
            return run_tail(self.lowered.tail, self.lowered.tail_input, array)

    def _check(self, index: int) -> int:
        try:
            index = operator.index(index)  # NumPy's integers, and tensors without dimensions
        except TypeError:
            raise TypeError(
                f"samples are named by integers, got {index!r}; a loader takes a slice of a dataset as a "
                "torch.utils.data.Subset"
            ) from None
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"sample {index} of a dataset with {counted(len(self), 'sample')}")
        return position

    def __repr__(self) -> str:
        lines = [f"Dataset {type(self).__name__}", f"    Number of datapoints: {len(self)}"]
        lines += [f"    {line}" for line in self._describe()]
        if self.transform is not None:
            lines.append(f"    Transform: {self.transform!r}")
        return "\n".join(lines)

    def _describe(self) -> list[str]:
        return []


class ImageFolder(NativeDataset):
    """Images in one folder per class, as ``torchvision.datasets.ImageFolder`` reads them.

    Samples come in torchvision's order and with its labels: classes are the sorted names of the folders below
    ``root``, and each class's files are listed depth first, sorted.

    Args:
        root: The folder that holds the class folders.
        transform: A :class:`sutler.transforms.Compose`, a torchvision (v1 or v2) pipeline, or any callable. What is
            known runs in native threads; the rest runs in Python on the native result, and a warning says so.
        target_transform: A function of the label.
        extensions: File name endings that count as images; torchvision's by default.
        allow_empty: Accept class folders without images.
        io: ``"buffered"`` reads through the page cache, ``"direct"`` past it.
        dct_scaling: Let JPEGs be decoded at 1/2, 1/4 or 1/8 where the crop is at least that much larger than the
            result. Faster; turn it off for results that are faithful to a full decode.
        pixels_max: Refuse pictures with more pixels, before memory is taken for them.
        bytes_max: Refuse larger files.
        progress: Show a counter while listing; by default only on a terminal.

    Raises:
        FileNotFoundError: The folder is missing, has no class folders, or a class has no images.

    Examples:
        >>> import sutler, sutler.testing, tempfile
        >>> from sutler import transforms as T
        >>> folder = tempfile.mkdtemp()
        >>> sutler.testing.make_photos(folder, count=6, classes=2)
        >>> dataset = sutler.ImageFolder(folder, transform=T.Compose([T.Resize(64), T.CenterCrop(64)]))
        >>> len(dataset), dataset.classes
        (6, ['class_0', 'class_1'])
        >>> image, label = dataset[5]
        >>> tuple(image.shape), label
        ((3, 64, 64), 1)
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Any = None,
        target_transform: Callable[[int], Any] | None = None,
        extensions: Iterable[str] | None = None,
        *,
        allow_empty: bool = False,
        io: Io = "buffered",
        dct_scaling: bool = True,
        pixels_max: int = PIXELS_MAX,
        bytes_max: int = BYTES_MAX,
        progress: bool | None = None,
    ) -> None:
        self.root = os.fspath(root)
        if isinstance(extensions, str):
            extensions = (extensions,)
        self._listing: dict[str, Any] = {
            "extensions": None if extensions is None else list(extensions),
            "allow_empty": allow_empty,
            "io": io,
            "pixels_max": pixels_max,
            "bytes_max": bytes_max,
        }
        self._set_up(transform, target_transform, dct_scaling, progress)

    def _list(self, progress: Callable[[int], None] | None) -> _sutler.Dataset:
        return _sutler.Dataset.image_folder(self.root, **self._listing, progress=progress)

    @property
    def imgs(self) -> list[tuple[str, int]]:
        """The same as :attr:`samples`, under torchvision's other name for it."""
        return self.samples

    def _describe(self) -> list[str]:
        return [f"Root location: {self.root}"]


class Manifest(NativeDataset):
    r"""Images named by a CSV or JSON-lines file with a ``path`` and a ``label`` for each.

    Paths are relative to ``root``, by default the manifest's own folder. Labels may be integers, which are used as
    they are, or names, which are sorted into classes. The same file may be listed many times.

    Args:
        path: The manifest: ``.csv``, ``.tsv``, ``.jsonl`` or ``.ndjson``.
        transform: As in :class:`ImageFolder`.
        target_transform: As in :class:`ImageFolder`.
        columns: The names of the columns, for a CSV file whose first line does not name them; one must be
            ``"path"``, one may be ``"label"``.
        root: Where relative paths start.
        io: As in :class:`ImageFolder`.
        dct_scaling: As in :class:`ImageFolder`.
        pixels_max: As in :class:`ImageFolder`.
        bytes_max: As in :class:`ImageFolder`.
        progress: As in :class:`ImageFolder`.

    Raises:
        FileNotFoundError: The manifest is missing.
        ValueError: A line is not understood; the message names it.

    Examples:
        >>> import pathlib, sutler, sutler.testing, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> sutler.testing.make_photos(folder, count=2, classes=1)
        >>> rows = [f"{p.relative_to(folder)},cat" for p in sorted(folder.rglob("*.jpg"))]
        >>> _ = (folder / "list.csv").write_text("path,label\n" + "\n".join(rows))
        >>> sutler.Manifest(folder / "list.csv").classes
        ['cat']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        transform: Any = None,
        target_transform: Callable[[int], Any] | None = None,
        *,
        columns: Sequence[str] | None = None,
        root: str | os.PathLike[str] | None = None,
        io: Io = "buffered",
        dct_scaling: bool = True,
        pixels_max: int = PIXELS_MAX,
        bytes_max: int = BYTES_MAX,
        progress: bool | None = None,
    ) -> None:
        self.manifest = os.fspath(path)
        self._listing: dict[str, Any] = {
            "columns": None if columns is None else list(columns),
            "root": None if root is None else os.fspath(root),
            "io": io,
            "pixels_max": pixels_max,
            "bytes_max": bytes_max,
        }
        self._set_up(transform, target_transform, dct_scaling, progress)

    def _list(self, progress: Callable[[int], None] | None) -> _sutler.Dataset:
        return _sutler.Dataset.manifest(self.manifest, **self._listing, progress=progress)

    def _describe(self) -> list[str]:
        return [f"Manifest: {self.manifest}"]


__all__: Sequence[str] = ["ImageFolder", "Manifest", "NativeDataset"]
