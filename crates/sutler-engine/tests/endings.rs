//! However and whenever it ends: promptly, and with no thread left.
//!
//! One test, since it counts the threads of the whole process.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use sutler_engine::{Engine, Job, Run, RunError};

use support::{Fake, drain, job, options, whole, worker_threads};

/// Runs would take longer, and a busy machine takes its time.
const PROMPT: Duration = Duration::from_secs(30);

fn wait_for_no_threads() {
    let started = Instant::now();
    while worker_threads() > 0 {
        assert!(started.elapsed() < PROMPT, "{} worker threads are left", worker_threads());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An engine with a run of slow samples, of which `taken` batches were taken.
fn running(threads: usize, taken: usize, sleep_micros: u64) -> (Engine, Arc<Job>, Run, Arc<Fake>) {
    let fake = Arc::new(Fake::fixed(64).sleeping(sleep_micros));
    let engine = Engine::new(threads).unwrap();
    let job = job(&fake, options(4, 3));
    let mut run = engine.start(&job, whole(1000, 4, 0), 0);
    assert_eq!(drain(&mut run, &fake, 0, taken).len(), taken);
    (engine, job, run, fake)
}

#[test]
fn every_ending_is_prompt_and_leaves_no_thread() {
    for threads in [0, 1, 8] {
        for taken in [0, 1, 5] {
            // The run first, then the engine.
            let (engine, _, run, _) = running(threads, taken, 1000);
            drop(run);
            engine.close();
            // A thread that was waited for is still listed for a moment: it is joined before the kernel has buried it.
            wait_for_no_threads();

            // The engine first: the run has ended, and says so as often as it is asked.
            let (engine, _, mut run, _) = running(threads, taken, 1000);
            drop(engine);
            for _ in 0..2 {
                assert_eq!(run.next(PROMPT).map(|_| ()), Err(RunError::Closed));
            }
            drop(run);
            wait_for_no_threads();

            // A batch outlives all of them.
            let (engine, job, mut run, fake) = running(threads, taken, 1000);
            let batch = support::next(&mut run).unwrap().unwrap();
            drop((run, job));
            engine.close();
            support::check_batch(&batch, &fake, 0);
        }
        close_while_waiting(threads);
        cancel_while_waiting(threads);
        many_starts_and_stops(threads);
    }
    wait_for_no_threads();
}

fn close_while_waiting(threads: usize) {
    let (engine, _, mut run, fake) = running(threads, 1, 20_000);
    let consumer = std::thread::spawn(move || {
        loop {
            match run.next(Duration::from_secs(60)) {
                Ok(_) => drop(fake.bytes_of(sutler_core::SampleId(0))),
                Err(error) => return error,
            }
        }
    });
    std::thread::sleep(Duration::from_millis(20));
    let started = Instant::now();
    engine.close();
    assert_eq!(consumer.join().unwrap(), RunError::Closed);
    assert!(started.elapsed() < PROMPT);
    assert_eq!(worker_threads(), 0);
}

fn cancel_while_waiting(threads: usize) {
    let (engine, job, mut run, fake) = running(threads, 0, 20_000);
    let canceller = run.canceller();
    let consumer = std::thread::spawn(move || {
        loop {
            if let Err(error) = run.next(Duration::from_secs(60)) {
                return error;
            }
        }
    });
    std::thread::sleep(Duration::from_millis(20));
    let started = Instant::now();
    canceller.cancel();
    assert_eq!(consumer.join().unwrap(), RunError::Closed);
    assert!(started.elapsed() < PROMPT);
    canceller.cancel(); // once more does no harm
    // The engine has other runs to serve.
    assert_eq!(drain(&mut engine.start(&job, whole(8, 4, 1), 1), &fake, 1, usize::MAX).len(), 2);
    engine.close();
}

fn many_starts_and_stops(threads: usize) {
    let fake = Arc::new(Fake::fixed(64).sleeping(200));
    let engine = Engine::new(threads).unwrap();
    let job = job(&fake, options(4, 3));
    for round in 0..50 {
        let mut run = engine.start(&job, whole(100, 4, round), round);
        assert_eq!(drain(&mut run, &fake, round, round as usize % 4).len(), round as usize % 4);
    }
    assert_eq!(drain(&mut engine.start(&job, whole(100, 4, 99), 99), &fake, 99, usize::MAX).len(), 25);
    engine.close();
}
