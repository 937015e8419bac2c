"""Sound: a dataset whose files are read, decoded and transformed by native threads, and batches of similar length."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sutler import _sutler
from sutler._epoch_batches import EpochBatches, check_positive
from sutler._functions import in_turn, on_behalf_of
from sutler._selection import origin_of, selection_of
from sutler.datasets import BYTES_MAX, Io, NativeDataset
from sutler.text import TextLines
from sutler.transforms import lower_audio

if TYPE_CHECKING:
    from torch.utils.data import Subset

#: A clip with more values in all channels is refused: four and a half hours of speech, a gibibyte when decoded.
VALUES_MAX = 1 << 28


class AudioFolder(NativeDataset):
    """Sound files in one folder per class: WAV, FLAC, MP3 and Ogg Vorbis.

    A sample is the signal, a float32 tensor ``[values]`` between -1 and 1, or ``[features, frames]`` behind a
    spectrogram, and the index of its folder. A :class:`sutler.Loader` makes batches ``[padded, lengths, labels]`` of
    them: clips that are shorter than the longest of their batch are followed by ``padding_value``.

    Args:
        root: The folder that holds the class folders.
        transform: A :class:`sutler.transforms.Compose` of transforms on sound. Functions may follow, which run in
            Python.
        target_transform: A function of the label.
        extensions: File name endings that count as sound; by default those of the formats above.
        mono: Mix all channels to their mean. Otherwise samples have a first axis of channels.
        max_duration: Leave out files that are longer, in seconds, by their headers.
        padding_value: What follows the shorter clips of a batch.
        allow_empty: Accept class folders without files.
        io: ``"buffered"`` reads through the page cache, ``"direct"`` past it.
        values_max: Refuse clips with more values in all channels, before memory is taken for them.
        bytes_max: Refuse larger files.
        progress: Show a counter while listing; by default only on a terminal.

    Raises:
        FileNotFoundError: The folder is missing, has no class folders, or a class has no files.

    Examples:
        >>> import sutler, sutler.testing, tempfile
        >>> from sutler import transforms as T
        >>> folder = tempfile.mkdtemp()
        >>> sutler.testing.make_tones(folder, count=4, classes=2)
        >>> dataset = sutler.AudioFolder(folder, transform=T.LogMel(n_mels=40))
        >>> len(dataset), dataset.classes
        (4, ['class_0', 'class_1'])
        >>> features, label = dataset[3]
        >>> features.shape[0], label
        (40, 1)
        >>> for features, lengths, labels in sutler.Loader(dataset, batch_size=4):
        ...     print(features.shape[:2], int(lengths.max()) == features.shape[2])
        torch.Size([4, 40]) True
    """

    content = "sound"

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Any = None,
        target_transform: Callable[[int], Any] | None = None,
        extensions: Iterable[str] | None = None,
        *,
        mono: bool = True,
        max_duration: float | None = None,
        padding_value: float = 0.0,
        allow_empty: bool = False,
        io: Io = "buffered",
        values_max: int = VALUES_MAX,
        bytes_max: int = BYTES_MAX,
        progress: bool | None = None,
    ) -> None:
        _check_duration(max_duration)
        self.root = os.fspath(root)
        self.mono = mono
        self.max_duration = max_duration
        self.padding_value = float(padding_value)
        if isinstance(extensions, str):
            extensions = (extensions,)
        self._listing: dict[str, Any] = {
            "extensions": None if extensions is None else list(extensions),
            "allow_empty": allow_empty,
            "io": io,
            "mono": mono,
            "seconds_max": max_duration,
            "values_max": values_max,
            "bytes_max": bytes_max,
        }
        self._headers: list[tuple[int, int, int]] | None = None
        self._set_up(transform, target_transform, False, progress)

    def _list(self, progress: Callable[[int], None] | None) -> _sutler.Dataset:
        return _sutler.Dataset.audio_folder(self.root, **self._listing, progress=progress)

    def _lower(self) -> None:
        self.lowered = lower_audio(self.transform)
        self._pipeline = self.pipeline(len(self.lowered.ops))

    def _make_pipeline(self, operations: str) -> _sutler.Pipeline:
        return _sutler.Pipeline.audio(operations)

    def finish(self, image: Any, index: int, *, seed: int, epoch: int, repeat: int = 0) -> Any:
        """What the functions behind the native transforms make of a sample."""
        if not self.lowered.tail:
            return image
        with on_behalf_of(index, seed=seed, epoch=epoch, repeat=repeat):
            for function in in_turn(self.lowered.tail):
                image = function(image)
        return image

    def _read_headers(self) -> list[tuple[int, int, int]]:
        """Values in a channel, sample rate and channels of every file; zeros for those that cannot be read."""
        if self._headers is None:
            headers = self._native.audio_headers(_sutler.usable_cores())
            self._headers = [header or (0, 0, 0) for header in headers]
        return self._headers

    @property
    def lengths(self) -> list[int]:
        """How many values every file has in a channel, by its header: read when first asked for, and kept.

        What cannot be read has length 0; it is reported when it is prepared.
        """
        return [frames for frames, _, _ in self._read_headers()]

    @property
    def sample_rates(self) -> list[int]:
        """The sample rate of every file, by its header."""
        return [rate for _, rate, _ in self._read_headers()]

    @property
    def durations(self) -> list[float]:
        """How many seconds every file lasts, by its header."""
        return [frames / rate if rate else 0.0 for frames, rate, _ in self._read_headers()]

    def _describe(self) -> list[str]:
        return [f"Root location: {self.root}"]


def _check_duration(seconds: Any) -> None:
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real):
        raise TypeError(f"max_duration should be a number of seconds, or None for no limit, got {seconds!r}")
    if not float(seconds) > 0:  # nor a NaN
        raise ValueError(
            f"max_duration should be a positive number of seconds, or None for no limit, got {seconds!r}"
        )


class LengthBuckets(EpochBatches):
    """Batches of samples of similar length, for a loader's ``batch_sampler``: less padding, and still random.

    Samples are sorted into buckets of similar length. Which samples of a bucket come together, and in which order the
    batches come, is drawn anew in every epoch. Every sample is in one batch, and only one batch is incomplete. Ranks
    get batches of similar length in each step, and equally many. The loader tells it the epoch, and resumes exactly.

    Args:
        lengths: An :class:`AudioFolder`, or a ``Subset`` of one, whose durations are taken; a
            :class:`sutler.TextLines`, whose lines' bytes are (``dataset.token_lengths`` counts their tokens); or the
            length of every sample.
        batch_size: Samples in a batch.
        buckets: How many buckets. More make for less padding and less randomness.
        shuffle: If not, batches come from short to long.
        drop_last: Leave the incomplete batch out.
        seed: With the epoch, decides everything.
        rank: This process's number in its job; from ``torch.distributed`` when that is initialised.
        world_size: How many processes the job has; likewise.

    Examples:
        >>> import sutler
        >>> sampler = sutler.LengthBuckets([5, 1, 4, 2, 3], batch_size=2, shuffle=False)
        >>> list(sampler)
        [[1, 3], [4, 2], [0]]
    """

    made_of = "length"

    def __init__(
        self,
        lengths: AudioFolder | TextLines | Subset[Any] | Sequence[float],
        batch_size: int,
        *,
        buckets: int = 8,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__(
            batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed, rank=rank, world_size=world_size
        )
        check_positive("buckets", buckets)
        self._lengths = _in_microseconds(_lengths_in(lengths))
        self.buckets = buckets

    @property
    def samples(self) -> int:
        """How many samples its batches are drawn from."""
        return len(self._lengths)

    def _batches(self, rank: int, world_size: int) -> list[list[int]]:
        return _sutler.bucket_batches(
            self._lengths,
            batch_size=self.batch_size,
            buckets=self.buckets,
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
        return len(self._lengths) // step if self.drop_last else -(-len(self._lengths) // step)


def _lengths_in(given: Any) -> Sequence[Any]:
    """The lengths that a ``lengths=`` argument gives or stands for."""
    origin = origin_of(given)
    if isinstance(origin, TextLines) and origin.pack is not None:
        raise ValueError(
            "packed blocks all have one length, so there is nothing to sort; use the loader's own order"
        )
    if isinstance(origin, AudioFolder | TextLines):
        part = selection_of(given)
        lengths = origin.durations if isinstance(origin, AudioFolder) else origin.lengths
        return lengths if part is None else [lengths[number] for number in part.numbers]
    if isinstance(origin, NativeDataset):
        raise TypeError(
            f"lengths should be an AudioFolder or the length of every sample, and {type(origin).__name__} holds "
            f"{origin.content}, which have none; leave LengthBuckets out"
        )
    try:
        return list(given)
    except TypeError:
        raise TypeError(
            f"lengths should be an AudioFolder or the length of every sample, got {given!r}"
        ) from None


def _in_microseconds(lengths: Sequence[Any]) -> list[int]:
    """Whole numbers, which the native side compares; a microsecond is finer than any sample."""
    rounded = []
    for sample, length in enumerate(lengths):
        try:
            number = float(length)
        except (TypeError, ValueError):
            raise TypeError(f"lengths should be numbers, and that of sample {sample} is {length!r}") from None
        if not 0 <= number < math.inf:  # nor a NaN
            raise ValueError(
                f"lengths should be finite and not negative, and that of sample {sample} is {length!r}"
            )
        rounded.append(round(number * 1_000_000))
    return rounded


__all__: Sequence[str] = ["AudioFolder", "LengthBuckets"]
