"""PyTorch's data pipes: streams made of streams, which their loader tells how to shuffle, divide and draw."""

from __future__ import annotations

import random
import sys
import threading
from dataclasses import dataclass
from typing import Any

#: Held while PyTorch looks at how pipes are connected, for which it changes the class of all of them: workers may be
#: threads.
_looking = threading.Lock()


@dataclass(frozen=True)
class PipeOrders:
    """What the pipes of an epoch are told, the same in every worker."""

    seed: int
    rank: int
    world_size: int

    def tell(self, dataset: Any, reader: int, readers: int) -> None:
        """Makes one reader's copy of the pipes yield its part: of this rank's part, where there are several ranks."""
        import torch
        from torch.utils.data import graph_settings

        with _looking:
            graph_settings.apply_sharding(dataset, self.world_size * readers, self.rank * readers + reader)
            graph_settings.apply_random_seed(dataset, torch.Generator().manual_seed(self.seed))


def is_data_pipe(dataset: Any) -> bool:
    """Whether a stream is made of data pipes."""
    pipe = getattr(sys.modules.get("torch.utils.data"), "IterDataPipe", None)
    return pipe is not None and isinstance(dataset, pipe)


def shuffle_pipes(dataset: Any, shuffle: bool | None) -> Any:
    """The pipes with their shuffling turned on or off; with one more that shuffles, where there is none to turn on."""
    from torch.utils.data import graph_settings

    return graph_settings.apply_shuffle_settings(dataset, shuffle=shuffle)


def common_seed(seed: int, epoch: int) -> int:
    """What the pipes of all ranks draw from in an epoch.

    What shuffles comes before what divides, so all ranks must shuffle alike. A number that is drawn would be another on
    each of them; the loader's seed and the epoch's number they have in common.
    """
    return random.Random(f"{seed} {epoch}").getrandbits(63)
