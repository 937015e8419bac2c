//! Workers whose number follows the demand: they come and go, and every sample is delivered once all the same.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use sutler_core::CrewLimits;
use sutler_engine::Engine;

use support::{Fake, check_batch, job, next, options, whole};

const LOOK_EVERY: Duration = Duration::from_millis(40);

fn elastic(workers_max: usize) -> Engine {
    Engine::elastic(CrewLimits { workers_min: 1, workers_max, cores: 2 }, LOOK_EVERY).unwrap()
}

/// Samples that wait for 4 ms on average, as those do whose storage is slow.
fn waiting() -> Arc<Fake> {
    Arc::new(Fake::fixed(64).sleeping(8000))
}

/// How long a crew may take to find its number, and how often it may try: where the machine does something else for a moment, the
/// consumer waits, and a crew that was too small once is careful from then on.
const PATIENCE: Duration = Duration::from_secs(20);
const TRIES: usize = 4;

/// Whole epochs, each sample checked and counted, until `done` says so, or not in time; how long the consumer works with each batch
/// is told in milliseconds. A machine with other things to do takes more of them: overrun processors keep a crew from growing.
fn epochs_until(engine: &Engine, fake: &Arc<Fake>, step_ms: u64, done: impl Fn(usize) -> bool) -> bool {
    let job = job(fake, options(8, 8));
    let begun = Instant::now();
    for epoch in 0.. {
        let mut ids = Vec::new();
        let mut run = engine.start(&job, whole(400, 8, epoch), epoch);
        while let Some(batch) = next(&mut run).unwrap() {
            ids.extend(check_batch(&batch, fake, epoch).ids);
            std::thread::sleep(Duration::from_millis(step_ms));
        }
        ids.sort_unstable();
        assert_eq!(ids, (0..400).collect::<Vec<_>>());
        if done(engine.threads()) {
            return true;
        }
        if begun.elapsed() > PATIENCE {
            println!("not in time: {:?}", engine.crew_changes());
            return false;
        }
    }
    unreachable!("there is no last epoch")
}

#[test]
fn it_grows_for_who_only_waits_and_shrinks_for_who_takes_its_time() {
    let finds_its_number = || {
        let fake = waiting();
        let engine = elastic(12);
        assert_eq!(engine.threads(), 2);
        // Hardly any of the time is on a processor, so the cores set no limit.
        let grown = epochs_until(&engine, &fake, 0, |workers| workers == 12);
        let sizes: Vec<usize> = engine.crew_changes().iter().map(|change| change.workers).collect();
        assert!(!grown || sizes.is_sorted(), "{sizes:?}");
        // 8 samples in 40 ms, each 4 ms of a worker: one worker would nearly do.
        let shrunk = grown && epochs_until(&engine, &fake, 40, |workers| workers <= 3);
        engine.close();
        shrunk
    };
    assert!((0..TRIES).any(|_| finds_its_number()));
}

#[test]
fn closing_ends_those_off_duty_and_the_foreman_too() {
    let fake = waiting();
    let engine = elastic(4);
    let mut run = engine.start(&job(&fake, options(8, 8)), whole(200, 8, 0), 0);
    assert!(next(&mut run).unwrap().is_some());
    drop(run);
    engine.close();
}
