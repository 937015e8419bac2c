"""Those who are compared: Sutler, its bare loop and its peers, behind one interface.

Each lives in a module of its own that imports what it needs at its top, so that an absent peer hurts nobody else and
the time of imports stays out of what is measured.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass

from benchmarks.contenders.base import Contender, Epoch, Settings

__all__ = ["CONTENDERS", "Contender", "Epoch", "Settings", "load", "missing"]


@dataclass(frozen=True)
class Entry:
    """Where a contender is found."""

    title: str
    module: str
    name: str
    #: What must be importable.
    needs: tuple[str, ...]
    #: The pipelines it can run.
    pipelines: tuple[str, ...] = ("train", "eval")


CONTENDERS = {
    "sutler": Entry("Sutler", "sutler_loader", "SutlerLoader", ("sutler", "torch")),
    "bare": Entry("bare loop", "bare", "BareLoop", ("sutler",)),
    "torch-pil": Entry("torch + PIL", "torch_loader", "TorchPil", ("torch", "torchvision", "PIL")),
    "torch-v2": Entry("torch + decode_jpeg + v2", "torch_loader", "TorchV2", ("torch", "torchvision")),
    "dali": Entry("DALI CPU", "dali", "DaliPlain", ("nvidia.dali",)),
    "dali-fused": Entry("DALI CPU, fused crop", "dali", "DaliFused", ("nvidia.dali",), ("train",)),
}


def missing(name: str, pipeline: str) -> str | None:
    """Why a contender cannot take part, as a sentence; None when it can."""
    entry = CONTENDERS[name]
    if pipeline not in entry.pipelines:
        return f"{entry.title} is left out: it has no {pipeline} pipeline."
    for module in entry.needs:
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            found = False  # not even the package around it
        if not found:
            return f"{entry.title} is left out: `{module}` is not installed here; `make bench` installs the peers."
    return None


def load(name: str) -> type[Contender]:
    """A contender's class, with all it imports."""
    entry = CONTENDERS[name]
    found: type[Contender] = getattr(
        importlib.import_module(f"benchmarks.contenders.{entry.module}"), entry.name
    )
    return found
