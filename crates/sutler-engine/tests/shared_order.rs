//! Jobs that share what they prepare: each sample once per job and epoch, prepared as seldom as possible, and never the
//! same tensor twice.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use sutler_core::{Form, Ledger, Shard, SharedSettings};
use sutler_engine::{Engine, ErrorPolicy, Job, JobOptions, Pool, Run, ServingOrder};

use support::{Fake, Shared, next, options, plan, whole};

fn pool(samples: u32, window_share: f64, row_bytes: usize) -> Arc<Pool> {
    Pool::new(SharedSettings {
        samples,
        seed: 11,
        window_bytes: (f64::from(samples) * window_share * row_bytes as f64) as u64,
        window_form: Form::Augmented,
        mixing: 0.0,
    })
}

fn sharing(fake: &Arc<Fake>, pool: &Arc<Pool>, options: JobOptions) -> Arc<Job> {
    let order = ServingOrder::Shared { lateness: 8 };
    let name = pool.new_job();
    let options = JobOptions { order, ..options };
    Job::new(Arc::new(Shared(Arc::clone(fake))), options).unwrap().sharing(Arc::clone(pool), name)
}

fn start(engine: &Engine, job: &Arc<Job>, samples: u32, batch_size: u32, epoch: u32) -> Run {
    engine.start_shared(job, &whole(samples, batch_size, epoch), epoch, &Ledger::new(0)).unwrap()
}

/// The samples of a batch, each with its bytes.
fn take(run: &mut Run) -> Option<Vec<(u32, Vec<u8>)>> {
    let batch = next(run).unwrap()?;
    let rows: Vec<Vec<u8>> = match batch.block() {
        Some(block) => block.chunks(block.len() / batch.len()).map(<[u8]>::to_vec).collect(),
        None => batch.take_owned().into_iter().map(|sample| sample.data).collect(),
    };
    Some(batch.ids().iter().map(|id| id.0).zip(rows).collect())
}

/// Runs an epoch to its end and notes every tensor.
fn finish(run: &mut Run, seen: &mut BTreeMap<u32, BTreeSet<Vec<u8>>>) -> Vec<u32> {
    let mut ids = Vec::new();
    while let Some(batch) = take(run) {
        for (id, bytes) in batch {
            assert!(seen.entry(id).or_default().insert(bytes), "sample {id} came twice as the same tensor");
            ids.push(id);
        }
    }
    ids.sort_unstable();
    ids
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_job_has_every_sample_once_and_no_tensor_twice(
        samples in 1u32..90, batch_size in 1u32..12, threads in 0usize..5, jobs in 1usize..5, epochs in 1u32..4,
        window in 0.0f64..0.5, row_bytes in prop_oneof![Just(0usize), Just(40)], ahead in 1usize..4,
    ) {
        let fake = Arc::new(Fake::fixed(row_bytes).sleeping(100));
        let engine = Engine::new(threads).unwrap();
        let pool = pool(samples, window, 40);
        let all: Vec<u32> = (0..samples).collect();
        std::thread::scope(|scope| {
            for number in 0..jobs {
                let (engine, fake, pool, all) = (&engine, &fake, &pool, &all);
                scope.spawn(move || {
                    let job = sharing(fake, pool, options(batch_size as usize, ahead));
                    let mut seen = BTreeMap::new();
                    for epoch in 0..epochs {
                        std::thread::sleep(Duration::from_micros(number as u64 * 700));
                        let mut run = start(engine, &job, samples, batch_size, epoch);
                        assert_eq!(&finish(&mut run, &mut seen), all);
                    }
                });
            }
        });
        prop_assert_eq!(pool.window_used_bytes(), 0, "nothing is kept for nobody");
    }

    /// Whatever jobs make of the samples, each gets what it would have made itself.
    #[test]
    fn jobs_of_different_kinds_get_their_own(
        samples in 1u32..90, batch_size in 1u32..12, threads in 0usize..5,
        kinds in prop::collection::vec(prop::sample::select(vec![10u8, 11, 12, 20, 120, 121]), 2..6),
        epochs in 1u32..4, window in 0.0f64..0.5, bad in any::<bool>(),
    ) {
        let engine = Engine::new(threads).unwrap();
        let pool = pool(samples, window, 46);
        let bad: BTreeSet<u32> = if bad { [3].into() } else { BTreeSet::new() };
        let all: Vec<u32> = (0..samples).filter(|id| !bad.contains(id)).collect();
        std::thread::scope(|scope| {
            for (number, kind) in kinds.into_iter().enumerate() {
                let (engine, pool, all) = (&engine, &pool, &all);
                let fake = Arc::new(Fake { kind, bad: bad.clone(), ..Fake::fixed(40).sleeping(100) });
                scope.spawn(move || {
                    let errors = ErrorPolicy::Skip;
                    let job = sharing(&fake, pool, JobOptions { errors, ..options(batch_size as usize, 2) });
                    let mut seen = BTreeMap::new();
                    for epoch in 0..epochs {
                        std::thread::sleep(Duration::from_micros(number as u64 * 700));
                        let mut run = start(engine, &job, samples, batch_size, epoch);
                        assert_eq!(&finish(&mut run, &mut seen), all);
                    }
                    assert!(seen.values().flatten().all(|bytes| bytes[0] == kind), "somebody else's samples");
                });
            }
        });
        prop_assert_eq!(pool.window_used_bytes(), 0, "nothing is kept for nobody");
    }

    #[test]
    fn a_broken_off_epoch_goes_on_with_exactly_the_rest(
        samples in 1u32..60, batch_size in 1u32..8, threads in 0usize..4, stop in 0usize..12, ranks in 1u32..3,
    ) {
        let fake = Arc::new(Fake::fixed(16).sleeping(100));
        let engine = Engine::new(threads).unwrap();
        let pool = pool(samples, 0.2, 16);
        let mut ids = Vec::new();
        for rank in 0..ranks {
            let job = sharing(&fake, &pool, options(batch_size as usize, 2));
            let shard = Shard::new(rank, ranks).unwrap();
            let plan = plan(samples, batch_size, false, shard, sutler_core::JobCursor::start_of(1));
            let mut done = Ledger::new(samples);
            let mut run = engine.start_shared(&job, &plan, 1, &done).unwrap();
            for _ in 0..stop {
                let Some(batch) = next(&mut run).unwrap() else { break };
                ids.extend(batch.ids().iter().map(|id| id.0));
                for &position in batch.positions() {
                    done.lease(position).unwrap();
                    done.serve(position).unwrap();
                }
            }
            drop(run);
            let mut run = engine.start_shared(&job, &plan, 1, &done).unwrap();
            while let Some(batch) = next(&mut run).unwrap() {
                ids.extend(batch.ids().iter().map(|id| id.0));
            }
        }
        let unique: BTreeSet<u32> = ids.iter().copied().collect();
        prop_assert_eq!(unique, (0..samples).collect::<BTreeSet<_>>());
        prop_assert!(ids.len() < (samples + ranks) as usize);
    }
}

/// Equal jobs at different phases prepare each sample about once for all of them.
#[test]
fn equal_jobs_share_the_work() {
    for jobs in [2u32, 4] {
        let samples = 2000;
        let fake = Arc::new(Fake::fixed(64));
        let engine = Engine::new(2).unwrap();
        let pool = pool(samples, 0.02, 64);
        let members: Vec<_> = (0..jobs).map(|_| sharing(&fake, &pool, options(10, 2))).collect();
        let mut runs: Vec<_> =
            members.iter().map(|job| (start(&engine, job, samples, 10, 0), 0u32)).collect();
        // Phases: job k begins k steps of 1/jobs of an epoch late; then all go round and round.
        let (rounds, per_epoch) = (3 * 200u32, 200u32);
        let mut served = 0u64;
        let mut before = 0;
        for step in 0..rounds {
            if step == per_epoch {
                before = fake.prepared.load(Ordering::SeqCst);
                served = 0;
            }
            for (index, (run, epoch)) in runs.iter_mut().enumerate() {
                if step < index as u32 * per_epoch / jobs {
                    continue;
                }
                let batch = take(run).unwrap_or_else(|| {
                    *epoch += 1;
                    *run = start(&engine, &members[index], samples, 10, *epoch);
                    take(run).unwrap()
                });
                served += batch.len() as u64;
            }
        }
        let prepared = fake.prepared.load(Ordering::SeqCst) - before;
        let per_sample = prepared as f64 / served as f64;
        assert!(per_sample <= 1.05 / f64::from(jobs), "{jobs} jobs: {per_sample} preparations per sample");
    }
}

/// Jobs that make different things of the samples read each about once for all of them, and those that make the same finish it once.
#[test]
fn jobs_of_different_kinds_share_what_was_read() {
    let samples = 1000;
    let engine = Engine::new(2).unwrap();
    for kinds in [vec![10, 20], vec![10, 11, 12], vec![10, 10, 20, 20]] {
        let pool = pool(samples, 0.05, 3 * 64);
        let fakes: Vec<_> = kinds.iter().map(|&kind| Arc::new(Fake { kind, ..Fake::fixed(64) })).collect();
        let jobs: Vec<_> = fakes.iter().map(|fake| sharing(fake, &pool, options(10, 2))).collect();
        for epoch in 0..2 {
            let mut runs: Vec<_> = jobs.iter().map(|job| start(&engine, job, samples, 10, epoch)).collect();
            for _ in 0..samples / 10 {
                runs.iter_mut().for_each(|run| assert_eq!(take(run).unwrap().len(), 10));
            }
            assert!(runs.iter_mut().all(|run| take(run).is_none()));
        }
        let count = |of: fn(&Fake) -> &std::sync::atomic::AtomicUsize| -> f64 {
            fakes.iter().map(|fake| of(fake).load(Ordering::SeqCst)).sum::<usize>() as f64 / 2.0
        };
        let (read, went_on) = (count(|fake| &fake.prepared), count(|fake| &fake.went_on));
        assert!(read <= 1.12 * f64::from(samples), "{kinds:?}: {read} reads for {samples} samples");
        if kinds.len() == 4 {
            // One of each pair finishes the sample, and only one of the four has read it.
            assert!(went_on <= 1.3 * f64::from(samples), "{kinds:?}: {went_on} were finished");
        }
    }
}

/// A job that does not ask for five seconds has no claim to what stands in the window.
#[test]
fn what_stands_ready_for_a_paused_job_is_given_up() {
    let samples = 400;
    let fake = Arc::new(Fake::fixed(64));
    let engine = Engine::new(2).unwrap();
    let pool = pool(samples, 0.5, 64);
    let [steady, sleeper] = [0; 2].map(|_| sharing(&fake, &pool, options(10, 2)));
    let mut sleeping = start(&engine, &sleeper, samples, 10, 0);
    take(&mut sleeping).unwrap();
    let mut run = start(&engine, &steady, samples, 10, 0);
    for _ in 0..15 {
        take(&mut run).unwrap();
    }
    assert!(pool.window_used_bytes() > 50 * 64, "much stands ready for the other");
    std::thread::sleep(Duration::from_millis(5_600));
    // What was kept for it goes when a worker next asks for something to do.
    let begun = Instant::now();
    while pool.window_used_bytes() > 0 {
        assert!(
            begun.elapsed() < support::PATIENCE,
            "something still stands ready for a job that has paused"
        );
        take(&mut run).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut rest = finish(&mut sleeping, &mut BTreeMap::new());
    rest.dedup();
    assert_eq!(rest.len(), samples as usize - 10, "it lost nothing but reuse");
}

#[test]
fn a_job_that_leaves_or_pauses_holds_up_nobody() {
    let samples = 300;
    let fake = Arc::new(Fake::fixed(64).sleeping(50));
    let engine = Engine::new(3).unwrap();
    let pool = pool(samples, 0.05, 64);
    let [steady, leaver, sleeper] = [0; 3].map(|_| sharing(&fake, &pool, options(10, 2)));
    let mut leaving = start(&engine, &leaver, samples, 10, 0);
    let mut sleeping = start(&engine, &sleeper, samples, 10, 0);
    let mut seen = BTreeMap::new();
    let mut slept = finish_some(&mut sleeping, 5, &mut seen);
    finish_some(&mut leaving, 7, &mut BTreeMap::new());
    drop(leaving);
    let mut others = BTreeMap::new();
    for epoch in 0..3 {
        let mut run = start(&engine, &steady, samples, 10, epoch);
        assert_eq!(finish(&mut run, &mut others), (0..samples).collect::<Vec<_>>());
    }
    slept.extend(finish(&mut sleeping, &mut seen));
    slept.sort_unstable();
    assert_eq!(slept, (0..samples).collect::<Vec<_>>(), "it lost nothing but reuse");
}

fn finish_some(run: &mut Run, batches: usize, seen: &mut BTreeMap<u32, BTreeSet<Vec<u8>>>) -> Vec<u32> {
    let mut ids = Vec::new();
    for (id, bytes) in (0..batches).filter_map(|_| take(run)).flatten() {
        seen.entry(id).or_default().insert(bytes);
        ids.push(id);
    }
    ids
}

#[test]
fn a_bad_sample_is_bad_for_everybody() {
    let fake = Arc::new(Fake { bad: [3, 8].into(), ..Fake::fixed(64).sleeping(50) });
    let engine = Engine::new(2).unwrap();
    let pool = pool(60, 0.2, 64);
    let options = JobOptions { errors: ErrorPolicy::Skip, ..options(7, 2) };
    let jobs = [0; 3].map(|_| sharing(&fake, &pool, options));
    let mut runs: Vec<_> = jobs.iter().map(|job| start(&engine, job, 60, 7, 0)).collect();
    let expected: Vec<u32> = (0..60).filter(|id| ![3, 8].contains(id)).collect();
    for (run, job) in runs.iter_mut().zip(&jobs) {
        assert_eq!(finish(run, &mut BTreeMap::new()), expected);
        let mut failed: Vec<u32> = job.failures().iter().map(|failure| failure.sample.0).collect();
        failed.sort_unstable();
        assert_eq!(failed, [3, 8]);
    }
}
