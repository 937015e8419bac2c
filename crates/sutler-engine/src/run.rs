//! One epoch of a job, seen from the consumer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sutler_core::{EpochPlan, JobCursor};

use crate::batch::Made;
use crate::engine::Shared;
use crate::job::EpochFailures;
use crate::metrics::course_of;
use crate::pool::Membership;
use crate::run_state::{RunState, Waited};
use crate::waits::{Delivery, Handling};
use crate::{Batch, BatchEntry, ErrorPolicy, Failure, Job, RunError};

/// The answer to a request for a batch.
#[allow(clippy::large_enum_variant)] // one at a time is on the consumer's stack; a box would cost each an allocation
pub enum Next {
    /// Here it is.
    Batch(Batch),
    /// The epoch is over.
    End,
    /// Nothing was ready in the time given.
    TimedOut,
    /// Every sample of a batch failed, under a policy that allows it, so it is passed over. That is said only while a sampler draws: whoever
    /// draws has to draw another one for it, or there will be none to wait for.
    Passed,
}

/// The consumer's end of one epoch. Dropping it calls the epoch off.
pub struct Run {
    shared: Arc<Shared>,
    id: u64,
    job: Arc<Job>,
    /// Where a checkpoint taken now would go on, as far as batches are served in order.
    cursor: JobCursor,
    /// Positions that are done with batches that were passed over, and so with the next one that is delivered.
    passed: Vec<u32>,
    /// How many batches were passed over since somebody asked for that.
    passed_batches: u64,
    failed: u64,
    last_answer: Option<Instant>,
    /// When the request that is still unanswered was first made; a wait may be cut into several calls.
    waiting_since: Option<Instant>,
    /// How many batches were ready then.
    ready_when_asked: Option<usize>,
    /// Whether batches tell how they came about.
    keeps_courses: bool,
    begun: bool,
    ended: bool,
    broken: Option<RunError>,
}

impl Run {
    pub(crate) fn new(
        shared: Arc<Shared>,
        job: Arc<Job>,
        plan: EpochPlan,
        epoch: u32,
        membership: Option<Membership>,
    ) -> Self {
        let cursor = plan.cursor_after(0);
        let id = shared.add_run(|id| RunState::new(id, Arc::clone(&job), plan, epoch, membership));
        Self {
            shared,
            id,
            job,
            cursor,
            passed: Vec::new(),
            passed_batches: 0,
            failed: 0,
            last_answer: None,
            waiting_since: None,
            ready_when_asked: None,
            keeps_courses: false,
            begun: false,
            ended: false,
            broken: None,
        }
    }

    /// How many batches this run delivers in all; `None` while a sampler may draw more, and once the run is called off.
    #[must_use]
    pub fn batches(&self) -> Option<u64> {
        self.shared.with_run(self.id, |run| (!run.plan().is_open()).then(|| run.plan().batches())).flatten()
    }

    /// Changes the plan, which a sampler has drawn more of. A run that was called off takes no notice.
    ///
    /// # Errors
    /// What the change says.
    pub fn extend<E>(&self, change: impl FnOnce(&mut EpochPlan) -> Result<(), E>) -> Result<(), E> {
        let changed = self.shared.with_run(self.id, |run| run.extend(change));
        self.shared.ring();
        changed.unwrap_or(Ok(()))
    }

    /// The way to call this run off from another thread.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller { shared: Arc::clone(&self.shared), run: self.id }
    }

    /// Where a checkpoint taken now would go on, where batches are served in order. Elsewhere it stays where the run
    /// began, and [`Batch::positions`] tell what is done.
    #[must_use]
    pub fn cursor(&self) -> JobCursor {
        self.cursor
    }

    /// The next batch, waiting at most `timeout` for it.
    ///
    /// Batches of which every sample failed (under a policy that allows it) are passed over; see [`Next::Passed`].
    ///
    /// # Errors
    /// When a sample failed and the policy is to stop; asking again gives the same error, and [`Run::cursor`] stays
    /// before the batch, so that an epoch resumed from there loses nothing. A job that goes on passes over the batch.
    pub fn next(&mut self, timeout: Duration) -> Result<Next, RunError> {
        if !std::mem::replace(&mut self.begun, true) {
            // Only now: an earlier epoch may have been under way until here.
            *self.job.epoch_failures() = EpochFailures { run: self.id, list: Vec::new() };
        }
        let called = Instant::now();
        let mut requested = *self.waiting_since.get_or_insert(called);
        loop {
            if let Some(error) = &self.broken {
                return Err(error.clone());
            }
            let left = timeout.saturating_sub(called.elapsed());
            let taken = match self.shared.wait_for_batch(self.id, left, &mut self.ready_when_asked)? {
                Waited::Ready(taken) => taken,
                Waited::TimedOut => return Ok(Next::TimedOut),
                Waited::End => {
                    if let (false, Some(previous)) = (self.ended, self.last_answer) {
                        self.job.metrics.record_end(previous, requested);
                    }
                    self.ended = true;
                    return Ok(Next::End);
                }
            };
            let open = Arc::into_inner(taken.batch)
                .expect("workers let go of a batch before they report it finished");
            let label = |sample| self.job.preparation.label(sample);
            let (mut batch, outcomes) = open.into_batch(&taken.samples, &taken.repeats, label);
            let failures: Vec<Failure> = outcomes.iter().filter_map(|o| o.failure.clone()).collect();
            let last = failures.last().cloned();
            if let Err(error) = self.note_failures(failures, taken.steps) {
                if self.broken.is_none() {
                    self.cursor = taken.cursor;
                    self.passed.extend(taken.positions);
                    self.waiting_since = None;
                    self.ready_when_asked = None;
                }
                return Err(error);
            }
            if let (true, true, Some(last)) = (self.job.options.in_step, batch.is_empty(), last) {
                let error = RunError::OutOfStep { batch: batch.index, last };
                self.broken = Some(error.clone());
                return Err(error);
            }
            self.cursor = taken.cursor;
            self.passed.extend(taken.positions);
            if self.keeps_courses {
                let course = course_of(&outcomes, None, taken.ready_at);
                batch.made = Some(Made { course, ready: taken.ready_at });
            }
            let answered = Instant::now();
            let delivery = Delivery {
                batch: batch.index,
                samples: batch.len(),
                requested,
                ready: taken.ready_at,
                answered,
                previous: self.last_answer,
                ready_batches: self.ready_when_asked.take().unwrap_or(0),
            };
            self.job.metrics.record(&delivery, &outcomes, &taken.samples);
            self.last_answer = Some(answered);
            if !batch.is_empty() {
                self.waiting_since = None;
                batch.positions = std::mem::take(&mut self.passed);
                return Ok(Next::Batch(batch));
            }
            requested = answered;
            self.waiting_since = Some(answered);
            self.passed_batches += 1;
            if self.shared.with_run(self.id, |run| run.plan().is_open()) == Some(true) {
                return Ok(Next::Passed);
            }
        }
    }

    /// How many batches were passed over since this was last asked.
    pub fn take_passed(&mut self) -> u64 {
        std::mem::take(&mut self.passed_batches)
    }

    /// Waits until [`Run::next`] will answer so many times without waiting, or as often as there are batches left or as
    /// half of those that may be ahead, or for `timeout`: for whoever takes several batches at a time, and would be woken
    /// for each of them otherwise.
    pub fn wait_for(&mut self, batches: usize, timeout: Duration) {
        self.waiting_since.get_or_insert_with(Instant::now);
        self.shared.wait_for_batches(self.id, batches, timeout, &mut self.ready_when_asked);
    }

    /// The consumer has the batch that was answered last in its hands only now: until then it was still being
    /// worked at on this side, which is part of the wait for it.
    pub fn handed_over(&mut self, handling: Handling) {
        if let Some(answered) = self.last_answer.as_mut() {
            let now = Instant::now();
            self.job.metrics.record_handling(handling, *answered, now);
            *answered = now;
        }
    }

    /// What the latest request of this job for a batch came to.
    #[must_use]
    pub fn last_delivery(&self) -> Option<BatchEntry> {
        self.job.metrics.last_delivery()
    }

    /// From now on batches tell how they came about: for whoever hands them on to somebody that waits elsewhere.
    pub fn keep_courses(&mut self) {
        self.keeps_courses = true;
    }

    fn note_failures(&mut self, failures: Vec<Failure>, steps: u64) -> Result<(), RunError> {
        let Some(last) = failures.last().cloned() else { return Ok(()) };
        self.failed += failures.len() as u64;
        let first = failures[0].clone();
        self.job.metrics.record_failures(failures.len() as u64);
        let mut noted = self.job.epoch_failures();
        if noted.run == self.id {
            noted.list.extend(failures);
        }
        drop(noted);
        match self.job.options.errors.allowed(steps) {
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
