"""The state that a map-style dataset has of its own, which a checkpoint keeps where there is one."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sutler.loader import Loader


def is_stateful(dataset: Any) -> bool:
    """Whether a dataset can save and load a state."""
    return callable(getattr(dataset, "state_dict", None)) and callable(
        getattr(dataset, "load_state_dict", None)
    )


def save_dataset_state(loader: Loader, stacklevel: int) -> Any:
    """The dataset's state after the batch that was handed out last; ``None`` where it has none, or nobody knows it."""
    if not is_stateful(loader.dataset):
        return None
    if not _is_in_step(loader):
        _warn(loader, "is not part of this state", stacklevel + 1)
        return None
    return copy.deepcopy(loader.dataset.state_dict())


def load_dataset_state(loader: Loader, state: Any, stacklevel: int) -> None:
    """Tells the dataset the state that a checkpoint has of it, whether of one rank or of all of them."""
    if isinstance(state, list | tuple):
        state = next((one for one in state if one["place"] == [loader.rank, loader.world_size]), {})
    saved = state.get("dataset")
    if saved is None or not is_stateful(loader.dataset):
        return
    if not _is_in_step(loader):
        _warn(loader, "is not loaded from this one", stacklevel + 1)
        return
    loader.dataset.load_state_dict(copy.deepcopy(saved))


def _is_in_step(loader: Loader) -> bool:
    """Whether the dataset has been asked for nothing but what the trainer has in its hands."""
    return loader._in_process() and loader.device is None


def _warn(loader: Loader, what: str, stacklevel: int) -> None:
    if loader._warned_of_dataset_state:
        return
    loader._warned_of_dataset_state = True
    warnings.warn(
        f"{type(loader.dataset).__name__} has a state_dict, but what it holds {what}, since samples go to whichever "
        "worker is free and are prepared ahead; with num_workers=0 and without device= it is saved and loaded.",
        stacklevel=stacklevel + 1,
    )
