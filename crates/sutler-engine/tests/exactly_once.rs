//! Invariants 1 and 3: every sample once, and the same bytes however many threads there are.

mod support;

use std::sync::Arc;

use proptest::prelude::*;
use sutler_core::{JobCursor, Shard};
use sutler_engine::{Engine, JobOptions};

use support::{Fake, drain, drawn_batches, epoch, job, options, plan, whole};

fn threads() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0usize), Just(1), Just(2), Just(8)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn ranks_together_serve_every_sample(
        samples in 0u32..120, batch_size in 1u32..30, threads in threads(), world in 1u32..5, drop_last: bool,
        ahead in 1usize..5, row_bytes in prop_oneof![Just(0usize), Just(5), Just(200)], ahead_grows: bool,
    ) {
        let fake = Arc::new(Fake::fixed(row_bytes).sleeping(200));
        let mut counts = vec![0u32; samples as usize];
        let mut lengths = Vec::new();
        for rank in 0..world {
            let plan = plan(samples, batch_size, drop_last, Shard::new(rank, world).unwrap(), JobCursor::start_of(4));
            let expected = plan.batches();
            let options = JobOptions { ahead_grows, ..options(batch_size as usize, ahead) };
            let delivered = epoch(&fake, options, plan, 4, threads);
            prop_assert_eq!(delivered.len() as u64, expected);
            lengths.push(delivered.iter().map(|batch| batch.ids.len()).collect::<Vec<_>>());
            for id in delivered.iter().flat_map(|batch| &batch.ids) {
                counts[*id as usize] += 1;
            }
        }
        prop_assert!(lengths.windows(2).all(|pair| pair[0] == pair[1]), "{:?}", lengths);
        if drop_last {
            prop_assert!(lengths.iter().flatten().all(|&length| length == batch_size as usize));
            prop_assert!(counts.iter().all(|&count| count <= 1));
        } else {
            prop_assert!(counts.iter().all(|&count| count >= 1));
            // Ranks are padded to equal length by going around once more; nothing else is repeated.
            let padding = if samples == 0 { 0 } else { (world - samples % world) % world };
            prop_assert_eq!(counts.iter().sum::<u32>(), samples + padding);
        }
    }

    #[test]
    fn a_broken_off_epoch_goes_on_where_it_stopped(
        samples in 1u32..120, batch_size in 1u32..20, next_batch_size in 1u32..20,
        threads in threads(), stop in 0usize..30, drop_run: bool,
    ) {
        let fake = Arc::new(Fake::fixed(7).sleeping(100));
        let engine = Engine::new(threads).unwrap();
        let first_job = job(&fake, options(batch_size as usize, 3));
        let mut run = engine.start(&first_job, whole(samples, batch_size, 2), 2);
        let before = drain(&mut run, &fake, 2, stop);
        let cursor = run.cursor();
        if drop_run {
            drop(run);
        }
        let rest = plan(samples, next_batch_size, false, Shard::WHOLE, cursor);
        let second_job = job(&fake, options(next_batch_size as usize, 2));
        let after = drain(&mut engine.start(&second_job, rest, 2), &fake, 2, usize::MAX);
        let served: Vec<u32> = before.iter().chain(&after).flat_map(|batch| batch.ids.clone()).collect();
        let all = whole(samples, samples, 2).batch(0).samples;
        prop_assert_eq!(served, all.iter().map(|id| id.0).collect::<Vec<_>>());
    }

    #[test]
    fn the_same_bytes_come_from_any_number_of_threads(
        samples in 1u32..100, batch_size in 1u32..20, epoch_number: u32,
        row_bytes in prop_oneof![Just(0usize), Just(33)],
    ) {
        let fake = Arc::new(Fake::fixed(row_bytes).sleeping(150));
        let on = |threads| {
            epoch(&fake, options(batch_size as usize, 3), whole(samples, batch_size, epoch_number), epoch_number, threads)
        };
        let one = on(1);
        for threads in [0, 2, 8] {
            prop_assert_eq!(&on(threads), &one);
        }
    }

    #[test]
    fn batch_samplers_may_grow_their_batches(
        batches in prop::collection::vec(prop::collection::vec(0u64..50, 1..40), 1..8), threads in threads(),
    ) {
        // The job's memory is cut for batches of two: larger ones get their own.
        let fake = Arc::new(Fake::fixed(4000));
        let plan = drawn_batches(&batches, 50);
        let delivered = epoch(&fake, options(2, 2), plan, 0, threads);
        let ids: Vec<Vec<u64>> =
            delivered.iter().map(|batch| batch.ids.iter().map(|&id| u64::from(id)).collect()).collect();
        prop_assert_eq!(ids, batches);
    }

    #[test]
    fn runs_share_an_engine_without_mixing(
        runs in prop::collection::vec((1u32..60, 1u32..10, 0u32..9), 1..6), threads in threads(), by_turns: bool,
    ) {
        let engine = Engine::new(threads).unwrap();
        let fake = Arc::new(Fake::fixed(11).sleeping(100));
        let mut open: Vec<_> = runs
            .iter()
            .map(|&(samples, batch_size, epoch)| {
                let job = job(&fake, options(batch_size as usize, 2));
                (engine.start(&job, whole(samples, batch_size, epoch), epoch), epoch)
            })
            .collect();
        let mut served = vec![Vec::new(); open.len()];
        if by_turns {
            while open.iter_mut().zip(&mut served).fold(false, |more, ((run, epoch), served)| {
                let batches = drain(run, &fake, *epoch, 1);
                served.extend(batches.iter().flat_map(|batch| batch.ids.clone()));
                more || !batches.is_empty()
            }) {}
        } else {
            std::thread::scope(|scope| {
                for ((run, epoch), served) in open.iter_mut().zip(&mut served) {
                    let fake = &fake;
                    scope.spawn(move || {
                        served.extend(drain(run, fake, *epoch, usize::MAX).into_iter().flat_map(|batch| batch.ids));
                    });
                }
            });
        }
        for (&(samples, _, epoch), served) in runs.iter().zip(served) {
            let all = whole(samples, samples, epoch).batch(0).samples;
            prop_assert_eq!(served, all.iter().map(|id| id.0).collect::<Vec<_>>());
        }
    }
}

#[test]
fn jobs_that_take_turns_keep_their_tools() {
    let engine = Engine::new(2).unwrap();
    let fakes: Vec<_> = (0..3).map(|_| Arc::new(Fake::fixed(8))).collect();
    let mut runs: Vec<_> =
        fakes.iter().map(|fake| engine.start(&job(fake, options(4, 2)), whole(400, 4, 0), 0)).collect();
    for _ in 0..100 {
        for (run, fake) in runs.iter_mut().zip(&fakes) {
            assert_eq!(drain(run, fake, 0, 1).len(), 1);
        }
    }
    for fake in &fakes {
        let tools = fake.tools.load(std::sync::atomic::Ordering::Relaxed);
        assert!(tools <= 2, "{tools} sets of tools for 2 threads");
    }
}
