//! A run as workers see it: which samples are to be prepared, the batches they go into, and what is finished.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use sutler_core::{Assembly, EpochPlan, JobCursor, Ledger, SampleId};

use crate::batch::{Gathering, OpenBatch, block_bytes};
use crate::job::ServingOrder;
use crate::pool::{Membership, Task};
use crate::process::FIRST_KEYED;
use crate::{BatchMemory, Job, RunError};

/// The most samples in a ticket.
const TICKET_MAX: usize = 64;

/// A batch in the row between workers and consumer.
struct InFlight {
    batch: Arc<OpenBatch>,
    /// What is in its rows, and the rank's positions of that: known from the start, or as rows are given out.
    samples: Vec<SampleId>,
    positions: Vec<u32>,
    /// Rows no worker has taken yet begin here, where they are known from the start.
    next_row: usize,
    open_rows: usize,
    ready_at: Option<Instant>,
    /// How many later batches were served before this one.
    overtaken: u32,
}

/// Samples to prepare.
pub(crate) struct Ticket {
    pub run: u64,
    pub job: Arc<Job>,
    pub epoch: u32,
    samples: TicketSamples,
    pub rows: TicketRows,
    /// Whether it is for a sample that is begun before its turn.
    pub early: bool,
    /// What is to be done about a sample that several jobs share.
    pub task: Option<Task>,
}

/// The samples of a ticket.
#[allow(clippy::large_enum_variant)] // one ticket at a time is on a worker's stack; a box would cost each an allocation
enum TicketSamples {
    /// So many of these.
    Few([SampleId; TICKET_MAX], usize),
    /// All of a batch, for whoever does something with it as a whole.
    Batch(Vec<SampleId>),
}

impl TicketSamples {
    /// A few samples, no more than fit.
    fn few(samples: &[SampleId]) -> Self {
        let mut few = [SampleId(0); TICKET_MAX];
        few[..samples.len()].copy_from_slice(samples);
        Self::Few(few, samples.len())
    }
}

/// Where the samples of a ticket go.
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

    /// Whether they are all the samples of a batch, because the preparation takes no less.
    pub fn is_whole_batch(&self) -> bool {
        matches!(self.samples, TicketSamples::Batch(_))
    }
}

/// A run as workers see it; lives in the engine's shared state.
pub(crate) struct RunState {
    pub id: u64,
    pub job: Arc<Job>,
    plan: EpochPlan,
    epoch: u32,
    ledger: Ledger,
    in_flight: VecDeque<InFlight>,
    /// The next batch to open.
    next_batch: u64,
    /// Batches that were taken.
    delivered: u64,
    /// Where rows are given to samples as they get ready: who gets which, and the next step to be prepared.
    late: Option<(Assembly, u64)>,
    /// Samples known to be slow, to be begun before their turn, and those that are being prepared so.
    early: EarlyStarts,
    /// The part in a pool of jobs that share what they prepare.
    membership: Option<Membership>,
    /// An error that ends the run.
    broken: Option<RunError>,
}

impl RunState {
    pub fn new(id: u64, job: Arc<Job>, plan: EpochPlan, epoch: u32, membership: Option<Membership>) -> Self {
        let late = match (job.options.order.lateness(), plan.batch_size()) {
            (Some(lateness), Some(batch_size)) if !job.preparation.takes_whole_batches() => {
                Some((Assembly::new(batch_size, lateness, plan.steps()), 0))
            }
            _ => None,
        };
        let mut state = Self {
            id,
            job,
            plan,
            epoch,
            ledger: Ledger::new(0),
            in_flight: VecDeque::new(),
            next_batch: 0,
            delivered: 0,
            late,
            early: EarlyStarts::default(),
            membership,
            broken: None,
        };
        state.ledger.extend(state.positions());
        state
    }

    /// How many positions there are: samples, where the order is nobody's to foresee.
    fn positions(&self) -> u32 {
        if let Some(membership) = &self.membership {
            return membership.pool().samples();
        }
        u32::try_from(self.plan.positions()).expect("a rank's share is bounded by the dataset")
    }

    /// Changes the plan, which a sampler has drawn more of.
    pub fn extend<E>(&mut self, change: impl FnOnce(&mut EpochPlan) -> Result<(), E>) -> Result<(), E> {
        change(&mut self.plan)?;
        self.ledger.extend(self.positions());
        if let Some((assembly, _)) = &mut self.late {
            assembly.extend(self.plan.steps());
        }
        Ok(())
    }

    pub fn plan(&self) -> &EpochPlan {
        &self.plan
    }

    /// The next samples to prepare, at most `appetite`, or `None` while the row of batches is full or the plan is at its
    /// end.
    pub fn take_ticket(&mut self, appetite: usize, threads: usize) -> Option<Ticket> {
        if self.broken.is_some() {
            return None;
        }
        if self.membership.is_some() {
            return self.take_shared_ticket();
        }
        if self.look_for_slow_samples() {
            while let Some(place) = self.early.next(threads) {
                let begun = self.begin_early(place);
                if begun.is_some() {
                    return begun;
                }
            }
        }
        if self.late.is_some() {
            self.take_late_ticket(appetite, threads)
        } else {
            self.take_planned_ticket(appetite, threads)
        }
    }

    fn take_planned_ticket(&mut self, appetite: usize, threads: usize) -> Option<Ticket> {
        let is_open = |entry: &InFlight| {
            entry.positions[entry.next_row..].iter().any(|&position| self.ledger.is_left(position))
        };
        let index = match self.in_flight.iter().position(is_open) {
            Some(index) => index,
            None => {
                self.open_planned_batch()?;
                self.in_flight.len() - 1
            }
        };
        let entry = &mut self.in_flight[index];
        // Some may have been begun early.
        while !self.ledger.is_left(entry.positions[entry.next_row]) {
            entry.next_row += 1;
        }
        let first = entry.next_row;
        let left = entry.positions[first..].iter().take_while(|&&position| self.ledger.is_left(position));
        let (samples, count) = if self.job.preparation.takes_whole_batches() {
            (TicketSamples::Batch(entry.samples.clone()), entry.samples.len())
        } else {
            let count = fair_share(appetite, left.count(), threads);
            (TicketSamples::few(&entry.samples[first..first + count]), count)
        };
        lease(&mut self.ledger, entry.positions[first..first + count].iter().copied());
        entry.next_row += count;
        let rows = TicketRows::Known(Arc::clone(&entry.batch), first);
        Some(self.ticket(samples, rows, false))
    }

    fn take_late_ticket(&mut self, appetite: usize, threads: usize) -> Option<Ticket> {
        let batch_size = u64::from(self.plan.batch_size()?);
        let end = self.late_window();
        let (_, next_step) = self.late.as_mut()?;
        let is_left = |step: u64| self.ledger.is_left(self.plan.position(step));
        while *next_step < end && !is_left(*next_step) {
            *next_step += 1;
        }
        let first = *next_step;
        if first >= end {
            return None;
        }
        let end_of_batch = end.min((first / batch_size + 1) * batch_size);
        let left = (first..end_of_batch).take_while(|&step| is_left(step)).count();
        let count = fair_share(appetite, left, threads);
        *next_step += count as u64;
        let steps = first..first + count as u64;
        lease(&mut self.ledger, steps.clone().map(|step| self.plan.position(step)));
        let mut samples = [SampleId(0); TICKET_MAX];
        for (cell, step) in samples.iter_mut().zip(steps) {
            *cell = self.plan.sample(step);
        }
        Some(self.ticket(TicketSamples::Few(samples, count), TicketRows::Late(first), false))
    }

    fn take_shared_ticket(&mut self) -> Option<Ticket> {
        let end = self.late_window();
        let (_, next_step) = self.late.as_mut()?;
        if *next_step >= end {
            return None;
        }
        let task = self.membership.as_ref()?.next()?;
        let step = *next_step;
        *next_step += 1;
        let sample = task.sample();
        lease(&mut self.ledger, std::iter::once(sample.0));
        let ticket = self.ticket(TicketSamples::few(&[sample]), TicketRows::Late(step), false);
        Some(Ticket { task: Some(task), ..ticket })
    }

    /// Whether work may turn up by itself, because other jobs are preparing what this one lacks.
    pub fn waits_for_others(&self) -> bool {
        self.membership.as_ref().is_some_and(Membership::is_waiting)
    }

    fn ticket(&self, samples: TicketSamples, rows: TicketRows, early: bool) -> Ticket {
        Ticket {
            run: self.id,
            job: Arc::clone(&self.job),
            epoch: self.epoch,
            samples,
            rows,
            early,
            task: None,
        }
    }

    /// Steps before this one may be begun: no more than there are rows in the batches ahead, so that each is sure to
    /// find one.
    fn late_window(&self) -> u64 {
        let batches = self.delivered + self.job.options.batches_ahead as u64;
        self.plan.steps().min(batches * u64::from(self.plan.batch_size().unwrap_or(0)))
    }

    /// Notes which of the samples that may be begun are slow; false where none is to be begun early.
    fn look_for_slow_samples(&mut self) -> bool {
        // The first batch is wanted soonest, and all hands are to work at it. Batches that are made in one piece have
        // no samples to begin apart.
        let whole = self.job.preparation.takes_whole_batches();
        if whole || self.delivered == 0 || !self.job.costs().any_slow() {
            return false;
        }
        if self.late.is_some() {
            let end = self.late_window();
            let costs = self.job.costs();
            let slow = (self.early.seen..end).filter(|&step| costs.is_slow(self.plan.sample(step)));
            self.early.steps.extend(slow.map(|step| (step, 0)));
            self.early.seen = self.early.seen.max(end);
        } else {
            while self.open_planned_batch().is_some() {}
            let costs = self.job.costs();
            for entry in self.in_flight.iter().filter(|entry| entry.batch.index >= self.early.seen) {
                let rows = entry.samples.iter().enumerate().filter(|&(_, &sample)| costs.is_slow(sample));
                self.early.steps.extend(rows.map(|(row, _)| (entry.batch.index, row)));
            }
            self.early.seen = self.next_batch;
        }
        true
    }

    /// Begins a slow sample before its turn, unless that has come.
    fn begin_early(&mut self, (place, row): (u64, usize)) -> Option<Ticket> {
        let (sample, position, rows) = if self.late.is_some() {
            (self.plan.sample(place), self.plan.position(place), TicketRows::Late(place))
        } else {
            let entry = self.in_flight.iter().find(|entry| entry.batch.index == place)?;
            (entry.samples[row], entry.positions[row], TicketRows::Known(Arc::clone(&entry.batch), row))
        };
        if !self.ledger.is_left(position) {
            return None;
        }
        lease(&mut self.ledger, std::iter::once(position));
        self.early.running += 1;
        Some(self.ticket(TicketSamples::few(&[sample]), rows, true))
    }

    /// A sample that was begun before its turn is finished.
    pub fn finish_early(&mut self) {
        self.early.running -= 1;
    }

    /// Gives a step that is ready its row. `None` when the run has ended meanwhile.
    pub fn give_row(&mut self, step: u64, sample: SampleId) -> Option<(Arc<OpenBatch>, usize)> {
        if self.broken.is_some() {
            return None;
        }
        let (assembly, _) = self.late.as_mut()?;
        let place = assembly.place(step);
        while self.next_batch <= place.batch {
            let rows = self.late.as_ref()?.0.rows(self.next_batch) as usize;
            match self.batch_memory(rows) {
                Ok(memory) => {
                    self.open_batch(rows, memory, Vec::with_capacity(rows), Vec::with_capacity(rows));
                }
                Err(error) => {
                    // The sample is there and has nowhere to go: whatever is not served yet cannot be served.
                    self.break_off(error);
                    return None;
                }
            }
        }
        let entry = self.in_flight.get_mut((place.batch - self.delivered) as usize)?;
        entry.samples.push(sample);
        let shared = self.membership.is_some();
        entry.positions.push(if shared { sample.0 } else { self.plan.position(step) });
        Some((Arc::clone(&entry.batch), place.row as usize))
    }

    fn open_planned_batch(&mut self) -> Option<()> {
        if self.next_batch == self.plan.batches() || self.in_flight.len() >= self.job.options.batches_ahead {
            return None;
        }
        let planned = self.plan.batch(self.next_batch);
        let rows = planned.samples.len();
        match self.batch_memory(rows) {
            Ok(memory) => {
                self.open_batch(rows, memory, planned.samples, planned.positions);
                Some(())
            }
            Err(error) => {
                // The consumer may let go of some when it takes the batches there are. If there are none, the
                // run ends with the reason.
                if self.in_flight.is_empty() {
                    self.broken = Some(error);
                }
                None
            }
        }
    }

    fn batch_memory(&self, rows: usize) -> Result<Option<BatchMemory>, RunError> {
        let bytes = block_bytes(self.job.preparation.row(), rows).unwrap_or(usize::MAX);
        match &self.job.arena {
            // Where worker processes share memory and no slot of it is free, because the consumer hoards batches, the
            // samples of this one travel one by one.
            None => Ok(self.job.preparation.shared_memory().and_then(|arena| arena.take_slot(0))),
            Some(arena) => arena.take(bytes).map(Some).map_err(|error| RunError::Memory(error.to_string())),
        }
    }

    fn open_batch(
        &mut self,
        rows: usize,
        memory: Option<BatchMemory>,
        samples: Vec<SampleId>,
        positions: Vec<u32>,
    ) {
        let row = self.job.preparation.row();
        self.in_flight.push_back(InFlight {
            batch: Arc::new(OpenBatch::new(self.next_batch, rows, row, memory, Gathering::of(&self.job))),
            samples,
            positions,
            next_row: 0,
            open_rows: rows,
            ready_at: None,
            overtaken: 0,
        });
        self.next_batch += 1;
    }

    /// A worker has finished a row of batch `index` and let go of the batch; true when it was the last.
    pub fn finish_row(&mut self, index: u64, now: Instant) -> bool {
        let Some(entry) = self.in_flight.iter_mut().find(|entry| entry.batch.index == index) else {
            return false;
        };
        entry.open_rows -= 1;
        if entry.open_rows == 0 {
            entry.ready_at = Some(now);
        }
        entry.open_rows == 0
    }

    /// Whether the run has ended in an error that no batch is ahead of.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Ends the run with an error that must not wait for its turn.
    pub fn break_off(&mut self, error: RunError) {
        self.broken.get_or_insert(error);
        self.in_flight.clear();
    }

    /// The batch to be served next, if it is finished.
    fn next_ready(&self) -> Option<usize> {
        let overtaking = match self.job.options.order {
            ServingOrder::Ready { lateness } if self.late.is_none() => {
                self.in_flight.front().is_some_and(|front| front.overtaken < lateness)
            }
            _ => false,
        };
        let candidates = if overtaking { self.in_flight.len() } else { 1 };
        self.in_flight.iter().take(candidates).position(|entry| entry.ready_at.is_some())
    }

    fn is_finished(&self) -> bool {
        self.delivered == self.plan.batches() && !self.plan.is_open()
    }
}

/// Slow samples that are begun before their turn.
///
/// Where it is known from earlier epochs which samples are slow, they are begun as soon as there is room for them, so that
/// the batch they belong to need not wait; but at most half of the workers are at such samples, as the others are needed
/// for the batch that is next.
#[derive(Default)]
struct EarlyStarts {
    /// Steps, or batches and rows where rows are known, that wait to be begun.
    steps: VecDeque<(u64, usize)>,
    /// Steps or batches before this one have been looked at.
    seen: u64,
    /// How many are being prepared.
    running: usize,
}

impl EarlyStarts {
    fn next(&mut self, threads: usize) -> Option<(u64, usize)> {
        if self.running < threads / 2 { self.steps.pop_front() } else { None }
    }
}

/// How many samples a worker gets at a time: however hungry it is, what is left of a batch is for all of them.
fn fair_share(appetite: usize, left_of_batch: usize, threads: usize) -> usize {
    appetite.clamp(1, left_of_batch.div_ceil(threads.max(1))).min(TICKET_MAX)
}

fn lease(ledger: &mut Ledger, positions: impl Iterator<Item = u32>) {
    for position in positions {
        if let Err(error) = ledger.lease(position) {
            unreachable!("the plan gives every position out once: {error}");
        }
    }
}

/// What waiting for a run's next batch came to.
pub(crate) enum Waited {
    Ready(Taken),
    TimedOut,
    End,
}

/// A finished batch that the consumer has taken.
pub(crate) struct Taken {
    pub batch: Arc<OpenBatch>,
    pub samples: Vec<SampleId>,
    pub positions: Vec<u32>,
    pub ready_at: Instant,
    /// The run's cursor with this batch.
    pub cursor: JobCursor,
    /// How many steps the run has, as far as is known.
    pub steps: u64,
}

impl RunState {
    /// Takes the next batch if it is finished; `None` while it is not.
    pub fn take_next(&mut self) -> Option<Result<Waited, RunError>> {
        if let Some(index) = self.next_ready() {
            for earlier in self.in_flight.iter_mut().take(index) {
                earlier.overtaken += 1;
            }
            let entry = self.in_flight.remove(index)?;
            self.settle(&entry);
            self.delivered += 1;
            if let Some((assembly, _)) = &mut self.late {
                assembly.leave();
            }
            let batches = if self.job.options.order == ServingOrder::Strict { self.delivered } else { 0 };
            return Some(Ok(Waited::Ready(Taken {
                batch: entry.batch,
                samples: entry.samples,
                positions: entry.positions,
                ready_at: entry.ready_at?,
                cursor: self.plan.cursor_after(batches),
                steps: self.plan.steps(),
            })));
        }
        if let (true, Some(error)) = (self.in_flight.is_empty(), &self.broken) {
            return Some(Err(error.clone()));
        }
        self.is_finished().then_some(Ok(Waited::End))
    }

    /// Writes a delivered batch into the ledger, and what its samples cost into the book of costs.
    fn settle(&mut self, entry: &InFlight) {
        let mut costs = self.job.costs();
        for (row, &position) in entry.positions.iter().enumerate() {
            if let Some(cost) = entry.batch.cost(row) {
                let microseconds = u64::try_from(cost.as_micros()).unwrap_or(u64::MAX);
                costs.note(entry.samples[row], microseconds, FIRST_KEYED as usize);
            }
            let failed = entry.batch.failed(row);
            if let Some(membership) = &self.membership {
                membership.settle(entry.samples[row], failed);
            }
            let settled = if failed { self.ledger.fail(position) } else { self.ledger.serve(position) };
            if let Err(error) = settled {
                unreachable!("only leased rows are finished: {error}");
            }
        }
    }
}
