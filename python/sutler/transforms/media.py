"""What transforms on sound and on volumes have in common: they describe a step that runs in native threads only."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from sutler import _sutler
from sutler.transforms.base import Medium, Op, Transform

__all__ = ["MediaTransform"]

#: The datasets that run a transform, by what it works on.
_DATASETS: dict[Medium, str] = {
    "images": "sutler.ImageFolder",
    "sound": "sutler.AudioFolder",
    "volumes": "sutler.VolumeFolder",
}


class MediaTransform(Transform):
    """The base of the transforms on sound and on volumes."""

    @property
    def dataset(self) -> str:
        """The dataset that runs it."""
        return _DATASETS[self.medium]

    def _before(self) -> list[Op]:
        """What must come before it so that it can be checked alone."""
        return []

    def _check(self) -> None:
        """Has the native side look at the parameters, while the line at fault is still on the stack."""
        make = _sutler.Pipeline.audio if self.medium == "sound" else _sutler.Pipeline.volume
        for name, value in vars(self).items():
            if any(_is_no_number(each) for each in (value if isinstance(value, list | tuple) else [value])):
                raise ValueError(f"{type(self).__name__}: {name}={value!r} should be finite")
        try:
            make(json.dumps([*self._before(), *self.ops], allow_nan=False))
        except ValueError as error:
            if str(error).startswith("The transforms cannot be read"):  # in words of the parser
                raise ValueError(
                    f"{type(self).__name__} has a parameter of a kind that it does not take: "
                    f"{', '.join(f'{name}={value!r}' for name, value in vars(self).items())}"
                ) from None
            told = re.sub(r"^Transform \d+ \((\w+)\) cannot be used", r"\1", str(error))
            raise ValueError(told) from None

    def __call__(self, image: Any) -> Any:
        """Raises: it runs in a dataset."""
        raise TypeError(
            f"Sutler's transforms on {self.medium} describe a pipeline; pass {type(self).__name__} to "
            f"{self.dataset}"
        )


def _is_no_number(value: Any) -> bool:
    """Whether it is a NaN or infinite, which JSON has no word for."""
    return isinstance(value, float) and not math.isfinite(value)
