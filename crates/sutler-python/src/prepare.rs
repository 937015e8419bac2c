//! What is done to a dataset once, before training.

use std::cell::RefCell;
use std::path::PathBuf;

use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError, PyValueError};
use pyo3::prelude::*;
use sutler_cli::volumes::{PrepareError, Settings, prepare};

use crate::dataset::listing_error;

/// Prepares all volumes below a folder into another; what became of them, as JSON.
#[pyfunction]
#[pyo3(signature = (source, destination, *, spacing, clip, mean, std, min_shape, channels, threads, progress))]
#[allow(clippy::too_many_arguments)] // one call per dataset, by keyword
pub fn prepare_volumes(
    py: Python<'_>,
    source: PathBuf,
    destination: PathBuf,
    spacing: [f64; 3],
    clip: [f64; 2],
    mean: f64,
    std: f64,
    min_shape: [usize; 3],
    channels: usize,
    threads: usize,
    progress: Option<bool>,
) -> PyResult<String> {
    let settings = Settings { spacing, clip, mean, std, min_shape, channels };
    let done = py.detach(|| {
        let raised = RefCell::new(None);
        let is_enough = || {
            let signal = Python::attach(|py| py.check_signals());
            signal.map_err(|error| *raised.borrow_mut() = Some(error)).is_err()
        };
        let done = prepare(&source, &destination, &settings, threads, progress, &is_enough);
        match raised.into_inner() {
            Some(raised) => Err(raised),
            None => done.map_err(|error| match error {
                PrepareError::Listing(error) => listing_error(&error),
                PrepareError::Settings(text) => PyValueError::new_err(text),
                PrepareError::Write { .. } => PyOSError::new_err(error.to_string()),
                PrepareError::Interrupted => PyKeyboardInterrupt::new_err(error.to_string()),
            }),
        }
    })?;
    serde_json::to_string(&done).map_err(|error| PyValueError::new_err(error.to_string()))
}
