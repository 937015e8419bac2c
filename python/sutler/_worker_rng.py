"""Random numbers of a worker's own, which no other thread draws from."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np

from sutler import _generators

#: The state of NumPy's PCG64: two numbers of 128 bits, and half a number that was drawn and not yet used.
_PCG64 = struct.Struct("<16s16s?I")


class WorkerRng:
    """A worker's generators: PyTorch's names for them, each made when it is first asked for.

    For every sample they start from a seed of its own, and from the worker's where there are no samples to tell apart,
    as in a stream. Whoever keeps one of them gets the same numbers: it is seeded anew, not replaced.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: dict[str, Any] = {}

    @property
    def random_generator(self) -> random.Random:
        """A `random.Random`."""
        generator: random.Random = self._get("python")
        return generator

    @property
    def numpy_generator(self) -> np.random.Generator:
        """A `numpy.random.Generator`."""
        generator: np.random.Generator = self._get("numpy")
        return generator

    @property
    def torch_generator(self) -> Any:
        """A `torch.Generator` for the CPU."""
        return self._get("torch")

    def _get(self, name: str) -> Any:
        generator = self._made.get(name)
        if generator is None:
            generator = self._made[name] = _MAKE[name]()
            _SEED[name](generator, self._seed)
        return generator

    def seed(self, seed: int) -> None:
        """Lets all start from a seed."""
        self._seed = seed
        for name, generator in self._made.items():
            _SEED[name](generator, seed)

    def suspend(self) -> tuple[int, dict[str, bytes]]:
        """What `resume` needs to go on from here, whatever happens in between."""
        return self._seed, self.states()

    def resume(self, suspended: tuple[int, dict[str, bytes]]) -> None:
        """Goes on from where `suspend` was called: those that were not asked for before start from the same seed."""
        seed, states = suspended
        self.seed(seed)
        self.restore(states)

    def states(self) -> dict[str, bytes]:
        """The states of those that were asked for; the others are as they were seeded."""
        return {f"worker.{name}": _SAVE[name](generator) for name, generator in self._made.items()}

    def restore(self, states: dict[str, bytes]) -> None:
        """Puts them into the states that `states` gave; knows which of some states are its own."""
        for name, restore in _RESTORE.items():
            if f"worker.{name}" in states:
                restore(self._get(name), states[f"worker.{name}"])


def _make_torch() -> Any:
    import torch

    return torch.Generator()


def _seed_numpy(generator: np.random.Generator, seed: int) -> None:
    generator.bit_generator.state = np.random.PCG64(seed).state


def _save_numpy(generator: np.random.Generator) -> bytes:
    state: Any = generator.bit_generator.state
    inner = (state["state"][name].to_bytes(16, "little") for name in ("state", "inc"))
    return _PCG64.pack(*inner, bool(state["has_uint32"]), state["uinteger"])


def _restore_numpy(generator: np.random.Generator, saved: bytes) -> None:
    state, increment, has_half, half = _PCG64.unpack(saved)
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": int.from_bytes(state, "little"), "inc": int.from_bytes(increment, "little")},
        "has_uint32": int(has_half),
        "uinteger": half,
    }


_MAKE: dict[str, Any] = {
    "python": random.Random,
    "numpy": lambda: np.random.Generator(np.random.PCG64(0)),
    "torch": _make_torch,
}
_SEED: dict[str, Any] = {
    "python": random.Random.seed,
    "numpy": _seed_numpy,
    "torch": lambda generator, seed: generator.manual_seed(seed),
}
_SAVE: dict[str, Any] = {
    "python": _generators.save_python,
    "numpy": _save_numpy,
    "torch": _generators.save_torch,
}
_RESTORE: dict[str, Any] = {
    "python": _generators.restore_python,
    "numpy": _restore_numpy,
    "torch": _generators.restore_torch,
}
