//! One epoch of a job: the plan on one side, the consumer on the other, a bounded row of batches between them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sutler_core::{EpochPlan, JobCursor, Ledger};

use crate::batch::{OpenBatch, block_bytes};
use crate::engine::Shared;
use crate::metrics::Delivery;
use crate::{Arena, ArenaError, Batch, ErrorPolicy, Failure, Metrics, Preparation, RowSpec, RunError};

/// What a job asks of the engine beside its samples.
#[derive(Clone, Copy, Debug)]
pub struct JobOptions {
    /// The most samples a batch holds.
    pub batch_size: usize,
    /// How many batches may be in preparation or waiting to be taken.
    pub batches_ahead: usize,
    /// How many delivered batches the consumer usually holds at once; memory for as many is kept ready.
    pub batches_held: usize,
    /// What a bad sample does.
    pub errors: ErrorPolicy,
    /// Whether other ranks count on this one to deliver as many batches as they do, so that a batch without a single good
    /// sample cannot just be passed over.
    pub in_step: bool,
    /// Whether an epoch goes on after a batch that raised, as PyTorch's does, instead of raising the same again.
    pub go_on: bool,
}

/// What is prepared, how, and into which memory; the same for every epoch.
pub struct Job {
    pub(crate) preparation: Arc<dyn Preparation>,
    pub(crate) options: JobOptions,
    pub(crate) arena: Option<Arc<Arena>>,
    pub(crate) metrics: Metrics,
    failures: Mutex<EpochFailures>,
}

/// The failures of the epoch that was begun last; of an earlier one that is still running they are nobody's business.
#[derive(Default)]
struct EpochFailures {
    run: u64,
    list: Vec<Failure>,
}

impl Job {
    /// A job and its batch memory.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn new(preparation: Arc<dyn Preparation>, options: JobOptions) -> Result<Arc<Self>, ArenaError> {
        let row = preparation.row();
        // With no batch ahead none would ever be begun.
        let options = JobOptions { batches_ahead: options.batches_ahead.max(1), ..options };
        let arena = match row {
            RowSpec::Fixed { .. } => {
                let bytes = block_bytes(row, options.batch_size).ok_or_else(|| ArenaError {
                    bytes: usize::MAX,
                    source: std::io::Error::other("more bytes than the address space has"),
                })?;
                Some(Arena::new(bytes, options.batches_ahead + options.batches_held)?)
            }
            RowSpec::Varies => None,
        };
        Ok(Arc::new(Self {
            preparation,
            options,
            arena,
            metrics: Metrics::default(),
            failures: Mutex::default(),
        }))
    }

    /// The figures so far.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The batch memory, where samples have one size.
    #[must_use]
    pub fn arena(&self) -> Option<&Arc<Arena>> {
        self.arena.as_ref()
    }

    fn epoch_failures(&self) -> MutexGuard<'_, EpochFailures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The samples that failed in the latest epoch.
    #[must_use]
    pub fn failures(&self) -> Vec<Failure> {
        self.epoch_failures().list.clone()
    }
}

/// A batch in the row between workers and consumer.
struct InFlight {
    batch: Arc<OpenBatch>,
    /// The rank's position of its first sample.
    first_position: u32,
    /// Rows no worker has taken yet begin here.
    next_row: usize,
    open_rows: usize,
    ready_at: Option<Instant>,
}

/// Samples to prepare.
pub(crate) struct Ticket {
    pub run: u64,
    pub job: Arc<Job>,
    pub epoch: u32,
    pub batch: Arc<OpenBatch>,
    /// Rows of the batch, and so samples; at least one.
    pub rows: Range<usize>,
}

/// A run as workers see it; lives in the engine's shared state.
pub(crate) struct RunState {
    pub id: u64,
    job: Arc<Job>,
    plan: Arc<EpochPlan>,
    epoch: u32,
    ledger: Ledger,
    in_flight: VecDeque<InFlight>,
    /// The next batch to open, and the rank's position of its first sample.
    next_batch: u64,
    next_position: u32,
    /// An error that ends the run.
    broken: Option<RunError>,
}

impl RunState {
    pub fn new(id: u64, job: Arc<Job>, plan: Arc<EpochPlan>, epoch: u32) -> Self {
        let positions = u32::try_from(plan.samples()).expect("a rank's share is bounded by the dataset");
        Self {
            id,
            job,
            plan,
            epoch,
            ledger: Ledger::new(positions),
            in_flight: VecDeque::new(),
            next_batch: 0,
            next_position: 0,
            broken: None,
        }
    }

    /// The next samples to prepare, at most `appetite`, or `None` while the row of batches is full or the plan is at its
    /// end.
    pub fn take_ticket(&mut self, appetite: usize, threads: usize) -> Option<Ticket> {
        if self.broken.is_some() {
            return None;
        }
        if self.in_flight.back().is_none_or(|last| last.next_row == last.batch.samples.len()) {
            self.open_batch()?;
        }
        let last = self.in_flight.back_mut()?;
        let first = last.next_row;
        let left = last.batch.samples.len() - first;
        let count = if self.job.preparation.takes_whole_batches() {
            left
        } else {
            // However hungry one worker is, what is left of the batch is to be shared by all of them.
            appetite.clamp(1, left.div_ceil(threads.max(1)))
        };
        let rows = first..first + count;
        for row in rows.clone() {
            if let Err(error) = self.ledger.lease(last.first_position + row as u32) {
                unreachable!("the plan gives every position out once: {error}");
            }
        }
        last.next_row = rows.end;
        Some(Ticket {
            run: self.id,
            job: Arc::clone(&self.job),
            epoch: self.epoch,
            batch: Arc::clone(&last.batch),
            rows,
        })
    }

    fn open_batch(&mut self) -> Option<()> {
        if self.next_batch == self.plan.batches() || self.in_flight.len() >= self.job.options.batches_ahead {
            return None;
        }
        let samples = self.plan.batch(self.next_batch).samples;
        let rows = samples.len();
        let row = self.job.preparation.row();
        let memory = match &self.job.arena {
            // Where worker processes share memory and no slot of it is free, because the consumer hoards batches, the
            // samples of this one travel one by one.
            None => self.job.preparation.shared_memory().and_then(|arena| arena.take_slot(0)),
            Some(arena) => match arena.take(block_bytes(row, rows).unwrap_or(usize::MAX)) {
                Ok(memory) => Some(memory),
                Err(error) => {
                    // The consumer may let go of some when it takes the batches there are. If there are none, the
                    // run ends with the reason.
                    if self.in_flight.is_empty() {
                        self.broken = Some(RunError::Memory(error.to_string()));
                    }
                    return None;
                }
            },
        };
        self.in_flight.push_back(InFlight {
            batch: Arc::new(OpenBatch::new(self.next_batch, samples, row, memory)),
            first_position: self.next_position,
            next_row: 0,
            open_rows: rows,
            ready_at: None,
        });
        self.next_batch += 1;
        self.next_position += rows as u32;
        Some(())
    }

    /// A worker has finished `rows` rows of batch `index` and let go of the batch; true when they were the last.
    pub fn finish_rows(&mut self, index: u64, rows: usize, now: Instant) -> bool {
        let Some(front) = self.in_flight.front() else { return false };
        let Some(entry) = self.in_flight.get_mut((index - front.batch.index) as usize) else { return false };
        entry.open_rows -= rows;
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

    fn front_is_ready(&self) -> bool {
        self.in_flight.front().is_some_and(|front| front.ready_at.is_some())
    }

    fn is_finished(&self) -> bool {
        self.in_flight.is_empty() && self.next_batch == self.plan.batches()
    }
}

/// The answer to a request for a batch.
pub enum Next {
    /// Here it is.
    Batch(Batch),
    /// The epoch is over.
    End,
    /// Nothing was ready in the time given.
    TimedOut,
}

/// The consumer's end of one epoch. Dropping it calls the epoch off.
pub struct Run {
    shared: Arc<Shared>,
    id: u64,
    job: Arc<Job>,
    plan: Arc<EpochPlan>,
    /// Batches taken, empty ones included.
    taken: u64,
    failed: u64,
    last_answer: Option<Instant>,
    /// When the request that is still unanswered was first made; a wait may be cut into several calls.
    waiting_since: Option<Instant>,
    ended: bool,
    broken: Option<RunError>,
}

impl Run {
    pub(crate) fn new(shared: Arc<Shared>, job: Arc<Job>, plan: EpochPlan, epoch: u32) -> Self {
        let plan = Arc::new(plan);
        let id = shared.add_run(|id| RunState::new(id, Arc::clone(&job), Arc::clone(&plan), epoch));
        *job.epoch_failures() = EpochFailures { run: id, list: Vec::new() };
        Self {
            shared,
            id,
            job,
            plan,
            taken: 0,
            failed: 0,
            last_answer: None,
            waiting_since: None,
            ended: false,
            broken: None,
        }
    }

    /// How many batches this run delivers in all.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.plan.batches()
    }

    /// Where a checkpoint taken after the last batch would go on.
    #[must_use]
    pub fn end(&self) -> JobCursor {
        self.plan.cursor_after(self.plan.batches())
    }

    /// The way to call this run off from another thread.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller { shared: Arc::clone(&self.shared), run: self.id }
    }

    /// Where a checkpoint taken now would go on.
    #[must_use]
    pub fn cursor(&self) -> JobCursor {
        self.plan.cursor_after(self.taken)
    }

    /// The next batch, waiting at most `timeout` for it.
    ///
    /// Batches of which every sample failed (under a policy that allows it) are passed over.
    ///
    /// # Errors
    /// When a sample failed and the policy is to stop; asking again gives the same error, and [`Run::cursor`] stays
    /// before the batch, so that an epoch resumed from there loses nothing. A job that goes on passes over the batch.
    pub fn next(&mut self, timeout: Duration) -> Result<Next, RunError> {
        let called = Instant::now();
        let mut requested = *self.waiting_since.get_or_insert(called);
        loop {
            if let Some(error) = &self.broken {
                return Err(error.clone());
            }
            let left = timeout.saturating_sub(called.elapsed());
            let (open, ready_at) = match self.shared.wait_for_batch(self.id, left)? {
                Waited::Ready(open, ready_at) => (open, ready_at),
                Waited::TimedOut => return Ok(Next::TimedOut),
                Waited::End => {
                    if let (false, Some(previous)) = (self.ended, self.last_answer) {
                        self.job.metrics.record_end(previous, requested);
                    }
                    self.ended = true;
                    return Ok(Next::End);
                }
            };
            let open =
                Arc::into_inner(open).expect("workers let go of a batch before they report it finished");
            let (batch, outcomes) = open.into_batch(|sample| self.job.preparation.label(sample));
            let failures: Vec<Failure> = outcomes.iter().filter_map(|o| o.failure.clone()).collect();
            let last = failures.last().cloned();
            if let Err(error) = self.note_failures(failures) {
                if self.broken.is_none() {
                    self.taken += 1;
                    self.waiting_since = None;
                }
                return Err(error);
            }
            if let (true, true, Some(last)) = (self.job.options.in_step, batch.is_empty(), last) {
                let error = RunError::OutOfStep { batch: batch.index, last };
                self.broken = Some(error.clone());
                return Err(error);
            }
            self.taken += 1;
            let answered = Instant::now();
            self.job.metrics.record(
                &Delivery { requested, ready: ready_at, answered, previous: self.last_answer },
                &outcomes,
            );
            self.last_answer = Some(answered);
            if !batch.is_empty() {
                self.waiting_since = None;
                return Ok(Next::Batch(batch));
            }
            requested = answered;
            self.waiting_since = Some(answered);
        }
    }

    fn note_failures(&mut self, failures: Vec<Failure>) -> Result<(), RunError> {
        let Some(last) = failures.last().cloned() else { return Ok(()) };
        self.failed += failures.len() as u64;
        let first = failures[0].clone();
        self.job.metrics.record_failures(failures.len() as u64);
        let mut noted = self.job.epoch_failures();
        if noted.run == self.id {
            noted.list.extend(failures);
        }
        drop(noted);
        match self.job.options.errors.allowed(self.plan.samples()) {
            Some(allowed) if self.failed > allowed => {
                let error = match self.job.options.errors {
                    ErrorPolicy::Raise if self.job.options.go_on => return Err(RunError::Sample(first)),
                    ErrorPolicy::Raise => RunError::Sample(first),
                    _ => RunError::Budget { failed: self.failed, allowed, last },
                };
                self.broken = Some(error.clone());
                Err(error)
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.shared.remove_run(self.id);
    }
}

/// Calls a run off from outside, also while its consumer waits for a batch: it then gets [`RunError::Closed`].
pub struct Canceller {
    shared: Arc<Shared>,
    run: u64,
}

impl Canceller {
    /// Calls the run off. What was delivered stays valid.
    pub fn cancel(&self) {
        self.shared.remove_run(self.run);
    }
}

/// What waiting for a run's front batch came to.
pub(crate) enum Waited {
    Ready(Arc<OpenBatch>, Instant),
    TimedOut,
    End,
}

impl RunState {
    /// Takes the front batch if it is finished; `None` while it is not.
    pub fn take_front(&mut self) -> Option<Result<Waited, RunError>> {
        if self.front_is_ready() {
            let front = self.in_flight.pop_front()?;
            self.settle(&front);
            return Some(Ok(Waited::Ready(front.batch, front.ready_at?)));
        }
        if let (true, Some(error)) = (self.in_flight.is_empty(), &self.broken) {
            return Some(Err(error.clone()));
        }
        self.is_finished().then_some(Ok(Waited::End))
    }

    /// Writes a delivered batch into the ledger.
    fn settle(&mut self, front: &InFlight) {
        for row in 0..front.batch.samples.len() {
            let position = front.first_position + row as u32;
            let settled = if front.batch.failed(row) {
                self.ledger.fail(position)
            } else {
                self.ledger.serve(position)
            };
            if let Err(error) = settled {
                unreachable!("only leased rows are finished: {error}");
            }
        }
    }
}
