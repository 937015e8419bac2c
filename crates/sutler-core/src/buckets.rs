//! Batches of samples of similar length.
//!
//! A batch is as long as its longest sample, so a short one beside it is mostly padding. Sorting the epoch by length would
//! leave none and no randomness either. So samples are sorted into *buckets* of similar length; which of a bucket's
//! samples come together, and in which order the batches come, is drawn anew in every epoch.
//!
//! Every sample is in one batch and only one is incomplete, the last: buckets are cut where batches end. Over several ranks a
//! batch is cut as it is for all of them together, so that in each step they get samples of similar length, and as
//! many of them; the epoch is padded or cut as PyTorch's `DistributedSampler` does it.

use crate::{Permutation, SampleId, SampleRng, Shard, Stream};

/// How an epoch is cut into batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSpec {
    /// Samples in a batch of one rank.
    pub batch_size: u32,
    /// How many buckets there are; one makes no difference between lengths.
    pub buckets: u32,
    /// Whether anything is left to chance; if not, batches come from short to long.
    pub shuffle: bool,
    /// Whether the incomplete batch is left out.
    pub drop_last: bool,
    /// With the epoch, decides everything.
    pub seed: u64,
    /// Which one.
    pub epoch: u32,
    /// Whose batches these are.
    pub shard: Shard,
}

/// The index of the stream from which the order of batches is drawn; that of the samples is drawn from 0.
const BATCH_ORDER: u32 = 1;

/// The batches of a rank's epoch over samples of these lengths.
///
/// # Panics
/// When there are more samples than an id can name.
#[must_use]
pub fn bucket_batches(lengths: &[u64], spec: &BucketSpec) -> Vec<Vec<SampleId>> {
    let count = u32::try_from(lengths.len()).expect("samples are named by ids of 32 bits");
    let ranks = spec.shard.world_size() as usize;
    let step = (spec.batch_size.max(1) as usize).saturating_mul(ranks);
    let permutation = if spec.shuffle {
        Permutation::shuffled(count, spec.seed, spec.epoch)
    } else {
        Permutation::identity(count)
    };
    let mut places: Vec<u32> = (0..count).collect();
    let length = |place: &u32| lengths[permutation.sample_at(*place).index()];
    places.sort_by_key(length); // stable: chance decides between equal lengths
    if spec.shuffle {
        let (whole, buckets) = (lengths.len() / step, spec.buckets.max(1) as usize);
        let ends = (1..=buckets).map(|bucket| {
            if bucket == buckets {
                lengths.len()
            } else {
                (whole as u128 * bucket as u128 / buckets as u128) as usize * step
            }
        });
        let mut start = 0;
        for end in ends {
            // Back in the order of the permutation, which is a fresh one for each bucket.
            places[start..end].sort_unstable();
            start = end;
        }
    }
    let mut order: Vec<SampleId> = places.into_iter().map(|place| permutation.sample_at(place)).collect();
    if spec.drop_last {
        order.truncate(order.len() / step * step);
    } else {
        let missing = order.len().next_multiple_of(ranks) - order.len();
        let again: Vec<SampleId> = order.iter().copied().cycle().take(missing).collect();
        order.extend(again);
    }
    let mut steps: Vec<&[SampleId]> = order.chunks(step).collect();
    if spec.shuffle {
        let whole = order.len() / step;
        SampleRng::with_stream(spec.seed, Stream::Shuffle, spec.epoch, BATCH_ORDER)
            .shuffle(&mut steps[..whole]);
    }
    let own =
        |step: &[SampleId]| step.iter().skip(spec.shard.rank() as usize).step_by(ranks).copied().collect();
    steps.into_iter().map(own).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spec(batch_size: u32, buckets: u32, rank: u32, world_size: u32) -> BucketSpec {
        BucketSpec {
            batch_size,
            buckets,
            shuffle: true,
            drop_last: false,
            seed: 7,
            epoch: 0,
            shard: Shard::new(rank, world_size).unwrap(),
        }
    }

    proptest! {
        #[test]
        fn every_sample_is_in_one_batch_and_ranks_are_in_step(
            lengths in prop::collection::vec(0u64..50, 1..200),
            batch_size in 1u32..9,
            buckets in 1u32..12,
            world_size in 1u32..5,
            shuffle in any::<bool>(),
            drop_last in any::<bool>(),
            epoch in any::<u32>(),
        ) {
            let ranks: Vec<Vec<Vec<SampleId>>> = (0..world_size)
                .map(|rank| {
                    let spec = BucketSpec { shuffle, drop_last, epoch, ..spec(batch_size, buckets, rank, world_size) };
                    bucket_batches(&lengths, &spec)
                })
                .collect();
            for batches in &ranks {
                let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
                let expected: Vec<usize> = ranks[0].iter().map(Vec::len).collect();
                prop_assert_eq!(&sizes, &expected);
                let (last, whole) = sizes.split_last().map_or((0, &[][..]), |(last, whole)| (*last, whole));
                prop_assert!(whole.iter().all(|&size| size == batch_size as usize));
                prop_assert!(last <= batch_size as usize && (!drop_last || last == 0 || last == batch_size as usize));
            }
            let mut served: Vec<u32> = ranks.iter().flatten().flatten().map(|sample| sample.0).collect();
            let total = served.len();
            served.sort_unstable();
            served.dedup();
            let step = (batch_size * world_size) as usize;
            if drop_last {
                prop_assert_eq!(total, lengths.len() / step * step);
                prop_assert_eq!(served.len(), total, "nothing twice");
            } else {
                prop_assert_eq!(served.len(), lengths.len(), "everything");
                prop_assert_eq!(total, lengths.len().next_multiple_of(world_size as usize));
            }
        }
    }

    #[test]
    fn batches_hold_similar_lengths_and_differ_between_epochs() {
        let lengths: Vec<u64> = (0..1000).map(|index| index * 37 % 1000).collect();
        let spread = |buckets| {
            let batches = bucket_batches(&lengths, &spec(10, buckets, 0, 1));
            let spreads = batches.iter().map(|batch| {
                let of = |sample: &SampleId| lengths[sample.index()];
                batch.iter().map(of).max().unwrap() - batch.iter().map(of).min().unwrap()
            });
            spreads.max().unwrap()
        };
        assert!(spread(10) < 100 && spread(1) > 500, "{} and {}", spread(10), spread(1));
        let first = bucket_batches(&lengths, &spec(10, 10, 0, 1));
        let second = bucket_batches(&lengths, &BucketSpec { epoch: 1, ..spec(10, 10, 0, 1) });
        assert_ne!(first, second);
        assert_eq!(first, bucket_batches(&lengths, &spec(10, 10, 0, 1)));
    }

    #[test]
    fn without_chance_batches_come_from_short_to_long() {
        let spec = BucketSpec { shuffle: false, ..spec(2, 4, 0, 1) };
        let batches = bucket_batches(&[30, 10, 20, 10, 5], &spec);
        let ids: Vec<Vec<u32>> = batches.iter().map(|batch| batch.iter().map(|id| id.0).collect()).collect();
        assert_eq!(ids, [vec![4, 1], vec![3, 2], vec![0]]);
    }
}
