//! Which samples are measured: a few that stand for all.
//!
//! What a sample costs goes with its size, and a few dozen drawn blindly may well be a tenth larger than the others on average. So many
//! more are only asked for their size, and those that are prepared are taken evenly from small to large: the middle one, the ones
//! at a quarter and at three quarters, and so on. Wherever that stops, what was taken looks like the whole.

use std::time::{Duration, Instant};

use sutler_core::{Permutation, SampleId};
use sutler_store::Source;

use super::{PASSES, ProfileFailure, ProfileRequest};
use crate::{OwnSample, Preparation, SampleRecord, Target};

/// How many samples are asked for their size: enough for a mean to 1 %, and no long wait where each takes a round trip.
const ASKED_MAX: u32 = 2048;

/// The samples that are measured: good ones.
pub(super) struct Chosen {
    pub samples: Vec<SampleId>,
    /// Of an average one as stored.
    pub encoded_bytes: f64,
    /// Of an average one that is ready for a batch.
    pub row_bytes: usize,
    largest_bytes: u64,
}

impl Chosen {
    /// As many as can be prepared in one pass by all threads. A few are needed for an average, also where they are slow, but never for
    /// more than a quarter of the time, so that whoever waits for the answer knows for how long.
    pub fn new(request: &ProfileRequest<'_>) -> Result<Self, ProfileFailure> {
        let threads = request.threads.max(1);
        let pass = request.time / PASSES;
        let mut preparer = request.preparation.preparer();
        let mut own = OwnSample::default();
        let mut chosen = Self { samples: Vec::new(), encoded_bytes: 0.0, row_bytes: 0, largest_bytes: 0 };
        let mut first_failure = None;
        let (mut tried, mut bytes, mut prepared) = (0, 0u64, Duration::ZERO);
        let order = small_to_large(&*request.preparation.source, pass);
        let started = Instant::now();
        for sample in evenly(&order) {
            let mut record = SampleRecord::start();
            tried += 1;
            match preparer.prepare(sample, 0, &mut Target::Own(&mut own), &mut record) {
                Ok(()) => {
                    chosen.samples.push(sample);
                    bytes += record.storage_bytes;
                    prepared += record.decode + record.augment;
                    chosen.row_bytes += own.data.len();
                    chosen.largest_bytes = chosen.largest_bytes.max(record.storage_bytes);
                }
                Err(failure) => {
                    first_failure.get_or_insert(failure);
                }
            }
            let enough = chosen.samples.len() >= 8 * threads && prepared > pass * threads as u32;
            if enough || started.elapsed() > request.time / 4 {
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
    pub fn copies_bytes(&self) -> u64 {
        (self.samples.len() as u64 * 50 * self.largest_bytes.max(1 << 20)).clamp(64 << 20, 2 << 30)
    }
}

/// Samples from all over the dataset by their size; those that do not tell it come first, in no order.
fn small_to_large(source: &dyn Source, time: Duration) -> Vec<SampleId> {
    let count = u32::try_from(source.len()).unwrap_or(u32::MAX);
    let order = Permutation::shuffled(count, 0, 0);
    let started = Instant::now();
    let mut sized: Vec<(Option<u64>, SampleId)> = Vec::new();
    for position in 0..count.min(ASKED_MAX) {
        let sample = order.sample_at(position);
        let asking = started.elapsed() < time;
        sized.push((if asking { source.encoded_bytes(sample) } else { None }, sample));
    }
    sized.sort_by_key(|(bytes, _)| *bytes);
    sized.into_iter().map(|(_, sample)| sample).collect()
}

/// All of them, such that any beginning is spread evenly over the whole: by the place of each with its bits reversed.
fn evenly(samples: &[SampleId]) -> impl Iterator<Item = SampleId> + '_ {
    let bits = samples.len().next_power_of_two().trailing_zeros();
    (0..1usize << bits)
        .map(move |index| index.reverse_bits().checked_shr(usize::BITS - bits).unwrap_or(0))
        .filter_map(|place| samples.get(place).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_comes_once_and_any_beginning_is_even() {
        for count in [0u32, 1, 2, 3, 7, 64, 1000] {
            let all: Vec<SampleId> = (0..count).map(SampleId).collect();
            let mut seen: Vec<u32> = evenly(&all).map(|sample| sample.0).collect();
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..count), "{count}: {seen:?}");
        }
        let all: Vec<SampleId> = (0..1000).map(SampleId).collect();
        for taken in [50, 60, 100, 333] {
            let mean = evenly(&all).take(taken).map(|sample| f64::from(sample.0)).sum::<f64>() / taken as f64;
            assert!((mean / 500.0 - 1.0).abs() < 0.05, "the mean of {taken} is {mean}");
        }
    }
}
