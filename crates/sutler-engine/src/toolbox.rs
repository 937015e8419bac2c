//! What a worker does with a ticket.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sutler_core::{Draw, Form, Hints, SampleId};

use crate::batch::Outcome;
use crate::crew::Desk;
use crate::crossing::Crossing;
use crate::engine::Shared;
use crate::job::Share;
use crate::place::{Claim, Claims};
use crate::pool::{Found, Task};
use crate::preparation::{Elsewhere, Exchange, Order, Progress};
use crate::ticket::{Scout, Standing, Ticket};
use crate::{Failure, Job, OwnSample, Preparer, SampleRecord};

/// A sample that a worker is done with.
pub(crate) struct Finished {
    pub run: u64,
    /// The batch with its row, which the worker has let go of; `None` when it had none because the run ended.
    pub batch: Option<u64>,
    pub at: Instant,
    /// Whether it was in the slow lane at the end.
    pub in_lane: bool,
    /// A failure that ends the run at once.
    pub fatal: Option<Failure>,
}

/// What a worker brings when it comes for its next ticket.
#[derive(Default)]
pub(crate) struct Brought {
    pub finished: Vec<Finished>,
    /// What it has found out about samples ahead, by their run and what that calls them.
    pub hints: Vec<(u64, u64, Hints)>,
}

/// A worker's tools: one set for each job it has worked for, so that jobs which take turns do not cost each other theirs.
#[derive(Default)]
pub(crate) struct Toolbox {
    /// Who works with them.
    worker: usize,
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

    /// Tells what was done for a job.
    pub fn report(&mut self, job: &Arc<Job>, desk: &Desk, samples: usize, time: Duration) {
        let preparer = self.of(job);
        desk.works_through(preparer.process());
        if preparer.has_settled() {
            desk.worked(samples, time);
        }
    }

    /// How many samples to take at a time: what the tools used last would like.
    pub fn appetite(&self) -> usize {
        self.sets.last().map_or(1, |(_, preparer)| preparer.appetite())
    }

    /// Prepares the samples of a ticket, lets go of their batches and tells which rows are finished.
    pub fn work(&mut self, shared: &Shared, worker: usize, mut ticket: Ticket, brought: &mut Brought) {
        self.worker = worker;
        for Scout { id, sample, draw } in ticket.scouts.into_iter().flatten() {
            brought.hints.push((ticket.run, id, ticket.job.preparation.hints(sample, draw)));
        }
        let standing = ticket.standing.take();
        if ticket.job.preparation.is_elsewhere() {
            self.work_elsewhere(shared, worker, &ticket, standing, brought);
            return;
        }
        let mut standing = standing;
        for index in 0..ticket.samples().len() {
            let mut claim = Claim::of(shared, &ticket, index);
            let mut in_lane = ticket.in_lane;
            match &ticket.task {
                None => {
                    let mut crossing = Crossing::of(shared, &ticket, index, None);
                    match self.work_in_steps(&ticket, index, standing.take(), &mut claim, &mut crossing) {
                        Some(standing) => {
                            crossing.park(standing);
                            continue;
                        }
                        None => in_lane = crossing.in_lane(),
                    }
                }
                Some(task) => self.work_for_all(&ticket, task, &mut claim),
            }
            let (run, batch) = (ticket.run, claim.let_go());
            brought.finished.push(Finished { run, batch, at: Instant::now(), in_lane, fatal: None });
        }
    }

    /// Has the samples prepared elsewhere.
    fn work_elsewhere(
        &mut self,
        shared: &Shared,
        worker: usize,
        ticket: &Ticket,
        standing: Option<Standing>,
        brought: &mut Brought,
    ) {
        let samples = ticket.samples();
        let mut crossing = Crossing::of(shared, ticket, 0, Some(worker));
        let (before, unfinished) = match standing {
            Some(Standing { unfinished, record, worked }) => {
                crossing.worked_before(worked);
                (Some((record.started, worked)), Some(unfinished))
            }
            None => (None, None),
        };
        let (epoch, repeats, whole_batch) = (ticket.epoch, &ticket.repeats, ticket.is_whole_batch());
        let own = ticket.is_of_rota.then_some(worker);
        let order = Order { epoch, samples, repeats, whole_batch, worker: own, unfinished };
        let mut claims = Claims::of(shared, ticket);
        let preparer = self.of(&ticket.job);
        let answers = preparer.prepare_elsewhere(order, &mut claims, &mut crossing);
        let worker = preparer.worker().unwrap_or(worker);
        for (index, answer) in answers.into_iter().enumerate() {
            let (mut record, result) = match answer {
                Elsewhere::Answered { record, result } => (record, result),
                Elsewhere::Parked(unfinished) => {
                    let begun = before.map_or_else(|| crossing.begun(), |(started, _)| started);
                    let record = SampleRecord { started: begun, ..SampleRecord::start() };
                    crossing.park(Standing { unfinished, record, worked: crossing.worked() });
                    return;
                }
            };
            if let Some((started, worked)) = before {
                record.started = started;
                record.decode += worked;
            }
            let (foreign, failure) = match result {
                Ok(foreign) => (Some(foreign), None),
                Err(failure) => (None, Some(failure)),
            };
            let fatal = failure.clone().filter(|failure| failure.fatal);
            let claim = claims.claim(index);
            let (at, put_aside) = (Instant::now(), before.is_some());
            claim.finish(Outcome { record, finished: at, worker, put_aside, failure, own: None, foreign });
            let (run, batch) = (ticket.run, claim.let_go());
            let in_lane = crossing.in_lane();
            brought.finished.push(Finished { run, batch, at: Instant::now(), in_lane, fatal });
        }
    }

    /// Prepares the ticket's sample `index`, or goes on with it; what it has become if it makes room for others.
    fn work_in_steps(
        &mut self,
        ticket: &Ticket,
        index: usize,
        standing: Option<Standing>,
        claim: &mut Claim<'_>,
        crossing: &mut Crossing<'_>,
    ) -> Option<Standing> {
        let (sample, draw) = (ticket.samples()[index], ticket.draw(index));
        let put_aside = standing.is_some();
        let (mut record, unfinished) = match standing {
            Some(Standing { unfinished, record, worked }) => {
                crossing.worked_before(worked);
                (record, Some(unfinished))
            }
            None => (SampleRecord::start(), None),
        };
        let result = catch_unwind(AssertUnwindSafe(|| {
            let tools = self.of(&ticket.job);
            match unfinished {
                None => tools.prepare_in_steps(sample, draw, claim, &mut record, crossing),
                Some(unfinished) => tools.go_on(unfinished, sample, claim, &mut record, crossing),
            }
        }));
        let failure = match self.judge(&ticket.job, sample, result) {
            Ok(Progress::Parked(unfinished)) => {
                return Some(Standing { unfinished, record, worked: crossing.worked() });
            }
            Ok(Progress::Finished) => None,
            Err(failure) => Some(failure),
        };
        let (own, worker, finished) = (claim.take_own(), self.worker, Instant::now());
        claim.finish(Outcome { record, finished, worker, put_aside, failure, own, foreign: None });
        None
    }

    /// What preparing a sample came to. After a panic new tools start clean, whatever these were in the middle of.
    fn judge<T>(
        &mut self,
        job: &Arc<Job>,
        sample: SampleId,
        result: std::thread::Result<Result<T, Failure>>,
    ) -> Result<T, Failure> {
        result.unwrap_or_else(|panic| {
            if let Some(index) = self.position(job) {
                self.sets.swap_remove(index);
            }
            Err(broken_tools(job, sample, &*panic))
        })
    }

    /// Prepares a sample for all jobs that want it, or takes one that another job has prepared.
    fn work_for_all(&mut self, ticket: &Ticket, task: &Task, claim: &mut Claim<'_>) {
        let Some(Share { pool, kind, .. }) = &ticket.job.share else { return };
        match *task {
            Task::Take { sample, entry, preparation, leave } => {
                let found = pool.found(entry, *kind);
                match &found {
                    Found::Finished(prepared) => copy_finished(prepared, self.worker, claim),
                    Found::Common(common) => {
                        let exchange = Some(Exchange::Given(common));
                        self.work_here_and(ticket, (sample, preparation), exchange, claim, |claim, good| {
                            let mut copy = if leave && good { pool.spare() } else { return };
                            if claim.copy_to(&mut copy) {
                                pool.add(entry, *kind, copy);
                            }
                        });
                    }
                    Found::Nothing => self.work_here(ticket, sample, preparation, claim),
                }
                pool.copied(entry, found);
            }
            Task::Prepare { sample, preparation, share: None } => {
                self.work_here(ticket, sample, preparation, claim);
            }
            Task::Prepare { sample, preparation, share: Some((entry, leaving)) } => {
                let mut request = leaving.common.map(|form| pool.request(form));
                let exchange = request.as_mut().map(Exchange::Wanted);
                let mut copy = None;
                let good =
                    self.work_here_and(ticket, (sample, preparation), exchange, claim, |claim, good| {
                        if good && leaving.augmented {
                            let mut finished = pool.spare();
                            copy = claim.copy_to(&mut finished).then_some(finished);
                        }
                    });
                if good {
                    pool.ready(entry, *kind, copy, request.and_then(|request| request.left));
                } else {
                    pool.abandon(entry);
                }
            }
        }
        if let Task::Prepare { sample, .. } = *task {
            let form = ticket.job.preparation.kept_as(sample);
            if form != Form::Storage {
                pool.note_kept(sample, form);
            }
        }
    }

    fn work_here(&mut self, ticket: &Ticket, sample: SampleId, preparation: u32, claim: &mut Claim<'_>) {
        self.work_here_and(ticket, (sample, preparation), None, claim, |_, _| ());
    }

    /// Prepares a sample and shows the result, and whether it is good, before anybody else can have it.
    fn work_here_and(
        &mut self,
        ticket: &Ticket,
        (sample, preparation): (SampleId, u32),
        exchange: Option<Exchange<'_>>,
        claim: &mut Claim<'_>,
        show: impl FnOnce(&mut Claim<'_>, bool),
    ) -> bool {
        let mut record = SampleRecord::start();
        // Where jobs share, each preparation of a sample has a number, and its random numbers by that.
        let draw = Draw::first(preparation);
        let result = catch_unwind(AssertUnwindSafe(|| {
            let tools = self.of(&ticket.job);
            match exchange {
                None => tools.prepare(sample, draw, claim, &mut record),
                Some(exchange) => tools.prepare_with(exchange, sample, draw, claim, &mut record),
            }
        }));
        let failure = self.judge(&ticket.job, sample, result).err();
        let good = failure.is_none();
        show(claim, good);
        let (own, worker, finished) = (claim.take_own(), self.worker, Instant::now());
        claim.finish(Outcome { record, finished, worker, put_aside: false, failure, own, foreign: None });
        good
    }
}

/// Takes a sample that another job has finished.
fn copy_finished(prepared: &OwnSample, worker: usize, claim: &mut Claim<'_>) {
    let mut record = SampleRecord { served: Form::Augmented, ..SampleRecord::start() };
    // Where it has no row the run has ended, and nobody asks what became of it.
    claim.copy_from(prepared);
    record.augment = record.started.elapsed();
    let (own, finished) = (claim.take_own(), Instant::now());
    claim.finish(Outcome { record, finished, worker, put_aside: false, failure: None, own, foreign: None });
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
