//! Invariant 5: what is prepared ahead is bounded, and hoarding what was delivered blocks nobody.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sutler_engine::{Engine, Next};

use support::{Fake, PATIENCE, check_batch, drain, job, next, options, whole};

/// Waits until `condition` holds and then some, so that what must not happen had time to.
fn settle(condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "it never happened");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(30));
}

#[test]
fn workers_stop_when_enough_is_ready() {
    let fake = Arc::new(Fake::fixed(16));
    let engine = Engine::new(3).unwrap();
    let mut run = engine.start(&job(&fake, options(5, 4)), whole(200, 5, 0), 0);
    for taken in 0..36 {
        // Four batches of five may be open or ready, and not one sample more.
        settle(|| fake.prepared.load(Ordering::SeqCst) >= (taken + 4) * 5);
        assert_eq!(fake.prepared.load(Ordering::SeqCst), (taken + 4) * 5);
        assert_eq!(drain(&mut run, &fake, 0, 1).len(), 1);
    }
}

#[test]
fn without_threads_nothing_is_prepared_before_it_is_asked_for() {
    let fake = Arc::new(Fake::fixed(16));
    let engine = Engine::new(0).unwrap();
    let mut run = engine.start(&job(&fake, options(5, 4)), whole(20, 5, 0), 0);
    assert_eq!(fake.prepared.load(Ordering::SeqCst), 0);
    for taken in 1..=4 {
        assert_eq!(drain(&mut run, &fake, 0, 1).len(), 1);
        assert_eq!(fake.prepared.load(Ordering::SeqCst), taken * 5);
    }
}

#[test]
fn hoarding_every_batch_never_blocks_and_memory_comes_back() {
    for threads in [0, 1, 4] {
        let fake = Arc::new(Fake::fixed(5000));
        let engine = Engine::new(threads).unwrap();
        let job = job(&fake, options(3, 2));
        let mut hoard = Vec::new();
        let mut run = engine.start(&job, whole(150, 3, 0), 0);
        while let Some(batch) = next(&mut run).unwrap() {
            hoard.push(batch);
        }
        assert_eq!(hoard.len(), 50);
        // Each has its own memory: nothing was overwritten by what came later.
        for batch in &hoard {
            check_batch(batch, &fake, 0);
        }
        let spilled = hoard.iter().filter(|batch| !batch.memory().unwrap().in_arena()).count();
        assert_eq!(spilled, 50 - 3, "2 ahead and 1 held are the arena's");
        drop(hoard);
        let mut run = engine.start(&job, whole(6, 3, 1), 1);
        while let Some(batch) = next(&mut run).unwrap() {
            assert!(batch.memory().unwrap().in_arena());
        }
    }
}

#[test]
fn waiting_ends_on_time_and_loses_nothing() {
    for threads in [0, 2] {
        let fake = Arc::new(Fake::fixed(4).sleeping(30_000));
        let engine = Engine::new(threads).unwrap();
        let mut run = engine.start(&job(&fake, options(20, 2)), whole(60, 20, 0), 0);
        let (mut ids, mut waits) = (Vec::new(), 0);
        loop {
            match run.next(Duration::from_millis(5)).unwrap() {
                Next::Batch(batch) => ids.extend(check_batch(&batch, &fake, 0).ids),
                Next::End => break,
                Next::TimedOut | Next::Passed => waits += 1,
            }
        }
        // A caller who works itself finishes the sample it is at and no other, so it comes back before its batch is ready.
        assert!(waits > 3, "{waits}");
        ids.sort_unstable();
        assert_eq!(ids, (0..60).collect::<Vec<_>>());
    }
}
