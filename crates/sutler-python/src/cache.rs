//! Memory for copies of samples.

use std::sync::Arc;

use pyo3::exceptions::{PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyByteArray;
use sutler_core::{Form, Policy, SampleId};
use sutler_store::cache::{
    Backing, CacheError, CacheOptions, Corrupt, Extent, MemoryError, Offer, Pieces, Reader,
};

use crate::dlpack::take_descriptor;

/// A cache for the samples of one dataset, as one pipeline or a dataset written in Python makes them.
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

fn read_policy(policy: &str) -> PyResult<Policy> {
    match policy {
        "pinned" => Ok(Policy::Pinned),
        "lru" => Ok(Policy::Lru),
        "random" => Ok(Policy::Random),
        other => Err(PyValueError::new_err(format!("policy={other:?} is not a policy"))),
    }
}

/// So many bytes, as somebody copies and verifies them; `None` when they turn out to be bad.
fn copied<'py>(
    py: Python<'py>,
    bytes: usize,
    copy: impl FnOnce(&mut [u8]) -> Result<(), Corrupt>,
) -> PyResult<Option<Bound<'py, PyByteArray>>> {
    let mut good = true;
    let array = PyByteArray::new_with(py, bytes, |out| {
        good = copy(out).is_ok();
        Ok(())
    })?;
    Ok(good.then_some(array))
}

#[pymethods]
impl Cache {
    /// For so many samples; room for `budget_bytes` in all, of which the shares are percentages; they may change later where that is said.
    #[new]
    #[pyo3(signature = (samples, *, budget_bytes, encoded_percent, decoded_percent, policy, seed, any_split))]
    #[allow(clippy::too_many_arguments)] // one call per loader, by keyword
    fn new(
        samples: u32,
        budget_bytes: u64,
        encoded_percent: u32,
        decoded_percent: u32,
        policy: &str,
        seed: u64,
        any_split: bool,
    ) -> PyResult<Self> {
        let policy = read_policy(policy)?;
        let options = CacheOptions {
            budget_bytes,
            samples: samples as usize,
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

    /// A cache for what the deterministic part of a dataset written in Python returns, in memory that worker processes can map.
    #[staticmethod]
    #[pyo3(signature = (*, samples, budget_bytes, policy, seed))]
    fn of_prepared(samples: u32, budget_bytes: u64, policy: &str, seed: u64) -> PyResult<Self> {
        let options = CacheOptions {
            budget_bytes,
            samples: samples as usize,
            split: [0, 100],
            policy: read_policy(policy)?,
            seed,
            backing: Backing::Shared,
        };
        let inner = sutler_store::cache::Cache::new(&options).map_err(|error| cache_error(&error))?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A copy of what is kept of a sample's deterministic part, if anything is. One that is damaged is dropped.
    fn recall<'py>(&self, py: Python<'py>, sample: u32) -> PyResult<Option<Bound<'py, PyByteArray>>> {
        let sample = SampleId(sample);
        let Some(held) = self.inner.get(sample, Form::Decoded) else { return Ok(None) };
        let bytes = held.len();
        let whole = Pieces { start: 0, piece: bytes, stride: bytes, count: 1 };
        let found = copied(py, bytes, |out| held.read(whole, out))?;
        drop(held);
        if found.is_none() {
            self.inner.discard(sample, Form::Decoded);
        }
        Ok(found)
    }

    /// Keeps what a sample's deterministic part returned, if there is room for it.
    fn keep(&self, sample: u32, data: PyBackedBytes) {
        if let Some(seat) = self.inner.reserve(SampleId(sample), &Offer::decoded(data.len())) {
            seat.commit(&[&data]);
        }
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

/// A trainer's cache, as its worker processes read it.
#[pyclass(frozen)]
pub struct CacheReader {
    inner: Reader,
}

#[pymethods]
impl CacheReader {
    /// Maps the file behind the cache and closes the descriptor with this object.
    #[new]
    fn new(descriptor: i32, blocks: u32, slots: u64) -> PyResult<Self> {
        let file = take_descriptor(descriptor);
        let inner = Reader::open(file, Extent { blocks, slots }).map_err(|error| {
            PyOSError::new_err(format!("the loader's cache cannot be mapped by this worker: {error}"))
        })?;
        Ok(Self { inner })
    }

    /// A copy of the entry that begins at a block and that the trainer holds; `None` when it is damaged.
    fn read<'py>(
        &self,
        py: Python<'py>,
        sample: u32,
        first_block: u32,
    ) -> PyResult<Option<Bound<'py, PyByteArray>>> {
        let Ok(bytes) = self.inner.len(first_block) else { return Ok(None) };
        copied(py, bytes, |out| self.inner.read(first_block, SampleId(sample), Form::Decoded, out))
    }
}

/// A number of bytes as people write it.
#[pyfunction]
pub fn parse_size(text: &str) -> PyResult<u64> {
    sutler_store::cache::parse_size(text).map_err(|error| PyValueError::new_err(error.to_string()))
}
