"""Sutler reads, decodes and augments training samples, so that the accelerator never waits for them."""

from sutler import _starting  # before all else, so that Ctrl-C ends the command meanwhile
from sutler._hand_over import yield_point
from sutler._sutler import __version__
from sutler._worker_info import get_worker_info
from sutler.analysis import Report, analyze
from sutler.audio import AudioFolder, LengthBuckets
from sutler.cache import Cache
from sutler.datasets import ImageFolder, Manifest
from sutler.detection import AspectGroups, CocoDetection
from sutler.errors import (
    DecodeError,
    ErrorBudgetExceeded,
    Errors,
    Failure,
    PythonTransformWarning,
    RankOutOfStep,
    RankShareWarning,
    ReadError,
    SameOrderWarning,
    SampleError,
    SutlerError,
    WorkerError,
    WorkerStartError,
)
from sutler.loader import Loader
from sutler.planning import Plan, plan
from sutler.prepared import PreparedDataset, deterministic
from sutler.text import TextLines
from sutler.volumes import VolumeFolder, prepare_volumes

__all__ = [
    "AspectGroups",
    "AudioFolder",
    "Cache",
    "CocoDetection",
    "DecodeError",
    "ErrorBudgetExceeded",
    "Errors",
    "Failure",
    "ImageFolder",
    "LengthBuckets",
    "Loader",
    "Manifest",
    "Plan",
    "PreparedDataset",
    "PythonTransformWarning",
    "RankOutOfStep",
    "RankShareWarning",
    "ReadError",
    "Report",
    "SameOrderWarning",
    "SampleError",
    "SutlerError",
    "TextLines",
    "VolumeFolder",
    "WorkerError",
    "WorkerStartError",
    "__version__",
    "analyze",
    "deterministic",
    "get_worker_info",
    "plan",
    "prepare_volumes",
    "yield_point",
]

_starting.done()
