//! What a dataset, a pipeline and this machine can do, measured here and now: the figures that a plan starts from.
//!
//! The way a sample takes through Sutler is measured as it is: from its encoded and from its decoded form through a cache and an
//! engine, on as many threads as will prepare. What a stage costs is the difference between two ways. Storage itself is measured past the
//! page cache, since what happens to lie there is gone when the dataset is larger than memory; once by a single thread, which tells how
//! long a read takes, and once by all of them, which tells how much storage has to give.

mod chosen;
mod passes;
mod rates;

use std::sync::Arc;
use std::time::Duration;

use sutler_core::plan::Profile;
use sutler_core::{Form, Policy, SampleId, counted};
use sutler_store::cache::{Backing, Cache, CacheError, CacheOptions, Memory};
use sutler_store::{ReadBuffer, Source};

use self::chosen::Chosen;
use self::passes::{Passes, Taken};
use self::rates::{copy_work, read_for, recall_work};
use crate::{ArenaError, Failure, ImagePreparation, RunError, usable_cores};

/// A rate that nothing here reaches: for what is not limited.
const UNLIMITED: f64 = 1e15;

/// How often each way is measured; the middle one of three counts.
const ROUNDS: u32 = 3;

/// What the time is divided by to get that of one pass over the chosen samples. There is one to choose them, two fill caches, two see
/// how long a pass takes, two make up each round, storage is measured twice for the time of two, and one is to spare.
const PASSES: u32 = 16;

/// How often few samples are gone through in one pass.
const REPEATS_MAX: usize = 64;

/// What copies of samples may take at the least, both forms together, however little they are allowed: a handful of photographs says
/// nothing about a dataset.
const COPIES_BYTES_MIN: u64 = 64 << 20;

/// What is to be measured, and for whom.
pub struct ProfileRequest<'a> {
    /// How samples are prepared; without a cache.
    pub preparation: &'a ImagePreparation,
    /// The same samples, read past the page cache. Where a file system cannot do that, `preparation`'s own source is measured.
    pub storage: &'a dyn Source,
    /// What copies of samples may take while they are measured; a small amount is always taken.
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

/// A profile, and what was left out of it.
#[derive(Debug)]
pub struct Measured {
    /// What was measured.
    pub profile: Profile,
    /// How many samples were tried.
    pub tried: usize,
    /// Those of them that could not be prepared; a plan knows nothing of them.
    pub failures: Vec<Failure>,
}

impl Measured {
    /// What to say about samples that could not be prepared, if there are any.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        let first = self.failures.first()?;
        Some(format!(
            "{} of the {} samples that were tried could not be prepared and were left out; the first: {first}. \
             `sutler inspect` lists all that are broken",
            self.failures.len(),
            self.tried
        ))
    }
}

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileFailure {
    /// Not a single sample could be prepared.
    #[error("of {} tried none could be prepared, so there is nothing to measure; the first: {first}", counted(*tried as u64, "sample"))]
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
    Sample(#[from] RunError),
    /// No memory for batches.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// The system refuses threads.
    #[error("the threads to measure with could not be started: {0}; measure with fewer")]
    Threads(std::io::Error),
    /// No memory for the copies.
    #[error("there is no memory for the copies that are to be measured: {0}")]
    Cache(#[from] CacheError),
}

/// Measures.
///
/// # Errors
/// When no sample can be prepared, or there is no memory for the copies of some.
pub fn measure(request: &ProfileRequest<'_>) -> Result<Measured, ProfileFailure> {
    let preparation = request.preparation;
    let threads = request.threads.max(1);
    let chosen = Chosen::new(request)?;
    let samples = &chosen.samples;
    let kept = |split| -> Result<(Passes, Arc<Cache>), ProfileFailure> {
        let cache = Arc::new(Cache::new(&CacheOptions {
            budget_bytes: chosen.copies_bytes().min(request.copies_bytes_max.max(COPIES_BYTES_MIN) / 2),
            samples: preparation.source.len(),
            split,
            policy: Policy::Pinned,
            seed: 0,
            backing: Backing::Private,
        })?);
        let preparation = ImagePreparation { cache: Some(Arc::clone(&cache)), ..preparation.clone() };
        let mut passes = Passes::new(&preparation, threads)?;
        passes.pass(samples)?; // fills it
        Ok((passes, cache))
    };
    let (encoded, encoded_cache) = kept([100, 0])?;
    let (decoded, decoded_cache) = kept([0, 100])?;
    // A copy that did not fit is no copy to measure. Where none fits, a decoded copy saves nothing, and that is what comes out.
    let fit: Vec<usize> = (0..samples.len()).filter(|&place| decoded_cache.has(samples[place])).collect();
    let places = if fit.is_empty() { (0..samples.len()).collect() } else { fit };
    let samples: &[SampleId] = &places.iter().map(|&place| samples[place]).collect::<Vec<_>>();
    // The first samples of a pass find nothing in place: it lasts long enough for that not to matter.
    let pass = request.time / PASSES;
    let long_enough = |mut way: Passes| -> Result<(Passes, Vec<SampleId>), ProfileFailure> {
        let once = way.pass(samples)?.1.as_secs_f64().max(1e-9);
        Ok((way, samples.repeat(((pass.as_secs_f64() / once).ceil() as usize).clamp(1, REPEATS_MAX))))
    };
    let mut ways = [long_enough(encoded)?, long_enough(decoded)?];
    let mut taken: [Vec<Taken>; 2] = Default::default();
    let mut copies = Vec::new();
    for _ in 0..ROUNDS {
        for ((way, order), taken) in ways.iter_mut().zip(&mut taken) {
            taken.push(way.pass(order)?.0);
        }
        copies.push(copy_work(chosen.row_bytes, threads));
    }
    drop(ways);
    let [from_encoded, from_decoded] = taken;
    // Threads that decode do not wait for each other, so what they lack of a processor each, others have.
    let thread_share = middle(from_encoded.iter().map(Taken::share));
    let recall_s = recall_work(&encoded_cache, samples);
    let encoded_s = middle(from_encoded.iter().map(|taken| taken.work_s));
    // Where there is next to nothing to do, threads do wait for each other: for memory, for whoever takes the batches. That is no work, but
    // it takes a thread's time from every sample, in the best of passes too.
    let waited = from_decoded.iter().map(|taken| taken.thread_s * thread_share).fold(f64::INFINITY, f64::min);
    let decoded_s = middle(from_decoded.iter().map(|taken| taken.work_s)).max(waited);
    // Where next to nothing is left to do to a decoded sample, doing it takes less than copying a finished one, which is larger.
    let copy_s = middle(copies.into_iter()).min(decoded_s);
    let kept_bytes = |cache: &Cache, form| {
        let kept = |place: usize| {
            let held = cache.get(chosen.samples[place], form)?;
            Some((place, Memory::footprint(held.len()) as f64))
        };
        chosen.at_average(&(0..chosen.samples.len()).filter_map(kept).collect::<Vec<_>>())
    };
    let larger = chosen.average_over(&places);
    let cores = threads.min(usable_cores()) as f64;
    let readable = request.storage.read(samples[0], &mut ReadBuffer::default()).is_ok();
    let storage = if readable { request.storage } else { &*preparation.source };
    // Slow storage gives few samples in a pass, and a late start or wake-up is a large part of few.
    let alone = read_for(storage, samples, 1, pass * 2);
    let together = read_for(storage, samples, threads, pass * 2);
    let read_s = chosen.encoded_bytes / alone.bytes_per_s;
    let profile = Profile {
        samples: u32::try_from(preparation.source.len()).unwrap_or(u32::MAX),
        encoded_bytes: chosen.encoded_bytes,
        encoded_kept_bytes: kept_bytes(&encoded_cache, Form::Encoded).unwrap_or(chosen.encoded_bytes),
        // Where nothing can be kept decoded, that form is as large as it would be, and saves what it would save.
        decoded_bytes: kept_bytes(&decoded_cache, Form::Decoded).unwrap_or(chosen.row_bytes as f64),
        augmented_bytes: chosen.row_bytes as f64,
        // One thread alone may do better than several that get into each other's way; then one at a time is what storage can do.
        storage_bytes_per_s: together.bytes_per_s.max(alone.bytes_per_s),
        cache_bytes_per_s: chosen.row_bytes as f64 / copy_s.max(1e-12) * threads as f64,
        network: None,
        read_s,
        read_work_s: (chosen.encoded_bytes * alone.work_s_per_byte).min(read_s),
        recall_s,
        decode_s: (encoded_s * larger - decoded_s - recall_s).max(0.0),
        augment_s: decoded_s - copy_s,
        copy_s,
        threads: threads as f64,
        cores,
        share: (thread_share * threads as f64 / cores).min(1.0),
        bus_bytes_per_s: None,
        device_samples_per_s: request.device_samples_per_s.unwrap_or(UNLIMITED),
        jobs: request.jobs.max(1),
        window: request.jobs > 1,
    };
    Ok(Measured { profile, tried: chosen.tried, failures: chosen.failures })
}

/// The middle one.
fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
