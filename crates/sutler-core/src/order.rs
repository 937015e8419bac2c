//! Which sample a job gets next.
//!
//! An epoch of a job is a global *sequence* of samples, cut into batches per rank. `order="strict"` serves it as it is.
//! What was consumed is always a prefix of the global sequence (see [`Shard`]), so a checkpoint is one number
//! and can be taken up by any number of ranks.

use serde::{Deserialize, Serialize};

use crate::{Permutation, SampleId, Shard};

/// What a job asks of every epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// Samples in a batch.
    pub batch_size: u32,
    /// Whether an incomplete batch (and an incomplete round over the ranks) is left out.
    pub drop_last: bool,
    /// This rank's share.
    pub shard: Shard,
}

/// Where a job stands in an epoch: what a checkpoint keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCursor {
    /// The epoch it is in.
    pub epoch: u32,
    /// How much of the global sequence all ranks together have consumed.
    pub consumed: u64,
}

impl JobCursor {
    /// The beginning of an epoch.
    #[must_use]
    pub fn start_of(epoch: u32) -> Self {
        Self { epoch, consumed: 0 }
    }
}

/// An epoch that cannot be planned.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OrderError {
    /// A batch must have room for a sample.
    #[error("batch_size should be a positive integer value, but got batch_size=0")]
    EmptyBatch,
    /// A batch sampler drew a batch without samples.
    #[error("batch {index} of the batch sampler is empty; every batch needs at least one sample")]
    EmptyDrawnBatch {
        /// Its number in the epoch, from 0.
        index: usize,
    },
    /// A sampler named a sample that is not there.
    #[error("the sampler drew index {index}, but the dataset has {samples} samples")]
    NoSuchSample {
        /// The drawn index.
        index: u64,
        /// The size of the dataset.
        samples: u32,
    },
}

/// The global sequence of an epoch.
#[derive(Clone, Debug)]
enum Sequence {
    /// Every sample once, in this order.
    Permuted(Permutation),
    /// What a user's sampler drew; repeats and gaps are the sampler's business.
    Drawn(Vec<SampleId>),
}

impl Sequence {
    fn len(&self) -> u64 {
        match self {
            Sequence::Permuted(permutation) => u64::from(permutation.len()),
            Sequence::Drawn(samples) => samples.len() as u64,
        }
    }

    fn sample_at(&self, position: u64) -> SampleId {
        match self {
            Sequence::Permuted(permutation) => permutation.sample_at(position as u32),
            Sequence::Drawn(samples) => samples[position as usize],
        }
    }
}

/// How a rank's positions are cut into batches.
#[derive(Clone, Debug)]
enum Cuts {
    /// Every batch full but perhaps the last.
    Every(u32),
    /// Batch `k` holds positions `ends[k-1]..ends[k]`: a user's batch sampler decided.
    At(Vec<u64>),
}

/// The rest of one rank's epoch in strict order.
#[derive(Clone, Debug)]
pub struct EpochPlan {
    sequence: Sequence,
    shard: Shard,
    cursor: JobCursor,
    /// How many samples this rank still gets, padding included, dropped ones not.
    share: u64,
    cuts: Cuts,
}

/// The samples of one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    /// Its number in the plan, from 0.
    pub index: u64,
    /// In the order of delivery.
    pub samples: Vec<SampleId>,
}

impl EpochPlan {
    /// The rest of an epoch over all samples, shuffled or in listing order, from `cursor` on.
    ///
    /// # Errors
    /// When the batch size is 0.
    pub fn new(permutation: Permutation, spec: &JobSpec, cursor: JobCursor) -> Result<Self, OrderError> {
        Self::of(Sequence::Permuted(permutation), spec, cursor)
    }

    /// The rest of an epoch that a user's sampler drew, from `cursor` on. The sampler has done the sharding.
    ///
    /// # Errors
    /// When the batch size is 0 or an index is outside the dataset.
    pub fn drawn(
        indices: &[u64],
        samples: u32,
        batch_size: u32,
        drop_last: bool,
        cursor: JobCursor,
    ) -> Result<Self, OrderError> {
        let spec = JobSpec { batch_size, drop_last, shard: Shard::WHOLE };
        Self::of(Sequence::Drawn(check_indices(indices, samples)?), &spec, cursor)
    }

    /// The rest of an epoch that a user's batch sampler drew, from `cursor` on.
    ///
    /// # Errors
    /// When an index is outside the dataset or a batch has none.
    pub fn drawn_batches(batches: &[Vec<u64>], samples: u32, cursor: JobCursor) -> Result<Self, OrderError> {
        let mut drawn = Vec::new();
        let mut ends = Vec::new();
        for (index, batch) in batches.iter().enumerate() {
            if batch.is_empty() {
                return Err(OrderError::EmptyDrawnBatch { index });
            }
            drawn.extend(check_indices(batch, samples)?);
            ends.push(drawn.len() as u64);
        }
        ends.retain(|&end| end > cursor.consumed);
        let share = (drawn.len() as u64).saturating_sub(cursor.consumed);
        Ok(Self {
            sequence: Sequence::Drawn(drawn),
            shard: Shard::WHOLE,
            cursor,
            share,
            cuts: Cuts::At(ends),
        })
    }

    fn of(sequence: Sequence, spec: &JobSpec, cursor: JobCursor) -> Result<Self, OrderError> {
        if spec.batch_size == 0 {
            return Err(OrderError::EmptyBatch);
        }
        let rest = sequence.len().saturating_sub(cursor.consumed);
        let mut share = spec.shard.share(rest, spec.drop_last);
        if spec.drop_last {
            share -= share % u64::from(spec.batch_size);
        }
        Ok(Self { sequence, shard: spec.shard, cursor, share, cuts: Cuts::Every(spec.batch_size) })
    }

    /// How many batches are left.
    #[must_use]
    pub fn batches(&self) -> u64 {
        match &self.cuts {
            Cuts::Every(size) => self.share.div_ceil(u64::from(*size)),
            Cuts::At(ends) => ends.len() as u64,
        }
    }

    /// How many samples are left for this rank, padding included.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.share
    }

    /// The most samples any batch holds.
    #[must_use]
    pub fn batch_size_max(&self) -> u64 {
        match &self.cuts {
            Cuts::Every(size) => u64::from(*size).min(self.share),
            Cuts::At(ends) => {
                let mut start = self.cursor.consumed;
                let mut longest = 0;
                for &end in ends {
                    longest = longest.max(end - start);
                    start = end;
                }
                longest
            }
        }
    }

    /// The samples of batch `index`, counted from where the plan begins.
    #[must_use]
    pub fn batch(&self, index: u64) -> BatchPlan {
        let (start, end) = self.bounds(index);
        BatchPlan { index, samples: (start..end).map(|step| self.sample(step)).collect() }
    }

    /// How many samples batch `index` holds.
    #[must_use]
    pub fn batch_len(&self, index: u64) -> u64 {
        let (start, end) = self.bounds(index);
        end - start
    }

    /// The cursor after `batches` batches of this plan were consumed by every rank.
    #[must_use]
    pub fn cursor_after(&self, batches: u64) -> JobCursor {
        if batches == 0 {
            return self.cursor;
        }
        let (_, end) = self.bounds(batches - 1);
        let consumed = self.cursor.consumed + end * u64::from(self.shard.world_size());
        JobCursor { epoch: self.cursor.epoch, consumed: consumed.min(self.sequence.len()) }
    }

    /// This rank's sample number `step` (padding wraps around to the start of the sequence, as PyTorch's does).
    fn sample(&self, step: u64) -> SampleId {
        self.sequence.sample_at(self.shard.position(self.cursor.consumed, step) % self.sequence.len())
    }

    /// A batch's first step and the one after its last, counted from where the plan begins.
    fn bounds(&self, index: u64) -> (u64, u64) {
        match &self.cuts {
            Cuts::Every(size) => {
                let start = (index * u64::from(*size)).min(self.share);
                (start, (start + u64::from(*size)).min(self.share))
            }
            Cuts::At(ends) => {
                let start = if index == 0 { self.cursor.consumed } else { ends[index as usize - 1] };
                (start - self.cursor.consumed, ends[index as usize] - self.cursor.consumed)
            }
        }
    }
}

fn check_indices(indices: &[u64], samples: u32) -> Result<Vec<SampleId>, OrderError> {
    indices
        .iter()
        .map(|&index| match u32::try_from(index) {
            Ok(id) if id < samples => Ok(SampleId(id)),
            _ => Err(OrderError::NoSuchSample { index, samples }),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
            let whole = EpochPlan::drawn_batches(&batches, 50, JobCursor::start_of(0)).unwrap();
            prop_assert_eq!(whole.batches() as usize, batches.len());
            let stop = stop % (batches.len() + 1);
            let rest = EpochPlan::drawn_batches(&batches, 50, whole.cursor_after(stop as u64)).unwrap();
            let expected: Vec<Vec<u32>> = batches[stop..].iter().map(|b| b.iter().map(|&i| i as u32).collect()).collect();
            prop_assert_eq!(all(&rest), expected);
            prop_assert_eq!(rest.batch_size_max() as usize, batches[stop..].iter().map(Vec::len).max().unwrap_or(0));
        }
    }

    #[test]
    fn wrong_requests_are_refused() {
        let spec = JobSpec { batch_size: 0, drop_last: false, shard: Shard::WHOLE };
        let refused = EpochPlan::new(Permutation::identity(3), &spec, JobCursor::start_of(0));
        assert_eq!(refused.unwrap_err(), OrderError::EmptyBatch);
        let refused = EpochPlan::drawn(&[0, 3], 3, 1, false, JobCursor::start_of(0));
        assert_eq!(
            refused.unwrap_err().to_string(),
            "the sampler drew index 3, but the dataset has 3 samples"
        );
        let refused = EpochPlan::drawn_batches(&[vec![0, 1], vec![]], 3, JobCursor::start_of(0));
        assert_eq!(refused.unwrap_err(), OrderError::EmptyDrawnBatch { index: 1 });
    }
}
