//! What a dataset, a pipeline and this machine can do, measured here and now: the figures that a plan starts from.
//!
//! The way a sample takes through Sutler is measured as it is: from storage, from its encoded and from its decoded form, on as
//! many threads as will prepare. What a stage costs is the difference between two ways. Storage itself is measured past the
//! page cache, since what happens to lie there is gone when the dataset is larger than memory; once by a single thread, which tells how
//! long a read takes, and once by all of them, which tells how much storage has to give.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sutler_core::plan::Profile;
use sutler_core::{Permutation, Policy, SampleId};
use sutler_store::cache::{Backing, Cache, CacheError, CacheFigures, CacheOptions, FormFigures};
use sutler_store::{ReadBuffer, Source};

use crate::{Failure, ImagePreparation, OwnSample, Preparation, SampleRecord, Target, bare_rate};

/// A rate that nothing here reaches: for what is not limited.
const UNLIMITED: f64 = 1e15;

/// How often each way is measured; the middle one of three counts.
const ROUNDS: u32 = 3;

/// How often the chosen samples are gone through in all: once to choose them, twice to fill caches, twice in each round, twice to
/// measure storage, and one to spare.
const PASSES: u32 = 12;

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
    let fit: Vec<SampleId> = samples.iter().copied().filter(|&sample| decoded_cache.has(sample)).collect();
    let samples = if fit.is_empty() { samples } else { &fit };
    let mut times: [Vec<f64>; 3] = Default::default();
    for round in 1..=ROUNDS {
        let ways = [&encoded, &decoded];
        for (way, times) in ways.iter().zip(&mut times) {
            times.push(bare_rate(*way, samples, round, threads)?.as_secs_f64());
        }
        times[2].push(copy_time(chosen.row_bytes, samples.len(), threads).as_secs_f64());
    }
    // Seconds of one processor for one sample.
    let cost = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2] * threads as f64 / samples.len() as f64
    };
    let [from_encoded, from_decoded, copy_s] = times.each_mut().map(cost);
    let kept_bytes = |cache: &Cache, form: fn(&CacheFigures) -> FormFigures, else_bytes: f64| {
        let figures = cache.figures();
        match form(&figures).entries {
            0 => else_bytes,
            entries => figures.used_bytes as f64 / entries as f64,
        }
    };
    let readable = request.storage.read(samples[0], &mut ReadBuffer::default()).is_ok();
    let storage = if readable { request.storage } else { &*preparation.source };
    let pass = request.time / PASSES;
    let alone = storage_rate(storage, samples, 1, pass);
    let together = storage_rate(storage, samples, threads, pass);
    Ok(Profile {
        samples: u32::try_from(preparation.source.len()).unwrap_or(u32::MAX),
        encoded_bytes: chosen.encoded_bytes,
        encoded_kept_bytes: kept_bytes(&encoded_cache, |figures| figures.encoded, chosen.encoded_bytes),
        // Where nothing can be kept decoded, that form is as large as it would be, and saves what it would save.
        decoded_bytes: kept_bytes(&decoded_cache, |figures| figures.decoded, chosen.row_bytes as f64),
        augmented_bytes: chosen.row_bytes as f64,
        // One thread alone may do better than several that get into each other's way; then one at a time is what storage can do.
        storage_bytes_per_s: together.max(alone),
        cache_bytes_per_s: chosen.row_bytes as f64 / copy_s.max(1e-12) * threads as f64,
        network: None,
        read_s: chosen.encoded_bytes / alone,
        decode_s: (from_encoded - from_decoded).max(0.0),
        augment_s: (from_decoded - copy_s).max(0.0),
        copy_s,
        cores: threads as f64,
        bus_bytes_per_s: None,
        device_samples_per_s: request.device_samples_per_s.unwrap_or(UNLIMITED),
        jobs: request.jobs.max(1),
        window: request.jobs > 1,
    })
}

/// The samples that are measured: some good ones from all over the dataset.
struct Chosen {
    samples: Vec<SampleId>,
    encoded_bytes: f64,
    row_bytes: usize,
    /// Of the largest decoded picture among them, roughly.
    largest_bytes: u64,
}

impl Chosen {
    /// As many as one pass has time for. A few are needed for an average, also where they are slow, but never for more than a quarter
    /// of the time, so that whoever waits for the answer knows for how long.
    fn new(request: &ProfileRequest<'_>) -> Result<Self, ProfileFailure> {
        let count = u32::try_from(request.preparation.source.len()).unwrap_or(u32::MAX);
        let order = Permutation::shuffled(count, 0, 0);
        let threads = request.threads.max(1);
        let mut preparer = request.preparation.preparer();
        let mut own = OwnSample::default();
        let mut chosen = Self { samples: Vec::new(), encoded_bytes: 0.0, row_bytes: 0, largest_bytes: 0 };
        let mut first_failure = None;
        let started = Instant::now();
        let (mut tried, mut bytes) = (0, 0u64);
        for position in 0..count {
            let sample = order.sample_at(position);
            let mut record = SampleRecord::start();
            tried += 1;
            match preparer.prepare(sample, 0, &mut Target::Own(&mut own), &mut record) {
                Ok(()) => {
                    chosen.samples.push(sample);
                    bytes += record.storage_bytes;
                    chosen.row_bytes += own.data.len();
                    chosen.largest_bytes = chosen.largest_bytes.max(record.storage_bytes);
                }
                Err(failure) => {
                    first_failure.get_or_insert(failure);
                }
            }
            let enough = chosen.samples.len() >= 8 * threads;
            let pass = request.time / PASSES * threads as u32;
            if started.elapsed() > if enough { pass } else { request.time / 4 } {
                break;
            }
        }
        if chosen.samples.is_empty() {
            return Err(match first_failure {
                Some(first) => ProfileFailure::NothingGood { tried, first },
                None => ProfileFailure::Empty,
            });
        }
        chosen.encoded_bytes = bytes as f64 / chosen.samples.len() as f64;
        chosen.row_bytes /= chosen.samples.len();
        Ok(chosen)
    }

    /// Room for a copy of each, in whichever form: a decoded picture is seldom more than fifty times its file.
    fn copies_bytes(&self) -> u64 {
        (self.samples.len() as u64 * 50 * self.largest_bytes.max(1 << 20)).clamp(64 << 20, 2 << 30)
    }
}

/// How long it takes to copy so many finished samples, as one that another job has prepared is copied into a batch.
fn copy_time(row_bytes: usize, count: usize, threads: usize) -> Duration {
    // More than processors keep for themselves, so that memory is what is measured.
    let rows = (64usize << 20).div_ceil(row_bytes.max(1)).clamp(4, 256);
    let from: Vec<Vec<u8>> = (0..rows).map(|row| vec![row as u8; row_bytes]).collect();
    let next = AtomicUsize::new(0);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut to: Vec<Vec<u8>> = vec![vec![0; row_bytes]; 8];
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    to[index % 8].copy_from_slice(std::hint::black_box(&from[index % rows]));
                }
                std::hint::black_box(&to);
            });
        }
    });
    started.elapsed()
}

/// Bytes per second that storage delivers to so many threads together, within so much time.
fn storage_rate(storage: &dyn Source, samples: &[SampleId], threads: usize, time: Duration) -> f64 {
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut buffer = ReadBuffer::default();
                while let Some(&sample) = samples.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // They could be read a moment ago; one that is gone now is no news about the rate.
                    if let Ok(read) = storage.read(sample, &mut buffer) {
                        bytes.fetch_add(read.len() as u64, Ordering::Relaxed);
                    }
                    if started.elapsed() > time {
                        break;
                    }
                }
            });
        }
    });
    // Nothing could be read any more: as slow as a rate can be.
    (bytes.into_inner() as f64).max(1.0) / started.elapsed().as_secs_f64().max(1e-9)
}
