//! One epoch of a job that an agent does.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sutler_core::{EpochPlan, Ledger, SampleId};
use sutler_engine::{Batch, BatchEntry, Counts, Handling, Made, Next, OwnSample, Received, Run, RunError};

use crate::client::{Alone, ClientError, Life, RemoteJob, Standing, batches_together, nonsense};
use crate::connection::Reply;
use crate::drawn::Drawn;
use crate::figures::Clock;
use crate::message::{Answer, Bad, Delivered, Place, Refusal, Request};
use crate::spec::{EpochError, EpochSpec};

/// Where batches travel together, the agent is told of what a sampler draws when there are so many for a message, or when it is
/// asked for a batch: a part of what is prepared ahead, so that it always has some to go on with.
const DRAWN_PART: usize = 4;

/// The consumer's end of one epoch, with the meaning of [`sutler_engine::Run`]. Dropping it calls the epoch off.
///
/// It knows at any time where another agent would have to begin: after exactly what came here. What of that the consumer has
/// not had yet waits here, and is good whatever becomes of the agent.
pub struct RemoteRun {
    job: Arc<RemoteJob>,
    number: u64,
    /// The rest of the epoch, after what has come.
    rest: EpochSpec,
    /// Batches that have come and the consumer has not had.
    arrived: VecDeque<Arrived>,
    /// How much of the epoch's sequence all ranks have consumed with what the consumer has had.
    consumed: u64,
    /// What a sampler drew of the rest.
    drawn: Drawn,
    /// The whole epoch, where a sampler draws it.
    plan: Option<EpochPlan>,
    /// How many batches there are in all, once that is known.
    batches: Option<u64>,
    /// The agent that the run was started with.
    life: u64,
    /// Requests that only need an answer if it is no.
    unchecked: Vec<u64>,
    /// The request for a batch that is not answered yet.
    pending: Option<u64>,
    /// The run in this process, and how many of its failures are noted, once there is no agent any more.
    alone: Option<(Run, usize)>,
    clock: Clock,
    broken: Option<RunError>,
    ended: bool,
    /// How many batches were passed over since somebody asked for that.
    passed: u64,
}

/// A batch that has come.
struct Arrived {
    batch: Batch,
    consumed: u64,
    failures: Vec<Bad>,
    counts: Counts,
    /// How many batches were passed over before it.
    passed: u64,
}

impl RemoteJob {
    /// Begins an epoch; its preparation starts at once, if the agent is there.
    ///
    /// # Errors
    /// When the epoch makes no sense.
    pub fn start(self: &Arc<Self>, epoch: EpochSpec) -> Result<RemoteRun, ClientError> {
        let plan = if self.spec().shared { epoch.shared_plan() } else { epoch.plan() };
        let plan = plan.map_err(|error| refused(&error))?;
        let batches = (!plan.is_open()).then(|| plan.batches());
        let mut run = RemoteRun {
            job: Arc::clone(self),
            number: self.number_run(),
            consumed: epoch.consumed,
            rest: epoch,
            arrived: VecDeque::new(),
            drawn: Drawn::default(),
            plan: batches.is_none().then_some(plan),
            batches,
            life: 0,
            unchecked: Vec::new(),
            pending: None,
            alone: None,
            clock: Clock::default(),
            broken: None,
            ended: false,
            passed: 0,
        };
        // Nobody has asked for a batch yet, so whatever goes wrong here can wait until somebody does.
        let mut link = self.link();
        if let Ok(Standing::Agent(life, agent)) = self.standing(&mut link, Instant::now())
            && let Err(error) = run.begin(life, agent)
        {
            self.lose(&mut link, &error);
        }
        drop(link);
        Ok(run)
    }
}

impl RemoteRun {
    /// How many batches this run delivers in all; `None` while a sampler may draw more.
    #[must_use]
    pub fn batches(&self) -> Option<u64> {
        self.batches
    }

    /// How much of the epoch's sequence all ranks have consumed, where batches are served in order.
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// How many batches were passed over since this was last asked; see [`Run::take_passed`].
    pub fn take_passed(&mut self) -> u64 {
        std::mem::take(&mut self.passed)
    }

    /// A sampler of a dataset with `samples` samples has drawn these.
    ///
    /// # Errors
    /// When there is no such sample.
    pub fn extend(&mut self, indices: Vec<u64>, samples: u32) -> Result<(), ClientError> {
        if let Some(plan) = &mut self.plan {
            plan.extend(&indices, samples)?;
        }
        self.drawn.extend(&indices);
        self.tell(batches_together(self.job.spec()).div_ceil(DRAWN_PART))
    }

    /// A batch sampler has drawn these.
    ///
    /// # Errors
    /// When there is no such sample, or a batch is empty.
    pub fn extend_batches(&mut self, batches: Vec<Vec<u64>>, samples: u32) -> Result<(), ClientError> {
        if let Some(plan) = &mut self.plan {
            plan.extend_batches(&batches, samples)?;
        }
        self.drawn.extend_batches(&batches);
        self.tell(batches_together(self.job.spec()).div_ceil(DRAWN_PART))
    }

    /// The sampler is at its end.
    ///
    /// # Errors
    /// Never for what was drawn; see [`RemoteRun::extend`].
    pub fn end_drawing(&mut self) -> Result<(), ClientError> {
        if let Some(mut plan) = self.plan.take() {
            plan.end();
            self.batches = Some(plan.batches());
        }
        self.drawn.end();
        self.tell(0)
    }

    /// Tells the agent what was drawn, if it has the run and has not been told of so many samples. Another agent is told everything
    /// when the run begins there.
    fn tell(&mut self, samples: usize) -> Result<(), ClientError> {
        if let Some((run, _)) = &self.alone {
            let news = self.drawn.news(self.number, self.rest.sequence);
            return news.into_iter().try_for_each(|request| change(run, request));
        }
        if self.drawn.untold() < samples {
            return Ok(());
        }
        let job = Arc::clone(&self.job);
        let mut link = job.link();
        if let Some(agent) = link.agent_of(self.life)
            && let Err(error) = self.tell_news(agent)
        {
            job.lose(&mut link, &error);
        }
        Ok(())
    }

    fn tell_news(&mut self, agent: &mut Life) -> std::io::Result<()> {
        for request in self.drawn.news(self.number, self.rest.sequence) {
            self.unchecked.push(agent.connection.ask(request)?);
        }
        Ok(())
    }

    /// Begins the run, or the rest of it, with an agent.
    fn begin(&mut self, life: u64, agent: &mut Life) -> std::io::Result<()> {
        self.life = life;
        self.pending = None;
        self.unchecked.clear();
        let start = Request::Start { run: self.number, epoch: self.rest.clone() };
        let drawn = self.drawn.all(self.number, self.rest.sequence);
        for request in std::iter::once(start).chain(drawn) {
            self.unchecked.push(agent.connection.ask(request)?);
        }
        Ok(())
    }

    /// The next batch, waiting at most `timeout` for it. An agent that is gone is looked for meanwhile.
    ///
    /// # Errors
    /// As [`Run::next`]; and when the agent is gone for good or refuses to go on.
    pub fn next(&mut self, timeout: Duration) -> Result<Next, ClientError> {
        let deadline = Instant::now() + timeout;
        self.clock.ask();
        let job = Arc::clone(&self.job);
        loop {
            if let Some(batch) = self.hand_over() {
                return Ok(Next::Batch(batch));
            }
            if let Some(error) = &self.broken {
                return Err(error.clone().into());
            }
            if self.ended {
                return Ok(Next::End);
            }
            let mut link = job.link();
            match job.standing(&mut link, deadline)? {
                Standing::Nobody => return Ok(Next::TimedOut),
                Standing::Alone(alone) => return self.next_alone(alone, deadline),
                Standing::Agent(life, agent) => match self.exchange(life, agent, deadline) {
                    Err(error) => job.lose(&mut link, &error),
                    Ok(None) => return Ok(Next::TimedOut),
                    Ok(Some(reply)) => {
                        for id in self.unchecked.drain(..) {
                            agent.connection.check(id)?;
                        }
                        self.take(agent, reply)?;
                        if !self.arrived.is_empty() {
                            self.ask_ahead(agent);
                        } else if self.passed > 0 {
                            return Ok(Next::Passed);
                        } else if !self.ended && Instant::now() >= deadline {
                            return Ok(Next::TimedOut);
                        }
                    }
                },
            }
        }
    }

    /// Asks for a batch, unless that is done, and waits for the answer.
    fn exchange(&mut self, life: u64, agent: &mut Life, deadline: Instant) -> std::io::Result<Option<Reply>> {
        if self.life != life {
            self.begin(life, agent)?;
        }
        let pending = match self.pending {
            Some(pending) => pending,
            None => self.ask(agent)?,
        };
        self.pending = Some(pending);
        let reply = agent.connection.wait(pending, deadline)?;
        if reply.is_some() {
            self.pending = None;
        }
        Ok(reply)
    }

    fn ask(&mut self, agent: &mut Life) -> std::io::Result<u64> {
        self.tell_news(agent)?;
        let released = agent.connection.take_released();
        let most = batches_together(self.job.spec());
        agent.connection.ask(Request::Next { run: self.number, released, most })
    }

    /// Asks for the next batch before the trainer does, so that it is on its way while the trainer works. Not while a sampler
    /// draws: the agent would wait for what it has not been told yet.
    fn ask_ahead(&mut self, agent: &mut Life) {
        if self.plan.is_none() {
            // If the agent is gone, that is noticed when the trainer asks.
            self.pending = self.ask(agent).ok();
        }
    }

    /// Takes note of the agent's answer to a request for a batch.
    fn take(&mut self, agent: &Life, (answer, mut file): Reply) -> Result<(), ClientError> {
        match answer {
            Answer::NotYet => Ok(()),
            Answer::Passed { batches } => {
                self.passed += batches;
                Ok(())
            }
            Answer::Batches(batches) => batches.into_iter().try_for_each(|delivered| {
                let file = if matches!(delivered.place, Place::Slot(_)) { None } else { file.take() };
                self.receive(agent, delivered, file)
            }),
            Answer::End { failures, counts, figures } => {
                self.job.note_bad(self.number, failures);
                self.ended = true;
                let mut book = self.job.figures();
                book.note(figures);
                book.count(counts);
                book.ended(&mut self.clock);
                Ok(())
            }
            Answer::Broken { error, failures, counts } => {
                self.job.note_bad(self.number, failures);
                self.job.figures().count(counts);
                let error = RunError::from(*error);
                self.broken = Some(error.clone());
                Err(error.into())
            }
            Answer::Refused { kind, reason } => Err(ClientError::Refused { kind, reason }),
            other => Err(nonsense(&format!("it answered {other:?} to a request for a batch"))),
        }
    }

    /// Takes over a batch that the agent delivered.
    fn receive(
        &mut self,
        agent: &Life,
        delivered: Delivered,
        file: Option<OwnedFd>,
    ) -> Result<(), ClientError> {
        let out_of_memory = |reason: String| ClientError::Refused { kind: Refusal::Memory, reason };
        let (memory, owned) = match (delivered.place, &agent.arena, file) {
            (Place::Slot(slot), Some(arena), _) => {
                let memory =
                    arena.adopt(slot).ok_or_else(|| nonsense("it named a slot that is not there"))?;
                (Some(memory), Vec::new())
            }
            (Place::File { bytes }, Some(arena), Some(file)) => {
                let memory =
                    arena.adopt_file(file, bytes).map_err(|error| out_of_memory(error.to_string()))?;
                (Some(memory), Vec::new())
            }
            (Place::Each { shapes, bytes }, _, Some(file)) => {
                let samples = read_samples(file, &shapes, &bytes)
                    .map_err(|error| nonsense(&format!("its samples cannot be read ({error})")))?;
                (None, samples)
            }
            _ => return Err(nonsense("it sent a batch without its memory")),
        };
        let samples = Received {
            ids: delivered.ids.into_iter().map(SampleId).collect(),
            repeats: delivered.repeats,
            labels: delivered.labels,
            positions: delivered.positions,
            owned,
            // A batch that lay in the socket for a while was ready even earlier; nobody waited for that one then.
            made: Instant::now()
                .checked_sub(Duration::from_nanos(delivered.ready_for_nanos))
                .map(|ready| Made { course: delivered.course, ready }),
        };
        let batch = Batch::received(delivered.index, agent.shape, memory, samples);
        if let Some(figures) = delivered.figures {
            self.job.figures().note(figures);
        }
        self.note_arrival(&batch, delivered.consumed);
        let Delivered { consumed, failures, counts, passed, .. } = delivered;
        self.arrived.push_back(Arrived { batch, consumed, failures, counts, passed });
        Ok(())
    }

    /// The consumer has the batch that was answered last in its hands only now; see [`Run::handed_over`].
    pub fn handed_over(&mut self, handling: Handling) {
        self.job.figures().handled(&mut self.clock, handling);
    }

    /// What the latest request of this job for a batch came to.
    #[must_use]
    pub fn last_delivery(&self) -> Option<BatchEntry> {
        self.job.figures().last_delivery()
    }

    /// Gives the consumer a batch that has come.
    fn hand_over(&mut self) -> Option<Batch> {
        let Arrived { batch, consumed, failures, counts, passed } = self.arrived.pop_front()?;
        self.passed += passed;
        self.job.note_bad(self.number, failures);
        self.note_delivered(&batch, consumed, counts);
        Some(batch)
    }

    /// A batch is in the consumer's hands.
    fn note_delivered(&mut self, batch: &Batch, consumed: u64, counts: Counts) {
        if self.job.spec().lateness.is_none() {
            self.consumed = consumed;
        }
        self.job.figures().delivered(&mut self.clock, batch, self.arrived.len(), counts);
    }

    /// A batch has come: the rest of the epoch is what comes after it.
    fn note_arrival(&mut self, batch: &Batch, consumed: u64) {
        if self.job.spec().lateness.is_none() {
            self.drawn.forget(consumed.saturating_sub(self.rest.consumed));
            self.rest.consumed = consumed;
        } else {
            let done = self.rest.done.get_or_insert_with(|| Ledger::new(0));
            for &position in batch.positions() {
                done.extend(position + 1);
                // What is in it already was delivered twice, and that is for the trainer's own book to find out.
                if done.lease(position).is_ok() {
                    let _ = done.serve(position);
                }
            }
        }
        self.job.note_success();
    }

    /// The next batch from the engine of this process.
    fn next_alone(&mut self, alone: &Alone, deadline: Instant) -> Result<Next, ClientError> {
        let (run, noted) = match &mut self.alone {
            Some(begun) => begun,
            None => {
                let mut run = self.rest.start(&alone.engine, &alone.job).map_err(|error| refused(&error))?;
                run.keep_courses();
                for request in self.drawn.all(self.number, self.rest.sequence) {
                    change(&run, request)?;
                }
                self.alone.insert((run, 0))
            }
        };
        let before = alone.job.metrics().counts();
        let answer = run.next(deadline.saturating_duration_since(Instant::now()));
        let counts = alone.job.metrics().counts().since(before);
        let consumed = run.cursor().consumed;
        self.passed += run.take_passed();
        let failures = alone.job.failures_from(*noted);
        *noted += failures.len();
        self.job.note_failures(self.number, failures.into_iter());
        match &answer {
            Ok(Next::Batch(batch)) => {
                self.note_arrival(batch, consumed);
                self.note_delivered(batch, consumed, counts);
            }
            Ok(Next::End) => {
                self.ended = true;
                let mut book = self.job.figures();
                book.count(counts);
                book.ended(&mut self.clock);
            }
            Ok(Next::TimedOut | Next::Passed) => {}
            Err(error) => {
                self.job.figures().count(counts);
                self.broken = Some(error.clone());
            }
        }
        Ok(answer?)
    }
}

impl Drop for RemoteRun {
    fn drop(&mut self) {
        if !self.job.is_here() {
            return;
        }
        let mut link = self.job.link();
        let Some(agent) = link.agent_of(self.life) else { return };
        for id in self.unchecked.drain(..).chain(self.pending.take()) {
            agent.connection.forget(id);
        }
        // An agent that does not hear it any more has nothing to call off.
        if let Ok(id) = agent.connection.ask(Request::CallOff { run: self.number }) {
            agent.connection.forget(id);
        }
    }
}

fn refused(error: &EpochError) -> ClientError {
    ClientError::Refused { kind: Refusal::Value, reason: error.to_string() }
}

/// Makes a change that an agent would have been asked for to a run in this process.
fn change(run: &Run, request: Request) -> Result<(), ClientError> {
    run.extend(|plan| match request {
        // What is drawn was checked against the dataset when it was drawn.
        Request::Extend { indices, .. } => plan.extend(&indices, u32::MAX),
        Request::ExtendBatches { batches, .. } => plan.extend_batches(&batches, u32::MAX),
        _ => {
            plan.end();
            Ok(())
        }
    })
    .map_err(ClientError::from)
}

/// Reads samples that lie in a file one after the other.
fn read_samples(file: OwnedFd, shapes: &[[u32; 3]], bytes: &[usize]) -> std::io::Result<Vec<OwnSample>> {
    let mut file = File::from(file);
    let there = file.metadata()?.len();
    let total = bytes.iter().try_fold(0u64, |total, &bytes| total.checked_add(bytes as u64));
    if total != Some(there) || shapes.len() != bytes.len() {
        return Err(std::io::Error::other(format!("the file has {there} bytes")));
    }
    std::io::Seek::rewind(&mut file)?;
    shapes
        .iter()
        .zip(bytes)
        .map(|(&shape, &bytes)| {
            let mut data = vec![0; bytes];
            file.read_exact(&mut data)?;
            Ok(OwnSample { shape, data })
        })
        .collect()
}
