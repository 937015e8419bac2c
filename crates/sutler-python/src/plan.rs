//! Profiles and plans. They cross over as JSON: they are made once in a while and read by people.

use std::time::Duration;

use pyo3::prelude::*;
use serde_json::json;
use sutler_core::plan::{Comparison, Observed, Profile, Split};
use sutler_engine::ProfileRequest;
use sutler_media::Layout;

use crate::dataset::Dataset;
use crate::errors::value_error;
use crate::pipeline::Pipeline;

/// What this machine can do with a dataset and a pipeline, measured in about so many seconds; and what there is to say about samples that could not be
/// prepared. Where only some of the samples are served, `served` is how many; those that are measured are of the whole dataset.
#[pyfunction]
#[pyo3(signature = (dataset, pipeline, *, threads, jobs, device_samples_per_s, copies_bytes_max, seconds, served=None))]
#[allow(clippy::too_many_arguments)] // one call per plan, by keyword
pub fn measure_profile(
    py: Python<'_>,
    dataset: &Dataset,
    pipeline: &Pipeline,
    threads: usize,
    jobs: u32,
    device_samples_per_s: Option<f64>,
    copies_bytes_max: Option<u64>,
    seconds: f64,
    served: Option<u32>,
) -> PyResult<(String, Option<String>)> {
    let preparation = dataset.images(pipeline, Layout::Nchw, 0)?;
    let storage = dataset.direct();
    let request = ProfileRequest {
        preparation: &preparation,
        storage: &*storage,
        copies_bytes_max: copies_bytes_max.unwrap_or(sutler_cli::plan::COPIES_BYTES_MAX),
        threads,
        jobs,
        device_samples_per_s,
        time: Duration::try_from_secs_f64(seconds).map_err(value_error)?,
    };
    let mut measured = py.detach(|| sutler_engine::measure_profile(&request)).map_err(value_error)?;
    if let Some(served) = served {
        measured.profile.samples = served;
    }
    let profile = serde_json::to_string(&measured.profile).map_err(value_error)?;
    Ok((profile, measured.complaint()))
}

/// What both models make of a profile: as JSON, and as text for people.
#[pyfunction]
pub fn compare_plans(profile: &str, memory: u64) -> PyResult<(String, String)> {
    let profile: Profile = serde_json::from_str(profile).map_err(value_error)?;
    let comparison = Comparison::new(&profile, memory).map_err(value_error)?;
    let text = sutler_cli::plan::story(&comparison, sutler_store::cache::memory_limit().as_ref());
    Ok((serde_json::to_string(&comparison).map_err(value_error)?, text))
}

/// The split for a cache that serves one job, as JSON.
#[pyfunction]
#[pyo3(signature = (profile, memory, in_force=None))]
pub fn choose_split(profile: &str, memory: u64, in_force: Option<(u32, u32)>) -> PyResult<String> {
    let profile: Profile = serde_json::from_str(profile).map_err(value_error)?;
    let in_force = in_force.map(|(encoded, decoded)| Split::new(encoded, decoded, 0));
    let chosen = profile.choose(memory as f64, in_force).map_err(value_error)?;
    let facts = json!({
        "encoded": chosen.split.encoded,
        "decoded": chosen.split.decoded,
        "predicted": chosen.samples_per_s,
        "bound_by": chosen.binds.map(sutler_core::plan::Resource::name),
    });
    Ok(facts.to_string())
}

/// The profile as what was observed corrects it; `None` while they agree.
#[pyfunction]
pub fn correct_profile(profile: &str, observed: &str) -> PyResult<Option<String>> {
    let profile: Profile = serde_json::from_str(profile).map_err(value_error)?;
    let observed: Observed = serde_json::from_str(observed).map_err(value_error)?;
    let corrected = profile.corrected(&observed).map(|profile| serde_json::to_string(&profile));
    corrected.transpose().map_err(value_error)
}
