//! The rows that a ticket's samples go into: known from the start, or claimed when a sample is there.

use std::sync::Arc;

use sutler_core::SampleId;

use crate::batch::{OpenBatch, Outcome};
use crate::engine::Shared;
use crate::framed::Frames;
use crate::padded::Spares;
use crate::preparation::{Place, Rows, SharedRow, Target};
use crate::ticket::{Ticket, TicketRows};
use crate::{OwnSample, RowSpec, streamed};

/// One sample's right to a row.
pub(crate) struct Claim<'a> {
    shared: &'a Shared,
    run: u64,
    sample: SampleId,
    state: State,
    /// Whether rows are in the batch's memory; else a sample has a buffer of its own.
    in_block: bool,
    own: Option<OwnSample>,
    /// Where buffers come from, where samples are padded.
    spares: Option<Arc<Spares>>,
    /// The same where pictures are framed.
    frames: Option<Arc<Frames>>,
}

enum State {
    /// A row is to be asked for, by this step.
    Due(u64),
    Given(Arc<OpenBatch>, usize),
    /// The run has ended, or the row is finished.
    Gone,
}

impl<'a> Claim<'a> {
    pub fn of(shared: &'a Shared, ticket: &Ticket, index: usize) -> Self {
        let state = match &ticket.rows {
            TicketRows::Known(batch, first) => State::Given(Arc::clone(batch), first + index),
            TicketRows::Late(first) => State::Due(first + index as u64),
        };
        let in_block = matches!(ticket.job.preparation.row(), RowSpec::Fixed { .. });
        let sample = ticket.samples()[index];
        let (spares, frames) = (ticket.job.spares.clone(), ticket.job.frames.clone());
        Self { shared, run: ticket.run, sample, state, in_block, own: None, spares, frames }
    }

    /// The row, asked for now if it was not before.
    fn row(&mut self) -> Option<(&Arc<OpenBatch>, usize)> {
        if let State::Due(step) = self.state {
            let given = self.shared.with_run(self.run, |run| run.give_row(step, self.sample)).flatten();
            self.state = given.map_or(State::Gone, |(batch, row)| State::Given(batch, row));
        }
        match &self.state {
            State::Given(batch, row) => Some((batch, *row)),
            _ => None,
        }
    }

    /// Notes what became of the sample.
    pub fn finish(&mut self, outcome: Outcome) {
        if let Some((batch, row)) = self.row() {
            batch.finish(row, outcome);
        }
    }

    /// Copies what was written to the row, or to the sample's own buffer; false when it has no row.
    pub fn copy_to(&mut self, copy: &mut OwnSample) -> bool {
        copy.data.clear();
        if let Some(own) = &self.own {
            copy.shape = own.shape;
            copy.data.extend_from_slice(&own.data);
            return true;
        }
        let Some(Target::Row(row)) = self.target() else { return false };
        copy.data.extend_from_slice(row);
        if let Some(beside) = self.beside() {
            copy.data.extend_from_slice(beside);
        }
        true
    }

    /// Writes a copy of a sample that was prepared before; false when nobody wants it any more.
    pub fn copy_from(&mut self, sample: &OwnSample) -> bool {
        match self.target() {
            None => return false,
            Some(Target::Row(row)) => {
                let (first, second) = sample.data.split_at(row.len().min(sample.data.len()));
                streamed::copy(row, first);
                if let Some(beside) = self.beside() {
                    streamed::copy(beside, second);
                }
            }
            Some(Target::Own(own)) => own.clone_from(sample),
        }
        true
    }

    pub fn take_own(&mut self) -> Option<OwnSample> {
        self.own.take()
    }

    /// Lets go of the batch and tells which one it was.
    pub fn let_go(&mut self) -> Option<u64> {
        match std::mem::replace(&mut self.state, State::Gone) {
            State::Given(batch, _) => Some(batch.index),
            _ => None,
        }
    }
}

impl Place for Claim<'_> {
    fn target(&mut self) -> Option<Target<'_>> {
        if !self.in_block {
            let buffer = match (&self.spares, &self.frames) {
                (Some(spares), _) => spares.sample(),
                (None, Some(frames)) => frames.sample(),
                (None, None) => OwnSample::default(),
            };
            return Some(Target::Own(self.own.insert(buffer)));
        }
        let (batch, row) = self.row()?;
        // SAFETY: this claim has the row alone: the ledger refuses to lease a position twice, and no row is given to
        // two positions.
        unsafe { batch.row(row) }.map(Target::Row)
    }

    fn beside(&mut self) -> Option<&mut [u8]> {
        if !self.in_block {
            return None;
        }
        let (batch, row) = self.row()?;
        // SAFETY: as for the row.
        unsafe { batch.beside(row) }
    }
}

/// The rights of all samples of a ticket.
pub(crate) struct Claims<'a> {
    claims: Vec<Claim<'a>>,
    late: bool,
}

impl<'a> Claims<'a> {
    pub fn of(shared: &'a Shared, ticket: &Ticket) -> Self {
        let count = ticket.samples().len();
        Self {
            claims: (0..count).map(|index| Claim::of(shared, ticket, index)).collect(),
            late: matches!(ticket.rows, TicketRows::Late(_)),
        }
    }

    pub fn claim(&mut self, index: usize) -> &mut Claim<'a> {
        &mut self.claims[index]
    }
}

impl Rows for Claims<'_> {
    fn are_late(&self) -> bool {
        self.late
    }

    fn row(&mut self, index: usize) -> Option<SharedRow> {
        let (batch, row) = self.claims.get_mut(index)?.row()?;
        Some(SharedRow { row, offset: batch.shared_offset() })
    }
}
