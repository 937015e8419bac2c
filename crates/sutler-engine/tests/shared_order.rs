//! Jobs that share what they prepare: each sample once per job and epoch, prepared as seldom as possible, and never the
//! same tensor twice.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// What became of jobs that make different things of the samples.
struct Kitchen {
    fakes: Vec<Arc<Fake>>,
    jobs: Vec<Arc<Job>>,
}

impl Kitchen {
    fn new(pool: &Arc<Pool>, kinds: &[u8]) -> Self {
        let fakes: Vec<_> = kinds.iter().map(|&kind| Arc::new(Fake { kind, ..Fake::fixed(64) })).collect();
        let jobs = fakes.iter().map(|fake| sharing(fake, pool, options(10, 2))).collect();
        Self { fakes, jobs }
    }

    /// All of them begin an epoch. Workers wait with their first sample meanwhile: what is prepared before the last has come cannot be prepared for
    /// it, and how much that would be is a matter of timing.
    fn start_together(&self, engine: &Engine, samples: u32, epoch: u32) -> Vec<Run> {
        let _held: Vec<_> = self.fakes.iter().map(|fake| fake.begun.lock().unwrap()).collect();
        self.jobs.iter().map(|job| start(engine, job, samples, 10, epoch)).collect()
    }

    fn count(&self, of: fn(&Fake) -> &AtomicUsize) -> usize {
        self.fakes.iter().map(|fake| of(fake).load(Ordering::SeqCst)).sum()
    }

    fn reads(&self) -> usize {
        self.count(|fake| &fake.prepared)
    }
}

/// A batch for each, until all have had the epoch.
fn take_turns(runs: &mut [Run], batches: u32) {
    for _ in 0..batches {
        runs.iter_mut().for_each(|run| assert_eq!(take(run).unwrap().len(), 10));
    }
    assert!(runs.iter_mut().all(|run| take(run).is_none()));
}

/// Jobs that make different things of the samples read each about once for all of them, and those that make the same finish it once.
#[test]
fn jobs_of_different_kinds_share_what_was_read() {
    const SAMPLES: u32 = 1000;
    // Without threads of their own the consumers prepare in turn, so that everything is exact; with threads a few samples are prepared by two
    // jobs at the same time.
    for (threads, slack) in [(0, 1.0), (2, 1.05)] {
        let engine = Engine::new(threads).unwrap();
        for kinds in [vec![10, 20], vec![10, 11, 12], vec![10, 10, 20, 20]] {
            let pool = pool(SAMPLES, 0.05, 3 * 64);
            let kitchen = Kitchen::new(&pool, &kinds);
            for epoch in 0..2 {
                let mut runs = kitchen.start_together(&engine, SAMPLES, epoch);
                take_turns(&mut runs, SAMPLES / 10);
            }
            let most = slack * f64::from(2 * SAMPLES);
            let (reads, went_on) = (kitchen.reads(), kitchen.count(|fake| &fake.went_on));
            assert!(reads as f64 <= most, "{kinds:?}, {threads} threads: {reads} reads, {most} allowed");
            if kinds.len() == 4 {
                // One of each pair finishes the sample, and only one of the four has read it. With threads both of a pair may be at it at once.
                let most = if threads == 0 { most } else { 1.3 * most };
                assert!(went_on as f64 <= most, "{kinds:?}, {threads} threads: {went_on} were finished");
            }
        }
    }
}

/// What stands ready holds nothing for a job with other transforms that was not there when it was prepared. Such jobs read it once more, and once for all of
/// them.
#[test]
fn newcomers_of_another_kind_read_together_what_they_missed() {
    const SAMPLES: u32 = 1000;
    let engine = Engine::new(0).unwrap();
    let pool = pool(SAMPLES, 0.05, 3 * 64);
    let kitchen = Kitchen::new(&pool, &[10, 10, 20, 20]);
    let mut runs: Vec<Run> =
        kitchen.jobs[..2].iter().map(|job| start(&engine, job, SAMPLES, 10, 0)).collect();
    let mut had: Vec<_> = take(&mut runs[0]).unwrap();
    assert_eq!((kitchen.reads(), pool.window_used_bytes()), (10, 10 * 64), "ready for the other of its kind");
    runs.extend(kitchen.jobs[2..].iter().map(|job| start(&engine, job, SAMPLES, 10, 0)));
    had.extend(runs[1..].iter_mut().flat_map(|run| take(run).unwrap()));
    assert_eq!(had.len(), 40);
    for _ in 1..SAMPLES / 10 {
        runs.iter_mut().for_each(|run| assert_eq!(take(run).unwrap().len(), 10));
    }
    assert!(runs.iter_mut().all(|run| take(run).is_none()));
    assert_eq!(kitchen.reads(), SAMPLES as usize + 10);
}

/// A job that has everything of an epoch on its way counts as lacking everything of the next, so that what others prepare until its trainer comes is
/// prepared for it, too.
#[test]
fn between_two_epochs_a_job_misses_nothing() {
    const SAMPLES: u32 = 400;
    let fake = Arc::new(Fake::fixed(64));
    let engine = Engine::new(0).unwrap();
    let prepared = || fake.prepared.load(Ordering::SeqCst);
    for (epoch, found) in [(1, true), (3, false)] {
        let pool = pool(SAMPLES, 0.5, 64);
        let [steady, turning] = [0; 2].map(|_| sharing(&fake, &pool, options(10, 2)));
        let mut turn = start(&engine, &turning, SAMPLES, 10, 0);
        assert_eq!(finish_some(&mut turn, 40, &mut BTreeMap::new()).len(), SAMPLES as usize);
        assert!(take(&mut turn).is_none());
        drop(turn);
        let mut run = start(&engine, &steady, SAMPLES, 10, 0);
        finish_some(&mut run, 9, &mut BTreeMap::new());
        assert_eq!(pool.window_used_bytes(), 90 * 64, "all of it waits for the other's next epoch");
        let before = prepared();
        let mut turn = start(&engine, &turning, SAMPLES, 10, epoch);
        finish_some(&mut turn, 9, &mut BTreeMap::new());
        // Who comes for an epoch that nobody expected lacks everything from then on, like any newcomer.
        assert_eq!(prepared() - before, if found { 0 } else { 90 });
        let mut seen = BTreeMap::new();
        finish(&mut turn, &mut seen);
        assert_eq!(seen.len(), SAMPLES as usize - 90);
        drop(turn);
        finish(&mut run, &mut BTreeMap::new());
        assert!(pool.window_used_bytes() > 0, "it is expected again");
        drop(turning);
        assert_eq!(pool.window_used_bytes(), 0, "one that has ended is not");
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
