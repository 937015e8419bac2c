//! More batches are prepared ahead where somebody waits for want of them, and only there.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sutler_core::JobCursor;
use sutler_engine::{Engine, JobOptions, ServingOrder};

use support::{Fake, check_batch, drawn, job, next, options};

const ORDERS: [ServingOrder; 2] = [ServingOrder::Strict, ServingOrder::Ready { lateness: 1 }];

/// The batches ahead after each of some epochs of 60 samples in batches of two, of which every tenth takes long.
fn depths(grows: bool, order: ServingOrder, row_bytes: usize, epochs: u32) -> Vec<usize> {
    let slow = ((10..60).step_by(10).collect(), Duration::from_millis(40));
    let fake = Arc::new(Fake { slow, ..Fake::fixed(row_bytes) });
    let engine = Engine::new(3).unwrap();
    let job = job(&fake, JobOptions { ahead_grows: grows, order, ..options(2, 2) });
    let samples: Vec<u64> = (0..60).collect();
    (0..epochs)
        .map(|epoch| {
            let mut run = engine.start(&job, drawn(&samples, 60, 2, JobCursor::start_of(epoch)), epoch);
            let mut ids = Vec::new();
            while let Some(batch) = next(&mut run).unwrap() {
                ids.extend(check_batch(&batch, &fake, epoch).ids);
            }
            ids.sort_unstable();
            assert_eq!(ids, (0..60).collect::<Vec<_>>());
            job.batches_ahead()
        })
        .collect()
}

#[test]
fn batches_ahead_become_more_where_slow_samples_are_waited_for() {
    for order in ORDERS {
        for row_bytes in [64, 0] {
            let depths = depths(true, order, row_bytes, 2);
            // One step for each of five slow samples at least, and what was found is kept.
            assert!((4..=8).contains(&depths[0]), "{order:?}: {depths:?}");
            assert!((depths[0]..=8).contains(&depths[1]), "{order:?}: {depths:?}");
        }
    }
}

#[test]
fn a_number_that_was_chosen_is_never_exceeded() {
    for order in ORDERS {
        assert_eq!(depths(false, order, 64, 1), [2], "{order:?}");
    }
}

#[test]
fn memory_is_reserved_for_as_many_as_there_may_be() {
    let slots = |grows, row_bytes| {
        let options = JobOptions { ahead_grows: grows, ..options(2, 2) };
        let job = job(&Arc::new(Fake::fixed(row_bytes)), options);
        let (bytes, slots) = job.arena().unwrap().slots();
        assert_eq!(job.memory_bytes(), 3 * bytes, "two ahead and one held");
        slots
    };
    assert_eq!((slots(false, 64), slots(true, 64)), (3, 9));
    // Of batches of 400 MiB there may be one more.
    assert_eq!(slots(true, 200 << 20), 4);
}

#[test]
fn nobody_waits_where_the_trainer_is_slower() {
    for order in ORDERS {
        let fake = Arc::new(Fake::fixed(64));
        let engine = Engine::new(3).unwrap();
        let job = job(&fake, JobOptions { ahead_grows: true, order, ..options(2, 2) });
        let samples: Vec<u64> = (0..40).collect();
        let mut run = engine.start(&job, drawn(&samples, 40, 2, JobCursor::start_of(0)), 0);
        for taken in 1.. {
            let Some(batch) = next(&mut run).unwrap() else { break };
            check_batch(&batch, &fake, 0);
            while fake.prepared.load(Ordering::SeqCst) < 40.min(2 * (taken + 2)) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(15)); // the last of them is to be finished, too
        }
        assert_eq!(job.batches_ahead(), 2, "{order:?}");
    }
}
