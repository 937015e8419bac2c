//! What a dataset, a pipeline and this machine can do, measured here and now: the figures that a plan starts from.
//!
//! The way a sample takes through Sutler is measured as it is: from storage, from its encoded and from its decoded form, on as
//! many threads as will prepare. What a stage costs is the difference between two ways. Storage itself is measured past the
//! page cache, since what happens to lie there is gone when the dataset is larger than memory; once by a single thread, which tells how
//! long a read takes, and once by all of them, which tells how much storage has to give.

mod chosen;
mod rates;

use std::sync::Arc;
use std::time::Duration;

use sutler_core::plan::Profile;
use sutler_core::{Form, Policy, SampleId};
use sutler_store::cache::{Backing, Cache, CacheError, CacheOptions, Memory};
use sutler_store::{ReadBuffer, Source};

use self::chosen::Chosen;
use self::rates::{copy_time, storage_rate};
use crate::{Failure, ImagePreparation, bare_rate};

/// A rate that nothing here reaches: for what is not limited.
const UNLIMITED: f64 = 1e15;

/// How often each way is measured; the middle one of three counts.
const ROUNDS: u32 = 3;

/// What the time is divided by to get that of one pass over the chosen samples. There is one to choose them, two fill caches, two see
/// how long a pass takes, two make up each round, two measure storage, and one is to spare.
const PASSES: u32 = 14;

/// How often few samples are gone through in one pass.
const REPEATS_MAX: usize = 64;

/// What is to be measured, and for whom.
pub struct ProfileRequest<'a> {
    /// How samples are prepared; without a cache.
    pub preparation: &'a ImagePreparation,
    /// The same samples, read past the page cache. Where a file system cannot do that, `preparation`'s own source is measured.
    pub storage: &'a dyn Source,
    /// What copies of samples may take while they are measured.
    pub copies_bytes_max: u64,
    /// How many threads prepare.
    pub threads: usize,
    /// How many jobs train on the dataset, sharing what they prepare.
    pub jobs: u32,
    /// What the accelerators of all jobs ingest, where that is known.
    pub device_samples_per_s: Option<f64>,
    /// How long the measurement may take, roughly.
    pub time: Duration,
}

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileFailure {
    /// Not a single sample could be prepared.
    #[error("none of {tried} samples could be prepared, so there is nothing to measure; the first: {first}")]
    NothingGood {
        /// How many were tried.
        tried: usize,
        /// What was wrong with the first.
        first: Failure,
    },
    /// The dataset is empty.
    #[error("the dataset has no samples, so there is nothing to measure")]
    Empty,
    /// A sample that was good before.
    #[error("a sample changed while it was measured: {0}")]
    Sample(#[from] Failure),
    /// No memory for the copies.
    #[error("there is no memory for the copies that are to be measured: {0}")]
    Cache(#[from] CacheError),
}

/// Measures.
///
/// # Errors
/// When no sample can be prepared, or there is no memory for the copies of some.
pub fn measure(request: &ProfileRequest<'_>) -> Result<Profile, ProfileFailure> {
    let preparation = request.preparation;
    let threads = request.threads.max(1);
    let chosen = Chosen::new(request)?;
    let samples = &chosen.samples;
    let kept = |split| -> Result<(ImagePreparation, Arc<Cache>), ProfileFailure> {
        let cache = Arc::new(Cache::new(&CacheOptions {
            budget_bytes: chosen.copies_bytes().min(request.copies_bytes_max / 2),
            samples: preparation.source.len(),
            split,
            policy: Policy::Pinned,
            seed: 0,
            backing: Backing::Private,
        })?);
        let preparation = ImagePreparation { cache: Some(Arc::clone(&cache)), ..preparation.clone() };
        bare_rate(&preparation, samples, 0, threads)?; // fills it
        Ok((preparation, cache))
    };
    let (encoded, encoded_cache) = kept([100, 0])?;
    let (decoded, decoded_cache) = kept([0, 100])?;
    // A copy that did not fit is no copy to measure. Where none fits, a decoded copy saves nothing, and that is what comes out.
    let fit: Vec<usize> = (0..samples.len()).filter(|&place| decoded_cache.has(samples[place])).collect();
    let places = if fit.is_empty() { (0..samples.len()).collect() } else { fit };
    let samples: &[SampleId] = &places.iter().map(|&place| samples[place]).collect::<Vec<_>>();
    // Threads take a moment to start, and the first samples find nothing in place: a pass lasts long enough for that not to matter.
    let pass = request.time / PASSES;
    let long_enough = |way: &ImagePreparation| -> Result<Vec<SampleId>, ProfileFailure> {
        let once = bare_rate(way, samples, 0, threads)?.as_secs_f64().max(1e-9);
        Ok(samples.repeat(((pass.as_secs_f64() / once).ceil() as usize).clamp(1, REPEATS_MAX)))
    };
    let ways = [(&encoded, long_enough(&encoded)?), (&decoded, long_enough(&decoded)?)];
    let mut costs: [Vec<f64>; 3] = Default::default();
    // Seconds of one thread for one sample.
    let cost = |time: Duration, samples: usize| time.as_secs_f64() * threads as f64 / samples as f64;
    for round in 1..=ROUNDS {
        for ((way, order), costs) in ways.iter().zip(&mut costs) {
            costs.push(cost(bare_rate(*way, order, round, threads)?, order.len()));
        }
        let (copies, time) = copy_time(chosen.row_bytes, threads);
        costs[2].push(cost(time, copies));
    }
    let [from_encoded, from_decoded, copy_s] = costs.each_mut().map(|costs| {
        costs.sort_by(f64::total_cmp);
        costs[costs.len() / 2]
    });
    // Where next to nothing is left to do to a decoded sample, doing it takes less than copying a finished one, which is larger.
    let copy_s = copy_s.min(from_decoded);
    let kept_bytes = |cache: &Cache, form| {
        let kept = |&place: &usize| {
            let held = cache.get(chosen.samples[place], form)?;
            Some((place, Memory::footprint(held.len()) as f64))
        };
        chosen.at_average(&places.iter().filter_map(kept).collect::<Vec<_>>())
    };
    let larger = chosen.average_over(&places);
    let readable = request.storage.read(samples[0], &mut ReadBuffer::default()).is_ok();
    let storage = if readable { request.storage } else { &*preparation.source };
    let alone = storage_rate(storage, samples, 1, pass);
    let together = storage_rate(storage, samples, threads, pass);
    Ok(Profile {
        samples: u32::try_from(preparation.source.len()).unwrap_or(u32::MAX),
        encoded_bytes: chosen.encoded_bytes,
        encoded_kept_bytes: kept_bytes(&encoded_cache, Form::Encoded).unwrap_or(chosen.encoded_bytes),
        // Where nothing can be kept decoded, that form is as large as it would be, and saves what it would save.
        decoded_bytes: kept_bytes(&decoded_cache, Form::Decoded).unwrap_or(chosen.row_bytes as f64),
        augmented_bytes: chosen.row_bytes as f64,
        // One thread alone may do better than several that get into each other's way; then one at a time is what storage can do.
        storage_bytes_per_s: together.max(alone),
        cache_bytes_per_s: chosen.row_bytes as f64 / copy_s.max(1e-12) * threads as f64,
        network: None,
        read_s: chosen.encoded_bytes / alone,
        decode_s: (from_encoded * larger - from_decoded).max(0.0),
        augment_s: from_decoded - copy_s,
        copy_s,
        cores: threads as f64,
        bus_bytes_per_s: None,
        device_samples_per_s: request.device_samples_per_s.unwrap_or(UNLIMITED),
        jobs: request.jobs.max(1),
        window: request.jobs > 1,
    })
}
