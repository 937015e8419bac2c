"""From native arrays to what the user asked for, without copies."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from sutler._sutler import Array

Output = Literal["torch", "numpy", "dlpack"]


def torch_is_installed() -> bool:
    """Whether ``import torch`` would work; asks without importing it, which takes seconds."""
    return importlib.util.find_spec("torch") is not None


def import_torch() -> Any:
    """PyTorch, imported when first needed; untyped, as much of its own interface is."""
    return importlib.import_module("torch")


def resolve_output(output: str | None) -> Output:
    """The output a loader uses: PyTorch where it is installed, else NumPy."""
    if output is None:
        return "torch" if torch_is_installed() else "numpy"
    if output == "torch" and not torch_is_installed():
        raise ModuleNotFoundError(
            "output='torch' needs PyTorch, which is not installed. Install torch, or pass output='numpy'."
        )
    if output in ("torch", "numpy", "dlpack"):
        return output  # type: ignore[return-value]  # narrowed by the test above
    raise ValueError(f"output should be 'torch', 'numpy' or 'dlpack', got {output!r}")


def converter(output: Output) -> Callable[[Array], Any]:
    """The function that turns a native array into the output's own kind, sharing its memory."""
    if output == "numpy":
        return np.asarray
    if output == "torch":
        from_dlpack: Callable[[Array], Any] = import_torch().from_dlpack
        return from_dlpack
    return lambda array: array
