"""Says once where a rank gets other samples than the same lines give it with PyTorch."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

from sutler._arguments import is_place_given
from sutler._turns import divides_itself
from sutler._words import counted
from sutler.errors import RankShareWarning

if TYPE_CHECKING:
    from types import FrameType

    from sutler.loader import Loader

#: Packages whose trainers divide a ``DataLoader`` over the ranks by themselves: a share is what they want of a loader.
_DIVIDING_TRAINERS = ("lightning.pytorch.", "pytorch_lightning.")

#: What was said in this process.
_said: set[str] = set()


def warn_of_share(loader: Loader, stacklevel: int) -> None:
    """Warns where an epoch begins of which this rank gets more or less than with a ``DataLoader``.

    Not where somebody said which rank this is, where a trainer of ours sees to it, or where the order is shuffled:
    whoever shuffles trains, and wants a share.
    """
    _, ranks = loader._place()
    if ranks == 1 or is_place_given(loader._place) or loader._shares_settled or loader._streams is not None:
        return
    given = loader._given_sampler if loader._given_batch_sampler is None else loader._given_batch_sampler
    if given is None and not loader.shuffle and not _asked_by_dividing_trainer():
        _say_once(
            "share",
            f"This rank gets {len(loader.sampler)} of {counted(len(loader.dataset), 'sample')}: torch.distributed is "
            f"initialised with {ranks} ranks, and a loader without a sampler serves each of them its share, while a "
            "DataLoader serves all samples to every rank. Pass rank=0, world_size=1 to get all of them, for instance "
            "to validate on one rank only; or pass this process's rank and world_size, if the share is meant.",
            stacklevel + 1,
        )
    elif given is not None and not divides_itself(given) and _asked_by_dividing_trainer():
        _say_once(
            "sampler",
            f"Every rank gets all that {type(given).__name__} draws: Lightning divides the samplers of a DataLoader "
            "over its ranks, and not those of other loaders. Pass a sampler that knows its rank, such as "
            "DistributedSampler, or wrap this one in the process of each rank: DistributedSamplerWrapper(sampler, "
            "shuffle=False) from lightning.fabric.utilities.distributed.",
            stacklevel + 1,
        )


def _say_once(what: str, message: str, stacklevel: int) -> None:
    if what not in _said:
        _said.add(what)
        warnings.warn(message, RankShareWarning, stacklevel=stacklevel + 1)


def _asked_by_dividing_trainer() -> bool:
    """Whether it is a trainer of those packages that is asking for a batch, directly or not."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(_DIVIDING_TRAINERS):
            return True
        frame = frame.f_back
    return False
