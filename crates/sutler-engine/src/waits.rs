//! The consumer's side of the book: how long it waited, for what, and how long it worked.
//!
//! A consumer's life is cut into four parts that add up: waiting for bytes (*fetch*), waiting for decoding and
//! transforms (*prep*), waiting for a finished batch to change hands (*transport*), and its own work (*trainer*). Time
//! between two epochs is nobody's and does not count.
//!
//! The engine keeps one for each of its jobs, and the client of an agent keeps its own, as only there is it known how long
//! the trainer really waited.

use std::time::{Duration, Instant};

use serde::Serialize;
use sutler_core::Course;

use crate::timeline::{BatchEntry, Timeline};

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

/// What is done to a batch between the answer to a request and the consumer's hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handling {
    /// Transforms and collation that run in the consumer's own thread.
    Prep,
    /// Finding the arrays in memory, and copying them where they are wanted.
    Transport,
}

/// The times of one answered request for a batch.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// The batch's number in its epoch.
    pub batch: u64,
    /// How many samples it has.
    pub samples: usize,
    /// When it was asked for.
    pub requested: Instant,
    /// When its last sample was finished.
    pub ready: Instant,
    /// When it was there.
    pub answered: Instant,
    /// The consumer's previous request, if this epoch had one, was answered then.
    pub previous: Option<Instant>,
    /// How many batches were finished when it was asked for.
    pub ready_batches: usize,
}

/// The sums over all requests so far, and the latest requests one by one.
#[derive(Clone, Debug)]
pub struct Waits {
    /// Time inside epochs: the consumer waiting or working.
    pub seconds: f64,
    /// Time the consumer was blocked.
    pub wait_seconds: f64,
    /// The same seconds, split.
    pub stalls: Stalls,
    /// How often so many batches were finished when one was asked for: none, one, two and so on.
    pub ready: Vec<u64>,
    /// The latest requests.
    pub timeline: Timeline,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            seconds: 0.0,
            wait_seconds: 0.0,
            stalls: Stalls::default(),
            ready: Vec::new(),
            timeline: Timeline::starting_now(),
        }
    }
}

impl Waits {
    /// A request was answered. What came after the batch was ready is transport; the rest is split by what the batch's own
    /// samples were at while the consumer waited, which the course tells.
    pub fn deliver(&mut self, delivery: &Delivery, course: &Course) {
        let ready = delivery.ready.clamp(delivery.requested, delivery.answered.max(delivery.requested));
        let blocked = nanos(ready.saturating_duration_since(delivery.requested));
        let split = course.split(blocked);
        let (fetch, prep) = (split.fetch / 1e9, split.prep / 1e9);
        let transport = seconds_between(ready, delivery.answered) + split.idle / 1e9;
        let trainer = delivery.previous.map_or(0.0, |at| seconds_between(at, delivery.requested));
        self.stalls.fetch += fetch;
        self.stalls.prep += prep;
        self.stalls.transport += transport;
        self.stalls.trainer += trainer;
        let waited = seconds_between(delivery.requested, delivery.answered);
        self.wait_seconds += waited;
        self.seconds += waited + trainer;
        if self.ready.len() <= delivery.ready_batches {
            self.ready.resize(delivery.ready_batches + 1, 0);
        }
        self.ready[delivery.ready_batches] += 1;
        self.timeline.add_batch(BatchEntry {
            batch: delivery.batch,
            samples: delivery.samples,
            requested: self.timeline.at(delivery.requested),
            ready: self.timeline.at(delivery.ready),
            answered: self.timeline.at(delivery.answered),
            fetch,
            prep,
            transport,
            trainer,
            ready_batches: delivery.ready_batches,
        });
    }

    /// The batch that was delivered last reached the consumer's hands only now: until then it was still being worked at,
    /// which is part of the wait for it. Returns for how many seconds.
    pub fn handle(&mut self, handling: Handling, answered: Instant, now: Instant) -> f64 {
        let seconds = seconds_between(answered, now);
        self.wait_seconds += seconds;
        self.seconds += seconds;
        let at = self.timeline.at(now);
        let mut spare = BatchEntry::default();
        let entry = self.timeline.last_batch().unwrap_or(&mut spare);
        entry.answered = at;
        match handling {
            Handling::Prep => {
                self.stalls.prep += seconds;
                entry.prep += seconds;
            }
            Handling::Transport => {
                self.stalls.transport += seconds;
                entry.transport += seconds;
            }
        }
        seconds
    }

    /// The consumer has come back from its last batch and found the epoch finished.
    pub fn end(&mut self, previous: Instant, now: Instant) {
        let trained = seconds_between(previous, now);
        self.stalls.trainer += trained;
        self.seconds += trained;
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn seconds_between(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use sutler_core::Span;

    use super::*;

    fn milliseconds(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// A course of one sample that was read and then decoded, until the batch was ready.
    fn course(fetch_ms: u64, prep_ms: u64) -> Course {
        let (fetched, finished) = (fetch_ms * 1_000_000, (fetch_ms + prep_ms) * 1_000_000);
        Course::of(&[Span { begun: 0, fetched, finished }], 0, finished)
    }

    fn delivery(start: Instant, [requested, ready, answered]: [u64; 3], previous: Option<u64>) -> Delivery {
        let at = |ms| start + milliseconds(ms);
        Delivery {
            batch: 3,
            samples: 2,
            requested: at(requested),
            ready: at(ready),
            answered: at(answered),
            previous: previous.map(at),
            ready_batches: 2,
        }
    }

    fn assert_stalls(waits: &Waits, milliseconds: [f64; 4]) {
        let Stalls { fetch, prep, transport, trainer } = waits.stalls;
        for (is, should) in [fetch, prep, transport, trainer].into_iter().zip(milliseconds) {
            assert!((is - should / 1e3).abs() < 1e-6, "{:?} instead of {milliseconds:?}", waits.stalls);
        }
        let sum = milliseconds.iter().sum::<f64>() / 1e3;
        assert!((waits.seconds - sum).abs() < 1e-6, "{} instead of {sum}", waits.seconds);
    }

    #[test]
    fn the_parts_of_a_wait_add_up() {
        let mut waits = Waits::default();
        waits.deliver(&delivery(Instant::now(), [100, 200, 210], Some(40)), &course(60, 40));
        assert_stalls(&waits, [60.0, 40.0, 10.0, 60.0]);
        assert!((waits.wait_seconds - 0.110).abs() < 1e-6);
        assert_eq!(waits.ready, [0, 0, 1]);
    }

    #[test]
    fn a_batch_that_was_ready_stalls_nobody() {
        let mut waits = Waits::default();
        waits.deliver(&delivery(Instant::now(), [100, 50, 100], None), &course(10, 40));
        assert_stalls(&waits, [0.0; 4]);
    }

    #[test]
    fn what_is_done_after_the_answer_is_part_of_the_wait() {
        let mut waits = Waits::default();
        let start = waits.timeline.origin;
        waits.deliver(&delivery(start, [100, 120, 120], None), &course(5, 25));
        waits.handle(Handling::Prep, start + milliseconds(120), start + milliseconds(150));
        waits.handle(Handling::Transport, start + milliseconds(150), start + milliseconds(151));
        assert_stalls(&waits, [0.0, 50.0, 1.0, 0.0]);
        let entry = waits.timeline.batches().next().unwrap();
        assert!((entry.answered - entry.requested - 0.051).abs() < 1e-6, "{entry:?}");
        assert!((entry.prep - 0.050).abs() < 1e-6, "{entry:?}");
    }

    #[test]
    fn the_work_with_the_last_batch_counts() {
        let mut waits = Waits::default();
        let start = Instant::now();
        waits.deliver(&delivery(start, [0, 10, 10], None), &course(10, 0));
        waits.end(start + milliseconds(10), start + milliseconds(30));
        assert_stalls(&waits, [10.0, 0.0, 0.0, 20.0]);
    }
}
