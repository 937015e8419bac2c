//! Memory for copies of samples.

use std::sync::Arc;

use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use sutler_core::Policy;
use sutler_store::cache::{Backing, CacheError, CacheOptions, MemoryError};

use crate::dataset::Dataset;

/// A cache for the samples of one dataset, as one pipeline makes them.
#[pyclass(frozen)]
pub struct Cache {
    pub inner: Arc<sutler_store::cache::Cache>,
}

/// The exception a user expects when a cache cannot be had.
fn cache_error(error: &CacheError) -> PyErr {
    match error {
        CacheError::Memory(MemoryError::System { .. }) => PyMemoryError::new_err(error.to_string()),
        _ => PyValueError::new_err(error.to_string()),
    }
}

#[pymethods]
impl Cache {
    /// Room for `budget_bytes` in all, of which the shares are percentages; they may change later where that is said.
    #[new]
    #[pyo3(signature = (dataset, *, budget_bytes, encoded_percent, decoded_percent, policy, seed, any_split))]
    #[allow(clippy::too_many_arguments)] // one call per loader, by keyword
    fn new(
        dataset: &Dataset,
        budget_bytes: u64,
        encoded_percent: u32,
        decoded_percent: u32,
        policy: &str,
        seed: u64,
        any_split: bool,
    ) -> PyResult<Self> {
        let policy = match policy {
            "pinned" => Policy::Pinned,
            "lru" => Policy::Lru,
            "random" => Policy::Random,
            other => return Err(PyValueError::new_err(format!("policy={other:?} is not a policy"))),
        };
        let options = CacheOptions {
            budget_bytes,
            samples: dataset.samples() as usize,
            split: [encoded_percent, decoded_percent],
            policy,
            seed,
            backing: Backing::Private,
        };
        let inner = if any_split {
            sutler_store::cache::Cache::for_any_split(&options)
        } else {
            sutler_store::cache::Cache::new(&options)
        };
        Ok(Self { inner: Arc::new(inner.map_err(|error| cache_error(&error))?) })
    }

    /// Splits the budget anew.
    fn set_split(&self, encoded_percent: u32, decoded_percent: u32) -> PyResult<()> {
        self.inner
            .set_split([encoded_percent, decoded_percent])
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// What it holds, as JSON.
    fn figures(&self) -> PyResult<String> {
        serde_json::to_string(&self.inner.figures()).map_err(|error| PyValueError::new_err(error.to_string()))
    }
}

/// A number of bytes as people write it.
#[pyfunction]
pub fn parse_size(text: &str) -> PyResult<u64> {
    sutler_store::cache::parse_size(text).map_err(|error| PyValueError::new_err(error.to_string()))
}
