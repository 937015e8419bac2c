//! From the engine's errors to the exceptions users catch; the classes live in `sutler.errors`.

use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use sutler_engine::{Failure, Parcel, RunError};

use crate::handover::python_object;

fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("sutler.errors")?.getattr(name)
}

/// A sample that failed, as an exception: the one that the user's code raised, or else one with fields.
pub fn sample_error(py: Python<'_>, failure: &Failure) -> PyErr {
    raised(py, failure).unwrap_or_else(|| described(py, failure))
}

/// What the user's code raised, with the traceback of its worker.
fn raised(py: Python<'_>, failure: &Failure) -> Option<PyErr> {
    let exception = failure.exception.as_ref()?;
    let made =
        py.import("sutler._worker_errors").and_then(|module| module.getattr("rebuild")).and_then(|rebuild| {
            match exception {
                Parcel::Bytes(bytes) => rebuild.call1((bytes.as_slice(),)),
                Parcel::Object(object) => rebuild.call1((python_object(object, py),)),
            }
        });
    Some(made.map_or_else(|error| error, PyErr::from_value))
}

/// The failure as a `SampleError`, whatever was raised.
fn described(py: Python<'_>, failure: &Failure) -> PyErr {
    let made = class(py, "sample_error")
        .and_then(|make| make.call1((failure.sample.0, &failure.path, &failure.reason, failure.kind)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// A run that cannot go on.
pub fn run_error(py: Python<'_>, error: &RunError) -> PyErr {
    match error {
        RunError::Sample(failure) => sample_error(py, failure),
        RunError::Budget { failed, allowed, last } => {
            let made = class(py, "ErrorBudgetExceeded")
                .and_then(|class| class.call1((*failed, *allowed, described(py, last))));
            caused_by(py, made, last)
        }
        RunError::OutOfStep { batch, last } => {
            let made =
                class(py, "RankOutOfStep").and_then(|class| class.call1((*batch, described(py, last))));
            caused_by(py, made, last)
        }
        RunError::Memory(text) => PyMemoryError::new_err(text.clone()),
        RunError::Closed => PyRuntimeError::new_err("the loader was closed while it was being iterated over"),
    }
}

/// An exception about several samples, with what the user's code raised for the last of them as its cause.
fn caused_by(py: Python<'_>, made: PyResult<Bound<'_, PyAny>>, last: &Failure) -> PyErr {
    let error = made.map_or_else(|error| error, PyErr::from_value);
    error.set_cause(py, raised(py, last));
    error
}

/// The error for an argument that makes no sense, as it says itself.
pub fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
