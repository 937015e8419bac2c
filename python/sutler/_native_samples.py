"""The samples of a native dataset as worker processes make them, where Python functions follow its native part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from sutler._columns import as_output
from sutler._output import Output, converter

if TYPE_CHECKING:
    from sutler._selection import Selection
    from sutler.datasets import NativeDataset


class NativeSamples:
    """What a worker asks for samples by the engine's numbers; they are those that the trainer would make.

    Args:
        dataset: The native dataset.
        shown: The dataset that the loader was made with, which may be a subset of it.
        selection: Which samples of it that is, where ids are asked for and not all are served.
        output: What batches are made of.
        with_ids: Whether a sample ends with its index in the loader's dataset.
    """

    def __init__(
        self,
        dataset: NativeDataset,
        *,
        shown: Any,
        selection: Selection | None,
        output: Output,
        with_ids: bool,
    ) -> None:
        self._dataset = dataset
        self.shown = shown
        self._selection = selection
        self._output = output
        self._with_ids = with_ids

    @property
    def functions(self) -> Iterable[Callable[..., Any]]:
        """What follows the native part."""
        return self._dataset.lowered.tail

    def __getitem__(self, number: int) -> Any:
        # An array that only lends its memory has no rows; NumPy's view of it has.
        convert = np.asarray if self._output == "dlpack" else converter(self._output)
        made = self._dataset._sample(number, convert)
        parts = made if isinstance(made, tuple) else (made,)
        if isinstance(made, tuple):
            made = parts = tuple(as_output(part, self._output) for part in parts)
        if not self._with_ids:
            return made
        return *parts, number if self._selection is None else self._selection.places([number])[0]
