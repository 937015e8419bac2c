//! From the engine's errors to the exceptions users catch; the classes live in `sutler.errors`.

use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use sutler_engine::{Failure, Parcel, RunError};

use crate::handover::python_object;

fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("sutler.errors")?.getattr(name)
}

/// A sample that failed, as an exception with fields.
pub fn sample_error(py: Python<'_>, failure: &Failure) -> PyErr {
    if let Some(exception) = &failure.exception {
        let made = py.import("sutler._worker_errors").and_then(|module| module.getattr("rebuild")).and_then(
            |rebuild| match exception {
                Parcel::Bytes(bytes) => rebuild.call1((bytes.as_slice(),)),
                Parcel::Object(object) => rebuild.call1((python_object(object, py),)),
            },
        );
        return made.map_or_else(|error| error, PyErr::from_value);
    }
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
                .and_then(|class| class.call1((*failed, *allowed, sample_error(py, last))));
            made.map_or_else(|error| error, PyErr::from_value)
        }
        RunError::OutOfStep { batch, last } => {
            let made =
                class(py, "RankOutOfStep").and_then(|class| class.call1((*batch, sample_error(py, last))));
            made.map_or_else(|error| error, PyErr::from_value)
        }
        RunError::Memory(text) => PyMemoryError::new_err(text.clone()),
        RunError::Closed => PyRuntimeError::new_err("the loader was closed while it was being iterated over"),
    }
}

/// The error for an argument that makes no sense, as it says itself.
pub fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
