//! Delays of known length, and whether the book says so: every share of the consumer's time within 3 points of the truth.

mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use support::{next, options, whole};
use sutler_core::{Draw, SampleId};
use sutler_engine::{
    Engine, Failure, Handling, Job, JobOptions, Place, Preparation, Preparer, RowSpec, SampleRecord, Stalls,
    Target,
};

/// A machine with other things to do may be late by more than the points in question; but not three times in a row.
const ATTEMPTS: usize = 8;

/// Samples that take this long to fetch and to prepare; a storage that is shared serves one at a time.
#[derive(Clone)]
struct Delays {
    fetch: Duration,
    prep: Duration,
    storage: Option<Arc<Mutex<()>>>,
}

impl Preparation for Delays {
    fn row(&self) -> RowSpec {
        RowSpec::Fixed { bytes: 1 }
    }

    fn label(&self, _: SampleId) -> i64 {
        0
    }

    fn describe(&self, sample: SampleId) -> String {
        format!("delay/{}", sample.0)
    }

    fn preparer(&self) -> Box<dyn Preparer> {
        Box::new(self.clone())
    }
}

impl Preparer for Delays {
    fn prepare(
        &mut self,
        _: SampleId,
        _: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        {
            let _turn = self.storage.as_ref().map(|storage| storage.lock().unwrap());
            std::thread::sleep(self.fetch);
        }
        record.fetch = record.started.elapsed();
        record.storage_reads = 1;
        std::thread::sleep(self.prep);
        record.decode = record.started.elapsed() - record.fetch;
        if let Some(Target::Row(row)) = place.target() {
            row.fill(0);
        }
        Ok(())
    }
}

/// A pipeline with known delays, in milliseconds, and the shares that follow from them.
struct Setting {
    threads: usize,
    batch: u32,
    ahead: usize,
    fetch: u64,
    prep: u64,
    trainer: u64,
    /// What is done in the consumer's own thread before it has a batch.
    tail: u64,
    shared_storage: bool,
    /// Of fetch, prep and the trainer.
    truth: [f64; 3],
}

const BATCHES: u32 = 12;

/// The consumer's time from when it has the second batch to when it has the last, and how long that was: as many steps as
/// waits, and without the beginning.
fn stalls(setting: &Setting) -> (Stalls, f64) {
    let ms = Duration::from_millis;
    let storage = setting.shared_storage.then(|| Arc::new(Mutex::new(())));
    let delays = Delays { fetch: ms(setting.fetch), prep: ms(setting.prep), storage };
    let job_options: JobOptions = options(setting.batch as usize, setting.ahead);
    let job = Job::new(Arc::new(delays), job_options).unwrap();
    let engine = Engine::new(setting.threads).unwrap();
    let mut run = engine.start(&job, whole(BATCHES * setting.batch, setting.batch, 0), 0);
    let look = || (job.metrics().snapshot().stalls, Instant::now());
    let (mut before, mut after) = (look(), look());
    for number in 0..BATCHES {
        let batch = next(&mut run).unwrap();
        assert!(batch.is_some());
        std::thread::sleep(ms(setting.tail));
        run.handed_over(Handling::Prep);
        if number == 1 {
            before = look();
        }
        after = look();
        std::thread::sleep(ms(setting.trainer));
    }
    assert!(next(&mut run).unwrap().is_none());
    let wall = (after.1 - before.1).as_secs_f64();
    let (now, before) = (after.0, before.0);
    let during = Stalls {
        fetch: now.fetch - before.fetch,
        prep: now.prep - before.prep,
        transport: now.transport - before.transport,
        trainer: now.trainer - before.trainer,
    };
    (during, wall)
}

/// By how many points the worst share is off, and by how much the parts do not add up.
fn errors(setting: &Setting) -> (f64, f64, String) {
    let (during, wall) = stalls(setting);
    let Stalls { fetch, prep, transport, trainer } = during;
    let [fetch, prep, transport, trainer] = [fetch, prep, transport, trainer].map(|part| part / wall);
    let told = [fetch, prep, trainer];
    let off =
        told.iter().zip(setting.truth).map(|(is, should)| (is - should).abs()).fold(transport, f64::max);
    let missing = (fetch + prep + transport + trainer - 1.0).abs();
    (100.0 * off, 100.0 * missing, format!("fetch, prep, trainer {told:.3?}, transport {transport:.3}"))
}

/// Lets this thread, and the workers it starts, go before everything else on the machine where that is allowed: what is
/// measured are pauses, and who wakes late from one has paused longer.
fn go_first() {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters outlive the call, which only reads them.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
}

fn check(setting: &Setting) {
    go_first();
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let (off, missing, told) = errors(setting);
        if off <= 3.0 && missing <= 1.0 {
            return;
        }
        seen.push(format!("{told} (off by {off:.1} points, {missing:.2} % missing)"));
    }
    panic!("truth {:?}, told {seen:#?}", setting.truth);
}

const PLAIN: Setting = Setting {
    threads: 1,
    batch: 1,
    ahead: 1,
    fetch: 0,
    prep: 0,
    trainer: 0,
    tail: 0,
    shared_storage: false,
    truth: [0.0; 3],
};

#[test]
fn storage_alone() {
    check(&Setting { fetch: 30, truth: [1.0, 0.0, 0.0], ..PLAIN });
}

#[test]
fn preparation_alone() {
    check(&Setting { prep: 30, truth: [0.0, 1.0, 0.0], ..PLAIN });
}

#[test]
fn the_trainer_alone() {
    check(&Setting { fetch: 10, prep: 5, trainer: 40, ahead: 2, truth: [0.0, 0.0, 1.0], ..PLAIN });
}

#[test]
fn storage_and_preparation() {
    check(&Setting { fetch: 24, prep: 16, truth: [0.6, 0.4, 0.0], ..PLAIN });
}

#[test]
fn a_wait_is_for_what_went_on_while_it_lasted() {
    // A sample is begun when the one before is taken; the trainer comes back 25 ms later, 5 ms before it is read. By the
    // means of the stages two thirds of the wait would be reading.
    check(&Setting {
        fetch: 30,
        prep: 15,
        trainer: 25,
        truth: [5.0 / 45.0, 15.0 / 45.0, 25.0 / 45.0],
        ..PLAIN
    });
}

#[test]
fn storage_preparation_and_the_trainer() {
    // Two batches ahead and one thread, which never rests: 4 samples take 80 ms, and the trainer 20 of them.
    check(&Setting {
        batch: 4,
        ahead: 2,
        fetch: 12,
        prep: 8,
        trainer: 20,
        // The wait begins with the second sample of the batch.
        truth: [0.45, 0.30, 0.25],
        ..PLAIN
    });
}

#[test]
fn threads_that_share_a_storage() {
    // It serves one at a time, so a batch of 6 takes 120 ms to read. Of two threads one reads all the time; the other prepares
    // for 8 of each 20 ms, which makes these half and half, and queues for the rest. The last sample is prepared alone.
    check(&Setting {
        threads: 2,
        batch: 6,
        ahead: 2,
        fetch: 20,
        prep: 8,
        shared_storage: true,
        truth: [92.0 / 120.0, 28.0 / 120.0, 0.0],
        ..PLAIN
    });
}

#[test]
fn threads_beside_each_other() {
    check(&Setting {
        threads: 4,
        batch: 8,
        ahead: 2,
        fetch: 10,
        prep: 30,
        trainer: 40,
        truth: [0.125, 0.375, 0.5],
        ..PLAIN
    });
}

#[test]
fn what_the_consumers_thread_prepares() {
    // 12 ms in the consumer's thread and 8 ms of training hide 20 of the 40 ms that reading takes.
    check(&Setting { batch: 2, ahead: 2, fetch: 20, tail: 12, trainer: 8, truth: [0.5, 0.3, 0.2], ..PLAIN });
}

#[test]
fn preparation_in_both_places_and_storage() {
    check(&Setting { fetch: 20, prep: 20, tail: 10, trainer: 5, truth: [0.125, 0.75, 0.125], ..PLAIN });
}
