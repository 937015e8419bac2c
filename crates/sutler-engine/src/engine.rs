//! The worker threads and what they share.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sutler_core::{EpochPlan, SampleId};

use crate::batch::{OpenBatch, Outcome};
use crate::preparation::{Elsewhere, Order};
use crate::run::{RunState, Ticket, Waited};
use crate::{Failure, Job, OwnSample, Preparer, Run, RunError, SampleRecord, Target};

/// How many cores this process may use: its affinity mask and its cgroup's quota, whichever is smaller.
#[must_use]
pub fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

struct State {
    runs: Vec<RunState>,
    next_run: u64,
    /// Which run is asked first for work; moves on so that none starves.
    turn: usize,
    closed: bool,
}

/// What workers and consumers share.
pub(crate) struct Shared {
    /// Who prepares what. Locked for a few hundred nanoseconds per sample; nobody holds it while working.
    state: Mutex<State>,
    /// Workers wait here while no run has anything to do; rung when a run comes, or a batch is taken from a row.
    work: Condvar,
    /// Consumers wait here for their front batch; rung when a batch is finished.
    ready: Condvar,
    threads: usize,
    /// The tools of consumers that prepare for themselves because there are no worker threads.
    inline: Mutex<Toolbox>,
    /// The process the threads live in. A forked child has a copy of the memory but none of the threads, and a lock
    /// that one of them held stays locked there for ever; so a child must not lock anything.
    owner: u32,
}

/// Rows that a worker has finished, and whose batch it has let go of.
struct Finished {
    run: u64,
    batch: u64,
    rows: usize,
    at: Instant,
    /// A failure that ends the run at once.
    fatal: Option<Failure>,
}

impl State {
    /// Notes finished rows; true when the consumer has something to look at.
    fn finish(&mut self, finished: Finished) -> bool {
        // The run may have been called off meanwhile; then nobody wants to know.
        let Some(run) = self.runs.iter_mut().find(|run| run.id == finished.run) else { return false };
        if let Some(failure) = finished.fatal {
            run.break_off(RunError::Sample(failure));
            return true;
        }
        run.finish_rows(finished.batch, finished.rows, finished.at)
    }

    fn any_broken(&self) -> bool {
        self.runs.iter().any(RunState::is_broken)
    }

    fn take_ticket(&mut self, appetite: usize, threads: usize) -> Option<Ticket> {
        let count = self.runs.len();
        for step in 0..count {
            let index = (self.turn + step) % count;
            if let Some(ticket) = self.runs[index].take_ticket(appetite, threads) {
                self.turn = index + 1;
                return Some(ticket);
            }
        }
        None
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_here(&self) -> bool {
        self.owner == std::process::id()
    }

    pub fn add_run(&self, make: impl FnOnce(u64) -> RunState) -> u64 {
        let mut state = self.lock();
        let id = state.next_run;
        state.next_run += 1;
        state.runs.push(make(id));
        drop(state);
        self.work.notify_all();
        id
    }

    pub fn remove_run(&self, id: u64) {
        if !self.is_here() {
            return;
        }
        let mut state = self.lock();
        let removed =
            state.runs.iter().position(|run| run.id == id).map(|index| state.runs.swap_remove(index));
        drop(state);
        drop(removed); // may free batch memory: not under the lock
        self.ready.notify_all(); // whoever waits for this run's next batch waits in vain
    }

    /// Waits for the front batch of a run. With no worker threads the caller does the work itself, at least one sample
    /// of it however short the time, and goes on with the batch when it asks again.
    pub fn wait_for_batch(&self, id: u64, timeout: Duration) -> Result<Waited, RunError> {
        let deadline = Instant::now().checked_add(timeout);
        let mut worked = false;
        let mut state = self.lock();
        loop {
            if state.closed {
                return Err(RunError::Closed);
            }
            let Some(run) = state.runs.iter_mut().find(|run| run.id == id) else {
                return Err(RunError::Closed);
            };
            if let Some(answer) = run.take_front() {
                drop(state);
                self.work.notify_all();
                return answer;
            }
            let left =
                deadline.map_or(Duration::from_secs(3600), |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() && (worked || self.threads > 0) {
                return Ok(Waited::TimedOut);
            }
            if self.threads > 0 {
                state = self.ready.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let ticket = run.take_ticket(1, 1);
            drop(state);
            let mut tools = self.inline.lock().unwrap_or_else(PoisonError::into_inner);
            let finished = ticket.map(|ticket| tools.work(ticket));
            drop(tools);
            worked = true;
            state = self.lock();
            if let Some(finished) = finished {
                state.finish(finished);
            }
        }
    }

    /// What a worker thread does all its life.
    fn serve(&self) {
        let mut tools = Toolbox::default();
        let mut finished: Option<Finished> = None;
        loop {
            let mut state = self.lock();
            if let Some(finished) = finished.take()
                && state.finish(finished)
            {
                self.ready.notify_all();
            }
            let ticket = loop {
                if state.closed {
                    return;
                }
                if let Some(ticket) = state.take_ticket(tools.appetite(), self.threads) {
                    break ticket;
                }
                if state.any_broken() {
                    self.ready.notify_all();
                }
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            finished = Some(tools.work(ticket));
        }
    }
}

/// A worker's tools: one set for each job it has worked for, so that jobs which take turns do not cost each other theirs.
#[derive(Default)]
struct Toolbox {
    sets: Vec<(Weak<Job>, Box<dyn Preparer>)>,
}

impl Toolbox {
    fn of(&mut self, job: &Arc<Job>) -> &mut dyn Preparer {
        let index = self.position(job).unwrap_or_else(|| {
            self.sets.retain(|(owner, _)| owner.strong_count() > 0);
            self.sets.push((Arc::downgrade(job), job.preparation.preparer()));
            self.sets.len() - 1
        });
        &mut *self.sets[index].1
    }

    /// A weak reference keeps its address taken, so no other job can be mistaken for a dead one.
    fn position(&self, job: &Arc<Job>) -> Option<usize> {
        self.sets.iter().position(|(owner, _)| std::ptr::eq(owner.as_ptr(), Arc::as_ptr(job)))
    }

    /// How many samples to take at a time: what the tools used last would like.
    fn appetite(&self) -> usize {
        self.sets.last().map_or(1, |(_, preparer)| preparer.appetite())
    }

    /// Prepares the samples of a ticket and lets go of their batch.
    fn work(&mut self, ticket: Ticket) -> Finished {
        let Ticket { run, job, epoch, batch, rows } = ticket;
        let count = rows.len();
        let fatal = match self.work_elsewhere(&job, &batch, epoch, rows.clone()) {
            Some(fatal) => fatal,
            None => {
                for row in rows {
                    self.work_here(&job, &batch, epoch, row);
                }
                None
            }
        };
        let index = batch.index;
        drop(batch);
        Finished { run, batch: index, rows: count, at: Instant::now(), fatal }
    }

    /// Has the samples prepared elsewhere, if that is how this job works; then tells whether that ends the run.
    fn work_elsewhere(
        &mut self,
        job: &Arc<Job>,
        batch: &OpenBatch,
        epoch: u32,
        rows: Range<usize>,
    ) -> Option<Option<Failure>> {
        if !job.preparation.is_elsewhere() {
            return None;
        }
        let samples = &batch.samples[rows.clone()];
        let order = Order {
            epoch,
            samples,
            first_row: rows.start,
            batch_rows: batch.samples.len(),
            offset: batch.shared_offset(),
        };
        let answers = self.of(job).prepare_elsewhere(&order);
        let mut fatal = None;
        for (row, Elsewhere { record, result }) in rows.zip(answers) {
            let (foreign, failure) = match result {
                Ok(foreign) => (Some(foreign), None),
                Err(failure) => (None, Some(failure)),
            };
            if fatal.is_none() {
                fatal = failure.clone().filter(|failure| failure.fatal);
            }
            batch.finish(row, Outcome { record, finished: Instant::now(), failure, own: None, foreign });
        }
        Some(fatal)
    }

    fn work_here(&mut self, job: &Arc<Job>, batch: &OpenBatch, epoch: u32, row: usize) {
        let sample = batch.samples[row];
        let mut record = SampleRecord::start();
        let mut own = None;
        let result = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: this ticket was the only one for this row: the ledger refuses to lease a position twice.
            let target = match unsafe { batch.row(row) } {
                Some(bytes) => Target::Row(bytes),
                None => Target::Own(own.insert(OwnSample::default())),
            };
            self.of(job).prepare(sample, epoch, target, &mut record)
        }));
        let failure = match result {
            Ok(Ok(())) => None,
            Ok(Err(failure)) => Some(failure),
            Err(panic) => {
                // Whatever these tools were in the middle of, new ones start clean.
                if let Some(index) = self.position(job) {
                    self.sets.swap_remove(index);
                }
                Some(broken_tools(job, sample, &*panic))
            }
        };
        batch.finish(row, Outcome { record, finished: Instant::now(), failure, own, foreign: None });
    }
}

/// The failure of a sample whose preparation panicked.
fn broken_tools(job: &Job, sample: SampleId, panic: &(dyn std::any::Any + Send)) -> Failure {
    let reason = format!("preparing it failed inside Sutler: {}; please report this", panic_text(panic));
    Failure::new(sample, job.preparation.describe(sample), "internal", reason)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

/// A set of worker threads.
pub struct Engine {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Engine {
    /// Starts `threads` workers. With none, whoever asks for a batch prepares it.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let state = State { runs: Vec::new(), next_run: 0, turn: 0, closed: false };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            ready: Condvar::new(),
            threads,
            inline: Mutex::default(),
            owner: std::process::id(),
        });
        let mut engine = Self { shared: Arc::clone(&shared), threads: Vec::new() };
        for index in 0..threads {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name(format!("sutler-{index}"));
            engine.threads.push(builder.spawn(move || shared.serve())?);
        }
        Ok(engine)
    }

    /// How many workers there are.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Whether this engine's threads live in the calling process; false after a `fork`.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.shared.is_here()
    }

    /// Begins an epoch; its preparation starts at once.
    #[must_use]
    pub fn start(&self, job: &Arc<Job>, plan: EpochPlan, epoch: u32) -> Run {
        Run::new(Arc::clone(&self.shared), Arc::clone(job), plan, epoch)
    }

    /// Ends all runs and waits until every worker has finished the sample it is at.
    pub fn close(mut self) {
        self.stop();
        if self.is_here() {
            // A garbage collector may close an engine from one of its own threads, which cannot wait for itself.
            let here = std::thread::current().id();
            for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != here) {
                // A worker catches every panic of its own; there is nothing to learn from the result.
                let _ = thread.join();
            }
        }
    }

    fn stop(&self) {
        if self.is_here() {
            let mut state = self.shared.lock();
            state.closed = true;
            let runs = std::mem::take(&mut state.runs);
            drop(state);
            self.shared.work.notify_all();
            self.shared.ready.notify_all();
            drop(runs);
        }
    }
}

impl Drop for Engine {
    /// Tells the workers to end but does not wait for them: a drop may come from a garbage collector.
    fn drop(&mut self) {
        self.stop();
        if !self.is_here() {
            // These handles name threads of another process; neither join nor detach them.
            std::mem::forget(std::mem::take(&mut self.threads));
        }
    }
}
