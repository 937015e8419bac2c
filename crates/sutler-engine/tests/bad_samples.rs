//! Invariant 7: a bad sample is reported and handled by the policy, whatever the way in which it is bad.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use proptest::prelude::*;
use sutler_core::Shard;
use sutler_engine::{Engine, ErrorPolicy, Job, JobOptions, RunError};

use support::{Fake, check_batch, drain, drawn, job, next, options, plan, whole};

fn with_policy(batch_size: usize, errors: ErrorPolicy) -> JobOptions {
    JobOptions { errors, ..options(batch_size, 3) }
}

fn failed_ids(job: &Job) -> BTreeSet<u32> {
    let failures = job.failures();
    let ids: BTreeSet<u32> = failures.iter().map(|failure| failure.sample.0).collect();
    assert_eq!(ids.len(), failures.len(), "each is listed once");
    ids
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn skipped_samples_are_listed_and_the_others_served(
        samples in 1u32..100, batch_size in 1u32..20, threads in prop_oneof![Just(0usize), Just(1), Just(4)],
        bad in prop::collection::btree_set(0u32..100, 0..40), panics in prop::collection::btree_set(0u32..100, 0..4),
        row_bytes in prop_oneof![Just(0usize), Just(9)],
    ) {
        let fake = Arc::new(Fake { bad, panics, ..Fake::fixed(row_bytes) });
        let engine = Engine::new(threads).unwrap();
        let job = job(&fake, with_policy(batch_size as usize, ErrorPolicy::Skip));
        for epoch in 0..2 {
            let mut run = engine.start(&job, whole(samples, batch_size, epoch), epoch);
            let delivered = drain(&mut run, &fake, epoch, usize::MAX);
            prop_assert!(delivered.iter().all(|batch| !batch.ids.is_empty()));
            let served: BTreeSet<u32> = delivered.iter().flat_map(|batch| batch.ids.clone()).collect();
            let failed: BTreeSet<u32> =
                fake.bad.union(&fake.panics).copied().filter(|&id| id < samples).collect();
            prop_assert_eq!(failed_ids(&job), failed.clone());
            prop_assert_eq!(served, (0..samples).filter(|id| !failed.contains(id)).collect::<BTreeSet<_>>());
            let figures = job.metrics().snapshot();
            let epochs = u64::from(epoch) + 1;
            prop_assert_eq!(figures.failed, epochs * failed.len() as u64);
            prop_assert_eq!(figures.samples, epochs * (u64::from(samples) - failed.len() as u64));
        }
    }
}

#[test]
fn an_error_is_raised_in_its_turn_and_stays() {
    for threads in [0, 1, 4] {
        // Sequential order, so that the bad sample is in the third batch.
        let order: Vec<u64> = (0..40).collect();
        let sequential = || drawn(&order, 40, 4, sutler_core::JobCursor::start_of(0));
        let fake = Arc::new(Fake { bad: [9, 10].into(), ..Fake::fixed(12) });
        let engine = Engine::new(threads).unwrap();
        let job = job(&fake, with_policy(4, ErrorPolicy::Raise));
        let mut run = engine.start(&job, sequential(), 0);
        assert_eq!(drain(&mut run, &fake, 0, 2).len(), 2);
        for _ in 0..3 {
            let Err(RunError::Sample(failure)) = next(&mut run) else { panic!("sample 9 is bad") };
            assert_eq!(failure.to_string(), "sample 9 (fake/9): it is bad");
            assert_eq!(run.cursor().consumed, 8, "before the batch, so that nothing is lost");
        }
        assert_eq!(failed_ids(&job), [9, 10].into());
        assert_eq!(job.metrics().snapshot().failed, 2);
        assert_eq!(job.metrics().snapshot().samples, 8, "what was not handed over was not served");
    }
}

#[test]
fn a_job_that_goes_on_passes_over_the_batch() {
    for threads in [0, 1, 4] {
        let order: Vec<u64> = (0..10).collect();
        let plan = drawn(&order, 10, 2, sutler_core::JobCursor::start_of(0));
        let fake = Arc::new(Fake { bad: [2, 7].into(), ..Fake::fixed(12) });
        let engine = Engine::new(threads).unwrap();
        let job = job(&fake, JobOptions { go_on: true, ..with_policy(2, ErrorPolicy::Raise) });
        let mut run = engine.start(&job, plan, 0);
        for bad in [2, 7] {
            assert_eq!(drain(&mut run, &fake, 0, 1).len(), 1);
            let Err(RunError::Sample(failure)) = next(&mut run) else { panic!("sample {bad} is bad") };
            assert_eq!(failure.sample.0, bad);
        }
        assert_eq!(run.cursor().consumed, 8, "after the batch");
        assert_eq!(drain(&mut run, &fake, 0, usize::MAX).len(), 1);
        assert_eq!(failed_ids(&job), [2, 7].into());
    }
}

#[test]
fn budgets_end_the_epoch_when_they_are_spent() {
    let fake = Arc::new(Fake { bad: (0..10).collect(), ..Fake::fixed(12) });
    let engine = Engine::new(2).unwrap();
    let budget = |count_max, rate_max| ErrorPolicy::Budget { count_max, rate_max };
    for (policy, enough) in [
        (budget(Some(10), None), true),
        (budget(Some(9), None), false),
        (budget(None, Some(0.1)), true),
        (budget(None, Some(0.099)), false),
        (budget(Some(50), Some(0.05)), false),
        (budget(Some(0), None), false),
        (budget(None, None), true),
    ] {
        let job = job(&fake, with_policy(7, policy));
        // The budget is the epoch's: a second one has it again.
        for epoch in 0..2 {
            let mut run = engine.start(&job, whole(100, 7, epoch), epoch);
            let mut served = 0;
            let ended = loop {
                match next(&mut run) {
                    Ok(Some(batch)) => served += check_batch(&batch, &fake, epoch).ids.len(),
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            match ended {
                Ok(()) => assert!(enough && served == 90, "{policy:?} {served}"),
                Err(RunError::Budget { failed, allowed, last }) => {
                    assert!(!enough && failed > allowed, "{policy:?}");
                    assert!(fake.bad.contains(&last.sample.0));
                    assert!(matches!(next(&mut run), Err(RunError::Budget { .. })), "it stays so");
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}

#[test]
fn a_panic_names_the_sample_and_the_next_one_is_served() {
    for threads in [0, 1, 4] {
        let fake = Arc::new(Fake { panics: [3].into(), ..Fake::fixed(12) });
        let engine = Engine::new(threads).unwrap();
        let job = job(&fake, with_policy(5, ErrorPolicy::Skip));
        let delivered = drain(&mut engine.start(&job, whole(50, 5, 0), 0), &fake, 0, usize::MAX);
        assert_eq!(delivered.iter().map(|batch| batch.ids.len()).sum::<usize>(), 49);
        let failures = job.failures();
        assert_eq!(failures.len(), 1);
        assert_eq!((failures[0].sample.0, failures[0].kind), (3, "internal"));
        assert!(failures[0].reason.contains("sample 3 is poison"), "{}", failures[0].reason);
    }
}

#[test]
fn tools_that_cannot_be_made_fail_samples_and_not_threads() {
    for threads in [0, 1, 4] {
        let fake = Arc::new(Fake { broken_tools: AtomicUsize::new(3), ..Fake::fixed(12) });
        let engine = Engine::new(threads).unwrap();
        let job = job(&fake, with_policy(5, ErrorPolicy::Skip));
        let delivered = drain(&mut engine.start(&job, whole(50, 5, 0), 0), &fake, 0, usize::MAX);
        assert_eq!(delivered.iter().map(|batch| batch.ids.len()).sum::<usize>(), 47);
        assert!(job.failures().iter().all(|failure| failure.reason.contains("the tools are broken")));
    }
}

#[test]
fn failures_belong_to_the_epoch_begun_last() {
    let fake = Arc::new(Fake { bad: (0..5).collect(), ..Fake::fixed(12) });
    let engine = Engine::new(2).unwrap();
    let job = job(&fake, with_policy(10, ErrorPolicy::Skip));
    let mut first = engine.start(&job, whole(20, 10, 0), 0);
    drain(&mut first, &fake, 0, usize::MAX);
    assert_eq!(failed_ids(&job), (0..5).collect());
    let mut earlier = engine.start(&job, whole(20, 10, 1), 1);
    let rest = plan(3, 10, false, Shard::WHOLE, sutler_core::JobCursor::start_of(2));
    let mut later = engine.start(&job, rest, 2);
    // An epoch begins when its first batch is asked for; what an earlier one still finds is nobody's any more.
    drain(&mut later, &fake, 2, usize::MAX);
    assert_eq!(failed_ids(&job), (0..3).collect());
    drop(later);
    drain(&mut earlier, &fake, 1, usize::MAX);
    assert_eq!(failed_ids(&job), (0..5).collect(), "the one that is asked last has begun last");
}
