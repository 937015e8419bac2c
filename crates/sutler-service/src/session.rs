//! One client of the agent: its job, its runs, and the batches it holds.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use serde_json::Value;
use sutler_core::OrderError;
use sutler_engine::{Batch, Counts, Job, Next, OwnSample, RowSpec, Run};

use crate::agent::{Agent, JobEntry, Progress};
use crate::catalogue::CatalogueError;
use crate::channel::{Channel, Received, wait_readable};
use crate::figures::FIGURES_EVERY;
use crate::message::{Answer, Answered, Asked, Bad, Delivered, PROTOCOL, Place, Refusal, Request, Slots};
use crate::spec::{JobError, JobSpec, Memory};

/// How long a request for a batch is kept waiting before it is answered with "not yet": as long as anything else that
/// the client asks meanwhile may have to wait.
const NEXT_PATIENCE: Duration = Duration::from_millis(50);

/// How long is waited for batches that can travel together, where the client has room for several. Workers go on meanwhile,
/// so this delays a batch and not those behind it; but a trainer that waits for that batch waits so much longer. Batches that
/// take so little that a message is a part of it worth naming are ready within this time, a few of them; others need no
/// company.
const COMPANY_PATIENCE: Duration = Duration::from_micros(1200);

/// In how many slices the course of a batch is told. Batches of few samples are told exactly; those of many, which take a
/// while, to a part in 24 of that.
const COURSE_SLICES: usize = 24;

/// A request that cannot be granted.
struct Refused(Refusal, String);

type Reply = Result<(Answer, Option<OwnedFd>), Refused>;

/// What belongs to one connection. Dropping it gives everything back.
pub struct Session<'a> {
    agent: &'a Agent,
    number: u64,
    job: Option<Arc<Job>>,
    samples: u32,
    runs: HashMap<u64, Run>,
    /// The run whose failures the job lists, and how many of them the client knows.
    failures_told: (u64, usize),
    /// Delivered batches by their slots, until the client says that it has done with them.
    held: HashMap<usize, Batch>,
    figures_sent: Instant,
    /// What the client knows of what was counted.
    counts_told: Counts,
    /// How far the run is that was begun last, by its number.
    progress: Option<(u64, Progress)>,
}

impl<'a> Session<'a> {
    pub fn new(agent: &'a Agent, number: u64) -> Self {
        Self {
            agent,
            number,
            job: None,
            samples: 0,
            runs: HashMap::new(),
            failures_told: (0, 0),
            held: HashMap::new(),
            figures_sent: Instant::now(),
            counts_told: Counts::default(),
            progress: None,
        }
    }

    /// Serves the client until it hangs up or its process ends. `process` becomes readable when it does: a child that the
    /// client forked may keep the socket open.
    pub fn serve(&mut self, channel: &mut Channel, process: Option<BorrowedFd<'_>>) -> std::io::Result<()> {
        loop {
            let ready = wait_readable(channel.socket().as_fd(), process, None)?;
            if !ready.socket && ready.other {
                return Ok(());
            }
            // What has begun to come is not long in coming; who stops in the middle is not our client any more.
            let asked: Asked = match channel.receive(Some(Instant::now() + Duration::from_secs(30)))? {
                Received::Message(asked, _) => asked,
                Received::TimedOut => return Err(std::io::Error::other("half a message came")),
                Received::Closed => return Ok(()),
            };
            let (answer, descriptor) = self
                .answer(asked.request)
                .unwrap_or_else(|Refused(kind, reason)| (Answer::Refused { kind, reason }, None));
            let shared = match &answer {
                Answer::Opened { .. } => self.job.as_ref().and_then(|job| job.arena()?.file()),
                _ => None,
            };
            let descriptor = descriptor.as_ref().map(AsFd::as_fd).or(shared);
            channel.send(&Answered { id: asked.id, answer }, descriptor)?;
            self.agent.note(self.number, self.held.len(), self.progress.map(|(_, progress)| progress));
        }
    }

    fn answer(&mut self, request: Request) -> Reply {
        let answer = match request {
            Request::Hello { protocol, version } => self.greet(protocol, &version)?,
            Request::Open { job } => self.open(*job)?,
            Request::Start { run, epoch } => {
                let job = self.job.as_ref().ok_or_else(no_job)?;
                self.agent
                    .begin(self.number, epoch.epoch, epoch.sequence)
                    .map_err(|reason| Refused(Refusal::Value, reason))?;
                let mut started = epoch
                    .check_part(self.samples)
                    .and_then(|()| epoch.start(self.agent.engine(), job))
                    .map_err(|error| Refused(Refusal::Value, error.to_string()))?;
                started.keep_courses();
                let batches = started.batches();
                self.progress = Some((run, Progress { epoch: epoch.epoch, batches: 0, planned: batches }));
                self.runs.insert(run, started);
                self.failures_told = (run, 0);
                Answer::Planned { batches }
            }
            Request::Extend { run, indices } => {
                let samples = self.samples;
                self.change(run, |plan| plan.extend(&indices, samples))?
            }
            Request::ExtendBatches { run, batches } => {
                let samples = self.samples;
                self.change(run, |plan| plan.extend_batches(&batches, samples))?
            }
            Request::EndDrawing { run } => self.change(run, |plan| {
                plan.end();
                Ok(())
            })?,
            Request::Next { run, released, most } => {
                for slot in released {
                    self.held.remove(&slot);
                }
                return self.next(run, most);
            }
            Request::CallOff { run } => {
                self.runs.remove(&run);
                Answer::CalledOff
            }
            Request::Figures => Answer::Facts { facts: figures(self.job.as_ref().ok_or_else(no_job)?)? },
            Request::Status => Answer::Facts { facts: self.agent.status() },
        };
        Ok((answer, None))
    }

    fn greet(&self, protocol: u32, version: &str) -> Result<Answer, Refused> {
        let ours = env!("CARGO_PKG_VERSION");
        if protocol != PROTOCOL {
            let reason = format!(
                "the agent is Sutler {ours} and the loader is Sutler {version}, and the two do not understand each \
                 other; restart the agent from the loader's environment"
            );
            return Err(Refused(Refusal::Denied, reason));
        }
        Ok(Answer::Welcome { version: ours.to_owned(), threads: self.agent.engine().threads() })
    }

    fn open(&mut self, spec: JobSpec) -> Result<Answer, Refused> {
        if self.job.is_some() {
            return Err(Refused(Refusal::Value, "this connection has a job already".to_owned()));
        }
        let files = self.agent.catalogue().open(&spec.dataset, spec.fingerprint).map_err(|error| {
            let kind = match &error {
                CatalogueError::Other { .. } => Refusal::Value,
                CatalogueError::Listing(cause) if cause.kind() == "missing" => Refusal::Missing,
                CatalogueError::Listing(_) => Refusal::System,
            };
            Refused(kind, error.to_string())
        })?;
        // An id is 32 bits, which a listing has checked.
        let samples = u32::try_from(files.listing().len()).unwrap_or(u32::MAX);
        let refused = |error: &JobError| {
            let kind = match error {
                JobError::Pipeline(_) => Refusal::Value,
                JobError::Memory(_) | JobError::Cache(_) => Refusal::Memory,
            };
            Refused(kind, error.to_string())
        };
        let shelf = self.agent.shelf();
        let opened = shelf
            .board(self.number, &spec, &files)
            .and_then(|cache| spec.open(files, Memory::Shared, cache))
            .map_err(|error| refused(&error));
        // Whoever is refused has no part in what is shared, and may ask for something else.
        let job = opened.inspect_err(|_| shelf.leave(self.number))?;
        let job = shelf.seat(self.number, &spec, job);
        let slots = job.arena().map(|arena| arena.slots());
        let shape = job.block_shape();
        let row_bytes = match shape.row {
            RowSpec::Fixed { bytes } => Some(bytes),
            RowSpec::Varies => None,
        };
        self.agent.enter(self.number, JobEntry::new(spec, &job)).map_err(|reason| {
            shelf.leave(self.number);
            Refused(Refusal::Value, reason)
        })?;
        self.job = Some(job);
        self.samples = samples;
        let slots = slots.map(|(bytes, count)| Slots { bytes, count });
        Ok(Answer::Opened { slots, row_bytes, beside_bytes: shape.beside })
    }

    fn change(
        &mut self,
        run: u64,
        change: impl FnOnce(&mut sutler_core::EpochPlan) -> Result<(), OrderError>,
    ) -> Result<Answer, Refused> {
        let open = self.runs.get(&run).ok_or_else(no_run)?;
        open.extend(change).map_err(|error| Refused(Refusal::Value, error.to_string()))?;
        let batches = open.batches();
        if let Some((_, progress)) = self.progress.as_mut().filter(|(latest, _)| *latest == run) {
            progress.planned = batches;
        }
        Ok(Answer::Planned { batches })
    }

    /// The next batch, and those that are ready soon after it.
    fn next(&mut self, run: u64, most: usize) -> Reply {
        let job = Arc::clone(self.job.as_ref().ok_or_else(no_job)?);
        let mut batches = Vec::new();
        let mut file = None;
        // The trainer has nothing to do until an epoch's first batch is there.
        let is_first =
            matches!(self.progress, Some((latest, progress)) if latest == run && progress.batches == 0);
        if most > 1 && !is_first {
            self.runs.get_mut(&run).ok_or_else(no_run)?.wait_for(most, COMPANY_PATIENCE);
        }
        while batches.len() < most.max(1) && file.is_none() {
            let open = self.runs.get_mut(&run).ok_or_else(no_run)?;
            let patience = if batches.is_empty() { NEXT_PATIENCE } else { Duration::ZERO };
            match open.next(patience) {
                Ok(Next::Batch(batch)) => {
                    let delivered;
                    (delivered, file) = self.deliver(&job, run, batch)?;
                    batches.push(delivered);
                }
                Ok(Next::TimedOut | Next::Passed) => break,
                // What ends a run is said again when the client asks for more.
                Ok(Next::End) | Err(_) if !batches.is_empty() => break,
                Ok(Next::End) => {
                    let (failures, counts) = (self.new_failures(&job, run), self.new_counts(&job));
                    return Ok((Answer::End { failures, counts, figures: figures(&job)? }, None));
                }
                Err(error) => {
                    let (failures, counts) = (self.new_failures(&job, run), self.new_counts(&job));
                    let error = Box::new((&error).into());
                    return Ok((Answer::Broken { error, failures, counts }, None));
                }
            }
        }
        if !batches.is_empty() {
            return Ok((Answer::Batches(batches), file));
        }
        let passed = self.runs.get_mut(&run).map_or(0, Run::take_passed);
        Ok((if passed > 0 { Answer::Passed { batches: passed } } else { Answer::NotYet }, None))
    }

    /// What is told about a batch, and the file that has to travel for it.
    fn deliver(
        &mut self,
        job: &Job,
        run: u64,
        batch: Batch,
    ) -> Result<(Delivered, Option<OwnedFd>), Refused> {
        let consumed = self.runs.get(&run).map_or(0, |open| open.cursor().consumed);
        if let Some((_, progress)) = self.progress.as_mut().filter(|(latest, _)| *latest == run) {
            progress.batches += 1;
        }
        let failures = self.new_failures(job, run);
        let due = self.figures_sent.elapsed() >= FIGURES_EVERY;
        if due {
            self.figures_sent = Instant::now();
        }
        let (place, file) = place(&batch).map_err(|error| {
            Refused(Refusal::Memory, format!("a batch could not be put in memory to be handed over: {error}"))
        })?;
        let delivered = Delivered {
            index: batch.index,
            passed: self.runs.get_mut(&run).map_or(0, Run::take_passed),
            ids: batch.ids().iter().map(|id| id.0).collect(),
            repeats: batch.repeats().clone(),
            labels: batch.labels().to_vec(),
            positions: batch.positions().to_vec(),
            consumed,
            course: batch.made().map(|made| made.course.coarse(COURSE_SLICES)).unwrap_or_default(),
            ready_for_nanos: batch
                .made()
                .map_or(0, |made| u64::try_from(made.ready.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            failures,
            counts: self.new_counts(job),
            figures: if due { Some(figures(job)?) } else { None },
            place,
        };
        if let Place::Slot(slot) = delivered.place {
            self.held.insert(slot, batch);
        }
        Ok((delivered, file))
    }

    /// What was counted since this was last asked. A batch is counted when it is taken from its run, so directly after that these are its own counts, and
    /// those of batches without a good sample before it.
    fn new_counts(&mut self, job: &Job) -> Counts {
        let counts = job.metrics().counts();
        let new = counts.since(self.counts_told);
        self.counts_told = counts;
        new
    }

    /// The failures of a run that the client does not know; none of a run that another one has followed.
    fn new_failures(&mut self, job: &Job, run: u64) -> Vec<Bad> {
        let (latest, told) = &mut self.failures_told;
        if *latest != run {
            return Vec::new();
        }
        let failures = job.failures_from(*told);
        *told += failures.len();
        failures.iter().map(Bad::from).collect()
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.agent.leave(self.number);
    }
}

fn no_job() -> Refused {
    Refused(Refusal::Value, "this connection has no job yet".to_owned())
}

fn no_run() -> Refused {
    Refused(Refusal::Value, "there is no such run".to_owned())
}

fn figures(job: &Job) -> Result<Value, Refused> {
    serde_json::to_value(job.snapshot())
        .map_err(|error| Refused(Refusal::Value, format!("the figures cannot be sent: {error}")))
}

/// Where a batch's values are for the client, and the file that has to travel for it.
fn place(batch: &Batch) -> std::io::Result<(Place, Option<OwnedFd>)> {
    match batch.memory() {
        Some(memory) => match (memory.slot(), memory.file()) {
            (Some(slot), _) => Ok((Place::Slot(slot), None)),
            (None, Some(file)) => Ok((Place::File { bytes: memory.len() }, Some(file.try_clone_to_owned()?))),
            (None, None) => Err(std::io::Error::other("the job's memory is not shared")),
        },
        None => {
            let samples = batch.take_owned();
            let file = file_of(&samples)?;
            let shapes = samples.iter().map(|sample| sample.shape).collect();
            let bytes = samples.iter().map(|sample| sample.data.len()).collect();
            Ok((Place::Each { shapes, bytes }, Some(file)))
        }
    }
}

/// An anonymous file that holds samples one after the other.
fn file_of(samples: &[OwnSample]) -> std::io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("sutler-samples", MemfdFlags::CLOEXEC)?);
    for sample in samples {
        file.write_all(&sample.data)?;
    }
    Ok(file.into())
}
