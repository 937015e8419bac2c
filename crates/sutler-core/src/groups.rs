//! Batches whose samples are all of one group.
//!
//! Upright and oblong pictures in one batch leave much of it empty, as every picture is followed by zeros up to the widest and the
//! highest. So a batch is taken from one group only. Within a group samples keep the order of the epoch's permutation, and batches come in the
//! order of their first samples, so that both are as random as the permutation is.
//!
//! Every sample is in one batch, and each group has at most one that is incomplete; those come last. Over several ranks a batch is cut for
//! all of them together, so that in each step they get samples of one group, and as many of them. What does not divide by the number of
//! ranks is filled up with samples of the same group that come a second time, as PyTorch's `DistributedSampler` does it for the whole.

use crate::{Permutation, SampleId, Shard};

/// How an epoch is cut into batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// Samples in a batch of one rank.
    pub batch_size: u32,
    /// Whether the order is drawn.
    pub shuffle: bool,
    /// Whether incomplete batches are left out.
    pub drop_last: bool,
    /// With the epoch, decides everything.
    pub seed: u64,
    /// Which one.
    pub epoch: u32,
    /// Whose batches these are.
    pub shard: Shard,
}

/// The batches of a rank's epoch over samples of these groups, which are named by any numbers.
///
/// # Panics
/// When there are more samples than an id can name.
#[must_use]
pub fn group_batches(groups: &[u32], spec: &GroupSpec) -> Vec<Vec<SampleId>> {
    let count = u32::try_from(groups.len()).expect("samples are named by ids of 32 bits");
    let ranks = spec.shard.world_size() as usize;
    let step = (spec.batch_size.max(1) as usize).saturating_mul(ranks);
    let permutation = if spec.shuffle {
        Permutation::shuffled(count, spec.seed, spec.epoch)
    } else {
        Permutation::identity(count)
    };
    let group_at = |place: u32| groups[permutation.sample_at(place).index()];
    let mut places: Vec<u32> = (0..count).collect();
    places.sort_by_key(|&place| group_at(place)); // stable: inside a group the order of the permutation stays
    let (mut whole, mut rest) = (Vec::new(), Vec::new());
    for group in places.chunk_by(|&left, &right| group_at(left) == group_at(right)) {
        for places in group.chunks(step) {
            if places.len() == step {
                whole.push(places.to_vec());
            } else if !spec.drop_last {
                let missing = places.len().next_multiple_of(ranks) - places.len();
                let again = group.iter().copied().cycle().take(missing);
                rest.push(places.iter().copied().chain(again).collect());
            }
        }
    }
    whole.sort_by_key(|places: &Vec<u32>| places[0]);
    let own = |places: Vec<u32>| {
        let mine = places.into_iter().skip(spec.shard.rank() as usize).step_by(ranks);
        mine.map(|place| permutation.sample_at(place)).collect()
    };
    whole.into_iter().chain(rest).map(own).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spec(batch_size: u32, rank: u32, world_size: u32) -> GroupSpec {
        let shard = Shard::new(rank, world_size).unwrap();
        GroupSpec { batch_size, shuffle: true, drop_last: false, seed: 7, epoch: 0, shard }
    }

    fn ids(batches: &[Vec<SampleId>]) -> Vec<Vec<u32>> {
        batches.iter().map(|batch| batch.iter().map(|id| id.0).collect()).collect()
    }

    proptest! {
        #[test]
        fn every_sample_is_in_one_batch_of_its_group_and_ranks_are_in_step(
            groups in prop::collection::vec(0u32..4, 1..200),
            batch_size in 1u32..9,
            world_size in 1u32..5,
            shuffle in any::<bool>(),
            drop_last in any::<bool>(),
            epoch in any::<u32>(),
        ) {
            let ranks: Vec<Vec<Vec<SampleId>>> = (0..world_size)
                .map(|rank| {
                    let spec = GroupSpec { shuffle, drop_last, epoch, ..spec(batch_size, rank, world_size) };
                    group_batches(&groups, &spec)
                })
                .collect();
            let group_of = |sample: &SampleId| groups[sample.index()];
            for step in 0..ranks[0].len() {
                let first = ranks[0][step].first().map(group_of);
                for batches in &ranks {
                    prop_assert_eq!(batches.len(), ranks[0].len());
                    prop_assert_eq!(batches[step].len(), ranks[0][step].len());
                    prop_assert!(!batches[step].is_empty() && batches[step].len() <= batch_size as usize);
                    prop_assert!(batches[step].iter().all(|sample| Some(group_of(sample)) == first));
                }
            }
            let mut served: Vec<u32> = ranks.iter().flatten().flatten().map(|sample| sample.0).collect();
            let total = served.len();
            served.sort_unstable();
            served.dedup();
            let step = (batch_size * world_size) as usize;
            let sizes = (0..4u32).map(|group| groups.iter().filter(|&&other| other == group).count());
            if drop_last {
                prop_assert_eq!(total, sizes.map(|size| size / step * step).sum::<usize>());
                prop_assert_eq!(served.len(), total, "nothing twice");
            } else {
                prop_assert_eq!(served.len(), groups.len(), "everything");
                prop_assert_eq!(total, sizes.map(|size| size.next_multiple_of(world_size as usize)).sum::<usize>());
            }
        }
    }

    #[test]
    fn without_chance_batches_come_in_the_order_of_their_first_samples() {
        let spec = GroupSpec { shuffle: false, ..spec(2, 0, 1) };
        assert_eq!(
            ids(&group_batches(&[1, 0, 0, 1, 1, 0], &spec)),
            [vec![0, 3], vec![1, 2], vec![5], vec![4]]
        );
    }

    #[test]
    fn epochs_differ_and_a_seed_repeats() {
        let groups: Vec<u32> = (0..100).map(|index| index % 2).collect();
        let first = group_batches(&groups, &spec(4, 0, 1));
        assert_ne!(first, group_batches(&groups, &GroupSpec { epoch: 1, ..spec(4, 0, 1) }));
        assert_eq!(first, group_batches(&groups, &spec(4, 0, 1)));
        let leading: Vec<u32> = first.iter().take(8).map(|batch| groups[batch[0].index()]).collect();
        assert!(leading.contains(&0) && leading.contains(&1), "groups take turns: {leading:?}");
    }
}
