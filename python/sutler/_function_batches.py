"""Batches of a native dataset whose samples worker processes made, since Python functions follow its native part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sutler import _schema
from sutler._columns import Columns
from sutler._python_batches import ProcessBatches

if TYPE_CHECKING:
    from sutler._fetch import Draw
    from sutler._keys import KeyTable
    from sutler._run import RunReader
    from sutler._sutler import Batch, Job
    from sutler._text_batches import LineColumns
    from sutler.loader import Loader


class FunctionBatches(ProcessBatches):
    """The batches of one epoch: what the trainer makes of the same samples where it runs the functions itself."""

    def __init__(
        self,
        loader: Loader,
        run: RunReader,
        job: Job,
        epoch: int,
        keys: KeyTable,
        columns: Columns | LineColumns,
    ) -> None:
        super().__init__(loader, run, job, epoch, keys, copies=None)
        self._columns = columns
        self._by_default = loader.collate_fn is None

    def _of_block(self, batch: Batch, count: int, others: list[Any]) -> Any:
        schema = self._known_schema()
        if isinstance(self._columns, Columns) and _has_arrays_only(schema):
            return self._columns.of_blocks(super()._of_block(batch, count, others))
        samples = [_schema.sample_of(schema, batch, row, others[row]) for row in range(count)]
        return self._columns.of_samples(samples)

    def _of_samples(self, draws: list[Draw], samples: list[Any]) -> Any:
        if not self._by_default:
            return super()._of_samples(draws, samples)
        return samples[0] if self._single else self._columns.of_samples(samples)

    def _with_ids(self, collated: Any, batch: Batch) -> Any:
        return collated  # samples bring theirs


def _has_arrays_only(schema: _schema.Schema) -> bool:
    """Whether a sample is a few arrays or numbers side by side, and the first of them has axes."""
    root = schema.root
    return (
        isinstance(root, _schema.Sequence)
        and all(isinstance(item, _schema.Dense) for item in root.items)
        and bool(root.items[0].shape)
    )
