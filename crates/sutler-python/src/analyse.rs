//! The analyser's decisions, and the measurements that Python has no way to make. Facts cross over as JSON.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use sutler_core::SampleId;
use sutler_core::analyse::{Change, EpochTimes, Facts, Known, LoaderAlone, Setting, Stalls};
use sutler_engine::{BookCost, Delivered, read_once, recall_once};

use crate::cache::Cache;
use crate::dataset::Dataset;
use crate::errors::value_error;

fn ids(samples: &[u32]) -> Vec<SampleId> {
    samples.iter().map(|sample| SampleId(*sample)).collect()
}

fn delivered(delivered: Delivered) -> (usize, u64, f64) {
    (delivered.samples, delivered.bytes, delivered.took.as_secs_f64())
}

/// The mean of repeated measurements and the bounds of its 95 % interval; `None` of nothing.
#[pyfunction]
pub fn confidence(values: Vec<f64>) -> Option<(f64, f64, f64)> {
    Known::mean(&values).map(|known| (known.value, known.low, known.high))
}

/// The shares of fetch, prep, transport and trainer in what a sample took: the step alone, handed over, prepared, fetched; and the last
/// two without the step, where loader and trainer work at the same time.
#[pyfunction]
#[pyo3(signature = (*, step, handed, prepared, fetched, alone))]
pub fn attribute_stalls(
    step: f64,
    handed: f64,
    prepared: f64,
    fetched: f64,
    alone: Option<(f64, f64)>,
) -> (f64, f64, f64, f64) {
    let alone = alone.map(|(prepared, fetched)| LoaderAlone { prepared, fetched });
    let stalls = Stalls::between(&EpochTimes { step, handed, prepared, fetched, alone });
    (stalls.fetch, stalls.prep, stalls.transport, stalls.trainer)
}

/// What the trainer would get after a change, as JSON.
#[pyfunction]
pub fn predict_rate(facts: &str, change: &str) -> PyResult<String> {
    let facts: Facts = serde_json::from_str(facts).map_err(value_error)?;
    let change: Change = serde_json::from_str(change).map_err(value_error)?;
    let outlook = facts.outlook(&change).map_err(value_error)?;
    serde_json::to_string(&outlook).map_err(value_error)
}

/// What to do, as JSON.
#[pyfunction]
pub fn advise(facts: &str, setting: &str) -> PyResult<String> {
    let facts: Facts = serde_json::from_str(facts).map_err(value_error)?;
    let setting: Setting = serde_json::from_value(setting.into()).map_err(value_error)?;
    serde_json::to_string(&facts.advise(setting).map_err(value_error)?).map_err(value_error)
}

/// The fraction of the samples that the cache of the facts keeps, and the rate at which samples are fetched: value, low, high.
#[pyfunction]
pub fn fetch_rate(facts: &str) -> PyResult<(f64, f64, f64, f64)> {
    let facts: Facts = serde_json::from_str(facts).map_err(value_error)?;
    facts.check().map_err(value_error)?;
    let rate = facts.fetch_rate(facts.cache_bytes);
    Ok((facts.cached(facts.cache_bytes), rate.value, rate.low, rate.high))
}

/// What storage must have delivered for the loader alone to have reached so many samples a second; `None` where it was no limit.
#[pyfunction]
pub fn storage_behind(facts: &str, reached: f64) -> PyResult<Option<f64>> {
    let facts: Facts = serde_json::from_str(facts).map_err(value_error)?;
    facts.check().map_err(value_error)?;
    Ok(facts.storage_behind(reached))
}

/// Seconds of a processor that keeping the figures of a sample takes, in the worker and in the trainer's thread; of samples whose bytes
/// take so many seconds to come, or come from a worker process.
#[pyfunction]
#[pyo3(signature = (*, fetch))]
pub fn book_cost(py: Python<'_>, fetch: f64) -> PyResult<(f64, f64)> {
    let fetch = std::time::Duration::try_from_secs_f64(fetch).map_err(value_error)?;
    let cost = py.detach(|| BookCost::measure(fetch));
    Ok((cost.worker, cost.consumer))
}

/// Reads each of the samples once on so many threads; returns how many samples, bytes and seconds that were.
#[pyfunction]
#[pyo3(signature = (dataset, samples, *, threads))]
pub fn read_samples(
    py: Python<'_>,
    dataset: &Dataset,
    samples: Vec<u32>,
    threads: usize,
) -> PyResult<(usize, u64, f64)> {
    let (storage, samples) = (dataset.samples_source(), ids(&samples));
    if let Some(sample) = samples.iter().find(|sample| sample.0 >= dataset.samples()) {
        return Err(value_error(format!(
            "there is no sample {} in a dataset of {}",
            sample.0,
            dataset.samples()
        )));
    }
    py.detach(|| read_once(&*storage, &samples, threads))
        .map(delivered)
        .map_err(|error| PyOSError::new_err(error.to_string()))
}

/// Copies what a cache keeps encoded of the samples; returns how many samples, bytes and seconds that were.
#[pyfunction]
#[pyo3(signature = (cache, samples, *, threads))]
pub fn recall_samples(py: Python<'_>, cache: &Cache, samples: Vec<u32>, threads: usize) -> (usize, u64, f64) {
    let samples = ids(&samples);
    delivered(py.detach(|| recall_once(&cache.inner, &samples, threads)))
}
