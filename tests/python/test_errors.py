from __future__ import annotations

import pickle

import pytest
from sutler import DecodeError, ErrorBudgetExceeded, Errors, PythonTransformWarning, SampleError, SutlerError


@pytest.mark.parametrize("kind", [SampleError, DecodeError])
def test_a_sample_error_names_the_sample_the_place_and_the_reason(kind: type[SampleError]) -> None:
    error = kind(8123, "train/cat/9.jpg", "the file ends at byte 312 of 9,871", "truncated")
    assert str(error) == "sample 8123 (`train/cat/9.jpg`): the file ends at byte 312 of 9,871"
    assert (error.sample, error.path, error.kind) == (8123, "train/cat/9.jpg", "truncated")
    assert isinstance(error, SutlerError)
    assert isinstance(error, RuntimeError)


@pytest.mark.parametrize("kind", [SampleError, DecodeError])
def test_a_sample_error_survives_the_way_between_processes(kind: type[SampleError]) -> None:
    error = kind(3, "a.png", "the file is empty", "empty")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), vars(copy)) == (str(error), vars(error))


def test_a_decode_error_is_the_os_error_that_pillow_would_raise() -> None:
    assert issubclass(DecodeError, OSError)
    assert not issubclass(SampleError, OSError)


@pytest.mark.parametrize("reason", ["the file is empty", "The file is empty."])
@pytest.mark.parametrize(
    ("failed", "allowed", "beginning"),
    [
        (1, 0, "1 sample failed in this epoch and none may; the last was sample 3 "),
        (2, 1, "2 samples failed in this epoch and only 1 may; the last was sample 3 "),
        (101, 100, "101 samples failed in this epoch and only 100 may; the last was sample 3 "),
    ],
)
def test_an_exceeded_budget_is_told_in_whole_sentences(
    failed: int, allowed: int, beginning: str, reason: str
) -> None:
    error = ErrorBudgetExceeded(failed, allowed, DecodeError(3, "a.png", reason, "empty"))
    assert str(error).startswith(beginning)
    assert "ile is empty. loader.failures() lists them all;" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_warning_can_be_filtered_as_a_user_warning() -> None:
    assert issubclass(PythonTransformWarning, UserWarning)


def test_limits_on_errors_are_kept() -> None:
    assert Errors() == Errors(max=None, rate=None)
    assert Errors(max=0).max == 0
    assert Errors(rate=0.01).rate == 0.01
    assert Errors(max=5, rate=1).rate == 1


@pytest.mark.parametrize("limits", [{"max": -1}, {"rate": -0.1}, {"rate": 1.01}, {"rate": float("nan")}])
def test_impossible_limits_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="|".join(limits)):
        Errors(**limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "limits", [{"max": 0.5}, {"max": True}, {"max": "3"}, {"rate": "1%"}, {"rate": True}]
)
def test_limits_of_the_wrong_type_are_refused(limits: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="|".join(limits)):
        Errors(**limits)  # type: ignore[arg-type]
