"""Resampling: sound to another rate, volumes to another distance of their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sutler.transforms.base import Medium, Op
from sutler.transforms.media import MediaTransform

__all__ = ["Resample"]


class Resample(MediaTransform):
    """Change the sample rate of sound, as ``torchaudio.transforms.Resample`` does, or the spacing of volumes.

    Args:
        orig_freq: the rate that all files must have; left out, each file's own is taken. A single number is the new
            rate: ``Resample(16000)``.
        new_freq: the rate to change to.
        resampling_method: ``"sinc_interp_hann"`` or ``"sinc_interp_kaiser"``.
        lowpass_filter_width: zero crossings of the filter on each side; more is sharper and slower.
        rolloff: the share of the band that is let through.
        beta: the shape of Kaiser's window.
        spacing: for volumes, and then alone: the distance of values along each axis, in millimetres. The image is
            interpolated linearly along all three, as ``torch.nn.functional.interpolate`` does with
            ``align_corners=True``; labels are the nearest ones. What it was before is in the headers of NIfTI files; in
            ``.npy`` files it counts as 1.

    Examples:
        >>> from sutler import transforms as T
        >>> T.Resample(new_freq=16000)
        Resample(new_freq=16000, resampling_method=sinc_interp_hann, lowpass_filter_width=6, rolloff=0.99)
        >>> T.Resample(spacing=(1.6, 1.2, 1.2))
        Resample(spacing=[1.6, 1.2, 1.2])
    """

    def __init__(
        self,
        orig_freq: int | None = None,
        new_freq: int | None = None,
        resampling_method: Literal["sinc_interp_hann", "sinc_interp_kaiser"] = "sinc_interp_hann",
        lowpass_filter_width: int = 6,
        rolloff: float = 0.99,
        beta: float | None = None,
        *,
        spacing: Sequence[float] | None = None,
    ) -> None:
        if spacing is not None:
            if orig_freq is not None or new_freq is not None:
                raise TypeError(
                    "Resample takes a rate, for sound, or a spacing, for volumes; pass one of them"
                )
            self.spacing = [float(distance) for distance in spacing]
            if len(self.spacing) != 3:
                raise ValueError(f"spacing should be three distances, got {spacing!r}")
            self._check()
            return
        if new_freq is None:
            orig_freq, new_freq = None, orig_freq
        if new_freq is None:
            raise TypeError(
                "Resample needs the new rate, as in Resample(new_freq=16000), or for volumes the spacing, as in "
                "Resample(spacing=(1.6, 1.2, 1.2))"
            )
        self.orig_freq = orig_freq
        self.new_freq = new_freq
        self.resampling_method = resampling_method
        self.lowpass_filter_width = lowpass_filter_width
        self.rolloff = rolloff
        self.beta = beta
        self._check()

    @property
    def medium(self) -> Medium:  # type: ignore[override]  # of one class that serves two
        """What it works on: sound, or volumes where a spacing was given."""
        return "volumes" if "spacing" in vars(self) else "sound"

    @property
    def ops(self) -> list[Op]:
        """One change of rate, or of spacing."""
        return [{"op": "resample", **vars(self)}]
