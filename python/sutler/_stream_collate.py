"""Default collation in a worker that writes what it stacks straight into the memory that the batch travels in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sutler._python_batches import collate_copies_if_needed, numpy_collate
from sutler._stream_memory import BatchMemory
from sutler._tensors import is_plain
from sutler._worker_info import as_if_no_worker

if TYPE_CHECKING:
    from sutler.loader import Loader

#: Smaller tensors are stacked anywhere and copied with the rest: that takes less than finding a place for them.
PLACED_BYTES = 16 << 10


class PlacedCollate(ABC):
    """What both kinds have: memory, where they are used in a worker.

    A batch for which there is no place is stacked front to back all the same, though its samples may lie otherwise, so
    that all batches are alike.
    """

    def __init__(self) -> None:
        self._memory: BatchMemory | None = None

    def use(self, memory: BatchMemory) -> None:
        """Stacks into this memory from now on."""
        self._memory = memory

    @abstractmethod
    def __call__(self, samples: Any) -> Any:
        """Collates a batch."""

    def _place(self, size: int) -> memoryview | None:
        """Where to stack so many bytes, if that is worth it and there is a place."""
        return None if self._memory is None or size < PLACED_BYTES else self._memory.allocate(size)


class TorchCollate(PlacedCollate):
    """PyTorch's own, without the shared memory that it would get for each tensor in a worker."""

    def __call__(self, samples: Any) -> Any:
        """Collates a batch."""
        import torch
        from torch.utils.data._utils import collate

        functions: Any = {**collate.default_collate_fn_map, torch.Tensor: self._stack}

        def collated(plain: Any) -> Any:
            return collate.collate(plain, collate_fn_map=functions)

        with as_if_no_worker():
            return collate_copies_if_needed(collated, samples)

    def _stack(self, tensors: Any, *, collate_fn_map: Any = None) -> Any:
        import torch
        from torch.utils.data._utils import collate

        first = tensors[0]
        if all(
            is_plain(tensor) and tensor.dtype == first.dtype and tensor.shape == first.shape
            for tensor in tensors
        ):
            shape = (len(tensors), *first.shape)
            place = self._place(len(tensors) * first.numel() * first.element_size())
            if place is None:
                out = torch.empty(shape, dtype=first.dtype)
            else:
                out = torch.frombuffer(place, dtype=first.dtype).view(shape)
            return torch.stack(list(tensors), 0, out=out)
        return collate.default_collate_fn_map[torch.Tensor](tensors, collate_fn_map=collate_fn_map)


class NumpyCollate(PlacedCollate):
    """The same meaning with arrays."""

    def __call__(self, samples: Any) -> Any:
        """Collates a batch."""
        return numpy_collate(samples, self._stack)

    def _stack(self, arrays: list[Any]) -> Any:
        first = arrays[0]
        if not first.dtype.hasobject and all(
            array.dtype == first.dtype and array.shape == first.shape for array in arrays
        ):
            shape = (len(arrays), *first.shape)
            place = self._place(len(arrays) * first.nbytes)
            return np.stack(arrays, out=np.ndarray(shape, first.dtype, buffer=place))
        return np.stack(arrays)


def collation_in_workers(loader: Loader) -> Callable[[Any], Any]:
    """What makes batches where workers make all of them."""
    collate = loader._collation()
    if loader._collates_plainly():
        return TorchCollate() if loader.output == "torch" else NumpyCollate()
    if loader._collates_in_workers():
        return collate
    return partial(collate_copies_if_needed, collate)  # by default, too: single samples
