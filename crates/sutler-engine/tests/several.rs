//! Whoever takes several batches at a time waits once for all of them, and never longer than there is something to wait for.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sutler_engine::{Engine, JobOptions, Next, Run, ServingOrder};

use support::{Fake, PATIENCE, check_batch, job, options, whole};

/// An epoch of eight batches of a sample each, all ahead, one of which takes so long.
fn eight_with_a_slow_one(slow: u32, takes: Duration) -> (Engine, Run) {
    let fake = Arc::new(Fake { slow: (BTreeSet::from([slow]), takes), ..Fake::fixed(16) });
    let engine = Engine::new(2).unwrap();
    let samples: Vec<u64> = (0..8).collect();
    let plan = support::drawn(&samples, 8, 1, sutler_core::JobCursor::start_of(0));
    let run = engine.start(&job(&fake, options(1, 8)), plan, 0);
    (engine, run)
}

#[test]
fn as_many_batches_as_were_waited_for_are_there() {
    for order in [ServingOrder::Strict, ServingOrder::Ready { lateness: 3 }] {
        let fake = Arc::new(Fake::fixed(16).sleeping(500));
        let engine = Engine::new(2).unwrap();
        let job = job(&fake, JobOptions { order, ..options(1, 8) });
        let mut run = engine.start(&job, whole(20, 1, 0), 0);
        let mut left = 20;
        while left > 0 {
            run.wait_for(3, PATIENCE);
            // The last two are all there are.
            for _ in 0..left.min(3) {
                let Ok(Next::Batch(batch)) = run.next(Duration::ZERO) else {
                    panic!("a batch is missing with {left} left, {order:?}")
                };
                check_batch(&batch, &fake, 0);
                left -= 1;
            }
        }
        run.wait_for(3, PATIENCE);
        assert!(matches!(run.next(Duration::ZERO), Ok(Next::End)), "{order:?}");
    }
}

#[test]
fn half_of_those_ahead_will_do() {
    let (_engine, mut run) = eight_with_a_slow_one(4, PATIENCE / 2);
    let started = Instant::now();
    run.wait_for(8, PATIENCE);
    assert!(started.elapsed() < PATIENCE / 4, "four of eight are there");
    assert!((0..4).all(|_| matches!(run.next(Duration::ZERO), Ok(Next::Batch(_)))));
}

#[test]
fn a_slow_sample_is_waited_for_as_long_as_was_said() {
    let (_engine, mut run) = eight_with_a_slow_one(0, Duration::from_millis(300));
    let started = Instant::now();
    run.wait_for(2, Duration::from_millis(20));
    assert!(started.elapsed() >= Duration::from_millis(20));
    assert!(matches!(run.next(Duration::ZERO), Ok(Next::TimedOut)), "the others are not first in turn");
    run.wait_for(8, PATIENCE);
    assert!((0..8).all(|_| matches!(run.next(Duration::ZERO), Ok(Next::Batch(_)))));
}

#[test]
fn nobody_waits_for_the_batches_of_a_run_that_was_called_off() {
    let slow = (BTreeSet::from([0]), Duration::from_millis(100));
    let fake = Arc::new(Fake { slow, ..Fake::fixed(16) });
    let engine = Engine::new(1).unwrap();
    let mut run = engine.start(&job(&fake, options(1, 8)), whole(1, 1, 0), 0);
    let canceller = run.canceller();
    let started = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| run.wait_for(1, PATIENCE));
        std::thread::sleep(Duration::from_millis(20));
        canceller.cancel();
    });
    assert!(started.elapsed() < PATIENCE / 2);
}
