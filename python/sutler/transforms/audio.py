"""Transforms on sound: torchaudio's names and parameters where it has them, librosa's and NVIDIA's for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypedDict, Unpack

from sutler.transforms.base import Medium, Op
from sutler.transforms.media import MediaTransform

__all__ = [
    "AudioTransform",
    "Dither",
    "FrameStack",
    "LogMel",
    "MelSpectrogram",
    "PreEmphasis",
    "SpecAugment",
    "SpeedPerturb",
    "TrimSilence",
    "audio_ops",
]


class AudioTransform(MediaTransform):
    """The base of the transforms on sound. They describe a step, which native threads of a loader run."""

    medium: Medium = "sound"
    #: Whether it works on the signal; else on the features of a spectrogram.
    on_signal = True

    def _before(self) -> list[Op]:
        return [] if self.on_signal else MelSpectrogram().ops


class SpeedPerturb(AudioTransform):
    """Play faster or slower by a random factor, which changes the pitch as well.

    Args:
        min_rate: the slowest; 0.85 takes 1/0.85 times as long.
        max_rate: the fastest.
        factors: draw one of these instead, each as likely as the others.
        p: how likely it happens at all.

    Examples:
        >>> from sutler import transforms as T
        >>> T.SpeedPerturb(factors=[0.9, 1.0, 1.1]).ops
        [{'op': 'speed_perturb', 'min_rate': 0.85, 'max_rate': 1.15, 'factors': [0.9, 1.0, 1.1], 'p': 1.0}]
    """

    random = True

    def __init__(
        self,
        min_rate: float = 0.85,
        max_rate: float = 1.15,
        factors: Sequence[float] | None = None,
        p: float = 1.0,
    ) -> None:
        self.min_rate = min_rate
        self.max_rate = max_rate
        self.factors = None if factors is None else [float(factor) for factor in factors]
        self.p = p
        self._check()

    @property
    def ops(self) -> list[Op]:
        """One change of speed."""
        return [{"op": "speed_perturb", **vars(self)}]


class TrimSilence(AudioTransform):
    """Cut off quiet beginnings and ends, as ``librosa.effects.trim`` does.

    Args:
        top_db: what is so many decibels below the loudest frame is silence.
        frame_length: values in a frame.
        hop_length: values from one frame to the next.
    """

    def __init__(self, top_db: float = 60.0, frame_length: int = 2048, hop_length: int = 512) -> None:
        self.top_db = top_db
        self.frame_length = frame_length
        self.hop_length = hop_length
        self._check()

    @property
    def ops(self) -> list[Op]:
        """One cut."""
        return [{"op": "trim_silence", **vars(self)}]


class Dither(AudioTransform):
    """Add a little normal noise, so that digital silence has a logarithm.

    Args:
        amount: the deviation of the noise; 1 is full scale.
    """

    random = True

    def __init__(self, amount: float = 1e-5) -> None:
        self.amount = amount
        self._check()

    @property
    def ops(self) -> list[Op]:
        """One addition."""
        return [{"op": "dither", **vars(self)}]


class PreEmphasis(AudioTransform):
    """Take a share of each value from the next, as ``torchaudio.functional.preemphasis`` does.

    Args:
        coeff: the share.
    """

    def __init__(self, coeff: float = 0.97) -> None:
        self.coeff = coeff
        self._check()

    @property
    def ops(self) -> list[Op]:
        """One difference."""
        return [{"op": "pre_emphasis", **vars(self)}]


class MelParameters(TypedDict, total=False):
    """What a :class:`MelSpectrogram` is made with."""

    sample_rate: int | None
    n_fft: int
    win_length: int | None
    hop_length: int | None
    f_min: float
    f_max: float | None
    n_mels: int
    power: float
    normalized: bool
    center: bool
    pad_mode: Literal["reflect", "constant"]
    norm: Literal["slaney"] | None
    mel_scale: Literal["htk", "slaney"]
    periodic: bool


class MelSpectrogram(AudioTransform):
    """Power over mel frequency and time, as ``torchaudio.transforms.MelSpectrogram`` makes it with a Hann window.

    Args:
        sample_rate: the rate that the sound must have here; left out, each clip's own is taken.
        n_fft: values in a transform.
        win_length: values in a window; ``n_fft`` by default.
        hop_length: values from one frame to the next; half a window by default.
        f_min: where the lowest filter begins, in Hz.
        f_max: where the highest one ends; half the sample rate by default.
        n_mels: how many filters.
        power: 2 for power, 1 for magnitude.
        normalized: divide by the root of the window's energy.
        center: centre frames on their values, so that the first lies around the beginning.
        pad_mode: what is beyond the ends then: ``"reflect"`` or ``"constant"``, zeros.
        norm: ``"slaney"`` gives all filters the same area.
        mel_scale: ``"htk"``, or ``"slaney"`` as librosa has it.
        periodic: whether the window is one period of a cosine, or a value more and symmetric.

    Examples:
        >>> from sutler import transforms as T
        >>> T.MelSpectrogram(n_fft=512, hop_length=160, n_mels=80).ops[0]["win_length"]
        512
    """

    def __init__(
        self,
        sample_rate: int | None = None,
        n_fft: int = 400,
        win_length: int | None = None,
        hop_length: int | None = None,
        f_min: float = 0.0,
        f_max: float | None = None,
        n_mels: int = 128,
        power: float = 2.0,
        normalized: bool = False,
        center: bool = True,
        pad_mode: Literal["reflect", "constant"] = "reflect",
        norm: Literal["slaney"] | None = None,
        mel_scale: Literal["htk", "slaney"] = "htk",
        periodic: bool = True,
    ) -> None:
        self.sample_rate = sample_rate
        self.n_fft = n_fft
        self.win_length = n_fft if win_length is None else win_length
        self.hop_length = self.win_length // 2 if hop_length is None else hop_length
        self.f_min = f_min
        self.f_max = f_max
        self.n_mels = n_mels
        self.power = power
        self.normalized = normalized
        self.center = center
        self.pad_mode = pad_mode
        self.norm = norm
        self.mel_scale = mel_scale
        self.periodic = periodic
        self._check()

    @property
    def ops(self) -> list[Op]:
        """One spectrogram."""
        return [{"op": "mel_spectrogram", **vars(self)}]


class LogMel(AudioTransform):
    """The natural logarithm of a mel spectrogram.

    Natively these are two steps, ``MelSpectrogram`` and ``LogMel``: errors and ``stats()["steps"]`` name and count them
    so, unless it follows a :class:`MelSpectrogram` anyway.

    Args:
        offset: added before the logarithm is taken.
        normalize: ``"per_feature"`` brings each feature to mean 0 and deviation 1 over the frames of its clip,
            ``"all_features"`` all of them together; ``None`` leaves them as they are.
        epsilon: added to the deviation.
        **mel: what the :class:`MelSpectrogram` is made with. After one, leave them out.

    Examples:
        >>> from sutler import transforms as T
        >>> [op["op"] for op in T.LogMel(n_mels=80, normalize="per_feature").ops]
        ['mel_spectrogram', 'log_mel']
        >>> [op["op"] for op in T.Compose([T.MelSpectrogram(n_mels=80), T.LogMel()]).ops]
        ['mel_spectrogram', 'log_mel']
    """

    def __init__(
        self,
        *,
        offset: float = 1e-20,
        normalize: Literal["per_feature", "all_features"] | None = None,
        epsilon: float = 1e-5,
        **mel: Unpack[MelParameters],
    ) -> None:
        self.offset = offset
        self.normalize = normalize
        self.epsilon = epsilon
        #: The spectrogram, where its parameters were given.
        self.mel = MelSpectrogram(**mel) if mel else None
        self._check()

    @property
    def logarithm(self) -> Op:
        """The step after the spectrogram."""
        parameters = {"offset": self.offset, "normalize": self.normalize, "epsilon": self.epsilon}
        return {"op": "log_mel", **parameters}

    @property
    def ops(self) -> list[Op]:
        """A spectrogram and its logarithm."""
        return [*(self.mel or MelSpectrogram()).ops, self.logarithm]


class SpecAugment(AudioTransform):
    """Overwrite random bands of features and random spans of time, as NVIDIA's speech recognition does.

    Args:
        freq_masks: how many bands.
        min_freq: features in a band, at least.
        max_freq: at most.
        time_masks: how many spans.
        min_time: frames in a span, at least; below 1 a share of the clip's, rounded.
        max_time: at most.
        value: what is written there.

    Examples:
        >>> from sutler import transforms as T
        >>> T.SpecAugment(freq_masks=2, max_freq=20, time_masks=10, max_time=0.03).random
        True
    """

    random = True
    on_signal = False

    def __init__(
        self,
        freq_masks: int = 2,
        min_freq: int = 0,
        max_freq: int = 20,
        time_masks: int = 10,
        min_time: float = 0.0,
        max_time: float = 0.03,
        value: float = 0.0,
    ) -> None:
        self.freq_masks = freq_masks
        self.min_freq = min_freq
        self.max_freq = max_freq
        self.time_masks = time_masks
        self.min_time = min_time
        self.max_time = max_time
        self.value = value
        self._check()

    @property
    def ops(self) -> list[Op]:
        """One masking."""
        return [{"op": "spec_augment", **vars(self)}]


class FrameStack(AudioTransform):
    """Put each frame together with those that follow it, and keep only some.

    Args:
        stack: frames that become one.
        subsample: every how many-th is kept; by default as many as are stacked, so that each is in one.

    Examples:
        >>> from sutler import transforms as T
        >>> T.FrameStack(3).ops
        [{'op': 'frame_stack', 'stack': 3, 'subsample': 3}]
    """

    on_signal = False

    def __init__(self, stack: int = 3, subsample: int | None = None) -> None:
        self.stack = stack
        self.subsample = stack if subsample is None else subsample
        self._check()

    @property
    def ops(self) -> list[Op]:
        """One stacking."""
        return [{"op": "frame_stack", **vars(self)}]


def audio_ops(steps: Iterable[MediaTransform]) -> list[Op]:
    """The native operations of some steps, in order."""
    ops: list[Op] = []
    has_features = False
    for step in steps:
        if not isinstance(step, LogMel) or not has_features:
            ops += step.ops
        elif step.mel is None:
            ops.append(step.logarithm)
        else:
            raise ValueError(
                "LogMel follows a MelSpectrogram and has parameters for one of its own; leave out either"
            )
        has_features = has_features or isinstance(step, (MelSpectrogram, LogMel))
    return ops
