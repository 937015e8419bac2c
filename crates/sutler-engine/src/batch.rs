//! A batch, from the moment it is opened for workers to the moment the consumer lets go of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use sutler_core::{Course, Repeats, SampleId};

use crate::framed::{Framed, Frames, Framing};
use crate::memory::ALIGNMENT;
use crate::padded::{Padded, Padding, Spares};
use crate::{BatchMemory, Failure, ForeignRow, Job, Preparation, RowSpec, SampleRecord};

/// A sample with a buffer of its own, where sizes differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnSample {
    /// Height, width, channels of an image. Of what has fewer axes, the first ones are 0.
    pub shape: [u32; 3],
    /// The values, as the batch's type and layout say; behind them the boxes of a picture, where it has such.
    pub data: Vec<u8>,
}

/// What a worker left in a batch for one sample.
pub(crate) struct Outcome {
    pub record: SampleRecord,
    pub finished: Instant,
    /// The number of the worker, of the last one where there were several.
    pub worker: usize,
    /// Whether it made room for others in between.
    pub put_aside: bool,
    /// `None` when all went well.
    pub failure: Option<Failure>,
    /// The sample, where it is not in the batch's memory.
    pub own: Option<OwnSample>,
    /// The sample, where it was prepared elsewhere.
    pub foreign: Option<ForeignRow>,
}

/// A batch that workers are filling. Every worker lets go of it before it reports its row as finished, so that whoever
/// sees all rows finished has it alone.
pub(crate) struct OpenBatch {
    pub index: u64,
    shape: BlockShape,
    memory: Option<BatchMemory>,
    /// One cell per row; each is set once, by the worker that was given the row.
    outcomes: Vec<OnceLock<Outcome>>,
    /// Rows that nobody has finished yet, where the last one is followed by putting all together.
    unfinished: AtomicUsize,
    gathering: Gathering,
    padded: OnceLock<Padded>,
    framed: OnceLock<Framed>,
}

/// How the samples of a batch that have buffers of their own become one block, where they do.
#[derive(Clone, Default)]
pub(crate) struct Gathering {
    spares: Option<Arc<Spares>>,
    frames: Option<Arc<Frames>>,
}

impl Gathering {
    pub fn of(job: &Job) -> Self {
        Self { spares: job.spares.clone(), frames: job.frames.clone() }
    }
}

impl OpenBatch {
    pub fn new(
        index: u64,
        rows: usize,
        shape: BlockShape,
        memory: Option<BatchMemory>,
        gathering: Gathering,
    ) -> Self {
        let outcomes = std::iter::repeat_with(OnceLock::new).take(rows).collect();
        let unfinished = AtomicUsize::new(rows);
        let (padded, framed) = (OnceLock::new(), OnceLock::new());
        Self { index, shape, memory, outcomes, unfinished, gathering, padded, framed }
    }

    /// The bytes of row `index`, for the worker that was given it.
    ///
    /// # Safety
    /// As [`BatchMemory::part`]: a row must be given to one worker only, once.
    #[allow(clippy::mut_from_ref)] // the caller promises what the borrow checker cannot see
    pub unsafe fn row(&self, index: usize) -> Option<&mut [u8]> {
        match (self.shape.row, &self.memory) {
            // SAFETY: rows do not overlap, and the caller promises that this one has no other holder.
            (RowSpec::Fixed { bytes }, Some(memory)) => Some(unsafe { memory.part(index * bytes, bytes) }),
            _ => None,
        }
    }

    /// The bytes of the second array of row `index`, for the worker that was given it.
    ///
    /// # Safety
    /// As [`OpenBatch::row`].
    #[allow(clippy::mut_from_ref)] // the caller promises what the borrow checker cannot see
    pub unsafe fn beside(&self, index: usize) -> Option<&mut [u8]> {
        let start = self.shape.beside_start(self.outcomes.len())?;
        let bytes = self.shape.beside;
        // SAFETY: the second arrays do not overlap with each other nor with rows, and the caller promises that this one has no
        // other holder.
        self.memory.as_ref().map(|memory| unsafe { memory.part(start + index * bytes, bytes) })
    }

    /// Where the batch's memory begins in the shared memory, if it is there.
    pub fn shared_offset(&self) -> Option<usize> {
        match self.shape.row {
            RowSpec::Varies => self.memory.as_ref().and_then(BatchMemory::offset),
            RowSpec::Fixed { .. } => None,
        }
    }

    /// Notes what became of row `index`.
    pub fn finish(&self, index: usize, outcome: Outcome) {
        let _ = self.outcomes[index].set(outcome);
        // The one who finishes last sees what all others have left.
        if self.unfinished.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let good = self.outcomes.iter().filter_map(OnceLock::get).filter(|o| o.failure.is_none());
        let own = good.filter_map(|outcome| outcome.own.as_ref());
        let Gathering { spares, frames } = &self.gathering;
        if let Some(padded) = spares.as_ref().and_then(|spares| spares.pad(own.clone())) {
            let _ = self.padded.set(padded);
        }
        if let Some(framed) = frames.as_ref().and_then(|frames| frames.frame(own)) {
            let _ = self.framed.set(framed);
        }
    }

    /// How much memory the finished batch takes; the most there is where nobody knows, as of a thread's objects.
    pub fn bytes(&self) -> u64 {
        let beside = self.outcomes.iter().filter_map(OnceLock::get).map(|outcome| {
            let own = outcome.own.as_ref().map_or(0, |own| own.data.len());
            own.saturating_add(outcome.foreign.as_ref().map_or(0, ForeignRow::bytes_beside))
        });
        let block = self.memory.as_ref().map_or(0, BatchMemory::len);
        beside.fold(block, usize::saturating_add) as u64
    }

    /// Whether the sample of a finished row could not be prepared.
    pub fn failed(&self, row: usize) -> bool {
        self.outcomes[row].get().is_none_or(|outcome| outcome.failure.is_some())
    }

    /// What happened to the sample of a finished row, unless it failed.
    pub fn good_record(&self, row: usize) -> Option<&SampleRecord> {
        self.outcomes[row].get().filter(|outcome| outcome.failure.is_none()).map(|outcome| &outcome.record)
    }

    /// The finished batch of these samples, in the consumer's hands. `label` tells each sample's label.
    pub fn into_batch(
        mut self,
        samples: &[SampleId],
        repeats: &Repeats,
        label: impl Fn(SampleId) -> i64,
    ) -> (Batch, Vec<Outcome>) {
        let mut outcomes: Vec<Outcome> = self.outcomes.into_iter().filter_map(OnceLock::into_inner).collect();
        let mut kept: Vec<usize> = Vec::with_capacity(outcomes.len());
        kept.extend(outcomes.iter().enumerate().filter(|(_, o)| o.failure.is_none()).map(|(row, _)| row));
        if let (RowSpec::Fixed { bytes }, Some(memory)) = (self.shape.row, &mut self.memory) {
            // Failed rows leave gaps: close them, in order. Nothing moves when nothing failed.
            for (to, &from) in kept.iter().enumerate().filter(|&(to, &from)| to != from) {
                memory.bytes_mut().copy_within(from * bytes..(from + 1) * bytes, to * bytes);
            }
            let starts = (self.shape.beside_start(outcomes.len()), self.shape.beside_start(kept.len()));
            if let (Some(old), Some(new)) = starts
                && old != new
            {
                // The second arrays follow the rows; none comes to lie on one that is yet to be moved.
                let bytes = self.shape.beside;
                for (to, &from) in kept.iter().enumerate() {
                    let from = old + from * bytes;
                    memory.bytes_mut().copy_within(from..from + bytes, new + to * bytes);
                }
            }
        }
        let ids: Vec<SampleId> = kept.iter().map(|&row| samples[row]).collect();
        let foreign =
            kept.iter().filter_map(|&row| outcomes[row].foreign.take().map(|sample| (row, sample))).collect();
        let own = outcomes.iter_mut().filter_map(|o| o.own.take().filter(|_| o.failure.is_none()));
        let mut owned: Vec<OwnSample> = own.collect();
        if let (Some(_), Some(spares)) = (self.padded.get(), &self.gathering.spares) {
            owned.drain(..).for_each(|sample| spares.give_back(sample));
        }
        if let (Some(_), Some(frames)) = (self.framed.get(), &self.gathering.frames) {
            owned.drain(..).for_each(|sample| frames.give_back(sample));
        }
        let batch = Batch {
            index: self.index,
            rows: ids.len(),
            shape: self.shape,
            memory: self.memory,
            owned: Mutex::new(owned),
            padded: self.padded,
            framed: self.framed,
            foreign: Mutex::new(foreign),
            labels: ids.iter().map(|&id| label(id)).collect(),
            ids,
            repeats: Repeats::noted(kept.iter().map(|&row| repeats.get(row))),
            positions: Vec::new(),
            made: None,
        };
        (batch, outcomes)
    }
}

/// A finished batch. It keeps its memory until it is dropped.
pub struct Batch {
    /// Its number in the run's plan.
    pub index: u64,
    rows: usize,
    shape: BlockShape,
    memory: Option<BatchMemory>,
    owned: Mutex<Vec<OwnSample>>,
    padded: OnceLock<Padded>,
    framed: OnceLock<Framed>,
    foreign: Mutex<Vec<(usize, ForeignRow)>>,
    labels: Vec<i64>,
    ids: Vec<SampleId>,
    repeats: Repeats,
    pub(crate) positions: Vec<u32>,
    pub(crate) made: Option<Made>,
}

/// How a batch came about, for whoever waits for it elsewhere.
#[derive(Clone, Debug)]
pub struct Made {
    /// What its samples were at, up to when it was ready.
    pub course: Course,
    /// When that was.
    pub ready: Instant,
}

impl Batch {
    /// A batch that another process has prepared and delivered here.
    #[must_use]
    pub fn received(index: u64, shape: BlockShape, memory: Option<BatchMemory>, samples: Received) -> Self {
        Self {
            index,
            rows: samples.ids.len(),
            shape,
            memory,
            owned: Mutex::new(samples.owned),
            padded: OnceLock::new(),
            framed: OnceLock::new(),
            foreign: Mutex::default(),
            labels: samples.labels,
            ids: samples.ids,
            repeats: samples.repeats,
            positions: samples.positions,
            made: samples.made,
        }
    }

    /// How many samples it holds: those asked for, less those that failed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether every sample failed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The samples, in order.
    #[must_use]
    pub fn ids(&self) -> &[SampleId] {
        &self.ids
    }

    /// How often each was drawn before in the epoch.
    #[must_use]
    pub fn repeats(&self) -> &Repeats {
        &self.repeats
    }

    /// The positions of the epoch that are done with this batch: its own and those of batches that were passed over
    /// since the one before it, for a checkpoint where batches are not served in order.
    #[must_use]
    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// How it came about, where the run keeps that; see [`Run::keep_courses`](crate::Run::keep_courses).
    #[must_use]
    pub fn made(&self) -> Option<&Made> {
        self.made.as_ref()
    }

    /// Their labels, in order.
    #[must_use]
    pub fn labels(&self) -> &[i64] {
        &self.labels
    }

    /// The block that holds all rows, where samples have one size.
    #[must_use]
    pub fn memory(&self) -> Option<&BatchMemory> {
        self.memory.as_ref()
    }

    /// The bytes of all rows, where samples have one size.
    #[must_use]
    pub fn block(&self) -> Option<&[u8]> {
        match (self.shape.row, &self.memory) {
            (RowSpec::Fixed { bytes }, Some(memory)) => Some(&memory.bytes()[..self.rows * bytes]),
            _ => None,
        }
    }

    /// Where in the batch's memory the second arrays of all samples begin, where there are such; they follow one another.
    #[must_use]
    pub fn beside_start(&self) -> Option<usize> {
        self.shape.beside_start(self.rows)
    }

    /// The bytes of the second arrays of all samples, where there are such.
    #[must_use]
    pub fn block_beside(&self) -> Option<&[u8]> {
        let start = self.beside_start()?;
        self.memory.as_ref().map(|memory| &memory.bytes()[start..start + self.rows * self.shape.beside])
    }

    /// Takes out the samples that were prepared elsewhere, each with its row in the batch's memory.
    #[must_use]
    pub fn take_foreign(&self) -> Vec<(usize, ForeignRow)> {
        std::mem::take(&mut *self.foreign.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The samples as one block, padded; `None` where they differ in more than their last axis. Where nobody has put them
    /// together yet, as they come from another process, that is done now.
    #[must_use]
    pub fn padded(&self, padding: Padding) -> Option<&Padded> {
        if self.padded.get().is_none() {
            let mut owned = self.owned.lock().unwrap_or_else(PoisonError::into_inner);
            let padded = Spares::new(padding, 1, 0).pad(owned.iter())?;
            owned.clear();
            let _ = self.padded.set(padded);
        }
        self.padded.get()
    }

    /// The block that [`Batch::padded`] has found or made.
    #[must_use]
    pub fn block_of_padded(&self) -> Option<&Padded> {
        self.padded.get()
    }

    /// The pictures as one block, each in a frame; `None` where they are not what the framing says. Where nobody has put them
    /// together yet, that is done now.
    #[must_use]
    pub fn framed(&self, framing: Framing) -> Option<&Framed> {
        if self.framed.get().is_none() {
            let mut owned = self.owned.lock().unwrap_or_else(PoisonError::into_inner);
            let framed = Frames::new(framing, 1, 0).frame(owned.iter())?;
            owned.clear();
            let _ = self.framed.set(framed);
        }
        self.framed.get()
    }

    /// The block that [`Batch::framed`] has found or made.
    #[must_use]
    pub fn block_of_framed(&self) -> Option<&Framed> {
        self.framed.get()
    }

    /// Takes the samples out, where each has a buffer of its own.
    #[must_use]
    pub fn take_owned(&self) -> Vec<OwnSample> {
        std::mem::take(&mut *self.owned.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The samples of a batch that another process has prepared.
#[derive(Debug, Default)]
pub struct Received {
    /// Which ones.
    pub ids: Vec<SampleId>,
    /// How often each was drawn before in the epoch.
    pub repeats: Repeats,
    /// Their labels.
    pub labels: Vec<i64>,
    /// The positions of the epoch that are done with the batch.
    pub positions: Vec<u32>,
    /// The samples themselves, where they are not in the batch's memory.
    pub owned: Vec<OwnSample>,
    /// How the batch came about, where that was told.
    pub made: Option<Made>,
}

/// What the memory of a batch holds: all rows, and behind them all second arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockShape {
    /// The memory of a row.
    pub row: RowSpec,
    /// Bytes of each sample's second array; 0 where there is none.
    pub beside: usize,
}

impl BlockShape {
    /// What this preparation makes.
    #[must_use]
    pub fn of(preparation: &dyn Preparation) -> Self {
        Self { row: preparation.row(), beside: preparation.beside() }
    }

    /// Where the second arrays begin in a batch of `rows` samples.
    fn beside_start(&self, rows: usize) -> Option<usize> {
        match self.row {
            RowSpec::Fixed { bytes } if self.beside > 0 => Some((rows * bytes).next_multiple_of(ALIGNMENT)),
            _ => None,
        }
    }

    /// The memory a batch of `rows` samples needs; `None` where no number says it.
    pub(crate) fn bytes(&self, rows: usize) -> Option<usize> {
        let RowSpec::Fixed { bytes } = self.row else { return Some(0) };
        let block = bytes.checked_mul(rows)?.checked_next_multiple_of(ALIGNMENT)?;
        block.checked_add(self.beside.checked_mul(rows)?.checked_next_multiple_of(ALIGNMENT)?)
    }
}
