"""The random number generators that belong to a whole process: Python's, NumPy's and PyTorch's.

They are saved as bytes, without pickles, since a checkpoint that is read should not be able to run anything. Of
generators whose library nobody has imported nobody can have drawn, so they are left out.
"""

from __future__ import annotations

import array
import ctypes
import math
import os
import random
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

#: The words of a Mersenne Twister, which both Python and NumPy have, and its position.
_WORDS = 624
_PYTHON = struct.Struct(f"<{4 * (_WORDS + 1)}sd")
_NUMPY = struct.Struct(f"<{4 * _WORDS}siid")


#: What they are called.
NAMES = ("python", "numpy", "torch")

#: Held while somebody here is at PyTorch's generator, and while this process forks. PyTorch locks its generator for
#: every call; a worker that another loader's thread forks just then would have it locked for ever.
no_fork = threading.RLock()
os.register_at_fork(before=no_fork.acquire, after_in_parent=no_fork.release, after_in_child=no_fork.release)


def marks() -> dict[str, Any]:
    """Something of each generator that changes when it is first drawn from, and is quickly had."""
    found: dict[str, Any] = {"python": random.getstate()}
    numpy_random = sys.modules.get("numpy.random")
    engine = None if numpy_random is None else numpy_random.get_bit_generator()
    # It can be exchanged for one of another kind; whoever does that knows how to save it.
    if engine is not None and type(engine).__name__ == "MT19937":
        # NumPy takes 30 µs to give its state as an array; the address of the same is a documented attribute.
        found["numpy"] = ctypes.string_at(engine.ctypes.state_address, 4 * (_WORDS + 1))
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = save_torch(torch.default_generator)
    return found


def moved(since: dict[str, Any]) -> list[str]:
    """The generators that were drawn from, or seeded, since some marks were taken."""
    return [name for name, mark in marks().items() if since.get(name) != mark]


def save(names: list[str]) -> dict[str, bytes]:
    """The states of some generators."""
    return {name: _SAVE[name]() for name in names}


def restore(states: dict[str, bytes]) -> None:
    """Puts generators into the states that `save` gave."""
    for name, state in states.items():
        _RESTORE[name](state)


def save_python(generator: Any) -> bytes:
    """The state of a `random.Random`, or of the module."""
    _, words, gauss = generator.getstate()
    return _PYTHON.pack(array.array("I", words).tobytes(), math.nan if gauss is None else gauss)


def restore_python(generator: Any, state: bytes) -> None:
    """Puts it into the state that `save_python` gave."""
    words, gauss = _PYTHON.unpack(state)
    generator.setstate((3, tuple(array.array("I", words)), None if math.isnan(gauss) else gauss))


def _save_numpy() -> bytes:
    import numpy as np

    state: Any = np.random.get_state(legacy=False)
    inner = state["state"]
    return _NUMPY.pack(inner["key"].tobytes(), inner["pos"], state["has_gauss"], state["gauss"])


def _restore_numpy(state: bytes) -> None:
    import numpy as np

    words, position, has_gauss, gauss = _NUMPY.unpack(state)
    np.random.set_state(("MT19937", np.frombuffer(words, np.uint32), position, has_gauss, gauss))


def save_torch(generator: Any) -> bytes:
    """The state of a `torch.Generator`."""
    with no_fork:
        state: bytes = generator.get_state().numpy().tobytes()
    return state


def restore_torch(generator: Any, state: bytes) -> None:
    """Puts it into the state that `save_torch` gave."""
    import torch

    with no_fork:
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _torchs_own() -> Any:
    import torch

    return torch.default_generator


_SAVE: dict[str, Callable[[], bytes]] = {
    "python": lambda: save_python(random),
    "numpy": _save_numpy,
    "torch": lambda: save_torch(_torchs_own()),
}
_RESTORE: dict[str, Callable[[bytes], None]] = {
    "python": lambda state: restore_python(random, state),
    "numpy": _restore_numpy,
    "torch": lambda state: restore_torch(_torchs_own(), state),
}
