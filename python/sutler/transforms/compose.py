"""A pipeline: transforms, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sutler._hand_over import begin_step
from sutler.transforms.base import Lambda, Op, Transform
from sutler.transforms.lowering import Foreign, Lowered, flatten, lower
from sutler.transforms.torchvision import generation

__all__ = ["Compose"]


class Compose(Transform):
    """Several transforms, one after the other.

    Args:
        transforms: Sutler's transforms; pipelines inside pipelines are flattened. torchvision's transforms
            and plain functions are welcome: what has no native form runs in Python, with all that follows it.

    Examples:
        >>> from sutler import transforms as T
        >>> pipeline = T.Compose([T.Resize(256), T.RandomCrop(224), T.RandomHorizontalFlip()])
        >>> print(pipeline)
        Compose(
            Resize(size=[256], interpolation=bilinear, antialias=True)
            RandomCrop(size=(224, 224), pad_if_needed=False, fill=0, padding_mode=constant)
            RandomHorizontalFlip(p=0.5)
        )
        >>> pipeline.static_prefix
        [Resize(size=[256], interpolation=bilinear, antialias=True)]
        >>> [op["op"] for op in pipeline.ops]
        ['resize', 'random_crop', 'random_horizontal_flip']
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        if not isinstance(transforms, Sequence) or isinstance(transforms, str):
            raise TypeError("Argument transforms should be a sequence of callables")
        if not transforms:
            raise ValueError("Pass at least one transform")
        self.transforms: list[Transform] = [
            # Whoever writes a function of their own into Sutler's Compose means a Lambda.
            Lambda(leaf.lambd) if isinstance(leaf, Foreign) and generation(leaf.lambd) is None else leaf
            for transform in transforms
            for leaf in flatten(transform)
        ]

    @property
    def random(self) -> bool:  # type: ignore[override]
        """Whether two runs over one image may differ."""
        return any(transform.random for transform in self.transforms)

    @property
    def ops(self) -> list[Op]:
        """The native operations, in order, as data that JSON can hold."""
        return self._lowered().ops

    @property
    def tail(self) -> list[Callable[[Any], Any]]:
        """What runs in Python after the native operations: everything from the first step that has to."""
        return self._lowered().tail

    @property
    def static_prefix(self) -> list[Transform]:
        """The leading transforms that give the same result every time; what they give can be kept."""
        return self.transforms[: self._lowered().static]

    @property
    def random_suffix(self) -> list[Transform]:
        """The transforms from the first random one on; they run again for every epoch."""
        return self.transforms[self._lowered().static :]

    def _lowered(self) -> Lowered:
        # Not kept: `transforms` is a list that users may change, and lowering takes microseconds.
        return lower(self)

    def leaves(self) -> list[Transform]:
        """The single steps, in order."""
        return list(self.transforms)

    def __call__(self, image: Any) -> Any:
        """Run torchvision's transforms of the same names and parameters on an image."""
        for number, transform in enumerate(self.transforms):
            begin_step(number, transform)
            image = transform(image)
        return image

    def __repr__(self) -> str:
        steps = "\n".join(f"    {transform}" for transform in self.transforms)
        return f"Compose(\n{steps}\n)"
