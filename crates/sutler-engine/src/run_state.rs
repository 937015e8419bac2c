//! A run as workers see it: which samples are to be prepared, the batches they go into, and what is finished.

mod lanes;

use std::collections::VecDeque;
use std::sync::{Arc, Condvar};
use std::time::Instant;

use sutler_core::{Assembly, EpochPlan, JobCursor, Ledger, Repeats, Rota, SampleId};

use self::lanes::Traffic;
use crate::batch::{BlockShape, Gathering, OpenBatch};
use crate::job::ServingOrder;
use crate::pool::Membership;
use crate::process::FIRST_KEYED;
use crate::ticket::{SCOUTS, TICKET_MAX, Ticket, TicketRows, TicketSamples};
use crate::{BatchMemory, Job, RunError};

/// A batch in the row between workers and consumer.
struct InFlight {
    batch: Arc<OpenBatch>,
    /// What is in its rows, and the rank's positions of that: known from the start, or as rows are given out.
    samples: Vec<SampleId>,
    positions: Vec<u32>,
    /// What the run calls its first row, where rows are known from the start; the others follow.
    first_id: u64,
    /// Whether a worker has taken all of it, where whole batches are taken.
    taken: bool,
    open_rows: usize,
    ready_at: Option<Instant>,
    /// How many later batches were served before this one.
    overtaken: u32,
}

/// A run as workers see it; lives in the engine's shared state.
pub(crate) struct RunState {
    pub id: u64,
    /// The part in a pool of jobs that share what they prepare. It stands before the job so that it ends first: a job that ends says so to the pool.
    membership: Option<Membership>,
    pub job: Arc<Job>,
    plan: EpochPlan,
    epoch: u32,
    ledger: Ledger,
    in_flight: VecDeque<InFlight>,
    /// The next batch to open.
    next_batch: u64,
    /// Batches that were taken.
    delivered: u64,
    /// Where rows are given to samples as they get ready: who gets which.
    late: Option<Assembly>,
    /// The samples before this one were begun, or are in the slow lane. A sample is called by its step; where rows are known from
    /// the start, by its place among all rows of the batches that were opened.
    next_id: u64,
    /// How many rows were opened, where they are known from the start.
    opened: u64,
    /// Who makes room for whom.
    traffic: Traffic,
    /// Whose turn each batch is, where workers take turns.
    rota: Option<Rota>,
    /// How many batches may be in the making, as the job has it.
    ahead: usize,
    /// Whether the consumer has found no batch ready since it took the latest one.
    waited_for: bool,
    /// Whether a worker has found nothing to begin since then, though there is more to the epoch.
    held_up: bool,
    /// Whether more may be begun than workers that have nothing to do know of.
    deepened: bool,
    /// Whether the consumer has asked for a batch.
    asked: bool,
    /// Where the consumer waits.
    bell: Arc<Condvar>,
    /// For how many batches it waits there; none while it does not.
    awaited: usize,
    /// Whether an earlier epoch of the same job is still being served.
    following: bool,
    /// An error that ends the run.
    broken: Option<RunError>,
}

impl RunState {
    pub fn new(id: u64, job: Arc<Job>, plan: EpochPlan, epoch: u32, membership: Option<Membership>) -> Self {
        let late = match (job.options.order.lateness(), plan.batch_size()) {
            (Some(lateness), Some(batch_size)) if !job.preparation.takes_whole_batches() => {
                Some(Assembly::new(batch_size, lateness, plan.steps()).owing(&plan.owed()))
            }
            _ => None,
        };
        let mut state = Self {
            id,
            membership,
            ahead: job.batches_ahead(),
            rota: job.preparation.rota(),
            waited_for: false,
            held_up: false,
            deepened: false,
            job,
            plan,
            epoch,
            ledger: Ledger::new(0),
            in_flight: VecDeque::new(),
            next_batch: 0,
            delivered: 0,
            late,
            next_id: 0,
            opened: 0,
            traffic: Traffic::default(),
            asked: false,
            bell: Arc::default(),
            awaited: 0,
            following: false,
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
        if let Some(assembly) = &mut self.late {
            assembly.extend(self.plan.steps());
        }
        Ok(())
    }

    pub fn plan(&self) -> &EpochPlan {
        &self.plan
    }

    /// What `worker` is to prepare next, at most `appetite` samples, or `None` while the row of batches is full or the plan
    /// is at its end.
    pub fn take_ticket(&mut self, worker: usize, appetite: usize, threads: usize) -> Option<Ticket> {
        let ticket = self.take_in_reach(worker, appetite, threads);
        if ticket.is_some() || !self.is_full() {
            return ticket;
        }
        self.held_up = true;
        if self.deepen() { self.take_in_reach(worker, appetite, threads) } else { None }
    }

    fn take_in_reach(&mut self, worker: usize, appetite: usize, threads: usize) -> Option<Ticket> {
        if self.broken.is_some() {
            return None;
        }
        if self.membership.is_some() {
            return self.take_shared_ticket();
        }
        if self.job.preparation.takes_whole_batches() {
            return self.take_whole_batch(worker);
        }
        self.take_by_lane(worker, appetite, threads)
    }

    /// All samples of the next batch, or of the next one that is this worker's.
    fn take_whole_batch(&mut self, worker: usize) -> Option<Ticket> {
        let place = self.next_to_take(worker)?;
        let entry = self.in_flight.get_mut(place)?;
        entry.taken = true;
        let entry = self.in_flight.get(place)?;
        lease(&mut self.ledger, entry.positions.iter().copied());
        let samples = TicketSamples::Batch(entry.samples.clone());
        let repeats = self.repeats(&entry.positions);
        let rows = TicketRows::Known(Arc::clone(&entry.batch), 0);
        let is_of_rota = self.rota.is_some();
        Some(Ticket {
            repeats,
            is_of_rota,
            ..self.ticket(samples, rows, (entry.first_id, entry.batch.index))
        })
    }

    /// Where in the row the batch is that this worker takes next. Those before it that are others' are opened, too: whoever
    /// opens a batch need not be who prepares it, but they are opened in order.
    fn next_to_take(&mut self, worker: usize) -> Option<usize> {
        loop {
            let is_own = |batch| self.rota.is_none_or(|rota| rota.worker(batch) == worker);
            let found = self.in_flight.iter().position(|entry| !entry.taken && is_own(entry.batch.index));
            if found.is_some() {
                return found;
            }
            self.open_planned_batch()?;
        }
    }

    fn take_shared_ticket(&mut self) -> Option<Ticket> {
        let step = self.next_id;
        if step >= self.late_window() {
            return None;
        }
        let task = self.membership.as_ref()?.next()?;
        self.next_id += 1;
        let sample = task.sample();
        lease(&mut self.ledger, std::iter::once(sample.0));
        let ticket = self.ticket(TicketSamples::few(&[sample]), TicketRows::Late(step), (step, 0));
        Some(Ticket { task: Some(task), ..ticket })
    }

    /// Whether work may turn up by itself, because other jobs are preparing what this one lacks.
    pub fn waits_for_others(&self) -> bool {
        self.membership.as_ref().is_some_and(Membership::is_waiting)
    }

    fn ticket(&self, samples: TicketSamples, rows: TicketRows, (id, own_batch): (u64, u64)) -> Ticket {
        Ticket {
            run: self.id,
            job: Arc::clone(&self.job),
            epoch: self.epoch,
            samples,
            repeats: Repeats::default(),
            rows,
            id,
            own_batch,
            is_of_rota: false,
            in_lane: false,
            task: None,
            scouts: [None; SCOUTS],
            standing: None,
        }
    }

    /// How often the samples at these positions came before in the epoch; never where they are shared, whose positions are
    /// the samples themselves.
    fn repeats(&self, positions: &[u32]) -> Repeats {
        match &self.membership {
            Some(_) => Repeats::default(),
            None => Repeats::noted(positions.iter().map(|&position| self.plan.repeat(position))),
        }
    }

    /// The consumer asks for a batch.
    pub fn ask(&mut self) {
        self.asked = true;
        self.following = false;
        self.awaited = 0;
    }

    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// Whether an earlier epoch of the same job is still being served, in whose batches' memory this one has a part.
    pub fn set_following(&mut self, following: bool) {
        self.following = following;
    }

    /// How many batches may be in the making: half of them where the other half is the epoch's before.
    fn batches_ahead(&self) -> usize {
        if self.following { (self.ahead / 2).max(1) } else { self.ahead }
    }

    /// Whether nothing can be begun because as many batches are in the making as may be.
    fn is_full(&self) -> bool {
        let is_open = self.plan.is_open();
        if self.late.is_some() {
            let window = self.late_window();
            return self.next_id >= window && (is_open || window < self.plan.steps());
        }
        let more = is_open || self.next_batch < self.plan.batches();
        more && self.in_flight.len() >= self.batches_ahead()
    }

    /// The consumer is about to wait for so many batches, by this bell.
    pub fn wait_for(&mut self, batches: usize) -> Arc<Condvar> {
        self.awaited = batches;
        Arc::clone(&self.bell)
    }

    /// Wakes the consumer, if it waits.
    pub fn ring(&mut self) {
        // Waking costs a call of the system even where nobody sleeps.
        if std::mem::take(&mut self.awaited) > 0 {
            self.bell.notify_all();
        }
    }

    /// Wakes the consumer if what it waits for is there.
    pub fn ring_if_served(&mut self) {
        if self.serves(self.awaited) {
            self.ring();
        }
    }

    /// Whether so many batches can be taken one after the other, or as many as there are left; or none ever. Half of those
    /// that may be ahead will do: workers have something to begin then, and a consumer that is slower than they are finds
    /// so many without waiting.
    pub fn serves(&self, batches: usize) -> bool {
        let left = usize::try_from(self.plan.batches().saturating_sub(self.delivered)).unwrap_or(usize::MAX);
        let enough = batches.min(left).min(self.batches_ahead().div_ceil(2));
        self.broken.is_some() || self.batches_in_turn() >= enough
    }

    /// The consumer finds no batch ready. True when workers that have nothing to do may begin something now.
    pub fn wait(&mut self) -> bool {
        self.waited_for = true;
        self.deepen()
    }

    /// Whether more could be begun since this was last asked, for workers that have nothing to do.
    pub fn take_deepened(&mut self) -> bool {
        std::mem::take(&mut self.deepened)
    }

    /// Lets more batches be prepared ahead, if it is for want of them that somebody waits. What is not there when the first batch is
    /// waited for says nothing: workers may have been started one after the other.
    fn deepen(&mut self) -> bool {
        if !self.waited_for || !self.held_up || self.delivered == 0 {
            return false;
        }
        let mut depth = self.job.depth();
        let grown = depth.grow();
        self.ahead = depth.batches();
        self.held_up &= !grown;
        self.deepened |= grown;
        grown
    }

    /// Steps before this one may be begun: no more than there are rows in the batches ahead, so that each is sure to
    /// find one.
    fn late_window(&self) -> u64 {
        let batches = self.delivered + self.batches_ahead() as u64;
        self.plan.steps().min(batches * u64::from(self.plan.batch_size().unwrap_or(0)))
    }

    /// Gives a step that is ready its row. `None` when the run has ended meanwhile.
    pub fn give_row(&mut self, step: u64, sample: SampleId) -> Option<(Arc<OpenBatch>, usize)> {
        if self.broken.is_some() {
            return None;
        }
        let assembly = self.late.as_mut()?;
        let place = assembly.place(step);
        while self.next_batch <= place.batch {
            let rows = self.late.as_ref()?.rows(self.next_batch) as usize;
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
        if self.next_batch == self.plan.batches() || self.in_flight.len() >= self.batches_ahead() {
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
        let bytes = BlockShape::of(&*self.job.preparation).bytes(rows).unwrap_or(usize::MAX);
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
        let shape = BlockShape::of(&*self.job.preparation);
        self.in_flight.push_back(InFlight {
            batch: Arc::new(OpenBatch::new(self.next_batch, rows, shape, memory, Gathering::of(&self.job))),
            samples,
            positions,
            first_id: self.opened,
            taken: false,
            open_rows: rows,
            ready_at: None,
            overtaken: 0,
        });
        self.next_batch += 1;
        self.opened += rows as u64;
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
        self.traffic.clear();
    }

    /// Whether a batch may be served before the one that stands first.
    fn overtaking(&self) -> bool {
        match self.job.options.order {
            ServingOrder::Ready { lateness } if self.late.is_none() => {
                self.in_flight.front().is_some_and(|front| self.overtaken(front) < lateness)
            }
            _ => false,
        }
    }

    /// How many later batches were served before this one, in this run and before it was resumed.
    fn overtaken(&self, entry: &InFlight) -> u32 {
        entry.overtaken + entry.positions.first().map_or(0, |&first| self.plan.overtaken(first))
    }

    /// The batch to be served next, if it is finished.
    fn next_ready(&self) -> Option<usize> {
        let candidates = if self.overtaking() { self.in_flight.len() } else { 1 };
        self.in_flight.iter().take(candidates).position(|entry| entry.ready_at.is_some())
    }

    /// How many batches are finished whose turn it is, or comes when those before them are taken.
    fn batches_in_turn(&self) -> usize {
        if self.overtaking() {
            return self.ready_batches();
        }
        self.in_flight.iter().take_while(|entry| entry.ready_at.is_some()).count()
    }

    /// How many batches are finished and wait to be taken, whether or not it is their turn.
    pub fn ready_batches(&self) -> usize {
        self.in_flight.iter().filter(|entry| entry.ready_at.is_some()).count()
    }

    fn is_finished(&self) -> bool {
        self.delivered == self.plan.batches() && !self.plan.is_open()
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
    pub repeats: Repeats,
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
            (self.waited_for, self.held_up) = (false, false);
            if let Some(assembly) = &mut self.late {
                assembly.leave();
            }
            let batches = if self.job.options.order == ServingOrder::Strict { self.delivered } else { 0 };
            return Some(Ok(Waited::Ready(Taken {
                batch: entry.batch,
                samples: entry.samples,
                repeats: self.repeats(&entry.positions),
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

    /// Writes a delivered batch into the ledger, and adds what its samples took to the experience.
    fn settle(&mut self, entry: &InFlight) {
        let mut experience = self.job.experience();
        for (row, &position) in entry.positions.iter().enumerate() {
            if let Some(record) = entry.batch.good_record(row) {
                let (sample, took) = (entry.samples[row], record.work_micros());
                experience.note(sample, &record.hints, &record.steps, took, FIRST_KEYED as usize);
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
        self.job.publish(&experience);
        drop(experience);
        let mut depth = self.job.depth();
        depth.deliver(entry.batch.bytes());
        self.ahead = depth.batches();
    }
}
