"""Checks of a loader's arguments: PyTorch's rules and messages, and our own."""

from __future__ import annotations

import math
import multiprocessing
import numbers
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sutler._output import import_torch, torch_is_installed
from sutler._selection import origin_of
from sutler._stream_copy import is_stateful
from sutler._stream_reader import is_stream
from sutler._sutler import usable_cores
from sutler._threads import THREAD, wants_threads
from sutler.datasets import NativeDataset
from sutler.errors import Errors

if TYPE_CHECKING:
    from sutler.loader import Loader

Order = Literal["strict", "ready", "shared"]

#: Orders that this release can serve.
ORDERS: tuple[Order, ...] = ("strict", "ready", "shared")

#: The ``num_workers`` that follows the demand.
AUTO_WORKERS = "auto"


@dataclass(frozen=True)
class ErrorPolicy:
    """An ``errors=`` argument in the engine's terms."""

    name: str
    max: int | None = None
    rate: float | None = None

    def allowed(self, samples: int) -> int | None:
        """How many of an epoch's samples may fail before it ends in an error; ``None`` for any number."""
        if self.name == "raise":
            return 0
        limits = [self.max, None if self.rate is None else math.floor(self.rate * samples)]
        return min((limit for limit in limits if limit is not None), default=None)


def error_policy(errors: Any) -> ErrorPolicy:
    """The policy an ``errors=`` argument asks for."""
    if isinstance(errors, Errors):
        return ErrorPolicy("budget", errors.max, errors.rate)
    if errors in ("raise", "skip"):
        return ErrorPolicy(errors)
    raise ValueError(
        f"errors should be 'raise', 'skip', or a budget such as sutler.Errors(max=100), got {errors!r}"
    )


def check_arguments(
    *,
    dataset: Any,
    batch_size: Any,
    shuffle: Any,
    sampler: Any,
    batch_sampler: Any,
    num_workers: Any,
    collate_fn: Any,
    pin_memory: bool,
    drop_last: bool,
    timeout: Any,
    worker_init_fn: Any,
    multiprocessing_context: Any,
    generator: Any,
    prefetch_factor: Any,
    persistent_workers: bool,
    order: str,
    lateness: Any,
    hand_over: Any,
    overlap_epochs: Any,
    seed: Any,
    return_ids: Any,
    output: str,
    channels_last: Any,
    device: Any,
    device_normalize: Any,
    progress: Any,
) -> None:
    """Raises what PyTorch's ``DataLoader`` would raise for these arguments, or our own error for our own."""
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
        raise TypeError(
            f"dataset should have __getitem__ and __len__, as map-style datasets do, or __iter__, as iterable ones do; "
            f"{type(dataset).__module__}.{type(dataset).__qualname__} has neither."
        )
    if isinstance(num_workers, str):
        _check_auto_workers(num_workers, dataset)
    elif num_workers is not None and not isinstance(num_workers, numbers.Integral):
        raise TypeError(f"num_workers should be an integer from 0, got {num_workers!r}")
    elif num_workers is not None and num_workers < 0:
        raise ValueError(
            "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing."
        )
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real):
        raise TypeError(f"timeout should be a number of seconds, with 0 for no limit, got {timeout!r}")
    if not float(timeout) >= 0:  # nor a NaN
        raise ValueError("timeout option should be non-negative")
    native = isinstance(origin_of(dataset), NativeDataset)
    if num_workers is None and not native:
        num_workers = 0  # as in PyTorch, which then has no use for what follows
    if num_workers == 0 and prefetch_factor not in (None, 2):
        raise ValueError(
            "prefetch_factor option could only be specified in multiprocessing."
            "let num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None."
        )
    _check_prefetch_factor(prefetch_factor)
    if persistent_workers and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")
    check_context(multiprocessing_context, num_workers)
    own_order = sampler is None and batch_sampler is None
    if shuffle and own_order and not isinstance(dataset, NativeDataset) and len(dataset) == 0:
        raise ValueError("num_samples should be a positive integer value, but got num_samples=0")
    if sampler is not None and shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle")
    if shuffle not in (None, False, True):
        raise ValueError(f"shuffle should be a bool or None, got {shuffle!r}")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        raise ValueError(
            "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
        )
    if batch_size is None and drop_last:
        raise ValueError(
            "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
        )
    if batch_size is not None and (
        not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0
    ):
        raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
    if not isinstance(drop_last, bool):
        raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
    for name, value, meaning in (
        ("collate_fn", collate_fn, "a function from a list of samples to a batch"),
        ("worker_init_fn", worker_init_fn, "a function of a worker's number"),
    ):
        if value is not None and not callable(value):
            raise TypeError(f"{name} should be {meaning}, or None, got {value!r}")
    if generator is not None and not hasattr(generator, "initial_seed"):
        raise TypeError(
            f"generator should be a torch.Generator, whose seed counts, or None, got {generator!r}"
        )
    for name, value in (
        ("return_ids", return_ids),
        ("channels_last", channels_last),
        ("device_normalize", device_normalize),
        ("progress", progress),
    ):
        if not isinstance(value, bool):
            raise TypeError(f"{name} should be a bool, got {value!r}")
    if order == "shared" and native and origin_of(dataset) is not dataset:
        raise ValueError(
            "order='shared' serves every sample of a dataset that jobs have in common, and "
            f"{type(dataset).__name__} is a part of one; pass order='ready', or list the part in a sutler.Manifest"
        )
    if order == "shared" and not native:
        raise ValueError(
            "order='shared' shares the samples of native datasets (sutler.ImageFolder, sutler.Manifest), and "
            f"{type(dataset).__module__}.{type(dataset).__qualname__} is none; order='ready' serves its samples as "
            "they get ready"
        )
    if order == "shared" and not own_order:
        raise ValueError(
            "order='shared' serves every sample once, in whatever order suits all jobs, so a sampler or batch_sampler "
            "has nothing to say; leave it out, or pass order='ready'"
        )
    for name, switch in (("hand_over", hand_over), ("overlap_epochs", overlap_epochs)):
        if not isinstance(switch, bool):
            raise TypeError(f"{name} should be a bool, got {switch!r}")
    if lateness is not None:
        _check_integer("lateness", lateness, "a number of batches, or None for the default")
        if not 0 <= lateness < 2**32:
            raise ValueError(f"lateness should be a number of batches from 0 to 2**32 - 1, got {lateness}")
    check_seed(seed)
    if pin_memory and not torch_is_installed():
        raise ModuleNotFoundError(
            "pin_memory=True needs PyTorch, which is not installed. Install torch, or leave pin_memory out."
        )
    if device_normalize and device is None:
        raise ValueError("device_normalize=True needs a device, e.g. device='cuda'")
    _check_device(device)


def choose_order(order: Any, in_order: Any) -> Order:
    """The order that ``order=`` and ``in_order=`` ask for, which must not contradict each other."""
    if in_order not in (False, True):  # also as numbers, as elsewhere
        raise TypeError(f"in_order should be a bool, got {in_order!r}")
    if order is None:
        return "strict" if in_order else "ready"
    if order not in ORDERS:
        raise ValueError(
            f"order should be one that this release has ({', '.join(map(repr, ORDERS))}), got {order!r}"
        )
    if order == "strict" and not in_order:
        raise ValueError(
            "in_order=False asks for samples as they get ready and order='strict' for the exact order; leave one of "
            "the two out"
        )
    chosen: Order = order
    return chosen


def check_seed(seed: Any) -> None:
    """Raises for a seed that is none."""
    _check_integer("seed", seed, "an integer from 0 to 2**64 - 1")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed should be an integer from 0 to 2**64 - 1, got {seed!r}")


def _check_prefetch_factor(prefetch_factor: Any) -> None:
    if prefetch_factor is None:
        return
    if isinstance(prefetch_factor, bool) or not isinstance(prefetch_factor, numbers.Integral):
        raise TypeError(
            f"prefetch_factor should be a number of batches, or None for the default, got {prefetch_factor!r}"
        )
    if prefetch_factor < 0:
        raise ValueError("prefetch_factor option should be non-negative")
    if prefetch_factor == 0:
        raise ValueError(
            "prefetch_factor should be at least 1, got 0: workers would have no batch to prepare; leave it out for 2"
        )


def warn_of_many_workers(num_workers: int) -> None:
    """Warns, as PyTorch does, of more workers than cores: each wants one."""
    cores = usable_cores()
    if num_workers > cores:
        warnings.warn(
            f"This loader will start {num_workers} workers where this process may use {cores} cores; "
            "excessive worker creation might get DataLoader running slow or even freeze. Pass a lower num_workers.",
            stacklevel=3,
        )


def _check_integer(name: str, value: Any, meaning: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} should be {meaning}, got {value!r}")


def is_cuda(device: Any) -> bool:
    """Whether a ``device=`` argument asks for a CUDA device."""
    return device is not None and str(device).startswith("cuda")


def read_device(device: Any, output: str) -> Any:
    """The device that a ``device=`` argument names, as it was given; a number becomes the device that it stands for."""
    if device is None:
        return None
    if output != "torch":
        raise ValueError(f"device={str(device)!r} needs output='torch', got output={output!r}")
    torch = import_torch()
    if isinstance(device, bool) or not isinstance(device, str | int | torch.device):
        raise TypeError(
            "device should be a device of PyTorch's, such as 'cuda', 'cuda:1' or torch.device('cpu'), or None for host "
            f"memory, got {device!r}"
        )
    try:
        named = torch.device(device)
    except RuntimeError as error:
        raise RuntimeError(
            f"device={device!r} is no device of PyTorch's: {str(error).splitlines()[0]}. Pass one such as 'cuda' or "
            "'cuda:1', or leave device out for batches in host memory."
        ) from None
    return named if isinstance(device, int) else device


def _check_device(device: Any) -> None:
    """Refuses a device that is not there, before any thread is started for it."""
    if is_cuda(device):
        _check_cuda(device)
    elif device is not None:
        try:
            import_torch().empty(0, device=device)
        except Exception as error:  # each kind of device has a type of its own for being absent
            raise RuntimeError(
                f"device={str(device)!r} cannot be used here: {str(error).splitlines()[0]} Leave device out to get "
                "batches in host memory."
            ) from None


def _check_cuda(device: Any) -> None:
    """Refuses a CUDA device that is not there."""
    torch = import_torch()
    # Unlike is_available(), counting leaves CUDA alone where it can, so that the process may still be forked.
    found = torch.cuda.device_count()
    if found == 0:
        raise RuntimeError(
            f"device={str(device)!r} asks for a CUDA device, and PyTorch finds none. Leave device out to get "
            "batches in host memory, or check the driver (`nvidia-smi`) and that this PyTorch was built for CUDA."
        )
    index = torch.device(device).index
    if index is not None and index >= found:
        raise RuntimeError(
            f"device={str(device)!r} asks for CUDA device {index}, and PyTorch finds {found}, numbered from 0. "
            "Pass one of those; CUDA_VISIBLE_DEVICES decides which ones this process sees."
        )


def warn_of_no_effect(argument: str, why: str | None, stacklevel: int) -> None:
    """Warns of an argument that changes nothing, if there is a reason why it does not."""
    if why is not None:
        warnings.warn(f"{argument} has no effect {why}", RuntimeWarning, stacklevel=stacklevel + 1)


def why_no_hand_over(loader: Loader) -> str | None:
    """Where workers put no sample aside, or need no asking, and what to do; ``None`` elsewhere."""
    if loader._has_native_threads():
        if loader._in_trainer is not None:
            return "where functions run in the trainer's process, one sample after the other; leave it out"
        return "for a native dataset, whose slow samples make room by themselves; leave it out"
    if is_stream(loader.dataset):
        return "for a stream, whose workers go through it sample by sample; leave it out"
    if loader.order == "strict":
        return 'in strict order, in which no sample overtakes another; pass order="ready" as well'
    if loader._auto_workers is not None:
        return 'with num_workers="auto", as a worker that ends could not go on with it; pass their number'
    if loader.num_workers == 0:
        return "without workers, which would take up another sample; pass num_workers as well"
    if is_stateful(loader.dataset):
        return "for a dataset that has a state of its own, of which workers make whole batches; leave it out"
    if wants_threads(loader.multiprocessing_context):
        return 'with worker threads; pass multiprocessing_context="spawn" or "forkserver" for processes'
    return None


def warn_of_undivided(sampler: Any, world_size: int, stacklevel: int) -> None:
    """Warns where ``rank=`` was given and a sampler decides, which the loader does not divide over the ranks."""
    divider = getattr(sampler, "sampler", sampler)  # PyTorch's batch samplers have one inside
    parts = getattr(divider, "num_replicas", getattr(divider, "world_size", 1))
    if parts != world_size:
        warnings.warn(
            f"rank= and world_size= divide the loader's own order over the ranks, and {type(sampler).__name__} decides "
            "here: every rank gets all that it draws. Give the sampler its rank, as DistributedSampler(num_replicas=, "
            "rank=) and sutler.LengthBuckets(world_size=, rank=) take it.",
            UserWarning,
            stacklevel=stacklevel + 1,
        )


def warn_of_undivided_stream(dataset: Any, stacklevel: int) -> None:
    """Warns where ``rank=`` was given and a stream decides what every rank gets."""
    warnings.warn(
        f"rank= and world_size= have no effect on a stream: every rank gets all that {type(dataset).__name__} yields, "
        "unless its __iter__ skips what is for other ranks.",
        UserWarning,
        stacklevel=stacklevel + 1,
    )


def _check_auto_workers(num_workers: str, dataset: Any) -> None:
    if num_workers != AUTO_WORKERS:
        raise ValueError(
            f"num_workers should be a number or 'auto', which follows the demand; got {num_workers!r}"
        )
    if is_stream(dataset):
        raise ValueError(
            "num_workers='auto' is for datasets with __getitem__: each worker of an iterable one goes through a part "
            f"of its own to the end, and {type(dataset).__module__}.{type(dataset).__qualname__} is iterable. "
            "Pass how many workers it should have."
        )


def check_context(context: Any, num_workers: int | str | None) -> None:
    """PyTorch's checks of ``multiprocessing_context``, although native threads have no use for one."""
    if context is None:
        return
    if num_workers == 0:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
            f"num_workers={num_workers}"
        )
    methods = [*multiprocessing.get_all_start_methods(), THREAD]
    if isinstance(context, str) and context not in methods:
        raise ValueError(
            f"multiprocessing_context option should specify a valid start method in {methods!r}, but got "
            f"multiprocessing_context={context!r}"
        )
    if not isinstance(context, str | multiprocessing.context.BaseContext):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the start "
            f"method, but got multiprocessing_context={context}"
        )


def read_context(context: Any) -> Any:
    """How workers are started: the context that a start method names, anything else as it is."""
    named = isinstance(context, str) and context != THREAD
    return multiprocessing.get_context(context) if named else context


def choose_workers(num_workers: int | str | None, dataset: Any) -> int:
    """How many workers a loader has in the beginning.

    Where nobody says: all usable cores for native threads, none for datasets written in Python.
    """
    if num_workers is not None and not isinstance(num_workers, str):
        return num_workers  # as it is: NumPy's integers will do, too
    follows_demand = num_workers == AUTO_WORKERS
    return usable_cores() if follows_demand or isinstance(origin_of(dataset), NativeDataset) else 0


def place_in_job(rank: int | None, world_size: int | None) -> Callable[[], tuple[int, int]]:
    """Tells this process's rank and the number of ranks: as given, else from ``torch.distributed``, else the only one.

    The answer is not fixed when nothing is given: Lightning and Accelerate make the process group when the loader
    may already be there.
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank and world_size go together, got rank={rank} and world_size={world_size}")
    if rank is None or world_size is None:
        return _place_in_process_group
    _check_integer("rank", rank, "the number of this process, an integer from 0")
    _check_integer("world_size", world_size, "the number of processes, an integer from 1")
    if world_size < 1:
        raise ValueError(f"world_size should be at least 1, got {world_size}")
    if not 0 <= rank < world_size:
        raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {world_size - 1}]")
    place = rank, world_size
    return lambda: place


def is_place_given(place: Callable[[], tuple[int, int]]) -> bool:
    """Whether a user said where in a job this process is."""
    return place is not _place_in_process_group


def _place_in_process_group() -> tuple[int, int]:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
