//! Samples served as they get ready: still exactly once, never too late, and resumable between any two batches.

mod support;

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sutler_core::{EpochPlan, JobCursor, Ledger, Shard};
use sutler_engine::{Engine, ErrorPolicy, JobOptions, RunError, ServingOrder};

use support::{Fake, check_batch, drawn, drawn_batches, job, next, options, plan, whole};

fn ready(batch_size: u32, ahead: usize, lateness: u32) -> JobOptions {
    JobOptions { order: ServingOrder::Ready { lateness }, ..options(batch_size as usize, ahead) }
}

/// What a checkpoint would keep: the positions that the batches taken so far were made of.
fn note(ledger: &mut Ledger, positions: &[u32]) {
    for &position in positions {
        ledger.lease(position).unwrap();
        ledger.serve(position).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_sample_once_and_none_too_late(
        samples in 1u32..120, batch_size in 1u32..12, threads in 0usize..6, ahead in 1usize..5, lateness in 0u32..5,
        world in 1u32..3, drop_last: bool, row_bytes in prop_oneof![Just(0usize), Just(5), Just(200)], ahead_grows: bool,
    ) {
        let fake = Arc::new(Fake::fixed(row_bytes).sleeping(300));
        for rank in 0..world {
            let shard = Shard::new(rank, world).unwrap();
            let planned = plan(samples, batch_size, drop_last, shard, JobCursor::start_of(4));
            let expected: Vec<Vec<u32>> =
                (0..planned.batches()).map(|k| planned.batch(k).samples.iter().map(|id| id.0).collect()).collect();
            let engine = Engine::new(threads).unwrap();
            let job = job(&fake, JobOptions { ahead_grows, ..ready(batch_size, ahead, lateness) });
            let mut run = engine.start(&job, planned, 4);
            let mut served = Vec::new();
            while let Some(batch) = next(&mut run).unwrap() {
                served.push(check_batch(&batch, &fake, 4).ids);
            }
            let lengths = |batches: &[Vec<u32>]| batches.iter().map(Vec::len).collect::<Vec<_>>();
            prop_assert_eq!(lengths(&served), lengths(&expected));
            let sorted = |batches: &[Vec<u32>]| { let mut all = batches.concat(); all.sort_unstable(); all };
            prop_assert_eq!(sorted(&served), sorted(&expected));
            for (index, batch) in served.iter().enumerate() {
                for id in batch {
                    // The last of its places: ranks are padded with samples from their beginning.
                    let own = expected.iter().rposition(|batch| batch.contains(id)).unwrap();
                    prop_assert!(index <= own + lateness as usize);
                }
            }
        }
    }

    #[test]
    fn a_broken_off_epoch_goes_on_with_exactly_the_rest(
        samples in 1u32..80, batch_size in 1u32..12, next_batch_size in 1u32..12, threads in 0usize..6, stop in 0usize..20,
    ) {
        let fake = Arc::new(Fake::fixed(7).sleeping(300));
        let engine = Engine::new(threads).unwrap();
        let mut done = Ledger::new(samples);
        let mut ids = Vec::new();
        let first = job(&fake, ready(batch_size, 3, 2));
        let mut run = engine.start(&first, whole(samples, batch_size, 2), 2);
        for _ in 0..stop {
            let Some(batch) = next(&mut run).unwrap() else { break };
            note(&mut done, batch.positions());
            ids.extend(check_batch(&batch, &fake, 2).ids);
        }
        drop(run);
        let done = Ledger::load(&done.save()).unwrap();
        let second = job(&fake, ready(next_batch_size, 2, 2));
        let mut run = engine.start(&second, whole(samples, next_batch_size, 2).without(done.clone()), 2);
        while let Some(batch) = next(&mut run).unwrap() {
            prop_assert!(batch.positions().iter().all(|&position| !done.is_done(position)));
            ids.extend(check_batch(&batch, &fake, 2).ids);
        }
        ids.sort_unstable();
        prop_assert_eq!(ids, (0..samples).collect::<Vec<_>>());
    }

    #[test]
    fn the_batches_of_a_batch_sampler_stay_whole(
        batches in prop::collection::vec(prop::collection::vec(0u64..50, 1..9), 1..12), threads in 0usize..6,
        lateness in 0u32..4, stop in 0usize..12,
    ) {
        let fake = Arc::new(Fake::fixed(20).sleeping(500));
        let engine = Engine::new(threads).unwrap();
        let job = job(&fake, ready(9, 4, lateness));
        let mut run = engine.start(&job, drawn_batches(&batches, 50), 0);
        let mut done = Ledger::new(batches.iter().map(Vec::len).sum::<usize>() as u32);
        let mut served = Vec::new();
        let mut resumed = false;
        loop {
            if served.len() == stop && !resumed {
                resumed = true;
                run = engine.start(&job, drawn_batches(&batches, 50).without(done.clone()), 0);
            }
            let Some(batch) = next(&mut run).unwrap() else { break };
            note(&mut done, batch.positions());
            served.push(check_batch(&batch, &fake, 0).ids.iter().map(|&id| u64::from(id)).collect::<Vec<_>>());
        }
        prop_assert!(done.is_complete());
        let mut expected = batches.clone();
        expected.sort();
        served.sort();
        prop_assert_eq!(served, expected);
    }

    #[test]
    fn a_plan_may_grow_while_it_is_served(
        indices in prop::collection::vec(0u64..50, 0..60), batch_size in 1u32..9, threads in 0usize..4, in_order: bool,
    ) {
        let fake = Arc::new(Fake::fixed(20).sleeping(300));
        let engine = Engine::new(threads).unwrap();
        let options = if in_order { options(batch_size as usize, 2) } else { ready(batch_size, 2, 2) };
        let job = job(&fake, options);
        let plan = EpochPlan::to_be_drawn(batch_size, false, JobCursor::start_of(0)).unwrap();
        let mut run = engine.start(&job, plan, 0);
        let mut pieces = indices.chunks(batch_size as usize);
        let mut drawn = 0;
        let mut served = Vec::new();
        loop {
            // Always a batch more than is asked for, as whoever draws must see to it.
            while run.batches().is_none() && drawn <= (served.len() + 1) * batch_size as usize {
                match pieces.next() {
                    Some(piece) => {
                        drawn += piece.len();
                        run.extend(|plan| plan.extend(piece, 50)).unwrap();
                    }
                    None => run.extend(|plan| { plan.end(); Ok::<(), ()>(()) }).unwrap(),
                }
            }
            let Some(batch) = next(&mut run).unwrap() else { break };
            served.push(check_batch(&batch, &fake, 0).ids);
        }
        prop_assert_eq!(run.batches(), Some(served.len() as u64));
        let mut served: Vec<u64> = served.concat().into_iter().map(u64::from).collect();
        let mut expected = indices.clone();
        if !in_order {
            served.sort_unstable();
            expected.sort_unstable();
        }
        prop_assert_eq!(served, expected);
    }
}

#[test]
fn a_slow_sample_does_not_hold_up_its_batch() {
    let slow = Duration::from_secs(3);
    let fake = Arc::new(Fake { slow: ([0].into(), slow), ..Fake::fixed(8) });
    let engine = Engine::new(3).unwrap();
    let order: Vec<u64> = (0..40).collect();
    let job = job(&fake, ready(4, 5, 8));
    let mut run = engine.start(&job, drawn(&order, 40, 4, JobCursor::start_of(0)), 0);
    for _ in 0..4 {
        let batch = next(&mut run).unwrap().unwrap();
        assert!(!check_batch(&batch, &fake, 0).ids.contains(&0), "a batch waited for the slow sample");
    }
}

#[test]
fn bad_samples_take_a_row_like_any_other() {
    for threads in [0, 1, 4] {
        let fake = Arc::new(Fake { bad: [3, 4, 5, 17].into(), panics: [9].into(), ..Fake::fixed(12) });
        let engine = Engine::new(threads).unwrap();
        let options = JobOptions { errors: ErrorPolicy::Skip, ..ready(4, 3, 2) };
        let job = job(&fake, options);
        let mut run = engine.start(&job, whole(40, 4, 0), 0);
        let (mut ids, mut positions) = (Vec::new(), Vec::new());
        while let Some(batch) = next(&mut run).unwrap() {
            positions.extend_from_slice(batch.positions());
            ids.extend(check_batch(&batch, &fake, 0).ids);
        }
        ids.sort_unstable();
        positions.sort_unstable();
        assert_eq!(ids, (0..40).filter(|id| ![3, 4, 5, 9, 17].contains(id)).collect::<Vec<_>>());
        assert_eq!(positions, (0..40).collect::<Vec<_>>(), "failed ones are done too");
    }
}

#[test]
fn an_error_ends_the_run_and_stays() {
    let fake = Arc::new(Fake { bad: [7].into(), ..Fake::fixed(12) });
    let engine = Engine::new(2).unwrap();
    let job = job(&fake, ready(4, 3, 2));
    let mut run = engine.start(&job, whole(40, 4, 0), 0);
    let error = loop {
        match next(&mut run) {
            Ok(batch) => assert!(batch.is_some(), "sample 7 is bad"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, RunError::Sample(_)));
    assert!(next(&mut run).is_err());
}

#[test]
fn samples_known_to_be_slow_are_begun_before_their_turn() {
    for order in [ServingOrder::Strict, ServingOrder::Ready { lateness: 8 }] {
        let slow = Duration::from_millis(200);
        let fake = Arc::new(Fake { slow: ([60].into(), slow), ..Fake::fixed(8).sleeping(2000) });
        let engine = Engine::new(4).unwrap();
        let job = job(&fake, JobOptions { order, ..options(4, 10) });
        let samples: Vec<u64> = (0..80).collect();
        let mut turns = Vec::new();
        for epoch in 0..2 {
            fake.begun.lock().unwrap().clear();
            let mut run = engine.start(&job, drawn(&samples, 80, 4, JobCursor::start_of(epoch)), epoch);
            let mut ids = Vec::new();
            while let Some(batch) = next(&mut run).unwrap() {
                ids.extend(check_batch(&batch, &fake, epoch).ids);
            }
            if order == ServingOrder::Strict {
                assert_eq!(ids, (0..80).collect::<Vec<_>>(), "the order of serving is another matter");
            }
            turns.push(fake.begun.lock().unwrap().iter().position(|&id| id == 60).unwrap());
        }
        assert!(turns[0] >= 55 && turns[1] <= 45, "{order:?}: begun as number {turns:?}");
    }
}

#[test]
fn in_strict_order_the_first_batch_begins_with_its_slow_samples() {
    let slow = ([11, 14, 60].into(), Duration::from_millis(100));
    let fake = Arc::new(Fake { slow, ..Fake::fixed(8).sleeping(2000) });
    let engine = Engine::new(4).unwrap();
    let job = job(&fake, options(16, 4));
    let samples: Vec<u64> = (0..80).collect();
    let mut begun = Vec::new();
    for epoch in 0..2 {
        fake.begun.lock().unwrap().clear();
        let mut run = engine.start(&job, drawn(&samples, 80, 16, JobCursor::start_of(epoch)), epoch);
        assert_eq!(
            check_batch(&next(&mut run).unwrap().unwrap(), &fake, epoch).ids,
            (0..16).collect::<Vec<_>>()
        );
        while next(&mut run).unwrap().is_some() {}
        begun.push(fake.begun.lock().unwrap()[..4].to_vec());
    }
    assert!(!begun[0].contains(&14), "it was not known to be slow: {begun:?}");
    assert!(begun[1].contains(&11) && begun[1].contains(&14), "{begun:?}");
}
