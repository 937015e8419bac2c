use proptest::prelude::*;

use super::*;

#[test]
fn a_part_is_served_in_the_order_of_a_dataset_of_its_size() {
    let part: Vec<SampleId> = [7, 3, 3, 9, 0].map(SampleId).into();
    let of_part = |plan: EpochPlan| plan.of_part(part.clone()).unwrap();
    for rank in 0..2 {
        let spec = JobSpec { batch_size: 2, drop_last: false, shard: Shard::new(rank, 2).unwrap() };
        let whole = plan(5, &spec, JobCursor { epoch: 3, consumed: 2 });
        let done = Ledger::with_served(2, [1]);
        for whole in [whole.clone(), whole.without(done)] {
            let partly = of_part(whole.clone());
            assert_eq!(partly.batches(), whole.batches());
            for index in 0..whole.batches() {
                let (ours, theirs) = (partly.batch(index), whole.batch(index));
                let expected = theirs.samples.iter().map(|sample| part[sample.index()]);
                assert_eq!(ours.samples, expected.collect::<Vec<_>>());
                assert_eq!(ours.positions, theirs.positions);
            }
        }
    }
}

#[test]
fn a_plan_knows_how_often_samples_came_before() {
    let again = |index: u64, repeat: u64| index | repeat << 32;
    let repeats = |plan: &EpochPlan| -> Vec<(u32, u32)> {
        (0..plan.steps()).map(|step| (plan.sample(step).0, plan.repeat(plan.position(step)))).collect()
    };
    // Resumed after three that a sampler drew; the first of the rest is done as well.
    let plan = EpochPlan::to_be_drawn(2, false, JobCursor { epoch: 0, consumed: 3 }).unwrap();
    let mut plan = plan.without(Ledger::with_served(1, [0]));
    plan.extend(&[4, again(2, 1), 0], 5).unwrap();
    plan.extend(&[again(2, 2)], 5).unwrap();
    plan.end();
    assert_eq!(repeats(&plan), [(2, 1), (0, 0), (2, 2)]);
    assert!(plan.extend(&[again(5, 1)], 5).is_err(), "no such sample");

    // Of a part it follows from the place there, in whatever order the places come.
    let part: Vec<SampleId> = [7, 3, 3, 9, 3].map(SampleId).into();
    let spec = JobSpec { batch_size: 2, drop_last: false, shard: Shard::WHOLE };
    let mut served = repeats(&self::plan(5, &spec, JobCursor::start_of(1)).of_part(part).unwrap());
    served.sort_unstable();
    assert_eq!(served, [(3, 0), (3, 1), (3, 2), (7, 0), (9, 0)]);
}

#[test]
fn a_part_of_another_length_is_refused() {
    let spec = JobSpec { batch_size: 2, drop_last: false, shard: Shard::WHOLE };
    let refused = plan(5, &spec, JobCursor::start_of(0)).of_part(vec![SampleId(1)]);
    assert_eq!(
        refused.unwrap_err().to_string(),
        "the part of the dataset has 1 sample, but its epoch 5 places"
    );
}

fn plan(n: u32, spec: &JobSpec, cursor: JobCursor) -> EpochPlan {
    EpochPlan::new(Permutation::shuffled(n, 5, cursor.epoch), spec, cursor).unwrap()
}

fn all(plan: &EpochPlan) -> Vec<Vec<u32>> {
    (0..plan.batches()).map(|k| plan.batch(k).samples.iter().map(|s| s.0).collect()).collect()
}

proptest! {
    /// Invariant 1: over all ranks every sample once; padding repeats at most `world - 1` of them.
    #[test]
    fn ranks_together_serve_every_sample(n in 1u32..300, batch_size in 1u32..40, world in 1u32..7, drop_last: bool) {
        let mut counts = vec![0u32; n as usize];
        let mut batches = Vec::new();
        for rank in 0..world {
            let spec = JobSpec { batch_size, drop_last, shard: Shard::new(rank, world).unwrap() };
            let served = all(&plan(n, &spec, JobCursor::start_of(1)));
            batches.push(served.len());
            if drop_last {
                prop_assert!(served.iter().all(|batch| batch.len() == batch_size as usize));
            }
            for id in served.into_iter().flatten() {
                counts[id as usize] += 1;
            }
        }
        prop_assert!(batches.windows(2).all(|pair| pair[0] == pair[1]), "{:?}", batches);
        if drop_last {
            prop_assert!(counts.iter().all(|&count| count <= 1));
        } else {
            prop_assert!(counts.iter().all(|&count| count >= 1));
            prop_assert!(counts.iter().sum::<u32>() - n < world);
        }
    }

    /// Invariant 4: stop after any batch, go on with any number of ranks; together they serve the exact rest.
    #[test]
    fn the_rest_can_be_taken_up_by_other_ranks(
        n in 1u32..300, batch_size in 1u32..20, world in 1u32..6, stop: u64,
        next_batch_size in 1u32..20, next_world in 1u32..6,
    ) {
        let spec = |rank, world, batch_size| JobSpec { batch_size, drop_last: false, shard: Shard::new(rank, world).unwrap() };
        let mut counts = vec![0u32; n as usize];
        let mut cursors = Vec::new();
        for rank in 0..world {
            let first = plan(n, &spec(rank, world, batch_size), JobCursor::start_of(0));
            let stop = stop % (first.batches() + 1);
            for k in 0..stop {
                for id in first.batch(k).samples {
                    counts[id.index()] += 1;
                }
            }
            cursors.push(first.cursor_after(stop));
        }
        prop_assert!(cursors.windows(2).all(|pair| pair[0] == pair[1]));
        for rank in 0..next_world {
            for id in all(&plan(n, &spec(rank, next_world, next_batch_size), cursors[0])).into_iter().flatten() {
                counts[id as usize] += 1;
            }
        }
        prop_assert!(counts.iter().all(|&count| count >= 1));
        prop_assert!(counts.iter().sum::<u32>() - n < world + next_world);
    }

    /// The same rank goes on exactly where it stopped.
    #[test]
    fn resuming_gives_the_same_batches(n in 1u32..200, batch_size in 1u32..20, world in 1u32..5, stop: u64, drop_last: bool) {
        for rank in 0..world {
            let spec = JobSpec { batch_size, drop_last, shard: Shard::new(rank, world).unwrap() };
            let whole = plan(n, &spec, JobCursor::start_of(2));
            let stop = stop % (whole.batches() + 1);
            let rest = plan(n, &spec, whole.cursor_after(stop));
            prop_assert_eq!(&all(&whole)[stop as usize..], &all(&rest)[..]);
        }
    }

    #[test]
    fn batch_samplers_are_followed_to_the_letter(batches in prop::collection::vec(prop::collection::vec(0u64..50, 1..9), 0..12), stop: usize) {
        let mut whole = EpochPlan::batches_to_be_drawn(JobCursor::start_of(0));
        whole.extend_batches(&batches, 50).unwrap();
        prop_assert_eq!(whole.batches() as usize, batches.len());
        let stop = stop % (batches.len() + 1);
        let mut rest = EpochPlan::batches_to_be_drawn(whole.cursor_after(stop as u64));
        for batch in &batches[stop..] {
            rest.extend_batches(std::slice::from_ref(batch), 50).unwrap();
        }
        rest.end();
        let expected: Vec<Vec<u32>> = batches[stop..].iter().map(|b| b.iter().map(|&i| i as u32).collect()).collect();
        prop_assert_eq!(all(&rest), expected);
        prop_assert_eq!(rest.cursor_after(rest.batches()).consumed as usize, batches.iter().map(Vec::len).sum::<usize>());
    }

    /// What a sampler draws is served the same whether it is drawn at once or bit by bit, and a plan that is still
    /// open promises full batches only.
    #[test]
    fn drawing_bit_by_bit_makes_no_difference(
        indices in prop::collection::vec(0u64..50, 0..60), batch_size in 1u32..9, pieces in 1usize..9, drop_last: bool, done in prop::collection::vec(any::<bool>(), 60),
    ) {
        let start = JobCursor { epoch: 0, consumed: 7 };
        let ledger = Ledger::with_served(10, (0..10).filter(|&position| done[position as usize]));
        for resumed in [false, true] {
            let plan = || {
                let plan = EpochPlan::to_be_drawn(batch_size, drop_last, start).unwrap();
                if resumed { plan.without(ledger.clone()) } else { plan }
            };
            let mut whole = plan();
            whole.extend(&indices, 50).unwrap();
            whole.end();
            let mut growing = plan();
            let mut promised = Vec::new();
            for piece in indices.chunks(pieces) {
                growing.extend(piece, 50).unwrap();
                promised = all(&growing);
                prop_assert!(promised.iter().all(|batch| batch.len() == batch_size as usize));
            }
            growing.end();
            prop_assert_eq!(&all(&whole)[..promised.len()], &promised[..]);
            prop_assert_eq!(all(&whole), all(&growing));
            let expected = indices.iter().enumerate().filter(|&(position, _)| !resumed || !ledger.is_done(position as u32));
            let mut expected: Vec<u32> = expected.map(|(_, &index)| index as u32).collect();
            if drop_last {
                expected.truncate(expected.len() - expected.len() % batch_size as usize);
            }
            prop_assert_eq!(all(&whole).concat(), expected);
        }
    }

    /// What is done is left out, and nothing else.
    #[test]
    fn a_plan_without_what_is_done_has_the_rest(n in 1u32..100, batch_size in 1u32..9, world in 1u32..4, done in prop::collection::vec(any::<bool>(), 100)) {
        for rank in 0..world {
            let spec = JobSpec { batch_size, drop_last: false, shard: Shard::new(rank, world).unwrap() };
            let whole = plan(n, &spec, JobCursor::start_of(3));
            let positions = whole.positions() as u32;
            let ledger = Ledger::with_served(positions, (0..positions).filter(|&position| done[position as usize]));
            let expected: Vec<u32> =
                (0..whole.steps()).filter(|&step| !done[step as usize]).map(|step| whole.sample(step).0).collect();
            let rest = whole.without(ledger);
            prop_assert_eq!(rest.steps() as usize, expected.len());
            prop_assert_eq!(all(&rest).concat(), expected);
        }
    }
}

#[test]
fn wrong_requests_are_refused() {
    let spec = JobSpec { batch_size: 0, drop_last: false, shard: Shard::WHOLE };
    let refused = EpochPlan::new(Permutation::identity(3), &spec, JobCursor::start_of(0));
    assert_eq!(refused.unwrap_err(), OrderError::EmptyBatch);
    let mut plan = EpochPlan::to_be_drawn(1, false, JobCursor::start_of(0)).unwrap();
    assert_eq!(
        plan.extend(&[0, 3], 3).unwrap_err().to_string(),
        "the sampler drew index 3, but the dataset has 3 samples"
    );
    assert_eq!(plan.steps(), 0);
    let mut plan = EpochPlan::batches_to_be_drawn(JobCursor::start_of(0));
    assert_eq!(
        plan.extend_batches(&[vec![0, 1], vec![]], 3).unwrap_err(),
        OrderError::EmptyDrawnBatch { index: 1 }
    );
}
