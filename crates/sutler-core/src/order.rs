//! Which sample a job gets next.
//!
//! An epoch of a job is a global *sequence* of samples, cut into batches per rank. `order="strict"` serves it as it is.
//! What was consumed is then always a prefix of the global sequence (see [`Shard`]), so a checkpoint is one number
//! and can be taken up by any number of ranks. `order="ready"` serves the same samples, and a checkpoint needs to say
//! which of them ([`Ledger`]).

mod behind;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Ledger, Permutation, Repeats, SampleId, Shard, counted};

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
    #[error("the sampler drew index {index}, but the dataset has {}", counted(u64::from(*samples), "sample"))]
    NoSuchSample {
        /// The drawn index.
        index: u32,
        /// The size of the dataset.
        samples: u32,
    },
    /// A part of a dataset that is not as long as its epoch.
    #[error("the part of the dataset has {}, but its epoch {places} places", counted(*samples as u64, "sample"))]
    OtherPart {
        /// How many samples the part names.
        samples: usize,
        /// How many places the epoch has.
        places: u64,
    },
}

/// How a rank's positions are cut into batches.
#[derive(Clone, Debug)]
enum Cuts {
    /// Every batch full but perhaps the last.
    Every(u32),
    /// Batch `k` holds the positions `ranges[k]`: a user's batch sampler decided.
    At(Vec<Range<u64>>),
}

/// The rest of one rank's epoch.
///
/// The rank's share from the cursor on is a row of *positions*. Those that are still to be served, in order, are the
/// *steps* of this plan: all of them, unless a checkpoint says that some are done ([`EpochPlan::without`]).
#[derive(Clone, Debug)]
pub struct EpochPlan {
    sequence: Sequence,
    shard: Shard,
    cursor: JobCursor,
    /// How many samples this rank still gets, padding included, dropped ones not.
    share: u64,
    cuts: Cuts,
    drop_last: bool,
    /// What is done already, and the positions that are left, where not all of them are.
    done: Option<Ledger>,
    left: Option<Vec<u32>>,
    /// The first position that is left of those that a checkpoint knows of, and where the batches behind it begin that are done.
    first_left: Option<u32>,
    overtakers: Vec<u32>,
    /// Whether a sampler may draw more.
    open: bool,
    /// Where the epoch is of a part of the dataset: the samples of that part, in its order, and how often each came before.
    part: Option<(Vec<SampleId>, Repeats)>,
}

/// The samples of one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    /// Its number in the plan, from 0.
    pub index: u64,
    /// The rank's positions of the samples.
    pub positions: Vec<u32>,
    /// The samples, in order.
    pub samples: Vec<SampleId>,
}

impl EpochPlan {
    /// The rest of an epoch in which every sample is served once, in the order of the permutation.
    ///
    /// # Errors
    /// When a batch cannot hold a sample.
    pub fn new(permutation: Permutation, spec: &JobSpec, cursor: JobCursor) -> Result<Self, OrderError> {
        let rest = u64::from(permutation.len()).saturating_sub(cursor.consumed);
        Self::over(Sequence::Permuted(permutation), rest, spec, cursor)
    }

    /// The rest of such an epoch where ranks have left gaps in it: all places of the permutation from the cursor on
    /// that are not done, dealt out as if they were a sequence of their own.
    ///
    /// # Errors
    /// When a batch cannot hold a sample.
    pub fn dealt_anew(
        permutation: Permutation,
        done: &Ledger,
        spec: &JobSpec,
        cursor: JobCursor,
    ) -> Result<Self, OrderError> {
        let from = u32::try_from(cursor.consumed).unwrap_or(u32::MAX);
        let places: Vec<u32> = (from..permutation.len()).filter(|&place| !done.is_done(place)).collect();
        let rest = places.len() as u64;
        Self::over(Sequence::Gapped { permutation, places }, rest, spec, cursor)
    }

    fn over(sequence: Sequence, rest: u64, spec: &JobSpec, cursor: JobCursor) -> Result<Self, OrderError> {
        if spec.batch_size == 0 {
            return Err(OrderError::EmptyBatch);
        }
        let mut share = spec.shard.share(rest, spec.drop_last);
        if spec.drop_last {
            share -= share % u64::from(spec.batch_size);
        }
        Ok(Self {
            sequence,
            shard: spec.shard,
            cursor,
            share,
            cuts: Cuts::Every(spec.batch_size),
            drop_last: spec.drop_last,
            done: None,
            left: None,
            first_left: None,
            overtakers: Vec::new(),
            open: false,
            part: None,
        })
    }

    /// The same plan for a part of a dataset: what it calls sample `k` is the `k`-th of these.
    ///
    /// # Errors
    /// When there are not as many as the epoch has places.
    pub fn of_part(mut self, part: Vec<SampleId>) -> Result<Self, OrderError> {
        if part.len() as u64 != self.sequence.len() {
            return Err(OrderError::OtherPart { samples: part.len(), places: self.sequence.len() });
        }
        let repeats = Repeats::among(&part);
        self.part = Some((part, repeats));
        Ok(self)
    }

    /// The rest of an epoch that a user's sampler draws: nothing as yet, see [`EpochPlan::extend`].
    ///
    /// # Errors
    /// When a batch cannot hold a sample.
    pub fn to_be_drawn(batch_size: u32, drop_last: bool, cursor: JobCursor) -> Result<Self, OrderError> {
        if batch_size == 0 {
            return Err(OrderError::EmptyBatch);
        }
        Ok(Self::open(Cuts::Every(batch_size), drop_last, cursor))
    }

    /// The rest of an epoch that a user's batch sampler draws: nothing as yet, see [`EpochPlan::extend_batches`].
    #[must_use]
    pub fn batches_to_be_drawn(cursor: JobCursor) -> Self {
        Self::open(Cuts::At(Vec::new()), false, cursor)
    }

    fn open(cuts: Cuts, drop_last: bool, cursor: JobCursor) -> Self {
        Self {
            sequence: Sequence::Drawn {
                first: cursor.consumed,
                samples: Vec::new(),
                repeats: Repeats::default(),
            },
            shard: Shard::WHOLE,
            cursor,
            share: 0,
            cuts,
            drop_last,
            done: None,
            left: None,
            first_left: None,
            overtakers: Vec::new(),
            open: true,
            part: None,
        }
    }

    /// The sampler has drawn these after what was consumed and drawn before; the dataset has `samples` samples. The upper
    /// half of an index says how often the sampler has drawn that sample before in the epoch.
    ///
    /// # Errors
    /// When an index is none of the dataset's. Nothing is added then.
    pub fn extend(&mut self, indices: &[u64], samples: u32) -> Result<(), OrderError> {
        let drawn = check_indices(indices, samples)?;
        self.add(drawn);
        Ok(())
    }

    /// The batch sampler has drawn these batches after what was consumed and drawn before, as for [`EpochPlan::extend`].
    ///
    /// # Errors
    /// When a batch is empty or an index is none of the dataset's. Nothing is added then.
    pub fn extend_batches(&mut self, batches: &[Vec<u64>], samples: u32) -> Result<(), OrderError> {
        let mut drawn = Vec::new();
        let mut ranges = Vec::with_capacity(batches.len());
        for (index, batch) in batches.iter().enumerate() {
            if batch.is_empty() {
                return Err(OrderError::EmptyDrawnBatch { index: self.batches() as usize + index });
            }
            let start = self.share + drawn.len() as u64;
            drawn.extend(check_indices(batch, samples)?);
            ranges.push(start..start + batch.len() as u64);
        }
        self.leave_out_done(&mut ranges);
        if let Cuts::At(all) = &mut self.cuts {
            all.extend(ranges);
        }
        self.add(drawn);
        Ok(())
    }

    fn add(&mut self, drawn: Vec<(SampleId, u32)>) {
        let before = self.share;
        self.share += drawn.len() as u64;
        let added = before as u32..self.share as u32;
        if let (Some(left), Some(done)) = (&mut self.left, &self.done) {
            left.extend(added.filter(|&position| !done.is_done(position)));
        }
        if let Sequence::Drawn { samples, repeats, .. } = &mut self.sequence {
            for (sample, repeat) in drawn {
                repeats.note(samples.len(), repeat);
                samples.push(sample);
            }
        }
    }

    /// The sampler is at its end.
    pub fn end(&mut self) {
        self.open = false;
        if let (true, Cuts::Every(size)) = (self.drop_last, &self.cuts) {
            let size = u64::from(*size);
            match &mut self.left {
                Some(left) => left.truncate(left.len() - left.len() % size as usize),
                None => self.share -= self.share % size,
            }
        }
    }

    /// Whether a sampler may draw more.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// The same plan without the positions that are done, of those it has and of those that are yet to be drawn.
    #[must_use]
    pub fn without(mut self, done: Ledger) -> Self {
        // Looked for once, as it may lie far behind the beginning and batches are drawn one by one.
        self.first_left = done.remaining().next();
        self.done = Some(done);
        match &mut self.cuts {
            &mut Cuts::Every(size) => {
                let left = (0..self.share as u32).filter(|&position| !self.is_done(position));
                let mut left: Vec<u32> = left.collect();
                if self.drop_last && !self.open {
                    // Batches of another size than before may not come out even.
                    left.truncate(left.len() - left.len() % size as usize);
                }
                self.left = Some(left);
                self.overtakers = self.done_in_whole_batches(size);
            }
            Cuts::At(ranges) => {
                let mut ranges = std::mem::take(ranges);
                self.leave_out_done(&mut ranges);
                self.cuts = Cuts::At(ranges);
            }
        }
        self
    }

    fn is_done(&self, position: u32) -> bool {
        self.done.as_ref().is_some_and(|done| done.is_done(position))
    }

    /// How many batches are left, as far as is known while the plan is open.
    #[must_use]
    pub fn batches(&self) -> u64 {
        match &self.cuts {
            Cuts::Every(size) => self.steps().div_ceil(u64::from(*size)),
            Cuts::At(ranges) => ranges.len() as u64,
        }
    }

    /// How many steps there are in the batches that are left.
    #[must_use]
    pub fn steps(&self) -> u64 {
        match &self.cuts {
            Cuts::Every(size) => {
                let steps = self.left.as_ref().map_or(self.share, |left| left.len() as u64);
                // What does not fill a batch yet may do so when more is drawn.
                if self.open { steps - steps % u64::from(*size) } else { steps }
            }
            Cuts::At(ranges) => ranges.iter().map(|range| range.end - range.start).sum(),
        }
    }

    /// How many positions this rank has from the cursor on, done or left.
    #[must_use]
    pub fn positions(&self) -> u64 {
        self.share
    }

    /// The size of every batch but perhaps the last, unless a batch sampler decides.
    #[must_use]
    pub fn batch_size(&self) -> Option<u32> {
        match &self.cuts {
            Cuts::Every(size) => Some(*size),
            Cuts::At(_) => None,
        }
    }

    /// The samples of batch `index`, one of [`EpochPlan::batches`].
    #[must_use]
    pub fn batch(&self, index: u64) -> BatchPlan {
        let range = self.range(index);
        BatchPlan {
            index,
            positions: range.clone().map(|step| self.position(step)).collect(),
            samples: range.map(|step| self.sample(step)).collect(),
        }
    }

    /// The rank's position of a step, where batches are not drawn.
    #[must_use]
    pub fn position(&self, step: u64) -> u32 {
        self.left.as_ref().map_or(step as u32, |left| left[step as usize])
    }

    /// The sample of a step, where batches are not drawn.
    #[must_use]
    pub fn sample(&self, step: u64) -> SampleId {
        let sample = self.sequence.sample_at(self.place(self.position(step)));
        self.part.as_ref().map_or(sample, |(part, _)| part[sample.index()])
    }

    /// How often the sample at a position of this rank came before in the epoch: in what a sampler has drawn, or in the part
    /// of the dataset that the epoch is of.
    #[must_use]
    pub fn repeat(&self, position: u32) -> u32 {
        match (&self.sequence, &self.part) {
            (Sequence::Drawn { first, repeats, .. }, _) => {
                repeats.get((self.place(position) - first) as usize)
            }
            (sequence, Some((_, repeats))) if !repeats.are_none() => {
                repeats.get(sequence.sample_at(self.place(position)).index())
            }
            _ => 0,
        }
    }

    /// Where in the epoch's sequence a position of this rank lies. Past its end a rank is given some of the beginning,
    /// so that all ranks have equally many.
    pub(crate) fn place(&self, position: u32) -> u64 {
        let position = u64::from(position);
        if let Sequence::Gapped { places, .. } = &self.sequence {
            let index = self.shard.position(0, position) % places.len() as u64;
            return u64::from(places[index as usize]);
        }
        let place = self.shard.position(self.cursor.consumed, position);
        if self.open { place } else { place % self.sequence.len() }
    }

    /// The cursor after `batches` more batches of a plan without gaps.
    #[must_use]
    pub fn cursor_after(&self, batches: u64) -> JobCursor {
        if batches == 0 {
            return self.cursor;
        }
        let end = self.range(batches - 1).end;
        let consumed = self.cursor.consumed + end * u64::from(self.shard.world_size());
        JobCursor { epoch: self.cursor.epoch, consumed: consumed.min(self.sequence.len()) }
    }

    /// The steps of a batch; the positions, where batches are drawn.
    fn range(&self, index: u64) -> Range<u64> {
        match &self.cuts {
            Cuts::Every(size) => {
                let start = (index * u64::from(*size)).min(self.steps());
                start..(start + u64::from(*size)).min(self.steps())
            }
            Cuts::At(ranges) => ranges[index as usize].clone(),
        }
    }
}

/// The global sequence of an epoch.
#[derive(Clone, Debug)]
enum Sequence {
    /// Every sample once, in this order.
    Permuted(Permutation),
    /// The same, but only some places of it are still to be served.
    Gapped {
        permutation: Permutation,
        /// Those places, in order.
        places: Vec<u32>,
    },
    /// What a user's sampler drew; repeats and gaps are the sampler's business.
    Drawn {
        /// The place of the first one that is kept; those before it were consumed long ago.
        first: u64,
        samples: Vec<SampleId>,
        /// How often each was drawn before, also among those that were consumed.
        repeats: Repeats,
    },
}

impl Sequence {
    fn len(&self) -> u64 {
        match self {
            Sequence::Permuted(permutation) | Sequence::Gapped { permutation, .. } => {
                u64::from(permutation.len())
            }
            Sequence::Drawn { first, samples, .. } => first + samples.len() as u64,
        }
    }

    fn sample_at(&self, place: u64) -> SampleId {
        match self {
            Sequence::Permuted(permutation) | Sequence::Gapped { permutation, .. } => {
                permutation.sample_at(place as u32)
            }
            Sequence::Drawn { first, samples, .. } => samples[(place - first) as usize],
        }
    }
}

fn check_indices(indices: &[u64], samples: u32) -> Result<Vec<(SampleId, u32)>, OrderError> {
    indices
        .iter()
        .map(|&drawn| {
            let (index, repeat) = (drawn as u32, (drawn >> 32) as u32);
            if index >= samples {
                return Err(OrderError::NoSuchSample { index, samples });
            }
            Ok((SampleId(index), repeat))
        })
        .collect()
}

#[cfg(test)]
mod tests;
