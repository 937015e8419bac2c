//! Which samples are measured: a few that stand for all.
//!
//! What a sample costs goes with its size, and sizes are uneven: a few giants may hold a tenth of all bytes, and a few dozen samples
//! seldom meet them in the right number. So many more are only asked for their size, and those that are prepared are taken evenly from
//! small to large: the middle one, the ones at a quarter and at three quarters, and so on. What is still missing to the average size
//! is made up for along a straight line through what was measured ([`Chosen::at_average`]).

use std::time::{Duration, Instant};

use sutler_core::{Draw, Permutation, SampleId};
use sutler_store::Source;

use super::{PASSES, ProfileFailure, ProfileRequest};
use crate::{Failure, OwnSample, Preparation, SampleRecord, Target};

/// How many samples are asked for their size: enough for a mean to 1 %, and no long wait where each takes a round trip.
const ASKED_MAX: u32 = 2048;

/// The samples that are measured: good ones.
pub(super) struct Chosen {
    pub samples: Vec<SampleId>,
    /// What each has as stored.
    sizes: Vec<f64>,
    /// How long one thread was busy with each, reading not counted.
    seconds: Vec<f64>,
    /// Of an average sample of the dataset as stored.
    pub encoded_bytes: f64,
    /// Of an average one that is ready for a batch.
    pub row_bytes: usize,
    /// How many were tried.
    pub tried: usize,
    /// Those of them that could not be prepared.
    pub failures: Vec<Failure>,
}

impl Chosen {
    /// As many as can be prepared in one pass by all threads. A few are needed for an average, also where they are slow, but never for
    /// more than a quarter of the time, so that whoever waits for the answer knows for how long.
    pub fn new(request: &ProfileRequest<'_>) -> Result<Self, ProfileFailure> {
        let threads = request.threads.max(1);
        let pass = request.time / PASSES;
        let mut preparer = request.preparation.preparer();
        let mut own = OwnSample::default();
        let (mut samples, mut sizes, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
        let mut failures = Vec::new();
        let (mut tried, mut row_bytes, mut prepared) = (0, 0, Duration::ZERO);
        let asked = Asked::new(&*request.preparation.source, pass);
        let started = Instant::now();
        for sample in evenly(&asked.small_to_large) {
            let mut record = SampleRecord::start();
            tried += 1;
            match preparer.prepare(sample, Draw::first(0), &mut Target::Own(&mut own), &mut record) {
                Ok(()) => {
                    let took = record.decode + record.augment;
                    samples.push(sample);
                    sizes.push(record.storage_bytes as f64);
                    seconds.push(took.as_secs_f64());
                    prepared += took;
                    row_bytes += own.data.len();
                }
                Err(failure) => failures.push(failure),
            }
            let enough = samples.len() >= 8 * threads && prepared > pass * threads as u32;
            if enough || started.elapsed() > request.time / 4 {
                break;
            }
        }
        if samples.is_empty() {
            return Err(match failures.into_iter().next() {
                Some(first) => ProfileFailure::NothingGood { tried, first },
                None => ProfileFailure::Empty,
            });
        }
        let encoded_bytes = asked.mean_bytes.unwrap_or_else(|| mean(&sizes)).max(1.0);
        row_bytes /= samples.len();
        Ok(Self { samples, sizes, seconds, encoded_bytes, row_bytes, tried, failures })
    }

    /// What something comes to for a sample of average size, when this is what it was for some of the chosen ones: their places, and a
    /// figure for each. `None` for none.
    pub fn at_average(&self, figures: &[(usize, f64)]) -> Option<f64> {
        let sizes: Vec<f64> = figures.iter().map(|&(place, _)| self.sizes[place]).collect();
        let values: Vec<f64> = figures.iter().map(|&(_, value)| value).collect();
        (!values.is_empty()).then(|| on_the_line(&sizes, &values, self.encoded_bytes))
    }

    /// How many times as long a sample of average size takes to decode as those at these places do on average.
    pub fn average_over(&self, places: &[usize]) -> f64 {
        let seconds: Vec<(usize, f64)> = places.iter().map(|&place| (place, self.seconds[place])).collect();
        let chosen = seconds.iter().map(|(_, value)| value).sum::<f64>() / seconds.len().max(1) as f64;
        match self.at_average(&seconds) {
            Some(average) if chosen > 0.0 => average / chosen,
            _ => 1.0,
        }
    }

    /// Room for a copy of each, in whichever form: a decoded picture is seldom more than fifty times its file.
    pub fn copies_bytes(&self) -> u64 {
        let largest = self.sizes.iter().copied().fold(1e6, f64::max);
        (self.samples.len() as u64 * 50 * largest as u64).clamp(64 << 20, 2 << 30)
    }
}

/// Samples from all over the dataset and their sizes.
struct Asked {
    /// Those that do not tell come first, in no order.
    small_to_large: Vec<SampleId>,
    /// Of those that told.
    mean_bytes: Option<f64>,
}

impl Asked {
    fn new(source: &dyn Source, time: Duration) -> Self {
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
        let told: Vec<f64> = sized.iter().filter_map(|(bytes, _)| bytes.map(|bytes| bytes as f64)).collect();
        Self {
            small_to_large: sized.into_iter().map(|(_, sample)| sample).collect(),
            mean_bytes: (!told.is_empty()).then(|| mean(&told)),
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The value at `at` of the straight line that lies closest to the points; it never leaves the measured average by more than a factor
/// of four, as a line through few points may point anywhere.
fn on_the_line(places: &[f64], values: &[f64], at: f64) -> f64 {
    let (place, value) = (mean(places), mean(values));
    let spread: f64 = places.iter().map(|each| (each - place).powi(2)).sum();
    let together: f64 = places.iter().zip(values).map(|(x, y)| (x - place) * (y - value)).sum();
    let slope = if spread > 0.0 { together / spread } else { 0.0 };
    (value + slope * (at - place)).clamp(value / 4.0, value * 4.0)
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
    fn the_line_leads_from_what_was_met_to_the_average() {
        let sizes = [1.0, 2.0, 3.0];
        assert!((on_the_line(&sizes, &[10.0, 20.0, 30.0], 2.5) - 25.0).abs() < 1e-9);
        assert_eq!(on_the_line(&sizes, &[7.0, 7.0, 7.0], 100.0), 7.0);
        assert_eq!(on_the_line(&sizes, &[10.0, 20.0, 30.0], 1e9), 80.0);
        assert_eq!(on_the_line(&[5.0], &[3.0], 10.0), 3.0);
    }

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
