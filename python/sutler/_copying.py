"""The arguments that make another loader like one that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sutler._arguments import AUTO_WORKERS, is_place_given

if TYPE_CHECKING:
    from sutler.loader import Loader

#: Arguments that are attributes as they were given, or as somebody has set them since.
_AS_THEY_ARE = (
    "dataset",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "persistent_workers",
    "pin_memory_device",
    "order",
    "hand_over",
    "overlap_epochs",
    "seed",
    "cache",
    "errors",
    "return_ids",
    "output",
    "channels_last",
    "device",
    "device_normalize",
    "progress",
    "agent",
    "job_name",
)

#: Attributes of every loader that are set when all others are there.
_SET_LAST = ("_own_attributes", "_initialised")


def arguments_of(loader: Loader) -> dict[str, Any]:
    """What a loader was made with, as its attributes have it by now; what the loader chose itself is left out."""
    arguments = {name: getattr(loader, name) for name in _AS_THEY_ARE}
    if loader._given_batch_sampler is not None:
        arguments["batch_sampler"] = loader._given_batch_sampler
    else:
        arguments |= {
            "batch_size": loader.batch_size,
            "shuffle": loader.shuffle or None,
            "sampler": loader._given_sampler,
        }
    follows_demand = loader._auto_workers is not None and loader._auto_workers == loader.num_workers
    arguments["num_workers"] = AUTO_WORKERS if follows_demand else loader.num_workers
    if loader.num_workers == 0:  # maybe by now only: what is for workers is refused without them
        arguments |= {"persistent_workers": False, "multiprocessing_context": None}
    elif not loader._ahead_grows:
        arguments["prefetch_factor"] = loader.prefetch_factor
    if loader._lateness_given:
        arguments["lateness"] = loader.lateness
    if is_place_given(loader._place):
        arguments |= {"rank": loader.rank, "world_size": loader.world_size}
    return arguments


def besides_of(loader: Loader) -> dict[str, Any]:
    """The attributes that a class derived from the loader's has, or that somebody has added."""
    return {
        name: value
        for name, value in loader.__dict__.items()
        if name not in loader._own_attributes and name not in _SET_LAST
    }
