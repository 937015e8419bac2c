"""Which tensors are nothing but their bytes, a type and a shape."""

from __future__ import annotations

import sys
from typing import Any


def is_plain(value: Any) -> bool:
    """Whether a value is such a tensor of PyTorch's, in the memory of the host."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and type(value) is torch.Tensor
        and value.device.type == "cpu"
        and value.layout == torch.strided
        and not value.is_nested
        and not value.requires_grad
        and not value.is_quantized
        and not value.is_conj()
        and not value.is_neg()
    )
