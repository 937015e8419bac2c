//! What keeping the book costs: the same calls that an engine makes for a sample and a batch, with nothing between them. Every engine keeps
//! it, so there is none to compare with that does not.

use std::hint::black_box;
use std::time::{Duration, Instant};

use sutler_core::SampleId;

use crate::batch::Outcome;
use crate::metrics::Metrics;
use crate::preparation::SampleRecord;
use crate::waits::{Delivery, Handling};

/// The rows of the batches that are written down.
const ROWS: u64 = 256;

/// How often a batch is written down. The best of them counts: the machine may have other things to do in most.
const ROUNDS: usize = 400;

/// How often a worker looks at the clock for a native sample: when it takes it up, before and after its bytes come, when they are decoded,
/// after each of a handful of transforms, and when it is finished.
const LOOKS_NATIVE: u32 = 12;

/// How often it does so for one that a worker process prepares: when it asks, when it is answered, when the record is made, and when the sample
/// and its batch are finished.
const LOOKS_PROCESS: u32 = 5;

/// Seconds of a processor that the book takes for a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BookCost {
    /// In the worker, for looking at the clock.
    pub worker: f64,
    /// In the consumer, for writing down what became of the sample, by far the most of it where it waits for the whole batch.
    pub consumer: f64,
}

impl BookCost {
    /// Measures it: of samples that are read for a while, or come from a worker process and are not (`fetch` is zero).
    #[must_use]
    pub fn measure(fetch: Duration) -> Self {
        let start = Instant::now();
        let at = |micros| start + Duration::from_micros(micros);
        let samples: Vec<SampleId> = (0..ROWS as u32).map(SampleId).collect();
        let decode = Duration::from_micros(60);
        // The worst case: eight workers, and the consumer waits for all of the batch.
        let outcomes: Vec<Outcome> = (0..ROWS)
            .map(|row| {
                let started = at(100 * (row / 8) + row % 8);
                let record =
                    SampleRecord { started, fetch, decode, storage_reads: 1, ..SampleRecord::start() };
                let finished = started + fetch + decode;
                Outcome {
                    record,
                    finished,
                    worker: 1,
                    put_aside: false,
                    failure: None,
                    own: None,
                    foreign: None,
                }
            })
            .collect();
        let over = at(100 * ROWS / 8);
        let delivery = Delivery {
            batch: 0,
            samples: ROWS as usize,
            requested: start,
            ready: over,
            answered: over,
            previous: Some(start),
            ready_batches: 0,
        };
        let metrics = Metrics::default();
        let consumer = best(|| {
            metrics.record(&delivery, &outcomes, &samples);
            metrics.record_handling(Handling::Transport, over, over);
        });
        let looks = if fetch.is_zero() { LOOKS_PROCESS } else { LOOKS_NATIVE };
        let worker = best(|| {
            for _ in 0..ROWS as u32 * looks {
                black_box(Instant::now());
            }
        });
        Self { worker: worker / ROWS as f64, consumer: consumer / ROWS as f64 }
    }
}

/// The seconds of the fastest round.
fn best(mut round: impl FnMut()) -> f64 {
    let timed = |_| {
        let began = Instant::now();
        round();
        began.elapsed()
    };
    (0..ROUNDS).map(timed).min().unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A native sample takes 50 µs at the very least and one of a worker process 20 µs, most of that for the handing over; a hundredth of
    /// these is 500 and 200 ns, and that much the consumer may take. What it takes is printed with `--nocapture`.
    #[test]
    fn keeping_the_book_costs_less_than_a_hundredth() {
        let (native, process) =
            (BookCost::measure(Duration::from_micros(30)), BookCost::measure(Duration::ZERO));
        println!("keeping the book takes {native:?} for a native sample, {process:?} for a worker's");
        assert!(native.consumer < 500e-9 && process.consumer < 200e-9, "{native:?}, {process:?}");
    }
}
