"""What every transform is: a name and parameters, which say what to do and leave the doing to the engine."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, ClassVar, Literal

__all__ = ["Lambda", "Medium", "NotNativeError", "Op", "Transform"]

Op = dict[str, Any]
"""One native operation: its name under `"op"`, and its parameters."""


Medium = Literal["images", "sound", "volumes"]
"""What a transform works on."""


class NotNativeError(ValueError):
    """A transform, or one of its parameters, has no native form; the message is the clause that says why."""


class Transform:
    """The base of the transforms.

    A transform describes a step; datasets run the description in native threads. Two transforms are equal if
    they are of one class and have equal parameters.

    Calling one on an image runs torchvision's transform of the same name and parameters, if torchvision is
    installed. That is meant for looking at a step, not for training.
    """

    random: ClassVar[bool] = False
    """Whether two runs over one image may differ."""

    medium: Medium = "images"
    """What it works on."""

    @property
    def ops(self) -> list[Op]:
        """The native operations this transform stands for, as data that JSON can hold."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it does; define `ops`.")

    @property
    def tail(self) -> list[Callable[[Any], Any]]:
        """What runs in Python after the native operations."""
        return []

    def leaves(self) -> list[Transform]:
        """The single steps, in order."""
        return [self]

    def __call__(self, image: Any) -> Any:
        """Run torchvision's transform of the same name and parameters on a PIL image, tensor or array."""
        from sutler.transforms.direct import apply

        return apply(self, image)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        # Like torchvision, leave out what is not set.
        shown = (
            f"{name}={value}"
            for name, value in vars(self).items()
            if isinstance(value, (bool, int, float, str, tuple, list, enum.Enum))
        )
        return f"{type(self).__name__}({', '.join(shown)})"


class Lambda(Transform):
    """Run a Python function.

    The function, and whatever follows it, runs in Python. It gets what it would get in torchvision at the
    same place: a PIL image, or after `ToImage`, `ToDtype` or `Normalize` a tensor (channels, height, width).
    On sound it gets a tensor, and on volumes a pair of tensors, image and labels.

    Args:
        lambd: the function. It takes an image and returns one, or on volumes a pair; in a `sutler.CocoDetection` it
            takes an image and its target, and returns both.

    Examples:
        >>> from sutler import transforms as T
        >>> pipeline = T.Compose([T.Resize(256), T.Lambda(str.upper)])
        >>> pipeline.tail
        [<method 'upper' of 'str' objects>]
    """

    random = True  # it may draw numbers; only its author knows

    def __init__(self, lambd: Callable[..., Any]) -> None:
        if not callable(lambd):
            raise TypeError(f"Argument lambd should be callable, got {type(lambd).__name__!r}")
        self.lambd = lambd

    @property
    def ops(self) -> list[Op]:
        """None: a Python function has no native operation."""
        return []

    @property
    def tail(self) -> list[Callable[[Any], Any]]:
        """The function."""
        return [self.lambd]

    def __call__(self, image: Any) -> Any:
        """Call the function."""
        return self.lambd(image)

    def __repr__(self) -> str:
        return f"Lambda({getattr(self.lambd, '__name__', None) or repr(self.lambd)})"
