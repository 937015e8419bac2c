//! How the ranks of one job share an epoch, with the semantics of PyTorch's `DistributedSampler`.
//!
//! The epoch is one global sequence of positions. Rank `r` of `R` takes positions `r, r + R, r + 2R, …`, so every
//! rank does the same number of steps and the first `k` steps of all ranks together are a prefix of the sequence. That
//! prefix is all a checkpoint has to remember, and it can be dealt out again over another number of ranks.

use serde::{Deserialize, Serialize};

/// One rank's place in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    rank: u32,
    world_size: u32,
}

/// A rank that its job does not have.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ShardError {
    /// There must be someone to do the work.
    #[error("world_size must be at least 1, got 0")]
    NoRanks,
    /// Ranks count from 0.
    #[error("invalid rank {rank}: with world_size={world_size} it should be in the interval [0, {last}]", last = world_size - 1)]
    NoSuchRank {
        /// What was asked for.
        rank: u32,
        /// How many there are.
        world_size: u32,
    },
}

impl Shard {
    /// The only rank of a job that is not distributed.
    pub const WHOLE: Shard = Shard { rank: 0, world_size: 1 };

    /// Rank `rank` of `world_size`.
    ///
    /// # Errors
    /// When there is no such rank.
    pub fn new(rank: u32, world_size: u32) -> Result<Self, ShardError> {
        if world_size == 0 {
            return Err(ShardError::NoRanks);
        }
        if rank >= world_size {
            return Err(ShardError::NoSuchRank { rank, world_size });
        }
        Ok(Self { rank, world_size })
    }

    /// This rank's number.
    #[must_use]
    pub fn rank(self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn world_size(self) -> u32 {
        self.world_size
    }

    /// How many of `total` positions each rank gets: rounded down when incomplete rounds are dropped, otherwise
    /// rounded up and the last round padded.
    #[must_use]
    pub fn share(self, total: u64, drop_last: bool) -> u64 {
        let world = u64::from(self.world_size);
        if drop_last { total / world } else { total.div_ceil(world) }
    }

    /// The global position of this rank's `step`-th sample, counted from `base`. It may lie past the end of the
    /// sequence; the padding wraps around to the start.
    #[must_use]
    pub fn position(self, base: u64, step: u64) -> u64 {
        base + u64::from(self.rank) + step * u64::from(self.world_size)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn impossible_ranks_are_refused() {
        assert_eq!(Shard::new(0, 0), Err(ShardError::NoRanks));
        let error = Shard::new(2, 2).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid rank 2: with world_size=2 it should be in the interval [0, 1]"
        );
    }

    proptest! {
        #[test]
        fn ranks_deal_out_a_prefix(total in 0u64..500, world in 1u32..9, drop_last: bool) {
            let mut taken = Vec::new();
            for rank in 0..world {
                let shard = Shard::new(rank, world).unwrap();
                taken.extend((0..shard.share(total, drop_last)).map(|step| shard.position(0, step)));
            }
            taken.sort_unstable();
            prop_assert_eq!(&taken, &(0..taken.len() as u64).collect::<Vec<_>>());
            let slack = i128::from(total) - taken.len() as i128;
            if drop_last {
                prop_assert!((0..i128::from(world)).contains(&slack));
            } else {
                prop_assert!((0..i128::from(world)).contains(&-slack));
            }
        }
    }
}
