"""PyTorch's default collation in a worker, with the stacked tensors in the memory that the batch travels in."""

from __future__ import annotations

from typing import Any

from sutler._stream_memory import BatchMemory
from sutler._worker_info import as_if_no_worker

#: Smaller tensors are stacked anywhere and copied with the rest: that takes less than finding a place for them.
PLACED_BYTES = 16 << 10


class PlacedCollate:
    """Collates as PyTorch does by default; in a worker, without the shared memory that PyTorch would get each time."""

    def __init__(self) -> None:
        self._memory: BatchMemory | None = None

    def use(self, memory: BatchMemory) -> None:
        """Stacks into this memory from now on."""
        self._memory = memory

    def __call__(self, samples: Any) -> Any:
        """Collates a batch."""
        import torch
        from torch.utils.data._utils import collate

        functions: Any = {**collate.default_collate_fn_map, torch.Tensor: self._stack}
        with as_if_no_worker():
            return collate.collate(samples, collate_fn_map=functions)

    def _stack(self, tensors: Any, *, collate_fn_map: Any = None) -> Any:
        import torch
        from torch.utils.data._utils import collate

        first = tensors[0]
        size = len(tensors) * first.numel() * first.element_size()
        if (
            self._memory is not None
            and size >= PLACED_BYTES
            and all(
                type(tensor) is torch.Tensor
                and tensor.dtype == first.dtype
                and tensor.shape == first.shape
                and tensor.device.type == "cpu"
                and tensor.layout == torch.strided
                and not tensor.requires_grad
                and not tensor.is_quantized
                and not tensor.is_conj()
                and not tensor.is_neg()
                for tensor in tensors
            )
        ):
            place = self._memory.allocate(size)
            if place is not None:
                shape = (len(tensors), *first.shape)
                return torch.stack(
                    list(tensors), 0, out=torch.frombuffer(place, dtype=first.dtype).view(shape)
                )
        return collate.default_collate_fn_map[torch.Tensor](tensors, collate_fn_map=collate_fn_map)
