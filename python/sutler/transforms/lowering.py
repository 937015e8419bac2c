"""From a pipeline as users write it to what the engine runs: native operations, then perhaps a Python tail.

Order matters, so the cut is simple: native up to the first step that only Python can do, Python from there
on.

One complication. The engine keeps 8-bit pixels until the values are converted to float, and after that it
knows only steps on values, and flips. A crop after `ToTensor` is common and would fall to Python for no
reason, as cropping and converting can change places. `_Assembly` lets a step slip back to before the
conversion where the result is the same.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sutler._words import name_of
from sutler.errors import PythonTransformWarning
from sutler.transforms.audio import audio_ops
from sutler.transforms.base import Lambda, Medium, NotNativeError, Op, Transform
from sutler.transforms.color import GaussianBlur
from sutler.transforms.geometry import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from sutler.transforms.interpolation import InterpolationMode
from sutler.transforms.media import MediaTransform
from sutler.transforms.parameters import fill_color
from sutler.transforms.torchvision import Kind, Stage, children, generation, translate
from sutler.transforms.values import Normalize, RandomErasing, ToBGR255, ToDtype, ToImage, ToPureTensor

__all__ = ["Foreign", "Lowered", "flatten", "lower", "lower_audio", "lower_detection", "lower_volumes"]


@dataclass(frozen=True)
class Lowered:
    """A pipeline, ready to run.

    Attributes:
        ops: the native operations, in order.
        tail: the Python functions that follow, in order; empty if all is native.
        tail_input: what the tail takes: `"pil"`, `"tensor_uint8"` or `"tensor_float32"`, tensors as
            (channels, height, width). It is what torchvision would have at that point.
        notes: what is worth knowing about the result, as sentences.
        static: how many of the steps, from the first, are native and draw no random numbers.
        asked_for: whether all of the tail was written as Python on purpose, with `Lambda`.
    """

    ops: list[Op]
    tail: list[Callable[[Any], Any]]
    tail_input: Kind
    notes: list[str]
    static: int
    asked_for: bool

    @property
    def ops_json(self) -> str:
        """The native operations as the native module takes them."""
        return json.dumps(self.ops, allow_nan=False)

    def announce(self, stacklevel: int = 1) -> None:
        """Warn, once per pipeline and process, about what runs in Python without having been asked to."""
        if not self.tail or self.asked_for:
            return
        message = self.notes[-1]
        if message not in _ANNOUNCED:
            _ANNOUNCED.add(message)
            warnings.warn(message, PythonTransformWarning, stacklevel=stacklevel + 1)


# Filled by `announce`, never emptied: whoever builds a dataset per epoch should not be told every epoch.
_ANNOUNCED: set[str] = set()


def flatten(transform: object) -> Iterator[Transform]:
    """The single steps of a pipeline of any make. What is not Sutler's comes wrapped as `Foreign`."""
    if transform is None:
        return
    if isinstance(transform, Transform):
        yield from transform.leaves()
        return
    inside = children(transform)
    if inside is not None:
        for step in inside:
            yield from flatten(step)
        return
    if not callable(transform):
        raise TypeError(
            f"A transform should be one of Sutler's or torchvision's, or a function from image to image, "
            f"got {transform!r}."
        )
    yield Foreign(transform)


class Foreign(Lambda):
    """A callable that was not written as a `Lambda`, so that its being Python's may come as a surprise."""

    def __repr__(self) -> str:
        return repr(self.lambd) if generation(self.lambd) else super().__repr__()


def lower(transform: object) -> Lowered:
    """Split a pipeline into native operations and a Python tail.

    Args:
        transform: None, a transform of Sutler's, a torchvision pipeline (`Compose`, `nn.Sequential` or a
            single transform, of either of its interfaces), or any function from image to image.

    Examples:
        >>> from sutler import transforms as T
        >>> lowered = T.lower(T.Compose([T.CenterCrop(224), T.Lambda(str.upper), T.RandomHorizontalFlip()]))
        >>> lowered.ops
        [{'op': 'center_crop', 'size': [224, 224]}]
        >>> lowered.tail
        [<method 'upper' of 'str' objects>, RandomHorizontalFlip(p=0.5)]
        >>> lowered.tail_input
        'pil'
    """
    steps = list(flatten(transform))
    for step in steps:
        if isinstance(step, MediaTransform):
            return _lower_media(transform, step.medium)
    assembly = _Assembly()
    static: int | None = None
    for position, step in enumerate(steps):
        try:
            transforms = _native_form(step, assembly.stage)
            assembly.add(transforms)
        except NotNativeError as reason:
            return _cut(assembly, steps, position, str(reason), position if static is None else static)
        if static is None and any(native.random for native in transforms):
            static = position
    return Lowered(
        ops=assembly.ops,
        tail=[],
        tail_input=assembly.stage.kind,
        notes=assembly.notes,
        static=len(steps) if static is None else static,
        asked_for=False,
    )


def lower_audio(transform: object) -> Lowered:
    """The same for a pipeline on sound: transforms of Sutler's, and after them perhaps functions.

    Examples:
        >>> from sutler import transforms as T
        >>> lowered = T.lower_audio(T.Compose([T.PreEmphasis(), T.Lambda(abs)]))
        >>> lowered.ops, lowered.tail
        ([{'op': 'pre_emphasis', 'coeff': 0.97}], [<built-in function abs>])
    """
    return _lower_media(transform, "sound")


def lower_volumes(transform: object) -> Lowered:
    """The same for a pipeline on volumes: transforms of Sutler's, and after them perhaps functions of a pair.

    Examples:
        >>> from sutler import transforms as T
        >>> [op["op"] for op in T.lower_volumes(T.Compose([T.RandBalancedCrop(64), T.RandFlip()])).ops]
        ['rand_balanced_crop', 'rand_flip']
    """
    return _lower_media(transform, "volumes")


#: One sample, by what a pipeline works on.
_SAMPLES: dict[Medium, str] = {"images": "image", "sound": "clip", "volumes": "volume"}


def _lower_media(transform: object, medium: Medium) -> Lowered:
    steps = list(flatten(transform))
    native: list[MediaTransform] = []
    for step in steps:
        if not isinstance(step, MediaTransform) or step.medium != medium:
            break
        native.append(step)
    rest = steps[len(native) :]
    for step in rest:
        if not isinstance(step, Lambda) and step.medium != medium:
            raise TypeError(
                f"{_name(step)} is a transform on {step.medium}; this pipeline is one on {medium}"
            )
        if not isinstance(step, Lambda):
            raise ValueError(
                f"{_name(step)} follows {_name(rest[0])}, which is Python's; transforms on {medium} run natively only, "
                "so put functions behind them"
            )
    static = next((place for place, step in enumerate(native) if step.random), len(native))
    return Lowered(
        ops=audio_ops(native) if medium == "sound" else [op for step in native for op in step.ops],
        tail=[step.lambd for step in rest if isinstance(step, Lambda)],
        tail_input="tensor_float32",
        notes=[_in_python(rest, _SAMPLES[medium], "it is a Python function")] if rest else [],
        static=static,
        asked_for=_is_asked_for(rest),
    )


def lower_detection(transform: object) -> Lowered:
    """The same for a pipeline on pictures with boxes: what runs natively moves both, and only functions may follow.

    Examples:
        >>> from sutler import transforms as T
        >>> lowered = T.lower_detection(T.Compose([T.Resize(64), T.Lambda(divmod)]))
        >>> [op["op"] for op in lowered.ops], lowered.tail
        (['resize'], [<built-in function divmod>])
    """
    for step in flatten(transform):
        if not isinstance(step, Lambda) and step.medium != "images":
            raise TypeError(
                f"{_name(step)} is a transform on {step.medium}; this pipeline is one on pictures with boxes"
            )
    lowered = lower(transform)
    for function in lowered.tail:
        if isinstance(function, Transform) or generation(function) is not None:
            behind = "" if function is lowered.tail[0] else f" behind {_name(Lambda(lowered.tail[0]))}"
            raise ValueError(
                f"{type(function).__name__} has no native form here{behind}, and in Python it would move pictures "
                "without their boxes. Leave it out, put it before what runs in Python, or do both in a function of "
                "(image, target)."
            )
    return lowered


def _native_form(step: Transform, stage: Stage) -> list[Transform]:
    if isinstance(step, Foreign):
        return translate(step.lambd, stage)
    if isinstance(step, Lambda):
        raise NotNativeError("Lambda runs a Python function")
    return [step]


def _cut(assembly: _Assembly, steps: list[Transform], position: int, reason: str, static: int) -> Lowered:
    rest = steps[position:]
    return Lowered(
        ops=assembly.ops,
        tail=[step.lambd if isinstance(step, Lambda) else step for step in rest],
        tail_input=assembly.stage.kind,
        notes=[*assembly.notes, _in_python(rest, "image", reason)],
        static=static,
        asked_for=_is_asked_for(rest),
    )


def _is_asked_for(rest: list[Transform]) -> bool:
    """Whether all that runs in Python was written as a `Lambda`."""
    return all(isinstance(step, Lambda) and not isinstance(step, Foreign) for step in rest)


def _in_python(rest: list[Transform], what: str, reason: str) -> str:
    """What runs in Python, why, and what to do about it."""
    names = ", ".join(_name(step) for step in rest)
    return (
        f"{names} {'runs' if len(rest) == 1 else 'run'} in Python, one {what} at a time in each worker process, "
        f"because {reason}"
        + (", and what follows has to wait for it. " if len(rest) > 1 else ". ")
        + "Move it to the end, or replace it with a transform of sutler.transforms, to leave more to native "
        "threads; write it as sutler.transforms.Lambda to run it in Python without this warning."
    )


def _name(step: Transform) -> str:
    if isinstance(step, Lambda):
        return name_of(step.lambd)
    return type(step).__name__


_FLIPS = (RandomHorizontalFlip, RandomVerticalFlip)


class _Assembly:
    """The native operations found so far: those on pixels, and behind them those on float values."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.notes: list[str] = []
        self._pixels: list[Transform] = []
        self._values: list[Transform] = []

    @property
    def ops(self) -> list[Op]:
        return [op for transform in (*self._pixels, *self._values) for op in transform.ops]

    def add(self, transforms: list[Transform]) -> None:
        """Append what one step stands for: all of it or, with a `NotNativeError`, nothing."""
        before = self.stage, list(self.notes), list(self._pixels), list(self._values)
        try:
            for transform in transforms:
                transform.ops  # noqa: B018 - asks whether there is a native form
                self._add(transform)
                self.stage = self.stage.after(transform)
        except NotNativeError:
            self.stage, self.notes, self._pixels, self._values = before
            raise

    def _add(self, transform: Transform) -> None:
        if isinstance(transform, (ToImage, ToPureTensor)):
            return
        is_float = self.stage.kind == "tensor_float32"
        if isinstance(transform, ToDtype):
            self._convert(transform, is_float)
        elif isinstance(transform, ToBGR255):
            if is_float:
                raise NotNativeError(
                    "ToBGR255 after the conversion to float has no native form; before it, it has"
                )
            self._values.append(transform)
        elif isinstance(transform, Normalize):
            self._values.append(transform)
        elif not is_float:
            self._pixels.append(transform)
        elif isinstance(transform, (RandomErasing, *_FLIPS)):
            self._values.append(transform)
        else:
            self._slip(transform)

    def _convert(self, transform: ToDtype, is_float: bool) -> None:
        if transform.dtype == "uint8":
            if is_float:
                raise NotNativeError("going back from float to 8-bit values has no native form")
        elif not is_float:
            self._values.append(transform)

    def _slip(self, transform: Transform) -> None:
        """Put a step on pixels before the conversion to float, if that changes nothing that matters."""
        name = type(transform).__name__
        if any(isinstance(value, RandomErasing) for value in self._values):
            # An erased rectangle is part of the picture that a crop would cut.
            raise NotNativeError(f"{name} after RandomErasing on float values has no native form")
        if _is_convex(transform):
            self.notes.append(
                f"{name} runs before the conversion to float instead of after it; the values differ from "
                "torchvision's by the rounding to 8 bits."
            )
        elif not _commutes(transform, normalized=any(isinstance(value, Normalize) for value in self._values)):
            raise NotNativeError(
                f"{name} after the conversion to float has no native form; before it, it has"
            )
        # Flips come before it, so they slip first.
        self._pixels += [*(value for value in self._values if isinstance(value, _FLIPS)), transform]
        self._values = [value for value in self._values if not isinstance(value, _FLIPS)]


def _commutes(transform: Transform, normalized: bool) -> bool:
    """Whether a step only moves pixels, so that converting them before or after is exactly the same."""
    if isinstance(transform, CenterCrop):
        return not normalized  # it may add black, and black is not zero any more
    if isinstance(transform, RandomCrop) and transform.padding is None and not transform.pad_if_needed:
        return True
    if isinstance(transform, (RandomCrop, Pad)):
        if transform.padding_mode != "constant":
            return True
        return not normalized and fill_color(transform.fill) == [0, 0, 0]
    return False


def _is_convex(transform: Transform) -> bool:
    """Whether new pixels are averages of old ones, so that only the rounding between the two orders differs.

    The filters with negative lobes are not: they overshoot, which float values keep and 8-bit values cut off.
    """
    if isinstance(transform, (Resize, RandomResizedCrop)):
        return transform.interpolation not in (InterpolationMode.BICUBIC, InterpolationMode.LANCZOS)
    return isinstance(transform, GaussianBlur)
