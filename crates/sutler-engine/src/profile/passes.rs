//! Samples prepared as a loader prepares them, and what that takes.
//!
//! A pass is an epoch over some samples: with an engine's threads, into batch memory that no processor has at hand, handed over to
//! somebody who asks for batches. A loop without all that would be faster than any loader.
//!
//! Two clocks run. That of each thread's processor tells what a sample costs; it stands still while others have the processor, so it says the
//! same on a busy machine. The one on the wall tells, beside it, how much of a processor a thread gets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use sutler_core::{Draw, EpochPlan, Form, JobCursor, SampleId};

use super::ProfileFailure;
use crate::{
    Engine, ErrorPolicy, Failure, ImagePreparation, Job, JobOptions, Next, Place, Preparation, Preparer,
    RowSpec, RunError, SampleRecord, ServingOrder,
};

/// What the rows of all batches together may take. More than processors keep for themselves, so that rows are written to memory, as a
/// loader's are.
const ROWS_BYTES_MAX: usize = 128 << 20;

/// How many batches are in preparation or waiting to be taken.
const BATCHES_AHEAD: usize = 4;

/// The most samples in a batch: as many as is usual.
const BATCH_MAX: usize = 64;

/// Nobody is waited for that long; passes are short.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// How long this thread has had a processor.
pub(super) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// What samples took in a pass, on average.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// Seconds of a processor, hand-over included.
    pub work_s: f64,
    /// Seconds of a thread: the same, and what it waited.
    pub thread_s: f64,
}

impl Taken {
    /// How much of a processor a thread had.
    pub fn share(&self) -> f64 {
        (self.work_s / self.thread_s).clamp(1e-3, 1.0)
    }
}

/// An engine with one job, to make passes with.
pub(super) struct Passes {
    engine: Engine,
    job: Arc<Job>,
    clocks: Arc<Clocks>,
    samples: u32,
    batch_size: usize,
    /// The number of the next pass, which decides its random numbers, too.
    epoch: u32,
}

impl Passes {
    pub fn new(preparation: &ImagePreparation, threads: usize) -> Result<Self, ProfileFailure> {
        let row_bytes = match preparation.row() {
            RowSpec::Fixed { bytes } => bytes.max(1),
            RowSpec::Varies => 1,
        };
        let batch_size = (ROWS_BYTES_MAX / row_bytes / (BATCHES_AHEAD + 1)).clamp(1, BATCH_MAX);
        let clocks = Arc::new(Clocks::default());
        let timed = Timed { preparation: preparation.clone(), clocks: Arc::clone(&clocks) };
        let options = JobOptions {
            batch_size,
            // No thread may be left without work because batches are small.
            batches_ahead: BATCHES_AHEAD.max((2 * threads).div_ceil(batch_size)),
            ahead_grows: false,
            batches_held: 1,
            errors: ErrorPolicy::Raise,
            in_step: false,
            go_on: false,
            order: ServingOrder::Strict,
        };
        let engine = Engine::new(threads).map_err(ProfileFailure::Threads)?;
        let samples = u32::try_from(preparation.source.len()).unwrap_or(u32::MAX);
        Ok(Self { engine, job: Job::new(Arc::new(timed), options)?, clocks, samples, batch_size, epoch: 0 })
    }

    /// Prepares these samples.
    pub fn pass(&mut self, samples: &[SampleId]) -> Result<(Taken, Duration), ProfileFailure> {
        let cursor = JobCursor { epoch: self.epoch, consumed: 0 };
        let mut plan = EpochPlan::to_be_drawn(self.batch_size as u32, false, cursor)
            .and_then(|mut plan| {
                let drawn: Vec<u64> = samples.iter().map(|sample| u64::from(sample.0)).collect();
                plan.extend(&drawn, self.samples).map(|()| plan)
            })
            .map_err(|error| RunError::Memory(error.to_string()))?;
        plan.end();
        self.clocks.reset();
        let started = Instant::now();
        let mut run = self.engine.start(&self.job, plan, self.epoch);
        while let Next::Batch(_) | Next::TimedOut | Next::Passed = run.next(FOR_EVER)? {}
        drop(run);
        self.epoch += 1;
        let took = started.elapsed();
        Ok((self.clocks.taken(took, samples.len(), self.engine.threads()), took))
    }
}

/// What all threads together took in a pass, in nanoseconds, and for how many samples.
#[derive(Default)]
struct Clocks {
    samples: AtomicU64,
    work: AtomicU64,
    thread: AtomicU64,
}

impl Clocks {
    fn reset(&self) {
        for clock in [&self.samples, &self.work, &self.thread] {
            clock.store(0, Ordering::Relaxed);
        }
    }

    fn add(&self, work: Duration, thread: Duration) {
        self.samples.fetch_add(1, Ordering::Relaxed);
        self.work.fetch_add(work.as_nanos() as u64, Ordering::Relaxed);
        self.thread.fetch_add(thread.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The averages. Where no thread had two samples there are none, and what the whole pass took has to do.
    fn taken(&self, pass: Duration, passed: usize, threads: usize) -> Taken {
        let samples = self.samples.load(Ordering::Relaxed);
        if samples == 0 {
            let each = pass.as_secs_f64() * threads.min(passed).max(1) as f64 / passed.max(1) as f64;
            return Taken { work_s: each, thread_s: each };
        }
        let mean = |clock: &AtomicU64| clock.load(Ordering::Relaxed) as f64 / 1e9 / samples as f64;
        Taken { work_s: mean(&self.work), thread_s: mean(&self.thread) }
    }
}

/// A preparation that is timed.
struct Timed {
    preparation: ImagePreparation,
    clocks: Arc<Clocks>,
}

impl Preparation for Timed {
    fn row(&self) -> RowSpec {
        self.preparation.row()
    }

    fn kept_as(&self, sample: SampleId) -> Form {
        self.preparation.kept_as(sample)
    }

    fn label(&self, sample: SampleId) -> i64 {
        self.preparation.label(sample)
    }

    fn describe(&self, sample: SampleId) -> String {
        self.preparation.describe(sample)
    }

    fn preparer(&self) -> Box<dyn Preparer> {
        let preparer = self.preparation.preparer();
        Box::new(TimedPreparer { preparer, clocks: Arc::clone(&self.clocks), begun: None })
    }
}

struct TimedPreparer {
    preparer: Box<dyn Preparer>,
    clocks: Arc<Clocks>,
    begun: Option<Begun>,
}

/// A sample that a thread has begun. It is done when the next one begins: whatever comes between the two, the hand-over, belongs to it.
struct Begun {
    epoch: u32,
    work: Duration,
    at: Instant,
}

impl Preparer for TimedPreparer {
    fn prepare(
        &mut self,
        sample: SampleId,
        draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        let (work, at) = (thread_time(), Instant::now());
        let begun = self.begun.replace(Begun { epoch: draw.epoch, work, at });
        if let Some(begun) = begun.filter(|begun| begun.epoch == draw.epoch) {
            self.clocks.add(work.saturating_sub(begun.work), at - begun.at);
        }
        self.preparer.prepare(sample, draw, place, record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_clock_runs_while_it_works_and_stands_still_while_it_sleeps() {
        let begun = thread_time();
        std::thread::sleep(Duration::from_millis(30));
        assert!(thread_time() - begun < Duration::from_millis(15));
        let (begun, started) = (thread_time(), Instant::now());
        let mut sum = 0u64;
        while thread_time() - begun < Duration::from_millis(5) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(started.elapsed() >= Duration::from_millis(4));
    }

    #[test]
    fn averages_are_over_samples_and_a_pass_of_single_ones_counts_as_a_whole() {
        let clocks = Clocks::default();
        let alone = clocks.taken(Duration::from_millis(100), 2, 4);
        assert_eq!((alone.work_s, alone.share()), (0.1, 1.0));
        let ms = Duration::from_millis;
        clocks.add(ms(10), ms(20));
        clocks.add(ms(20), ms(20));
        let taken = clocks.taken(ms(100), 4, 2);
        assert_eq!((taken.work_s, taken.thread_s), (0.015, 0.02));
        assert_eq!(taken.share(), 0.75);
        clocks.reset();
        assert_eq!(clocks.taken(ms(8), 4, 2).thread_s, 0.004);
    }
}
