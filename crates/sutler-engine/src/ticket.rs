//! What a worker is given to do.

use std::sync::Arc;
use std::time::Duration;

use sutler_core::{Draw, Repeats, SampleId};

use crate::batch::OpenBatch;
use crate::pool::Task;
use crate::{Job, SampleRecord, Unfinished};

/// The most samples in a ticket.
pub(crate) const TICKET_MAX: usize = 64;

/// How many samples ahead a worker looks at with each ticket: more than one, so that it gets ahead.
pub(crate) const SCOUTS: usize = 2;

/// Samples to prepare.
pub(crate) struct Ticket {
    pub run: u64,
    pub job: Arc<Job>,
    pub epoch: u32,
    pub samples: TicketSamples,
    /// How often each was drawn before in the epoch.
    pub repeats: Repeats,
    pub rows: TicketRows,
    /// What the run calls the first of them, and the batch that it is planned for; the others follow.
    pub id: u64,
    pub own_batch: u64,
    /// Whether workers take turns, and it was this one's.
    pub is_of_rota: bool,
    /// Whether it is for a sample of the slow lane.
    pub in_lane: bool,
    /// What is to be done about a sample that several jobs share.
    pub task: Option<Task>,
    /// Samples ahead that something may be known of; the worker is to find out.
    pub scouts: [Option<Scout>; SCOUTS],
    /// Where the sample was parked, what is to be gone on with.
    pub standing: Option<Standing>,
}

/// A sample ahead: what the run calls it, which one it is, and which draw.
#[derive(Clone, Copy)]
pub(crate) struct Scout {
    pub id: u64,
    pub sample: SampleId,
    pub draw: Draw,
}

/// A sample between two transforms.
pub(crate) struct Standing {
    pub unfinished: Unfinished,
    pub record: SampleRecord,
    /// How long workers have been at it.
    pub worked: Duration,
}

/// The samples of a ticket.
#[allow(clippy::large_enum_variant)] // one ticket at a time is on a worker's stack; a box would cost each an allocation
#[derive(Clone)]
pub(crate) enum TicketSamples {
    /// So many of these.
    Few([SampleId; TICKET_MAX], usize),
    /// All of a batch, for whoever does something with it as a whole.
    Batch(Vec<SampleId>),
}

impl TicketSamples {
    /// A few samples, no more than fit.
    pub fn few(samples: &[SampleId]) -> Self {
        let mut few = [SampleId(0); TICKET_MAX];
        few[..samples.len()].copy_from_slice(samples);
        Self::Few(few, samples.len())
    }
}

/// Where the samples of a ticket go.
#[derive(Clone)]
pub(crate) enum TicketRows {
    /// Into the rows of this batch from this one on.
    Known(Arc<OpenBatch>, usize),
    /// That is decided when they are there; these are their steps, from this one on.
    Late(u64),
}

impl Ticket {
    /// The samples; at least one.
    pub fn samples(&self) -> &[SampleId] {
        match &self.samples {
            TicketSamples::Few(samples, count) => &samples[..*count],
            TicketSamples::Batch(samples) => samples,
        }
    }

    /// Which draw it is of the ticket's sample `index`.
    pub fn draw(&self, index: usize) -> Draw {
        Draw { epoch: self.epoch, repeat: self.repeats.get(index) }
    }

    /// Whether they are all the samples of a batch, because the preparation takes no less.
    pub fn is_whole_batch(&self) -> bool {
        matches!(self.samples, TicketSamples::Batch(_))
    }

    /// A ticket for one of the samples, which stands between two transforms.
    pub fn standing(&self, index: usize, standing: Standing) -> Self {
        Self {
            run: self.run,
            job: Arc::clone(&self.job),
            epoch: self.epoch,
            samples: TicketSamples::few(&self.samples()[index..=index]),
            repeats: self.repeats.slice(index, index + 1),
            rows: match &self.rows {
                TicketRows::Known(batch, first) => TicketRows::Known(Arc::clone(batch), first + index),
                TicketRows::Late(first) => TicketRows::Late(first + index as u64),
            },
            id: self.id + index as u64,
            own_batch: self.own_batch,
            is_of_rota: self.is_of_rota,
            in_lane: true,
            task: None,
            scouts: [None; SCOUTS],
            standing: Some(standing),
        }
    }
}
