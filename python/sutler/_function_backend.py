"""Who prepares the samples of a native dataset that Python functions belong to: worker processes.

Each calls the native part and the functions behind it, one sample after the other. So a slow function holds up one
worker, and the engine deals the others' samples out as it does those of a dataset written in Python.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

from sutler import _sutler
from sutler._backend import NativeBackend, ProcessBackend, check_device_normalize, native_fingerprint
from sutler._columns import Columns
from sutler._detection_batches import FramedColumns
from sutler._function_batches import FunctionBatches
from sutler._native_samples import NativeSamples
from sutler._padded_batches import PaddedColumns
from sutler._text_backend import TextBackend
from sutler._text_batches import LineColumns
from sutler._volume_batches import VolumeColumns
from sutler._worker_failures import understood, understood_error
from sutler.datasets import NativeDataset
from sutler.detection import CocoDetection
from sutler.errors import Failure, about_another
from sutler.text import TextLines
from sutler.volumes import VolumeFolder

if TYPE_CHECKING:
    from sutler._backend import Backend, BatchSource
    from sutler._sampling import Feed
    from sutler._worker import WorkerOptions
    from sutler.loader import Loader

#: The base of workers' seeds has so many bits at most.
_SEED_BITS = 63


class FunctionBackend(ProcessBackend):
    """A native dataset with functions: each of the engine's threads has a worker process that makes its samples."""

    def __init__(self, loader: Loader, dataset: NativeDataset) -> None:
        check_device_normalize(loader, dataset)
        self._native = dataset
        self._selection = loader._selection
        samples = NativeSamples(
            dataset,
            shown=loader.dataset,
            selection=loader._selection if loader.return_ids else None,
            output=loader.output,
            with_ids=loader.return_ids,
        )
        super().__init__(loader, samples)
        #: Samples have numbers, and what a sampler draws is checked as for native threads.
        self.keys = None
        # An epoch that is begun before the one before it has ended has its workers, as it has native threads.
        self._persistent = loader.persistent_workers or loader.overlap_epochs
        #: The numbers of the samples in a subset, as the workers know them.
        self._numbers: Any = None

    def fingerprint(self) -> str:
        """That which the dataset has where native threads prepare it: states may be exchanged."""
        return native_fingerprint(self._native, self._selection)

    def seed_workers(self, loader: Loader, *, unseen: bool) -> None:
        """Draws nothing, as for native threads: a sampler that draws from the same generator draws the same."""
        self._base_seed = loader.seed % 2**_SEED_BITS

    def keeps_workers(self) -> bool:
        """Whether workers have seeds that were drawn for an earlier epoch: none are drawn."""
        return False

    def enter_epoch(self, loader: Loader, job: _sutler.Job) -> None:
        """New workers also where the list of a subset was changed that they number samples by."""
        if self._selection is not None and loader.return_ids:
            self._selection.read_again()
            if self._numbers is not self._selection.numbers and self._epochs == 0:
                self.hang_up(job)
                self.end()
            self._numbers = self._selection.numbers
        super().enter_epoch(loader, job)

    def _worker_options(self, loader: Loader) -> WorkerOptions:
        options = super()._worker_options(loader)
        columns = self._columns(loader)
        in_blocks = isinstance(columns, Columns) and columns.in_blocks
        return dataclasses.replace(options, native=True, dense=options.dense and in_blocks)

    def _columns(self, loader: Loader) -> Columns | LineColumns:
        """What puts samples together to batches."""
        dataset = self._native
        if isinstance(dataset, TextLines):
            return LineColumns(loader, dataset)
        if isinstance(dataset, CocoDetection):
            return FramedColumns(loader, dataset.size_divisible)
        if dataset.padding_value is not None:
            return PaddedColumns(loader, dataset.padding_value)
        return (VolumeColumns if isinstance(dataset, VolumeFolder) else Columns)(loader)

    def source(
        self, loader: Loader, run: _sutler.Run, job: _sutler.Job, epoch: int, feed: Feed | None
    ) -> BatchSource:
        """Batches of samples that the workers left in shared memory."""
        reader = self._reader(loader, run, job, feed, self._understood_error)
        return FunctionBatches(loader, reader, job, epoch, self._table, self._columns(loader))

    def understood(self, failures: list[Failure]) -> list[Failure]:
        """Failures as native threads would have told of them."""
        return [understood(failure, self._native.path) for failure in failures]

    def _understood_error(self, error: Exception) -> Exception:
        return about_another(error, partial(understood_error, path_of=self._native.path))


def make_backend(loader: Loader) -> Backend:
    """The backend that suits a loader's dataset."""
    origin = loader._origin
    if loader._functions_in_workers:
        return FunctionBackend(loader, origin)
    if isinstance(origin, TextLines):
        return TextBackend(loader, origin)
    if isinstance(origin, NativeDataset):
        return NativeBackend(loader, origin)
    return ProcessBackend(loader, loader.dataset)
