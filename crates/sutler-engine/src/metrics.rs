//! What happened, in numbers: summed up from the record that every sample carries.
//!
//! A consumer's life is cut into four parts that add up: waiting for bytes (*fetch*), waiting for decoding and
//! transforms (*prep*), waiting for a finished batch to change hands (*transport*), and its own work (*trainer*).

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use sutler_core::{Form, SlowShare};

use crate::batch::Outcome;

/// Stage times above this are counted as this: an hour.
const STAGE_NANOS_MAX: u64 = 3_600_000_000_000;

/// Where the consumer's time went, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stalls {
    /// Waiting for bytes from storage.
    pub fetch: f64,
    /// Waiting for decoding and transforms.
    pub prep: f64,
    /// Waiting for finished batches to arrive.
    pub transport: f64,
    /// Working with the batches.
    pub trainer: f64,
}

/// The times of one stage, in seconds per sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StageSummary {
    /// How many samples went through it.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99 of 100 were faster.
    pub p99: f64,
}

/// Delivered samples by the form they were found in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Read from where the dataset lives.
    pub storage: u64,
    /// Kept as they were stored.
    pub encoded: u64,
    /// Kept after the transforms that draw no random number.
    pub decoded: u64,
    /// Kept after all transforms.
    pub augmented: u64,
}

impl Served {
    fn count(&mut self, form: Form) {
        match form {
            Form::Storage => self.storage += 1,
            Form::Encoded => self.encoded += 1,
            Form::Decoded => self.decoded += 1,
            Form::Augmented => self.augmented += 1,
        }
    }
}

/// What was counted of samples: the part of the figures that adds up batch by batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Where the delivered samples were found.
    pub served: Served,
    /// Read requests to storage.
    pub storage_reads: u64,
    /// Bytes read from storage.
    pub storage_bytes: u64,
    /// Samples that had to be read from storage.
    pub fetched: u64,
    /// Samples whose decoder complained but went on.
    pub warnings: u64,
}

impl Counts {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// What has been counted since an earlier count.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        self.with(before, u64::saturating_sub)
    }

    fn with(self, other: Self, put: fn(u64, u64) -> u64) -> Self {
        Self {
            served: Served {
                storage: put(self.served.storage, other.served.storage),
                encoded: put(self.served.encoded, other.served.encoded),
                decoded: put(self.served.decoded, other.served.decoded),
                augmented: put(self.served.augmented, other.served.augmented),
            },
            storage_reads: put(self.storage_reads, other.storage_reads),
            storage_bytes: put(self.storage_bytes, other.storage_bytes),
            fetched: put(self.fetched, other.fetched),
            warnings: put(self.warnings, other.warnings),
        }
    }
}

/// How many of the samples in a batch were slow, over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SlowShareSummary {
    /// Samples that took longer than so many seconds count as slow; 0 while too little is known.
    pub threshold: f64,
    /// The share of all samples that were slow.
    pub mean: f64,
    /// The share over time: one number for so many batches, in order.
    pub series: Vec<f64>,
    /// So many batches.
    pub batches_per_point: u32,
}

impl SlowShareSummary {
    fn of(share: &SlowShare) -> Self {
        let (series, batches_per_point) = share.series();
        let threshold = share.slow_after().map_or(0.0, |microseconds| microseconds as f64 / 1e6);
        Self { threshold, mean: share.mean(), series: series.to_vec(), batches_per_point }
    }
}

/// All figures of a job up to now.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Snapshot {
    /// Samples delivered.
    pub samples: u64,
    /// Batches delivered.
    pub batches: u64,
    /// Samples that failed.
    pub failed: u64,
    /// Samples whose decoder complained but went on.
    pub warnings: u64,
    /// Time inside epochs: the consumer waiting or working.
    pub seconds: f64,
    /// Time the consumer was blocked.
    pub wait_seconds: f64,
    /// The same seconds, split.
    pub stalls: Stalls,
    /// Where the delivered samples were found.
    pub served: Served,
    /// Read requests to storage.
    pub storage_reads: u64,
    /// Bytes read from storage.
    pub storage_bytes: u64,
    /// Samples that had to be read from storage.
    pub fetched: u64,
    /// Time per sample in each stage.
    pub stages: Vec<(&'static str, StageSummary)>,
    /// How many of the samples in a batch were slow, over time.
    pub slow_share: SlowShareSummary,
}

impl Snapshot {
    /// What was counted of samples.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let Self { served, storage_reads, storage_bytes, fetched, warnings, .. } = *self;
        Counts { served, storage_reads, storage_bytes, fetched, warnings }
    }
}

/// How fast a consumer goes. What it waits for an epoch's first batch is not counted: that is a beginning, not a pace.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Pace {
    /// Samples it took.
    pub samples: u64,
    /// Seconds it worked with them.
    pub trained: f64,
    /// Seconds it waited for them.
    pub waited: f64,
}

impl Pace {
    pub fn since(&self, before: &Self) -> Self {
        Self {
            samples: self.samples - before.samples,
            trained: self.trained - before.trained,
            waited: self.waited - before.waited,
        }
    }
}

struct Totals {
    snapshot: Snapshot,
    pace: Pace,
    fetch: Histogram<u64>,
    decode: Histogram<u64>,
    augment: Histogram<u64>,
    slow_share: SlowShare,
}

fn histogram() -> Histogram<u64> {
    // Two significant digits: the summary is right to 1 %, in 10 KiB a stage.
    Histogram::new_with_max(STAGE_NANOS_MAX, 2).expect("the bounds are valid constants")
}

/// The book a job keeps of itself.
pub struct Metrics {
    /// Written by the consumer once per batch and read by whoever asks; workers never touch it.
    totals: Mutex<Totals>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            totals: Mutex::new(Totals {
                snapshot: Snapshot::default(),
                pace: Pace::default(),
                fetch: histogram(),
                decode: histogram(),
                augment: histogram(),
                slow_share: SlowShare::default(),
            }),
        }
    }
}

/// The times of one answered request for a batch.
pub(crate) struct Delivery {
    pub requested: Instant,
    /// When the batch's last sample was finished.
    pub ready: Instant,
    pub answered: Instant,
    /// The consumer's previous request, if this epoch had one, was answered then.
    pub previous: Option<Instant>,
}

impl Metrics {
    pub(crate) fn record(&self, delivery: &Delivery, outcomes: &[Outcome]) {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let totals = &mut *totals;
        for outcome in outcomes {
            let record = &outcome.record;
            // A sample that failed has gone through none of the stages in full.
            if outcome.failure.is_none() {
                totals.snapshot.served.count(record.served);
                totals.fetch.saturating_record(nanos(record.fetch));
                totals.decode.saturating_record(nanos(record.decode));
                totals.augment.saturating_record(nanos(record.augment));
            }
            totals.snapshot.storage_reads += record.storage_reads;
            totals.snapshot.storage_bytes += record.storage_bytes;
            totals.snapshot.fetched += u64::from(record.storage_reads > 0);
            totals.snapshot.warnings += u64::from(record.warned);
        }
        let good = || outcomes.iter().filter(|outcome| outcome.failure.is_none());
        totals.slow_share.note(good().map(|outcome| outcome.record.work_micros()));
        let delivered = good().count() as u64;
        totals.snapshot.samples += delivered;
        totals.snapshot.batches += u64::from(delivered > 0);
        let (fetch, prep, transport) = split_wait(delivery, outcomes);
        let stalls = &mut totals.snapshot.stalls;
        stalls.fetch += fetch;
        stalls.prep += prep;
        stalls.transport += transport;
        if let Some(previous) = delivery.previous {
            let trained = seconds_between(previous, delivery.requested);
            stalls.trainer += trained;
            totals.pace.samples += delivered;
            totals.pace.trained += trained;
            totals.pace.waited += seconds_between(delivery.requested, delivery.answered);
        }
        totals.snapshot.wait_seconds += seconds_between(delivery.requested, delivery.answered);
        // Between two epochs nobody waits and nobody trains on what we delivered, so `seconds` adds up what was seen.
        let begun = delivery.previous.unwrap_or(delivery.requested);
        totals.snapshot.seconds += seconds_between(begun, delivery.answered);
    }

    /// Samples have failed, whether or not their batch is delivered.
    pub(crate) fn record_failures(&self, count: u64) {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner).snapshot.failed += count;
    }

    /// The consumer has come back from its last batch and found the epoch finished.
    pub(crate) fn record_end(&self, previous: Instant, now: Instant) {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let trained = seconds_between(previous, now);
        totals.snapshot.stalls.trainer += trained;
        totals.snapshot.seconds += trained;
    }

    pub(crate) fn pace(&self) -> Pace {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner).pace
    }

    /// What was counted so far; cheaper than all figures.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner).snapshot.counts()
    }

    /// The figures so far.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let mut snapshot = totals.snapshot.clone();
        snapshot.stages = vec![
            ("fetch", summary(&totals.fetch)),
            ("decode", summary(&totals.decode)),
            ("augment", summary(&totals.augment)),
        ];
        snapshot.slow_share = SlowShareSummary::of(&totals.slow_share);
        snapshot
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(STAGE_NANOS_MAX)
}

fn seconds_between(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}

fn summary(histogram: &Histogram<u64>) -> StageSummary {
    StageSummary {
        count: histogram.len(),
        mean: histogram.mean() / 1e9,
        p50: histogram.value_at_quantile(0.50) as f64 / 1e9,
        p99: histogram.value_at_quantile(0.99) as f64 / 1e9,
    }
}

/// Splits a blocked request into seconds of fetch, prep and transport.
///
/// What came after the batch was ready is transport. The rest is shared between fetch and prep as the batch's own
/// samples shared it: by how much of each fell into the time of waiting.
fn split_wait(delivery: &Delivery, outcomes: &[Outcome]) -> (f64, f64, f64) {
    let ready = delivery.ready.clamp(delivery.requested, delivery.answered);
    let transport = seconds_between(ready, delivery.answered);
    let blocked = seconds_between(delivery.requested, ready);
    let overlap = |from: Instant, to: Instant| seconds_between(from.max(delivery.requested), to.min(ready));
    let (mut fetch, mut prep) = (0.0, 0.0);
    for outcome in outcomes {
        let fetched = outcome.record.started + outcome.record.fetch;
        fetch += overlap(outcome.record.started, fetched);
        prep += overlap(fetched, outcome.finished);
    }
    let work = fetch + prep;
    if work > 0.0 {
        (blocked * fetch / work, blocked * prep / work, transport)
    } else {
        (0.0, 0.0, transport + blocked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SampleRecord;

    fn outcome(started: Instant, fetch_ms: u64, prep_ms: u64) -> Outcome {
        let fetch = Duration::from_millis(fetch_ms);
        let decode = Duration::from_millis(prep_ms);
        let record = SampleRecord { started, fetch, decode, storage_reads: 1, ..SampleRecord::start() };
        Outcome { record, finished: started + fetch + decode, failure: None, own: None, foreign: None }
    }

    #[test]
    fn the_parts_of_a_wait_add_up() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let delivery =
            Delivery { requested: at(100), ready: at(200), answered: at(210), previous: Some(at(40)) };
        // One sample fetched for 60 of the 100 ms we waited and decoded for 40; another was done before.
        let outcomes = [outcome(at(100), 60, 40), outcome(at(0), 50, 50)];
        let metrics = Metrics::default();
        metrics.record(&delivery, &outcomes);
        let snapshot = metrics.snapshot();
        let stalls = snapshot.stalls;
        assert!((stalls.fetch - 0.060).abs() < 1e-9, "{stalls:?}");
        assert!((stalls.prep - 0.040).abs() < 1e-9, "{stalls:?}");
        assert!((stalls.transport - 0.010).abs() < 1e-9, "{stalls:?}");
        assert!((stalls.trainer - 0.060).abs() < 1e-9, "{stalls:?}");
        assert!((snapshot.wait_seconds - 0.110).abs() < 1e-9);
        assert!((snapshot.seconds - 0.170).abs() < 1e-9);
        assert_eq!(snapshot.stages[0].1.count, 2);
    }

    #[test]
    fn a_batch_that_was_ready_stalls_nobody() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let delivery = Delivery { requested: at(100), ready: at(50), answered: at(100), previous: None };
        let metrics = Metrics::default();
        metrics.record(&delivery, &[outcome(at(0), 10, 40)]);
        assert_eq!(metrics.snapshot().stalls, Stalls::default());
    }
}
