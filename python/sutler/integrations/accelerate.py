"""Accelerate: a loader that an ``Accelerator`` keeps count of, places and checkpoints.

``accelerator.prepare(loader)`` hands a :class:`sutler.Loader` back as it is: Accelerate rebuilds instances of PyTorch's
``DataLoader`` and leaves everything else alone. That trains on several ranks already, as the loader finds its rank by
itself. What it lacks is what a prepared ``DataLoader`` tells its accelerator: when an epoch is at its last batch, which
samples are there twice, and where to go on. That is what :func:`prepare` adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from accelerate.utils import send_to_device, synchronize_rng_states

from sutler._backend import length_of
from sutler._epoch import Position
from sutler._state import describe_order
from sutler._stream_reader import is_stream
from sutler.loader import Loader

__all__ = ["PreparedLoader", "prepare"]

#: Comes from an iterator where there is no further batch, which may be anything.
_END = object()


def prepare(
    accelerator: Any, loader: Loader, *, names: Sequence[str] | None = None, checkpoint: bool = True
) -> PreparedLoader:
    """Makes a loader known to an accelerator, as ``accelerator.prepare`` does with a ``DataLoader``.

    Batches come on the accelerator's device; gradients are synchronised at the end of each epoch; ``save_state`` and
    ``load_state`` keep the place in the data; and ``accelerate.skip_first_batches`` goes on from any step without
    preparing what it skips. Ranks that go through a dataset in its own order, in that of a sampler or batch sampler, or
    through a stream, take whole batches in turn, as those of a prepared ``DataLoader`` do, so that
    ``gather_for_metrics`` returns every sample of a dataset once, in that order. Samplers that divide by themselves,
    such as a ``DistributedSampler``, are left alone.

    Args:
        accelerator: The ``accelerate.Accelerator``.
        loader: The loader. Leave its ``rank`` and ``world_size`` out; they are the accelerator's.
        names: Deliver each batch as a dictionary with these keys, for models that take their inputs by name.
        checkpoint: Register the loader's place with ``accelerator.register_for_checkpointing``.

    Raises:
        ValueError: The loader was given another number of ranks than the accelerator has.

    Examples:
        >>> import accelerate, sutler, sutler.testing, tempfile
        >>> from sutler.integrations.accelerate import prepare
        >>> folder = tempfile.mkdtemp()
        >>> sutler.testing.make_photos(folder, count=10, classes=2)
        >>> accelerator = accelerate.Accelerator(cpu=True)
        >>> photos = sutler.ImageFolder(folder, transform=sutler.transforms.RandomResizedCrop(32))
        >>> train = prepare(accelerator, sutler.Loader(photos, batch_size=4, shuffle=True))
        >>> [(len(labels), accelerator.gradient_state.end_of_dataloader) for images, labels in train]
        [(4, False), (4, False), (2, True)]
    """
    if not isinstance(loader, Loader):
        raise TypeError(
            f"loader should be a sutler.Loader, got a {type(loader).__name__}; a DataLoader goes to accelerator.prepare"
        )
    if loader.world_size != accelerator.num_processes:
        raise ValueError(
            f"the loader deals its samples out to {loader.world_size} ranks, the accelerator has "
            f"{accelerator.num_processes}. Leave rank and world_size out, or pass accelerator.process_index and "
            "accelerator.num_processes. An accelerator of one process among several that train on CPUs was made "
            "without Accelerator(cpu=True)."
        )
    device = accelerator.device if accelerator.device_placement and loader.device is None else None
    if device is not None and device.type == "cuda" and loader.output == "torch":
        loader.device = device  # copied ahead, which is faster than when the batch is asked for
        device = None
    loader._take_turns()
    prepared = PreparedLoader(loader, None if device is None or device.type == "cpu" else device, names)
    if checkpoint:
        accelerator.register_for_checkpointing(prepared)
    return prepared


class PreparedLoader(DataLoaderStateMixin):  # type: ignore[misc]  # Accelerate has no types
    """A loader with what Accelerate asks of one; made by :func:`prepare`. The loader itself is ``.loader``."""

    #: Keeps Accelerate from preparing it once more.
    _is_accelerate_prepared = True
    #: Accelerate computes the remainder from the dataset's length, which a sampler or a resumed epoch has not.
    _drop_last = True
    #: For the DataLoader that `skip_first_batches` makes: it has no work to do.
    num_workers = 0
    prefetch_factor = None

    def __init__(self, loader: Loader, device: Any, names: Sequence[str] | None) -> None:
        self.loader = loader
        self._generator = None if loader._steps is None else _generator_of(loader)
        self.gradient_state = GradientState()
        self._device = device
        self._names = None if names is None else tuple(names)
        # From these `skip_first_batches` makes a DataLoader. It draws step numbers and gets those batches; or it goes
        # through the batches of a stream as if they were samples.
        streams = is_stream(loader.dataset)
        self.dataset: Any = _BatchesInTurn(self) if streams else _BatchesByStep(self)
        self.batch_sampler = _Steps(self)
        self.sampler = loader.sampler
        self.batch_size = None if streams else loader.batch_size
        self.drop_last = loader.drop_last and not streams
        self.collate_fn = _as_it_is
        # What it draws a seed from, for workers that it has not; the loader has drawn one for those that there are.
        self.generator = torch.Generator()

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def total_batch_size(self) -> int | None:
        """Samples in a step of all ranks together; ``None`` where a batch sampler decides."""
        batch_size = self.loader.batch_size
        return None if batch_size is None else batch_size * self.loader.world_size

    @property
    def total_dataset_length(self) -> int:
        """Samples of all ranks together."""
        return len(self.loader.dataset)

    def __iter__(self) -> Iterator[Any]:
        self._agree_on_draws()
        return self._track(iter(self.loader))

    def _agree_on_draws(self) -> None:
        """Ranks that divide what a sampler draws must draw the same; those of a prepared ``DataLoader`` do so, too."""
        if self._generator is not None:
            synchronize_rng_states(["generator"], self._generator)

    def _track(self, iterator: Any) -> Iterator[Any]:
        self.begin()
        try:
            left = self._batches_left(iterator.begin())
            batch = next(iterator, _END)
            while batch is not _END:
                left -= 1
                latest = iterator.latest
                last = (left if iterator.left is None else iterator.left) == 0
                # Trainers that count batches do not ask for the end, and without it the workers would stay. What comes
                # after the last batch is a sampler's that has more than it said.
                following = next(iterator, _END) if last else None
                self.end_of_dataloader = following is _END
                yield self._finish(batch, latest)
                batch = following if last else next(iterator, _END)
        finally:
            self.end()

    def _batches_left(self, beginning: Position) -> int:
        """How many batches a sampler says it has from where a pass begins; less than 0 where it does not.

        Of the loader's own order the iterator knows, and of a sampler only once that is at its end.
        """
        loader, consumed = self.loader, beginning.consumed
        if loader._steps is not None:
            steps, size = length_of(loader._steps), loader._steps.batch_size
            if steps is None or beginning.served is not None or (size is None and consumed > 0):
                return -1
            return steps - consumed // (size or 1)
        sampling = describe_order(loader)
        if sampling == "batch_sampler" and consumed == 0:
            batches = length_of(loader.batch_sampler)
            return -1 if batches is None else batches
        samples = length_of(loader.sampler)
        if sampling != "sampler" or beginning.served is not None or samples is None:
            return -1
        rest: int = samples - consumed
        size = loader.batch_size or 1
        return rest // size if loader.drop_last else -(-rest // size)

    def _rows_to_keep(self, latest: range) -> int:
        """How many rows of the last gathered step are samples, one each: 0 for all of them, -1 where nobody can say.

        Accelerate keeps the first so many of all ranks' rows, one rank after the other. It is not only for repeats:
        trainers gather the mean loss of a batch as often as a full one has rows, which is too often for a smaller one.
        `latest` is what the last step took of the epoch's order.
        """
        loader = self.loader
        full = 1 if loader.batch_sampler is None else getattr(loader.batch_sampler, "batch_size", None)
        if full is None:  # a batch sampler of the user's, whose batches may be of any size
            return -1
        ranks = loader.world_size
        if loader._steps is not None and loader.order == "strict" and loader._passes.drawing is not None:
            rows = loader._passes.drawing.samples_in_step  # what fills the step up comes last
        elif loader.order != "strict" or not self._deals_itself():
            rows = len(latest) * ranks  # each rank knows its own, and they are in step
        else:
            samples = len(loader.dataset) - latest.start
            share = -(-samples // ranks)
            # Ranks that take turns have their repeats at the end of all rows. Those that do not have one in each of the
            # last ranks: a single one is the last row, too, and so are all where a rank has a single row.
            at_the_end = loader.sampler.turn is not None or share * ranks - samples <= 1 or share == 1
            rows = samples if at_the_end else share * ranks
        return rows if rows < full * ranks else 0

    def _deals_itself(self) -> bool:
        """Whether the order and each rank's share of it are the loader's own, not a sampler's or a stream's."""
        return describe_order(self.loader) in ("shuffle", "sequential")

    def _finish(self, batch: Any, latest: range) -> Any:
        """A batch as the trainer gets it; `latest` is what it took of the epoch's order."""
        if self.end_of_dataloader:
            self.remainder = self._rows_to_keep(latest)
        if self._device is not None:
            batch = send_to_device(batch, self._device)
        if self._names is None or isinstance(batch, dict):
            return batch
        parts = list(batch) if isinstance(batch, tuple | list) else [batch]
        if len(parts) != len(self._names):
            raise ValueError(
                f"a batch has {len(parts)} parts, and names has {len(self._names)} names for them: "
                f"{', '.join(self._names)}. Pass one name for each part."
            )
        return dict(zip(self._names, parts, strict=True))

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch to run next."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: after an epoch's last batch at the next epoch, as in Accelerate's own loaders."""
        return self.loader._state(by_length=True, stacklevel=2)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a saved state."""
        self.loader.load_state_dict(state)

    def from_step(self, step: int) -> Iterator[Any]:
        """The batches of the coming epoch from a step on; what comes before is not prepared where that can be."""
        loader, batches_to_drop = self.loader, 0
        if loader.order != "strict":
            raise ValueError(
                f"skip_first_batches cannot tell what was in the batches that it is to skip, as order={loader.order!r} "
                "serves samples as they get ready. Save and load the loader's own state instead, or use order='strict'."
            )
        if describe_order(loader) == "batch_sampler":
            batches_to_drop = step  # its batches may be of any size
        ranks = loader.world_size if self._deals_itself() else 1
        loader._passes.skip_to(0 if batches_to_drop else step * (loader.batch_size or 1) * ranks)
        self._agree_on_draws()
        iterator: Any = iter(loader)
        for _ in range(batches_to_drop):
            next(iterator)
        return (self._finish(batch, iterator.latest) for batch in iterator)


def _generator_of(loader: Loader) -> torch.Generator | None:
    """The generator that a loader's sampler draws with; a sampler that can have one, and has none, gets one."""
    sampler = loader.sampler if loader._given_batch_sampler is None else loader.batch_sampler
    sampler = getattr(sampler, "sampler", sampler)  # PyTorch's batch samplers have one inside
    if not hasattr(sampler, "generator"):
        return None
    if sampler.generator is None:
        sampler.generator = torch.Generator().manual_seed(loader.seed)
    generator: torch.Generator = sampler.generator
    return generator


class _Steps(torch.utils.data.BatchSampler):
    """The numbers of an epoch's batches, one to each batch."""

    def __init__(self, prepared: PreparedLoader) -> None:
        self._prepared = prepared

    def __iter__(self) -> Iterator[list[int]]:
        prepared = self._prepared
        prepared.dataset.rewind()
        prepared.begin()
        try:
            for step in range(len(self)):
                prepared.end_of_dataloader = step == len(self) - 1
                yield [step]
        finally:
            prepared.end()

    def __len__(self) -> int:
        return len(self._prepared)

    def set_epoch(self, epoch: int) -> None:
        """Transformers looks for it here, once it has skipped batches."""
        self._prepared.set_epoch(epoch)


class _DatasetOf:
    """To everybody else it is the loader's dataset: programs look up its classes, its length and single samples."""

    def __init__(self, prepared: PreparedLoader) -> None:
        self._prepared = prepared

    def __len__(self) -> int:
        """The number of samples, which is what trainers ask a dataset for."""
        return len(self._prepared.loader.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(
            "_"
        ):  # asked for before there is a loader, or by who wants to know what kind this is
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._prepared.loader.dataset, name)


class _BatchesByStep(_DatasetOf, torch.utils.data.Dataset[Any]):
    """The batches of an epoch by their numbers, asked for in turn from any of them on."""

    def __init__(self, prepared: PreparedLoader) -> None:
        super().__init__(prepared)
        self._batches: Iterator[Any] | None = None

    def __getitem__(self, index: Any) -> Any:
        return self._prepared.loader.dataset[index]

    def rewind(self) -> None:
        """The next step begins an epoch."""
        self._batches = None

    def __getitems__(self, steps: list[int]) -> Any:
        if self._batches is None:
            self._batches = self._prepared.from_step(steps[0])
        batch = next(self._batches)
        # Nobody asks for the end; so the epoch is left here, and workers end that do not stay.
        if self._prepared.end_of_dataloader:
            self._batches = None
        return batch


class _BatchesInTurn(_DatasetOf, torch.utils.data.IterableDataset[Any]):
    """The batches of a stream's epoch; whoever skips some has them read and dropped, as nobody knows what they hold."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self._prepared)


def _as_it_is(batch: Any) -> Any:
    return batch
