"""The native half of Sutler."""

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, final

from typing_extensions import CapsuleType

from sutler._agent import AgentChoice

__all__ = [
    "FIRST_KEYED",
    "GAIN_MIN",
    "MOSTLY_WAITING",
    "STEP_BUSY",
    "Array",
    "Batch",
    "Cache",
    "CacheReader",
    "Dataset",
    "Engine",
    "Handover",
    "Job",
    "NotInTime",
    "PassedOver",
    "Pipeline",
    "Positions",
    "Run",
    "Served",
    "Text",
    "Tokenizer",
    "__version__",
    "advise",
    "agent_socket",
    "agent_status",
    "attribute_stalls",
    "bare_seconds",
    "book_cost",
    "bucket_batches",
    "choose_split",
    "command_line",
    "compare_plans",
    "confidence",
    "correct_profile",
    "draw",
    "end_with",
    "epoch_order",
    "fetch_rate",
    "give_way",
    "group_batches",
    "is_json_lines",
    "keep_memory",
    "make_photos",
    "measure_profile",
    "parse_size",
    "plan_batches",
    "predict_rate",
    "prepare_volumes",
    "read_samples",
    "recall_samples",
    "storage_behind",
    "text_files_in",
    "usable_cores",
    "user_seed",
]

__version__: str
FIRST_KEYED: int
#: A gain below this is lost in what measurements leave open.
GAIN_MIN: float
#: A worker that is busy for less than this part of its time needs no core of its own.
MOSTLY_WAITING: float
#: A step that keeps a processor busy for more than this part of its time is felt by the workers.
STEP_BUSY: float

class NotInTime(Exception):  # noqa: N818 - not an error: the next request waits for the same batch
    """No batch was ready in the time that was given. No dataset raises it, as it may raise `TimeoutError`."""

class PassedOver(Exception):  # noqa: N818 - not an error: the next request waits for the batch after it
    """A batch had no good sample, and the sampler has to draw another one for it before the next one is waited for."""

@final
class Array:
    """An array that lends its memory: through DLPack to anyone, through `__array_interface__` to NumPy."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

#: Of all boxes of a batch, picture by picture: where those of each picture end; edges, labels, areas and crowds. Of all
#: pictures: id, height and width as they are, height and width in their files.
_Targets: TypeAlias = tuple[list[int], Array, Array, Array, Array, Array, Array, Array]

@final
class Pipeline:
    """A checked pipeline of native operations."""

    def __new__(cls, operations: str, *, dct_scaling: bool = True) -> Pipeline: ...
    @staticmethod
    def audio(operations: str) -> Pipeline: ...
    @staticmethod
    def volume(operations: str) -> Pipeline: ...
    @property
    def dtype(self) -> Literal["uint8", "float32"]: ...
    @property
    def size(self) -> tuple[int, int] | None: ...
    @property
    def loses_boxes(self) -> str | None: ...
    @property
    def static_prefix(self) -> int: ...

@final
class Dataset:
    """A listing of samples and the way to read them."""

    @staticmethod
    def image_folder(
        root: str | os.PathLike[str],
        *,
        extensions: Sequence[str] | None,
        allow_empty: bool,
        io: str,
        pixels_max: int,
        bytes_max: int,
        progress: Callable[[int], object] | None,
    ) -> Dataset: ...
    @staticmethod
    def audio_folder(
        root: str | os.PathLike[str],
        *,
        extensions: Sequence[str] | None,
        allow_empty: bool,
        io: str,
        mono: bool,
        seconds_max: float | None,
        values_max: int,
        bytes_max: int,
        progress: Callable[[int], object] | None,
    ) -> Dataset: ...
    def audio_headers(self, threads: int) -> list[tuple[int, int, int] | None]: ...
    @staticmethod
    def coco(
        path: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str],
        contiguous: bool,
        keep_empty: bool,
        keep_crowds: bool,
        refuse_empty_boxes: bool,
        io: str,
        pixels_max: int,
        bytes_max: int,
        progress: Callable[[int], object] | None,
    ) -> Dataset: ...
    @staticmethod
    def volume_folder(
        root: str | os.PathLike[str],
        *,
        extensions: Sequence[str] | None,
        channels: int,
        values_max: int,
        bytes_max: int,
        progress: Callable[[int], object] | None,
    ) -> Dataset: ...
    def labels_path(self, index: int) -> str | None: ...
    @staticmethod
    def manifest(
        path: str | os.PathLike[str],
        *,
        columns: list[str] | None,
        root: str | os.PathLike[str] | None,
        io: str,
        pixels_max: int,
        bytes_max: int,
        progress: Callable[[int], object] | None,
    ) -> Dataset: ...
    def throttled(self, bytes_per_s: float) -> Dataset: ...
    def set_rate(self, bytes_per_s: float) -> None: ...
    def __len__(self) -> int: ...
    @property
    def classes(self) -> list[str]: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def categories(self) -> list[tuple[int, str]]: ...
    @property
    def pictures(self) -> list[tuple[int, int, int]]: ...
    @property
    def box_counts(self) -> tuple[int, int, int, int, int]: ...
    def path(self, index: int) -> str: ...
    def label(self, index: int) -> int: ...
    def labels(self) -> list[int]: ...
    def read(self, index: int) -> bytes: ...
    def load(self, index: int, pipeline: Pipeline, *, seed: int, epoch: int, repeat: int = 0) -> Array: ...
    def load_detection(
        self, index: int, pipeline: Pipeline, *, seed: int, epoch: int, repeat: int = 0
    ) -> tuple[Array, _Targets]: ...
    def load_volume(
        self, index: int, pipeline: Pipeline, *, seed: int, epoch: int, repeat: int = 0
    ) -> tuple[Array, Array]: ...

@final
class Tokenizer:
    """Makes tokens of text, as a ``tokenizer.json`` describes."""

    def __new__(cls, json: str, *, add_special_tokens: bool, max_length: int | None = None) -> Tokenizer: ...
    def id(self, token: str) -> int | None: ...
    def token(self, number: int) -> str | None: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def padding(self) -> int | None: ...
    def tokens(self, text: str) -> list[int]: ...

@final
class Text:
    """The lines of some files, or blocks of them."""

    @staticmethod
    def open(
        paths: Sequence[str | os.PathLike[str]],
        *,
        field: str | None,
        tokenizer: Tokenizer | None,
        keep_blank: bool,
        bytes_max: int,
        cache_folder: str | os.PathLike[str],
        progress: Callable[[int], object] | None,
    ) -> Text: ...
    def pack(
        self,
        length: int,
        *,
        end: int,
        padding: int | None,
        documents: bool,
        positions: bool,
        skip_bad: bool,
        close_empty: bool,
        threads: int,
        progress: Callable[[int], object] | None,
    ) -> Text: ...
    def token_counts(self, threads: int, progress: Callable[[int], object] | None) -> list[int]: ...
    def __len__(self) -> int: ...
    @property
    def lines(self) -> int: ...
    @property
    def total_tokens(self) -> int | None: ...
    @property
    def files(self) -> list[pathlib.Path]: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def not_saved(self) -> str | None: ...
    def bad_lines(self) -> list[tuple[int, str, str, str]]: ...
    def path(self, index: int) -> str: ...
    def line_bytes(self) -> list[int]: ...
    def text(self, line: int) -> str: ...
    def load(self, index: int) -> Array: ...

@final
class Handover:
    """What a worker that is a thread of this process leaves for the engine."""

    def __new__(cls) -> Handover: ...
    def leave(self, value: Any) -> None: ...
    def mark(self, finished: int) -> None: ...
    def memory(self) -> Array | None: ...

@final
class Engine:
    """A set of worker threads."""

    def __new__(cls, threads: int, threads_max: int | None = None) -> Engine: ...
    @property
    def threads(self) -> int: ...
    def crew_changes(self) -> list[tuple[float, int, str]]: ...
    @property
    def is_here(self) -> bool: ...
    def start(
        self,
        job: Job,
        *,
        epoch: int,
        consumed: int,
        shuffle: bool,
        seed: int,
        batch_size: int,
        drop_last: bool,
        rank: int,
        world_size: int,
        samples: int | None = None,
        before: Served | None = None,
        done: Served | None = None,
        part: Sequence[int] | None = None,
    ) -> Run: ...
    def start_drawn(
        self,
        job: Job,
        *,
        epoch: int,
        consumed: int,
        batch_size: int,
        drop_last: bool,
        done: Served | None = None,
    ) -> Run: ...
    def start_batches(self, job: Job, *, epoch: int, consumed: int, done: Served | None = None) -> Run: ...
    def close(self) -> None: ...

@final
class Cache:
    """A cache for the samples of one dataset, as one pipeline or a dataset written in Python makes them."""

    def __new__(
        cls,
        samples: int,
        *,
        budget_bytes: int,
        encoded_percent: int,
        decoded_percent: int,
        policy: str,
        seed: int,
        any_split: bool,
    ) -> Cache: ...
    @staticmethod
    def of_prepared(*, samples: int, budget_bytes: int, policy: str, seed: int) -> Cache: ...
    def recall(self, sample: int) -> bytearray | None: ...
    def keep(self, sample: int, data: bytes | bytearray) -> None: ...
    def set_split(self, encoded_percent: int, decoded_percent: int) -> None: ...
    def figures(self) -> str: ...

@final
class CacheReader:
    """A trainer's cache, as its worker processes read it."""

    def __new__(cls, descriptor: int, blocks: int, slots: int) -> CacheReader: ...
    def read(self, sample: int, first_block: int) -> bytearray | None: ...

@final
class Job:
    """What is prepared, and into which memory."""

    def __new__(
        cls,
        dataset: Dataset,
        pipeline: Pipeline,
        *,
        seed: int,
        channels_last: bool,
        batch_size: int,
        batches_ahead: int,
        ahead_grows: bool,
        batches_held: int,
        in_step: bool,
        errors: str,
        errors_max: int | None = None,
        errors_rate: float | None = None,
        lateness: int | None = None,
        lateness_given: bool = True,
        shared: bool = False,
        pad: float | None = None,
        frame: int | None = None,
        cache: Cache | None = None,
        agent: AgentChoice | None = None,
        name: str | None = None,
        window_bytes: int = 0,
        shares_with: Job | None = None,
    ) -> Job: ...
    @staticmethod
    def with_processes(
        *,
        batch_size: int,
        batches_ahead: int,
        ahead_grows: bool,
        batches_held: int,
        in_step: bool,
        whole_batches: bool,
        revive: Callable[[int], tuple[int, Handover | None, int | None]],
        is_alive: Callable[[int], bool],
        post_mortem: Callable[[int], str],
        errors: str,
        errors_max: int | None = None,
        errors_rate: float | None = None,
        lateness: int | None = None,
        elastic: bool = False,
        cache: Cache | None = None,
        hand_over: bool = False,
    ) -> Job: ...
    @staticmethod
    def with_text(
        text: Text,
        *,
        batch_size: int,
        batches_ahead: int,
        ahead_grows: bool,
        batches_held: int,
        in_step: bool,
        errors: str,
        errors_max: int | None = None,
        errors_rate: float | None = None,
        lateness: int | None = None,
        shuffle: int | None = None,
        pad: int | None = None,
        pad_multiple: int = 1,
        cache: Cache | None = None,
    ) -> Job: ...
    def use_workers(self, ways: Sequence[tuple[int, Handover | None, int | None]], to_come: int) -> None: ...
    def add_worker(self, way: tuple[int, Handover | None, int | None]) -> None: ...
    def take_turns(self, workers: int, first: int) -> None: ...
    def hang_up(self) -> None: ...
    def add_keys(self, keys: Sequence[tuple[bytes, str]]) -> None: ...
    @property
    def schema(self) -> bytes | None: ...
    def under_way(self) -> list[tuple[int, str]]: ...
    @property
    def arena(self) -> tuple[int, int] | None: ...
    @property
    def batches_ahead(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    def failures(self) -> list[tuple[int, str, str, str]]: ...
    def metrics(self) -> str: ...
    def timeline(self) -> str: ...

@final
class Run:
    """One epoch, seen from the consumer."""

    @property
    def batches(self) -> int | None: ...
    @property
    def consumed(self) -> int: ...
    def extend(self, indices: Sequence[int]) -> None: ...
    def extend_batches(self, batches: Sequence[Sequence[int]]) -> None: ...
    def end_drawing(self) -> None: ...
    def next(self, timeout: float | None = None) -> Batch | None: ...
    def take_passed(self) -> int: ...
    @property
    def holds_batch(self) -> bool: ...
    def handed_over(self, prepared: bool) -> None: ...
    def last_delivery(self) -> tuple[float, float, float, int]: ...
    def close(self) -> None: ...

@final
class Batch:
    """A finished batch; the arrays it hands out share its memory."""

    def __len__(self) -> int: ...
    @property
    def is_block(self) -> bool: ...
    @property
    def in_arena(self) -> bool: ...
    def images(self) -> Array: ...
    def take_images(self) -> list[Array]: ...
    def padded(self, value: float) -> tuple[Array, Array] | None: ...
    def padded_tokens(self) -> tuple[Array, Array] | None: ...
    def take_tokens(self) -> list[Array]: ...
    def take_text(self) -> list[Array]: ...
    def plane(self, length: int, planes: int, plane: int) -> Array: ...
    def framed(self, dataset: Dataset, multiple: int) -> tuple[Array, _Targets]: ...
    def take_detections(self, dataset: Dataset) -> tuple[list[Array], _Targets]: ...
    def take_arrays(self) -> list[Array]: ...
    def volumes(self) -> tuple[Array, Array]: ...
    def take_volumes(self) -> list[tuple[Array, Array]]: ...
    def take_rows(self) -> list[tuple[int, bool, Any]]: ...
    def block(self, offset: int, shape: Sequence[int], dtype: str) -> Array: ...
    def positions(self) -> Positions: ...
    def labels(self) -> Array: ...
    def ids(self) -> Array: ...
    def repeats(self) -> list[int]: ...

@final
class Positions:
    """Some positions of an epoch."""

    def __new__(cls, positions: Sequence[int]) -> Positions: ...

@final
class Served:
    """The positions of an epoch that are in the trainer's hands."""

    def __new__(cls, saved: str | None = None) -> Served: ...
    @staticmethod
    def by_ranks(
        ranks: Sequence[Served],
        *,
        samples: int,
        shuffle: bool,
        seed: int,
        epoch: int,
        consumed: int,
        by_sample: bool,
        before: Served | None = None,
    ) -> Served: ...
    def save(self) -> str: ...
    def mark(self, positions: Positions) -> None: ...
    def is_done(self, position: int) -> bool: ...
    def __len__(self) -> int: ...

def advise(facts: str, setting: str) -> str: ...
def is_json_lines(path: str | os.PathLike[str]) -> bool: ...
def text_files_in(folder: str | os.PathLike[str]) -> list[pathlib.Path]: ...
def agent_socket() -> pathlib.Path: ...
def agent_status(socket: str | os.PathLike[str]) -> str: ...
def attribute_stalls(
    *, step: float, handed: float, prepared: float, fetched: float, alone: tuple[float, float] | None
) -> tuple[float, float, float, float]: ...
def book_cost(*, fetch: float) -> tuple[float, float]: ...
def command_line(arguments: Sequence[str], python: str) -> int: ...
def confidence(values: Sequence[float]) -> tuple[float, float, float] | None: ...
def draw(operations: str, width: int, height: int, seed: int, epoch: int, sample: int) -> str: ...
def fetch_rate(facts: str) -> tuple[float, float, float, float]: ...
def predict_rate(facts: str, change: str) -> str: ...
def read_samples(dataset: Dataset, samples: Sequence[int], *, threads: int) -> tuple[int, int, float]: ...
def recall_samples(cache: Cache, samples: Sequence[int], *, threads: int) -> tuple[int, int, float]: ...
def storage_behind(facts: str, reached: float) -> float | None: ...
def epoch_order(
    samples: int, *, shuffle: bool, seed: int, epoch: int, drop_last: bool, rank: int, world_size: int
) -> list[int]: ...
def make_photos(
    root: str | os.PathLike[str], *, count: int, classes: int, seed: int, longer_side: int
) -> None: ...
def parse_size(text: str) -> int: ...
def bucket_batches(
    lengths: list[int],
    *,
    batch_size: int,
    buckets: int,
    shuffle: bool,
    drop_last: bool,
    seed: int,
    epoch: int,
    rank: int,
    world_size: int,
) -> list[list[int]]: ...
def group_batches(
    groups: list[int],
    *,
    batch_size: int,
    shuffle: bool,
    drop_last: bool,
    seed: int,
    epoch: int,
    rank: int,
    world_size: int,
) -> list[list[int]]: ...
def prepare_volumes(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    spacing: list[float],
    clip: list[float],
    mean: float,
    std: float,
    min_shape: list[int],
    channels: int,
    threads: int,
    progress: bool | None,
) -> str: ...
def plan_batches(
    samples: int,
    *,
    shuffle: bool,
    seed: int,
    epoch: int,
    consumed: int,
    batch_size: int,
    drop_last: bool,
    rank: int,
    world_size: int,
    before: Served | None = None,
    done: Served | None = None,
) -> list[tuple[list[int], int, Positions]]: ...
def end_with(trainer: int, traces: list[str]) -> None: ...
def give_way() -> None: ...
def keep_memory() -> None: ...
def usable_cores() -> int: ...
def user_seed(seed: int, epoch: int, sample: int, repeat: int = 0) -> int: ...
def bare_seconds(
    dataset: Dataset, pipeline: Pipeline, *, shuffle: bool, seed: int, epoch: int, threads: int
) -> float: ...
def measure_profile(
    dataset: Dataset,
    pipeline: Pipeline,
    *,
    threads: int,
    jobs: int,
    device_samples_per_s: float | None,
    copies_bytes_max: int | None,
    seconds: float,
    served: int | None = None,
) -> tuple[str, str | None]: ...
def compare_plans(profile: str, memory: int) -> tuple[str, str]: ...
def choose_split(profile: str, memory: int, in_force: tuple[int, int] | None = None) -> str: ...
def correct_profile(profile: str, observed: str) -> str | None: ...
