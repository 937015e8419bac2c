//! The worker threads and what they share.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sutler_core::{CrewLimits, EpochPlan, Ledger, SampleId, SharedError};

use crate::crew::{CrewChange, Desk, Foreman, Trace};
use crate::job::Share;
use crate::run_state::{RunState, Waited};
use crate::ticket::Ticket;
use crate::toolbox::{Brought, Finished, Toolbox};
use crate::{Job, Run, RunError, give_way};

/// How many cores this process may use: its affinity mask and its cgroup's quota, whichever is smaller.
#[must_use]
pub fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// How soon a worker looks again where jobs wait for what others are preparing.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

struct State {
    runs: Vec<RunState>,
    next_run: u64,
    /// Which run is asked first for work; moves on so that none starves.
    turn: usize,
    /// How many workers are on duty.
    on_duty: usize,
    /// How many of them have nothing to do. Waking nobody costs a call of the system, too.
    idle: usize,
    closed: bool,
}

/// What workers and consumers share.
pub(crate) struct Shared {
    /// Who prepares what. Locked for a few hundred nanoseconds per sample; nobody holds it while working.
    state: Mutex<State>,
    /// Workers wait here while no run has anything to do; rung when a run comes, or a batch is taken from a row. Each
    /// consumer waits at a bell of its run's.
    work: Condvar,
    /// Workers off duty wait here, and the foreman between two looks; rung when there is to be another number of workers.
    duty: Condvar,
    /// Whether consumers prepare for themselves, because there are no worker threads.
    alone: bool,
    /// Whether workers give way to who else runs: the trainer is in this process.
    gives_way: bool,
    /// The threads there are, on duty or not.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// What became of a crew whose number follows the demand.
    trace: Option<Trace>,
    /// The tools of consumers that prepare for themselves because there are no worker threads.
    inline: Mutex<Toolbox>,
    /// The process the threads live in. A forked child has a copy of the memory but none of the threads, and a lock
    /// that one of them held stays locked there for ever; so a child must not lock anything.
    owner: u32,
}

impl State {
    /// Notes a finished sample, and wakes the consumer if that is what it waits for.
    fn finish(&mut self, finished: Finished) {
        // The run may have been called off meanwhile; then nobody wants to know.
        let Some(run) = self.runs.iter_mut().find(|run| run.id == finished.run) else { return };
        if finished.in_lane {
            run.finish_in_lane();
        }
        if let Some(failure) = finished.fatal {
            run.break_off(RunError::Sample(failure));
            run.ring();
        } else if finished.batch.is_some_and(|batch| run.finish_row(batch, finished.at)) {
            run.ring_if_served();
        }
    }

    /// Takes what a worker brings.
    fn take_in(&mut self, brought: &mut Brought) {
        for (run, id, hints) in brought.hints.drain(..) {
            if let Some(run) = self.runs.iter_mut().find(|other| other.id == run) {
                run.note_hints(id, hints);
            }
        }
        brought.finished.drain(..).for_each(|sample| self.finish(sample));
    }

    /// Wakes the consumers of runs that have ended in an error.
    fn ring_for_broken(&mut self) {
        self.runs.iter_mut().filter(|run| run.is_broken()).for_each(RunState::ring);
    }

    /// Whether workers that had nothing to do may have something now.
    fn take_deepened(&mut self) -> bool {
        self.runs.iter_mut().fold(false, |deepened, run| run.take_deepened() | deepened)
    }

    fn take_ticket(&mut self, worker: usize, appetite: usize) -> Option<Ticket> {
        self.take_ticket_of(worker, appetite, true).or_else(|| self.take_ticket_of(worker, appetite, false))
    }

    /// Work for runs whose consumer has asked for a batch, or for the others: an epoch that is begun before the one before
    /// it has ended must not hold that up.
    fn take_ticket_of(&mut self, worker: usize, appetite: usize, asked: bool) -> Option<Ticket> {
        let count = self.runs.len();
        for step in 0..count {
            let index = (self.turn + step) % count;
            if self.runs[index].is_asked() != asked {
                continue;
            }
            if !asked {
                let job = Arc::clone(&self.runs[index].job);
                let follows = self.runs.iter().any(|run| run.is_asked() && Arc::ptr_eq(&run.job, &job));
                self.runs[index].set_following(follows);
            }
            if let Some(ticket) = self.runs[index].take_ticket(worker, appetite, self.on_duty) {
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

    /// Whether consumers prepare for themselves.
    pub fn is_alone(&self) -> bool {
        self.alone
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

    /// Does something to a run, if it is still there.
    pub fn with_run<T>(&self, id: u64, act: impl FnOnce(&mut RunState) -> T) -> Option<T> {
        if !self.is_here() {
            return None;
        }
        self.lock().runs.iter_mut().find(|run| run.id == id).map(act)
    }

    /// Wakes the workers: there may be work.
    pub fn ring(&self) {
        self.work.notify_all();
    }

    pub fn remove_run(&self, id: u64) {
        if !self.is_here() {
            return;
        }
        let mut state = self.lock();
        let mut removed =
            state.runs.iter().position(|run| run.id == id).map(|index| state.runs.swap_remove(index));
        if let Some(run) = &mut removed {
            run.ring(); // whoever waits for its next batch waits in vain
        }
        drop(state);
        drop(removed); // may free batch memory: not under the lock
    }

    /// Waits for the next batch of a run. With no worker threads the caller does the work itself, at least one sample
    /// of it however short the time, and goes on with the batch when it asks again.
    ///
    /// `ready` is how many batches were finished when this one was first asked for; told here if it is not known yet.
    pub fn wait_for_batch(
        &self,
        id: u64,
        timeout: Duration,
        ready: &mut Option<usize>,
    ) -> Result<Waited, RunError> {
        let deadline = Instant::now().checked_add(timeout);
        let mut worked = false;
        let mut brought = Brought::default();
        let mut state = self.lock();
        loop {
            if state.closed {
                return Err(RunError::Closed);
            }
            let Some(run) = state.runs.iter_mut().find(|run| run.id == id) else {
                return Err(RunError::Closed);
            };
            run.ask();
            ready.get_or_insert_with(|| run.ready_batches());
            if let Some(answer) = run.take_next() {
                let idle = state.idle;
                drop(state);
                if idle > 0 {
                    self.work.notify_all();
                }
                return answer;
            }
            let left =
                deadline.map_or(Duration::from_secs(3600), |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() && (worked || !self.alone) {
                return Ok(Waited::TimedOut);
            }
            if !self.alone {
                if run.wait() {
                    self.work.notify_all();
                }
                let bell = run.wait_for(1);
                state = bell.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let ticket = run.take_ticket(0, 1, 1);
            drop(state);
            if let Some(ticket) = ticket {
                let mut tools = self.inline.lock().unwrap_or_else(PoisonError::into_inner);
                tools.work(self, 0, ticket, &mut brought);
            }
            worked = true;
            state = self.lock();
            state.take_in(&mut brought);
        }
    }

    /// Waits until so many batches of a run can be taken one after the other, or as many as are left of it, or the time is up; whoever takes
    /// several at a time is woken once for all of them. With no worker threads there is nobody to wait for.
    ///
    /// `ready` as for [`Shared::wait_for_batch`].
    pub fn wait_for_batches(&self, id: u64, count: usize, timeout: Duration, ready: &mut Option<usize>) {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while !state.closed && !self.alone {
            let Some(run) = state.runs.iter_mut().find(|run| run.id == id) else { return };
            run.ask();
            ready.get_or_insert_with(|| run.ready_batches());
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || run.serves(count) {
                return;
            }
            let bell = run.wait_for(count);
            state = bell.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What a worker thread does all its life. One that has a number beyond those on duty waits until it is needed.
    fn serve(&self, number: usize, desk: Option<&Desk>) {
        if self.gives_way {
            give_way();
        }
        if let Some(desk) = desk {
            desk.take_seat();
        }
        let mut tools = Toolbox::default();
        let mut brought = Brought::default();
        loop {
            let mut state = self.lock();
            state.take_in(&mut brought);
            let ticket = loop {
                if state.closed {
                    return;
                }
                if number >= state.on_duty {
                    tools = Toolbox::default();
                    state = self.duty.wait(state).unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                if let Some(ticket) = state.take_ticket(number, tools.appetite()) {
                    if state.take_deepened() {
                        self.work.notify_all();
                    }
                    break ticket;
                }
                state.ring_for_broken();
                state.idle += 1;
                state = if state.runs.iter().any(RunState::waits_for_others) {
                    self.work.wait_timeout(state, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0
                } else {
                    self.work.wait(state).unwrap_or_else(PoisonError::into_inner)
                };
                state.idle -= 1;
            };
            drop(state);
            let begun = Instant::now();
            let job = desk.map(|_| Arc::clone(&ticket.job));
            tools.work(self, number, ticket, &mut brought);
            if let (Some(desk), Some(job)) = (desk, &job) {
                tools.report(job, desk, brought.finished.len(), begun.elapsed());
            }
        }
    }

    /// What the foreman's thread does all its life.
    fn direct(self: &Arc<Self>, mut foreman: Foreman, look_every: Duration) {
        let mut state = self.lock();
        loop {
            state = self.duty.wait_timeout(state, look_every).unwrap_or_else(PoisonError::into_inner).0;
            if state.closed {
                return;
            }
            let jobs: Vec<Arc<Job>> = state.runs.iter().map(|run| Arc::clone(&run.job)).collect();
            drop(state);
            let changes = foreman.look(jobs.iter().map(|job| (Arc::as_ptr(job).addr(), job.metrics.pace())));
            drop(jobs);
            if changes {
                self.have_workers(&mut foreman);
            }
            state = self.lock();
        }
    }

    /// Puts as many workers on duty as the foreman wants, or as many of them as the system lets us start.
    fn have_workers(self: &Arc<Self>, foreman: &mut Foreman) {
        while foreman.desks() < foreman.workers() {
            let number = foreman.desks();
            let desk = foreman.add_desk();
            if self.hire(number, Some(desk)).is_err() {
                break; // those there are will do; asked again with the next change
            }
        }
        let workers = foreman.workers();
        self.lock().on_duty = workers;
        if let Some(trace) = &self.trace {
            trace.note(workers, foreman.reason());
        }
        self.duty.notify_all();
        self.work.notify_all();
    }

    fn take_threads(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts a worker.
    fn hire(self: &Arc<Self>, number: usize, desk: Option<Arc<Desk>>) -> std::io::Result<()> {
        let shared = Arc::clone(self);
        let builder = std::thread::Builder::new().name(format!("sutler-{number}"));
        let thread = builder.spawn(move || shared.serve(number, desk.as_deref()))?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }
}

/// Why an epoch of a job that shares cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The job was made without a pool.
    #[error("this job shares its samples with no other; make it with Job::sharing")]
    NoPool,
    /// A batch sampler decides.
    #[error("what a batch sampler drew is served as it was drawn, so it cannot be served in shared order")]
    Drawn,
    /// The plan is not one.
    #[error(transparent)]
    Plan(#[from] sutler_core::OrderError),
    /// The pool refuses.
    #[error(transparent)]
    Pool(#[from] SharedError),
}

/// The samples of a plan that are not done, as a plan whose order means nothing.
///
/// # Errors
/// When a batch sampler decides what is in a batch.
pub fn what_is_left(plan: &EpochPlan, done: &Ledger) -> Result<EpochPlan, StartError> {
    let batch_size = plan.batch_size().ok_or(StartError::Drawn)?;
    let mut left: Vec<u64> = (0..plan.steps())
        .map(|step| plan.sample(step))
        .filter(|sample| !done.is_done(sample.0))
        .map(|sample| u64::from(sample.0))
        .collect();
    left.sort_unstable();
    left.dedup();
    let mut counted = EpochPlan::to_be_drawn(batch_size, false, plan.cursor_after(0))?;
    counted.extend(&left, u32::MAX)?;
    counted.end();
    Ok(counted)
}

/// A set of worker threads.
pub struct Engine {
    shared: Arc<Shared>,
}

impl Engine {
    /// Starts `threads` workers. With none, whoever asks for a batch prepares it.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        Self::with_threads(threads, true)
    }

    /// Starts `threads` workers for consumers in other processes. They do not give way: who wakes them is a thread of this
    /// process that has nothing else to do, and a batch that is late for it is later still for its consumer.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn for_other_processes(threads: usize) -> std::io::Result<Self> {
        Self::with_threads(threads, false)
    }

    fn with_threads(threads: usize, gives_way: bool) -> std::io::Result<Self> {
        let engine = Self::of(threads, None, gives_way);
        for number in 0..threads {
            engine.shared.hire(number, None)?;
        }
        Ok(engine)
    }

    /// Starts workers whose number follows the demand of the jobs, within limits; looked at every so often, for which
    /// [`LOOK_EVERY`](crate::LOOK_EVERY) is right unless in tests.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn elastic(limits: CrewLimits, look_every: Duration) -> std::io::Result<Self> {
        let mut foreman = Foreman::new(limits);
        let workers = foreman.workers();
        let engine = Self::of(workers, Some(Trace::new(workers)), true);
        for number in 0..workers {
            let desk = foreman.add_desk();
            engine.shared.hire(number, Some(desk))?;
        }
        let shared = Arc::clone(&engine.shared);
        let builder = std::thread::Builder::new().name("sutler-foreman".to_owned());
        let thread = builder.spawn(move || shared.direct(foreman, look_every))?;
        engine.shared.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(engine)
    }

    fn of(on_duty: usize, trace: Option<Trace>, gives_way: bool) -> Self {
        let state = State { runs: Vec::new(), next_run: 0, turn: 0, on_duty, idle: 0, closed: false };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            duty: Condvar::new(),
            alone: on_duty == 0,
            gives_way,
            threads: Mutex::default(),
            trace,
            inline: Mutex::default(),
            owner: std::process::id(),
        });
        Self { shared }
    }

    /// How many workers are on duty; none after a `fork`.
    #[must_use]
    pub fn threads(&self) -> usize {
        if self.is_here() { self.shared.lock().on_duty } else { 0 }
    }

    /// How the number of workers came about, where it follows the demand.
    #[must_use]
    pub fn crew_changes(&self) -> Vec<CrewChange> {
        match &self.shared.trace {
            Some(trace) if self.is_here() => trace.changes(),
            _ => Vec::new(),
        }
    }

    /// Whether this engine's threads live in the calling process; false after a `fork`.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.shared.is_here()
    }

    /// Begins an epoch; its preparation starts at once.
    #[must_use]
    pub fn start(&self, job: &Arc<Job>, plan: EpochPlan, epoch: u32) -> Run {
        Run::new(Arc::clone(&self.shared), Arc::clone(job), plan, epoch, None)
    }

    /// Begins an epoch of a job that shares what is prepared with others. It has the samples of the plan, in whatever
    /// order, without those that are done.
    ///
    /// # Errors
    /// When the job has no pool, or the pool has no place for it.
    pub fn start_shared(
        &self,
        job: &Arc<Job>,
        plan: &EpochPlan,
        epoch: u32,
        done: &Ledger,
    ) -> Result<Run, StartError> {
        let Share { pool, name, kind } = job.share.as_ref().ok_or(StartError::NoPool)?;
        let mut all: Vec<SampleId> = (0..plan.steps()).map(|step| plan.sample(step)).collect();
        all.sort_unstable();
        all.dedup();
        let counted = what_is_left(plan, done)?;
        let membership = pool.join((*name, *kind), epoch, &all, done)?;
        Ok(Run::new(Arc::clone(&self.shared), Arc::clone(job), counted, epoch, Some(membership)))
    }

    /// Ends all runs and waits until every worker has finished the sample it is at.
    pub fn close(self) {
        self.stop();
        if self.is_here() {
            let threads = self.shared.take_threads();
            // A garbage collector may close an engine from one of its own threads, which cannot wait for itself.
            let here = std::thread::current().id();
            for thread in threads.into_iter().filter(|thread| thread.thread().id() != here) {
                // A worker catches every panic of its own; there is nothing to learn from the result.
                let _ = thread.join();
            }
        }
    }

    fn stop(&self) {
        if self.is_here() {
            let mut state = self.shared.lock();
            state.closed = true;
            let mut runs = std::mem::take(&mut state.runs);
            runs.iter_mut().for_each(RunState::ring);
            drop(state);
            self.shared.work.notify_all();
            self.shared.duty.notify_all();
            drop(runs);
        }
    }
}

impl Drop for Engine {
    /// Tells the workers to end but does not wait for them: a drop may come from a garbage collector.
    fn drop(&mut self) {
        self.stop();
        if !self.is_here() {
            // The handles in there name threads of another process; neither join nor detach them.
            std::mem::forget(Arc::clone(&self.shared));
        }
    }
}
