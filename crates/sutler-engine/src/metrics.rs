//! What happened, in numbers: summed up from the record that every sample carries.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use sutler_core::{Course, Form, SampleId, SlowShare, Span, Step};

use crate::batch::Outcome;
use crate::timeline::{BatchEntry, SampleEntry, Timeline};
use crate::waits::{Delivery, Handling, Stalls, Waits, nanos, seconds_between};

/// Stage times above this are counted as this: an hour.
const STAGE_NANOS_MAX: u64 = 3_600_000_000_000;

/// The points of a distribution that are told: close together where it ends, since that is what batches wait for.
const QUANTILES: [f64; 17] =
    [0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 1.0];

/// The times of one stage, in seconds per sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StageSummary {
    /// How many samples went through it.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 19 of 20 were faster.
    pub p95: f64,
    /// 99 of 100 were faster.
    pub p99: f64,
}

impl StageSummary {
    /// What is known of one step of a chain.
    fn of_step(step: &Step) -> Self {
        let seconds = |share| step.durations().quantile(share).map_or(0.0, |at| at as f64 / 1e6);
        Self {
            count: step.count(),
            mean: step.mean() / 1e6,
            p50: seconds(0.50),
            p95: seconds(0.95),
            p99: seconds(0.99),
        }
    }

    /// What is known of all steps, under their names; one that has none has its number.
    pub(crate) fn of_steps(steps: &[Step], names: Vec<String>) -> Vec<(String, Self)> {
        let numbered = (names.len()..).map(|index| format!("step {}", index + 1));
        names.into_iter().chain(numbered).zip(steps.iter().map(Self::of_step)).collect()
    }
}

/// What one worker has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WorkerTimes {
    /// Samples it prepared that were delivered.
    pub samples: u64,
    /// Seconds it spent getting bytes for them.
    pub fetch: f64,
    /// Seconds it spent decoding and transforming.
    pub prep: f64,
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
    /// Time per sample in each step of its chain, where it is prepared in steps; see [`crate::Job::snapshot`].
    pub steps: Vec<(String, StageSummary)>,
    /// How many of the samples in a batch were slow, over time.
    pub slow_share: SlowShareSummary,
    /// How often so many batches were finished when one was asked for: none, one, two and so on.
    pub ready: Vec<u64>,
    /// What each worker has done.
    pub worker_times: Vec<WorkerTimes>,
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
    /// What is counted by the sample and the batch; the rest of it is filled in from the fields below when somebody asks.
    counted: Snapshot,
    waits: Waits,
    pace: Pace,
    fetch: Histogram<u64>,
    decode: Histogram<u64>,
    augment: Histogram<u64>,
    slow_share: SlowShare,
}

impl Totals {
    fn stages(&self) -> [(&'static str, &Histogram<u64>); 3] {
        [("fetch", &self.fetch), ("decode", &self.decode), ("augment", &self.augment)]
    }
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
                counted: Snapshot::default(),
                waits: Waits::default(),
                pace: Pace::default(),
                fetch: histogram(),
                decode: histogram(),
                augment: histogram(),
                slow_share: SlowShare::default(),
            }),
        }
    }
}

impl Metrics {
    fn totals(&self) -> MutexGuard<'_, Totals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down a delivered batch: what became of its rows, and the samples in them.
    pub(crate) fn record(&self, delivery: &Delivery, outcomes: &[Outcome], samples: &[SampleId]) {
        let blocked = delivery.ready > delivery.requested;
        let course = if blocked {
            course_of(outcomes, Some(delivery.requested), delivery.ready)
        } else {
            Course::default()
        };
        let mut totals = self.totals();
        let totals = &mut *totals;
        for (outcome, sample) in outcomes.iter().zip(samples) {
            let record = &outcome.record;
            // A sample that failed has gone through none of the stages in full.
            if outcome.failure.is_none() {
                totals.counted.served.count(record.served);
                totals.fetch.saturating_record(nanos(record.fetch));
                totals.decode.saturating_record(nanos(record.decode));
                totals.augment.saturating_record(nanos(record.augment));
                count_worker(&mut totals.counted.worker_times, outcome);
            }
            totals.counted.storage_reads += record.storage_reads;
            totals.counted.storage_bytes += record.storage_bytes;
            totals.counted.fetched += u64::from(record.storage_reads > 0);
            totals.counted.warnings += u64::from(record.warned);
            let timeline = &mut totals.waits.timeline;
            timeline.add_sample(SampleEntry {
                sample: sample.0,
                batch: delivery.batch,
                worker: outcome.worker,
                begun: timeline.at(record.started),
                fetch: record.fetch.as_secs_f64(),
                decode: record.decode.as_secs_f64(),
                augment: record.augment.as_secs_f64(),
                finished: timeline.at(outcome.finished),
                put_aside: outcome.put_aside,
            });
        }
        let good = outcomes.iter().filter(|outcome| outcome.failure.is_none());
        totals.slow_share.note(good.map(|outcome| outcome.record.work_micros()));
        let delivered = delivery.samples as u64;
        totals.counted.samples += delivered;
        totals.counted.batches += u64::from(delivered > 0);
        totals.waits.deliver(delivery, &course);
        if let Some(previous) = delivery.previous {
            totals.pace.samples += delivered;
            totals.pace.trained += seconds_between(previous, delivery.requested);
            totals.pace.waited += seconds_between(delivery.requested, delivery.answered);
        }
    }

    /// The batch that was recorded last reached the consumer's hands only now.
    pub(crate) fn record_handling(&self, handling: Handling, answered: Instant, now: Instant) {
        let mut totals = self.totals();
        let seconds = totals.waits.handle(handling, answered, now);
        totals.pace.waited += seconds;
    }

    /// Samples have failed, whether or not their batch is delivered.
    pub(crate) fn record_failures(&self, count: u64) {
        self.totals().counted.failed += count;
    }

    /// The consumer has come back from its last batch and found the epoch finished.
    pub(crate) fn record_end(&self, previous: Instant, now: Instant) {
        self.totals().waits.end(previous, now);
    }

    pub(crate) fn pace(&self) -> Pace {
        self.totals().pace
    }

    /// What was counted so far; cheaper than all figures.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.totals().counted.counts()
    }

    /// The figures so far, but for those of the steps, which a job has elsewhere.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let totals = self.totals();
        Snapshot {
            seconds: totals.waits.seconds,
            wait_seconds: totals.waits.wait_seconds,
            stalls: totals.waits.stalls,
            ready: totals.waits.ready.clone(),
            slow_share: SlowShareSummary::of(&totals.slow_share),
            stages: totals.stages().map(|(name, times)| (name, summary(times))).to_vec(),
            ..totals.counted.clone()
        }
    }

    /// The latest batches and samples one by one.
    #[must_use]
    pub fn timeline(&self) -> Timeline {
        self.totals().waits.timeline.clone()
    }

    pub(crate) fn last_delivery(&self) -> Option<BatchEntry> {
        self.totals().waits.timeline.last_batch().copied()
    }

    /// How the times of each stage are spread: fractions of the samples, and the seconds that they took at most.
    #[must_use]
    pub fn quantiles(&self) -> Vec<(&'static str, Vec<(f64, f64)>)> {
        let totals = self.totals();
        let stages = totals.stages().into_iter().filter(|(_, times)| !times.is_empty());
        stages.map(|(name, times)| (name, QUANTILES.map(|at| (at, quantile(times, at))).to_vec())).collect()
    }
}

fn summary(times: &Histogram<u64>) -> StageSummary {
    StageSummary {
        count: times.len(),
        mean: times.mean() / 1e9,
        p50: quantile(times, 0.50),
        p95: quantile(times, 0.95),
        p99: quantile(times, 0.99),
    }
}

fn quantile(times: &Histogram<u64>, at: f64) -> f64 {
    times.value_at_quantile(at) as f64 / 1e9
}

fn count_worker(times: &mut Vec<WorkerTimes>, outcome: &Outcome) {
    if times.len() <= outcome.worker {
        times.resize(outcome.worker + 1, WorkerTimes::default());
    }
    let times = &mut times[outcome.worker];
    times.samples += 1;
    times.fetch += outcome.record.fetch.as_secs_f64();
    times.prep += (outcome.record.decode + outcome.record.augment).as_secs_f64();
}

/// What the samples of a batch were at, from a moment on (their beginning, by default) until it was ready.
pub(crate) fn course_of(outcomes: &[Outcome], from: Option<Instant>, ready: Instant) -> Course {
    let Some(first) = outcomes.iter().map(|outcome| outcome.record.started).min() else {
        return Course::default();
    };
    let from = from.unwrap_or(first);
    let origin = first.min(from);
    let at = |moment: Instant| nanos(moment.saturating_duration_since(origin));
    let mut spans = Vec::with_capacity(outcomes.len());
    spans.extend(outcomes.iter().filter(|outcome| outcome.finished > from).map(|outcome| Span {
        begun: at(outcome.record.started),
        fetched: at(outcome.record.started + outcome.record.fetch),
        finished: at(outcome.finished),
    }));
    Course::of(&spans, at(from), at(ready))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::SampleRecord;

    fn outcome(started: Instant, fetch_ms: u64, prep_ms: u64) -> Outcome {
        let fetch = Duration::from_millis(fetch_ms);
        let decode = Duration::from_millis(prep_ms);
        let record = SampleRecord { started, fetch, decode, storage_reads: 1, ..SampleRecord::start() };
        let finished = started + fetch + decode;
        Outcome { record, finished, worker: 1, put_aside: false, failure: None, own: None, foreign: None }
    }

    #[test]
    fn a_wait_is_for_what_the_batchs_own_samples_were_at() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let delivery = Delivery {
            batch: 0,
            samples: 2,
            requested: at(100),
            ready: at(200),
            answered: at(210),
            previous: Some(at(40)),
            ready_batches: 0,
        };
        // One sample was fetched for 60 of the 100 ms we waited and decoded for 40; another was done before.
        let outcomes = [outcome(at(100), 60, 40), outcome(at(0), 50, 50)];
        let metrics = Metrics::default();
        metrics.record(&delivery, &outcomes, &[SampleId(7), SampleId(8)]);
        let snapshot = metrics.snapshot();
        let stalls = snapshot.stalls;
        assert!((stalls.fetch - 0.060).abs() < 1e-6, "{stalls:?}");
        assert!((stalls.prep - 0.040).abs() < 1e-6, "{stalls:?}");
        assert!((stalls.transport - 0.010).abs() < 1e-6, "{stalls:?}");
        assert!((stalls.trainer - 0.060).abs() < 1e-6, "{stalls:?}");
        assert_eq!(snapshot.stages[0].1.count, 2);
        let [idle, busy] = snapshot.worker_times[..] else { panic!("{:?}", snapshot.worker_times) };
        assert_eq!((idle.samples, busy.samples), (0, 2));
        assert!((busy.fetch - 0.110).abs() < 1e-6 && (busy.prep - 0.090).abs() < 1e-6, "{busy:?}");
        let timeline = metrics.timeline();
        assert_eq!(timeline.samples().map(|entry| entry.sample).collect::<Vec<_>>(), [7, 8]);
    }

    #[test]
    fn quantiles_rise_from_the_shortest_time_to_the_longest() {
        let start = Instant::now();
        let delivery = Delivery {
            batch: 0,
            samples: 100,
            requested: start,
            ready: start,
            answered: start,
            previous: None,
            ready_batches: 1,
        };
        let outcomes: Vec<Outcome> = (1..=100).map(|ms| outcome(start, ms, 0)).collect();
        let metrics = Metrics::default();
        assert!(metrics.quantiles().is_empty());
        metrics.record(&delivery, &outcomes, &[SampleId(0); 100]);
        let quantiles = metrics.quantiles();
        let (name, fetch) = &quantiles[0];
        assert_eq!(*name, "fetch");
        assert!(fetch.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{fetch:?}");
        let near = |at: usize, seconds: f64| (fetch[at].1 / seconds - 1.0).abs() < 0.02;
        assert!(near(0, 0.001) && near(7, 0.050) && near(16, 0.100), "{fetch:?}");
    }
}
