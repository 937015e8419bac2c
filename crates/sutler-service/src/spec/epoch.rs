//! An epoch: where its order comes from, and where in it to begin.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sutler_core::{
    EpochPlan, JobCursor, Ledger, OrderError, Permutation, SampleId, SavedLedger, Shard, ShardError,
};
use sutler_engine::{Engine, Job, Run, StartError};

/// An epoch and where in it to begin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EpochSpec {
    /// Which one.
    pub epoch: u32,
    /// How much of its sequence all ranks have consumed.
    pub consumed: u64,
    /// The places of its sequence that ranks had done beyond that when the rest was dealt out anew, if it was.
    #[serde(with = "ledger")]
    pub before: Option<Ledger>,
    /// What this rank has done since.
    #[serde(with = "ledger")]
    pub done: Option<Ledger>,
    /// Where its order comes from.
    pub sequence: SequenceSpec,
    /// Where it is an epoch of a part of the dataset, whose order is its own: the samples of that part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Vec<SampleId>>,
}

/// Where the order of an epoch comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SequenceSpec {
    /// All samples, shuffled or not, shared by the ranks.
    Own {
        /// How many samples there are.
        samples: u32,
        /// Whether they are shuffled.
        shuffle: bool,
        /// With the epoch, decides the order.
        seed: u64,
        /// Samples in a batch.
        batch_size: u32,
        /// Whether an incomplete batch is left out.
        drop_last: bool,
        /// This rank.
        rank: u32,
        /// How many ranks there are.
        world_size: u32,
    },
    /// A sampler draws it bit by bit.
    Drawn {
        /// Samples in a batch.
        batch_size: u32,
        /// Whether an incomplete batch is left out.
        drop_last: bool,
    },
    /// A batch sampler draws it bit by bit.
    Batches,
}

/// An epoch that cannot be begun.
#[derive(Debug, thiserror::Error)]
pub enum EpochError {
    /// Its plan makes no sense.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// The rank does not exist.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// It cannot be shared.
    #[error(transparent)]
    Shared(#[from] StartError),
}

impl EpochSpec {
    /// The plan of the epoch from here on.
    ///
    /// # Errors
    /// When it makes no sense.
    pub fn plan(&self) -> Result<EpochPlan, EpochError> {
        Ok(match &self.done {
            Some(done) if done.served() > 0 => self.whole_plan()?.without(done.clone()),
            _ => self.whole_plan()?,
        })
    }

    /// The same for a job that shares: its done positions are samples, and the order of the rest is nobody's to foresee.
    ///
    /// # Errors
    /// When it makes no sense.
    pub fn shared_plan(&self) -> Result<EpochPlan, EpochError> {
        let whole = self.whole_plan()?;
        let done = self.done.clone().unwrap_or_else(|| Ledger::new(0));
        Ok(sutler_engine::what_is_left(&whole, &done)?)
    }

    /// Begins the epoch.
    ///
    /// # Errors
    /// When its plan makes no sense, or the job's pool has no place.
    pub fn start(&self, engine: &Engine, job: &Arc<Job>) -> Result<Run, EpochError> {
        if job.pool().is_none() {
            return Ok(engine.start(job, self.plan()?, self.epoch));
        }
        // Which samples are done, not which positions: the order is nobody's to foresee.
        let done = self.done.clone().unwrap_or_else(|| Ledger::new(0));
        Ok(engine.start_shared(job, &self.whole_plan()?, self.epoch, &done)?)
    }

    /// Checks that a part names samples of the dataset, which has so many.
    ///
    /// # Errors
    /// When it names others.
    pub fn check_part(&self, samples: u32) -> Result<(), EpochError> {
        let outside = self.part.iter().flatten().find(|sample| sample.0 >= samples);
        outside.map_or(Ok(()), |sample| Err(OrderError::NoSuchSample { index: sample.0, samples }.into()))
    }

    fn whole_plan(&self) -> Result<EpochPlan, EpochError> {
        let cursor = JobCursor { epoch: self.epoch, consumed: self.consumed };
        Ok(match self.sequence {
            SequenceSpec::Own { samples, shuffle, seed, batch_size, drop_last, rank, world_size } => {
                let shard = Shard::new(rank, world_size)?;
                let permutation = if shuffle {
                    Permutation::shuffled(samples, seed, self.epoch)
                } else {
                    Permutation::identity(samples)
                };
                let spec = sutler_core::JobSpec { batch_size, drop_last, shard };
                let plan = match &self.before {
                    Some(before) => EpochPlan::dealt_anew(permutation, before, &spec, cursor)?,
                    None => EpochPlan::new(permutation, &spec, cursor)?,
                };
                match &self.part {
                    Some(part) => plan.of_part(part.clone())?,
                    None => plan,
                }
            }
            SequenceSpec::Drawn { batch_size, drop_last } => {
                EpochPlan::to_be_drawn(batch_size, drop_last, cursor)?
            }
            SequenceSpec::Batches => EpochPlan::batches_to_be_drawn(cursor),
        })
    }
}

/// A ledger travels as a checkpoint keeps it.
mod ledger {
    use super::{Deserialize, Ledger, SavedLedger, Serialize};
    use serde::{Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(ledger: &Option<Ledger>, serializer: S) -> Result<S::Ok, S::Error> {
        ledger.as_ref().map(Ledger::save).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Ledger>, D::Error> {
        let saved: Option<SavedLedger> = Option::deserialize(deserializer)?;
        saved.map(|saved| Ledger::load(&saved)).transpose().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_that_travelled_has_the_same_rest() {
        let done = Ledger::with_served(10, [3]);
        let before = Ledger::with_served(10, [0, 9]);
        let sequence = SequenceSpec::Own {
            samples: 10,
            shuffle: true,
            seed: u64::MAX,
            batch_size: 4,
            drop_last: false,
            rank: 0,
            world_size: 1,
        };
        let part = Some((0..10).rev().map(SampleId).collect());
        let epoch =
            EpochSpec { epoch: 2, consumed: 1, before: Some(before), done: Some(done), sequence, part };
        let travelled: EpochSpec = serde_json::from_str(&serde_json::to_string(&epoch).unwrap()).unwrap();
        let samples = |epoch: &EpochSpec| {
            let plan = epoch.plan().unwrap();
            (0..plan.steps()).map(|step| plan.sample(step)).collect::<Vec<_>>()
        };
        assert_eq!(samples(&travelled), samples(&epoch));
        assert_eq!(samples(&epoch).len(), 7);
    }
}
