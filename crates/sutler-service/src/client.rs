//! A job that an agent does for this process.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use sutler_core::OrderError;
use sutler_engine::{Arena, BlockShape, Engine, Failure, Job, Pool, RowSpec, RunError, Timeline};
use sutler_store::Files;

use crate::agent::say;
use crate::connection::{Connection, Reply};
use crate::figures::Figures;
use crate::message::{Answer, Bad, HELLO, Refusal, Request};
use crate::spec::{JobSpec, Memory};

/// How often an agent that is gone is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How many agents in a row may go away without having delivered a batch. A request that ends every agent it is sent to
/// must not be sent for ever.
const LOSSES_MAX: u32 = 5;

/// Small batches travel together, so that a message, which costs as much as preparing a small picture takes, is not needed for
/// each of them: up to so many samples.
const SAMPLES_TOGETHER: usize = 16;

/// How long figures are waited for before those of a moment ago have to do.
const FIGURES_PATIENCE: Duration = Duration::from_secs(1);

/// Why an agent does not do what a client wants.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// There is none.
    #[error("no agent answers at {}: {reason}", path.display())]
    NoAgent {
        /// Where it was looked for.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
    /// It went away in the middle of the work.
    #[error(
        "the agent at {} is gone: {reason}; batches that were delivered stay valid, and the epoch can be resumed from \
         state_dict()",
        path.display()
    )]
    Lost {
        /// Where it was.
        path: PathBuf,
        /// How it was noticed, and why it is not waited for any longer.
        reason: String,
    },
    /// It says no.
    #[error("{reason}")]
    Refused {
        /// What kind of no.
        kind: Refusal,
        /// Why.
        reason: String,
    },
    /// The run cannot go on.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl From<OrderError> for ClientError {
    fn from(error: OrderError) -> Self {
        Self::Refused { kind: Refusal::Value, reason: error.to_string() }
    }
}

/// How a client deals with its agent.
pub struct RemoteJobOptions {
    /// The agent's socket.
    pub socket: PathBuf,
    /// How long an agent that is gone is waited for.
    pub patience: Duration,
    /// What the samples are prepared from, and with how many threads, if no agent comes back; without it that is an
    /// error.
    pub alone: Option<(Arc<Files>, usize)>,
}

/// A job that an agent does for this process.
pub struct RemoteJob {
    spec: JobSpec,
    options: RemoteJobOptions,
    /// The conversation. Whoever waits for an answer holds it, for as long as one call may wait.
    link: Mutex<Link>,
    /// The failures of the run that was begun last.
    failures: Mutex<(u64, Vec<Failure>)>,
    pub(crate) figures: Mutex<Figures>,
    /// The first batch memory: it may be registered with a device, and stays until the job ends.
    memory: Mutex<Option<Arc<Arena>>>,
    runs: AtomicU64,
    /// Agents that went away since the last batch.
    losses: AtomicU32,
    owner: u32,
}

/// One agent, from the moment the job was opened there.
pub(crate) struct Life {
    pub connection: Connection,
    pub arena: Option<Arc<Arena>>,
    pub shape: BlockShape,
}

/// The engine of a process that was left alone.
pub(crate) struct Alone {
    pub engine: Engine,
    pub job: Arc<Job>,
}

/// How things stand with the agent: opening the job, attached, lost and looked for, and back to opening; or, when it stays
/// away, alone or given up.
enum State {
    Opening {
        connection: Box<Connection>,
        open: u64,
        since: Instant,
    },
    Attached(Box<Life>),
    Lost {
        reason: String,
        since: Instant,
        looked: Option<Instant>,
    },
    Alone(Alone),
    Over(ClientError),
    /// While one of them becomes another.
    Between,
}

/// What a step on the way to an agent came to.
enum Step {
    /// The job is open, with another agent than before.
    Attached,
    /// There are more steps to take.
    Changed,
    /// It takes longer than there is time.
    Waiting,
    /// This is how it stays.
    Settled,
}

pub(crate) struct Link {
    state: State,
    /// How many agents there have been; a run knows by it that it has to begin again.
    life: u64,
}

/// Who prepares the samples at the moment.
pub(crate) enum Standing<'a> {
    Agent(u64, &'a mut Life),
    Alone(&'a Alone),
    /// Nobody yet; ask again.
    Nobody,
}

impl RemoteJob {
    /// Connects to the agent and asks it for the job. The answer is waited for by [`RemoteJob::is_open`].
    ///
    /// # Errors
    /// When no agent is there.
    pub fn open(mut spec: JobSpec, options: RemoteJobOptions) -> Result<Arc<Self>, ClientError> {
        // Besides those that the trainer holds, there are those that were asked for before it wants them; and where several come
        // together, those that came with the one it has, and those it has done with and that the agent does not know of.
        let together = batches_together(&spec);
        let under_way = if together == 1 { 1 } else { 3 * together };
        spec.batches_held = spec.batches_held.saturating_add(under_way);
        // Those that wait for company must not keep workers waiting. Not where jobs share: one that is farther ahead of the others has them
        // share less.
        if together > 1 && !spec.shared {
            spec.batches_ahead = spec.batches_ahead.saturating_add(together);
        }
        let mut connection = Box::new(Connection::open(&options.socket)?);
        let open = connection.ask(Request::Open { job: Box::new(spec.clone()) }).map_err(|error| {
            ClientError::NoAgent { path: options.socket.clone(), reason: error.to_string() }
        })?;
        Ok(Arc::new(Self {
            spec,
            options,
            link: Mutex::new(Link {
                state: State::Opening { connection, open, since: Instant::now() },
                life: 0,
            }),
            failures: Mutex::default(),
            figures: Mutex::default(),
            memory: Mutex::default(),
            runs: AtomicU64::new(0),
            losses: AtomicU32::new(0),
            owner: std::process::id(),
        }))
    }

    /// Waits until the agent has listed the dataset and made the job; false when it needs longer.
    ///
    /// # Errors
    /// When it refuses, or goes away and does not come back.
    pub fn is_open(&self, timeout: Duration) -> Result<bool, ClientError> {
        let mut link = self.link();
        Ok(!matches!(self.standing(&mut link, Instant::now() + timeout)?, Standing::Nobody))
    }

    /// What is done.
    #[must_use]
    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// The batch memory, where samples have one size. A new agent brings its own; this is the first one's.
    #[must_use]
    pub fn arena(&self) -> Option<Arc<Arena>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The samples that failed in the latest epoch.
    #[must_use]
    pub fn failures(&self) -> Vec<Failure> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// All figures so far, in the shape of the engine's own.
    #[must_use]
    pub fn metrics(&self) -> Value {
        if self.is_here() && !self.figures().are_fresh() {
            self.refresh();
        }
        self.figures().snapshot()
    }

    /// The latest batches. Their samples are the agent's business.
    #[must_use]
    pub fn timeline(&self) -> Timeline {
        self.figures().timeline()
    }

    /// Hangs up on the agent. What was delivered stays valid; runs are over.
    pub fn close(&self) {
        if self.is_here() {
            self.link().state = State::Over(RunError::Closed.into());
        }
    }

    /// Asks for the latest figures; if they do not come, those of a moment ago have to do.
    fn refresh(&self) {
        let mut link = self.link();
        let facts = match &mut link.state {
            State::Attached(life) => {
                let deadline = Instant::now() + FIGURES_PATIENCE;
                let connection = &mut life.connection;
                let asked = connection.ask(Request::Figures);
                match asked.and_then(|id| Ok((id, connection.wait(id, deadline)?))) {
                    Ok((_, Some((Answer::Facts { facts }, _)))) => Some(facts),
                    Ok((id, None)) => {
                        connection.forget(id);
                        None
                    }
                    _ => None,
                }
            }
            State::Alone(alone) => serde_json::to_value(alone.job.snapshot()).ok(),
            _ => None,
        };
        drop(link);
        if let Some(facts) = facts {
            self.figures().note(facts);
        }
    }

    pub(crate) fn figures(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the process that opened the job; a forked child shares its socket and must not use it.
    pub(crate) fn is_here(&self) -> bool {
        self.owner == std::process::id()
    }

    pub(crate) fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a new run, whose failures are those of the latest epoch from now on.
    pub(crate) fn number_run(&self) -> u64 {
        let number = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
        *self.failures.lock().unwrap_or_else(PoisonError::into_inner) = (number, Vec::new());
        number
    }

    pub(crate) fn note_failures(&self, run: u64, failures: impl ExactSizeIterator<Item = Failure>) {
        self.figures().failed(failures.len());
        let mut noted = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.0 == run {
            noted.1.extend(failures);
        }
    }

    /// The same for failures that travelled.
    pub(crate) fn note_bad(&self, run: u64, failures: Vec<Bad>) {
        if !failures.is_empty() {
            self.note_failures(run, failures.into_iter().map(Failure::from));
        }
    }

    /// Who prepares the samples, once that is clear; looks for a lost agent meanwhile.
    pub(crate) fn standing<'a>(
        &self,
        link: &'a mut Link,
        deadline: Instant,
    ) -> Result<Standing<'a>, ClientError> {
        loop {
            let state = std::mem::replace(&mut link.state, State::Between);
            let (state, step) = self.step(state, deadline);
            if matches!(step, Step::Attached) {
                link.life += 1;
            }
            link.state = state;
            match step {
                Step::Attached | Step::Changed => {}
                Step::Waiting => return Ok(Standing::Nobody),
                Step::Settled => break,
            }
        }
        let life = link.life;
        match &mut link.state {
            State::Attached(agent) => Ok(Standing::Agent(life, agent)),
            State::Alone(alone) => Ok(Standing::Alone(alone)),
            State::Over(error) => Err(error.clone()),
            State::Opening { .. } | State::Lost { .. } => Ok(Standing::Nobody),
            State::Between => Err(nonsense("attaching to it ended in the middle")),
        }
    }

    /// One step on the way back to an agent.
    fn step(&self, state: State, deadline: Instant) -> (State, Step) {
        match state {
            State::Attached(_) | State::Alone(_) | State::Over(_) | State::Between => (state, Step::Settled),
            State::Opening { mut connection, open, since } => match connection.wait(open, deadline) {
                Ok(None) => (State::Opening { connection, open, since }, Step::Waiting),
                Err(error) => match connection.check(HELLO) {
                    Err(denied) => (State::Over(denied), Step::Settled),
                    Ok(()) => {
                        let looked = Some(Instant::now());
                        (State::Lost { reason: lost(&error), since, looked }, Step::Changed)
                    }
                },
                Ok(Some(reply)) => match self.attach(*connection, reply) {
                    Ok(life) => (State::Attached(Box::new(life)), Step::Attached),
                    Err(error) => (State::Over(error), Step::Settled),
                },
            },
            State::Lost { reason, since, looked } => {
                if since.elapsed() >= self.options.patience {
                    let seconds = self.options.patience.as_secs_f64();
                    let reason = format!("{reason}, and none has come back within {seconds} s");
                    return (self.without_agent(reason), Step::Settled);
                }
                let left = deadline.saturating_duration_since(Instant::now());
                match looked.and_then(|at| LOOK_EVERY.checked_sub(at.elapsed())) {
                    Some(wait) => {
                        std::thread::sleep(wait.min(left));
                        let step = if wait > left { Step::Waiting } else { Step::Changed };
                        (State::Lost { reason, since, looked }, step)
                    }
                    None => {
                        let looked = Some(Instant::now());
                        let found = self.look(since);
                        (found.unwrap_or(State::Lost { reason, since, looked }), Step::Changed)
                    }
                }
            }
        }
    }

    /// Looks whether an agent is back, and asks it for the job.
    fn look(&self, since: Instant) -> Option<State> {
        let mut connection = Box::new(Connection::open(&self.options.socket).ok()?);
        let open = connection.ask(Request::Open { job: Box::new(self.spec.clone()) }).ok()?;
        Some(State::Opening { connection, open, since })
    }

    /// What becomes of the job now that no agent has come back.
    fn without_agent(&self, reason: String) -> State {
        let path = self.options.socket.clone();
        let Some((files, threads)) = &self.options.alone else {
            return State::Over(ClientError::Lost { path, reason });
        };
        let engine = Engine::new(*threads).map_err(|error| error.to_string());
        let job = self.spec.open(files.clone(), Memory::Own, None).map_err(|error| error.to_string());
        let job = job.map(|job| {
            let samples = u32::try_from(files.listing().len()).unwrap_or(u32::MAX);
            if self.spec.shared {
                job.sharing(Pool::alone(samples, self.spec.seed), sutler_core::JobKey(0))
            } else {
                job
            }
        });
        match engine.and_then(|engine| Ok(Alone { engine, job: job? })) {
            Ok(alone) => {
                say(&format!(
                    "the agent at {} is gone: {reason}; this loader goes on by itself",
                    path.display()
                ));
                State::Alone(alone)
            }
            Err(error) => {
                let reason = format!("{reason}; going on without it failed: {error}");
                State::Over(ClientError::Lost { path, reason })
            }
        }
    }

    /// The agent has answered to the request for the job.
    fn attach(&self, mut connection: Connection, (answer, file): Reply) -> Result<Life, ClientError> {
        connection.check(HELLO)?;
        let (slots, row_bytes, beside) = match answer {
            Answer::Opened { slots, row_bytes, beside_bytes } => (slots, row_bytes, beside_bytes),
            Answer::Refused { kind, reason } => return Err(ClientError::Refused { kind, reason }),
            other => return Err(nonsense(&format!("it answered {other:?} to a job"))),
        };
        let arena = match (slots, file) {
            (None, _) => None,
            (Some(_), None) => return Err(nonsense("it sent no batch memory")),
            (Some(slots), Some(file)) => {
                let released = Arc::clone(connection.released());
                let give_back = move |slot| {
                    released.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
                };
                let arena = Arena::attach(file, slots.bytes, slots.count, give_back).map_err(|error| {
                    ClientError::Refused { kind: Refusal::Memory, reason: error.to_string() }
                })?;
                Some(arena)
            }
        };
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.is_none() {
            memory.clone_from(&arena);
        }
        drop(memory);
        let row = row_bytes.map_or(RowSpec::Varies, |bytes| RowSpec::Fixed { bytes });
        Ok(Life { connection, arena, shape: BlockShape { row, beside } })
    }

    /// The connection has failed: what the agent told last is all it told.
    pub(crate) fn lose(&self, link: &mut Link, error: &std::io::Error) {
        let losses = self.losses.fetch_add(1, Ordering::Relaxed) + 1;
        let reason = lost(error);
        link.state = if losses < LOSSES_MAX {
            State::Lost { reason, since: Instant::now(), looked: None }
        } else {
            self.without_agent(format!("{reason}, and so have {losses} in a row without a batch"))
        };
        self.figures().turn_over();
    }

    /// A batch was delivered.
    pub(crate) fn note_success(&self) {
        self.losses.store(0, Ordering::Relaxed);
    }
}

/// How many batches of a job may come in one message.
pub(crate) fn batches_together(spec: &JobSpec) -> usize {
    (SAMPLES_TOGETHER / spec.batch_size.max(1)).max(1)
}

impl Link {
    /// The agent of a life, if it is still there.
    pub(crate) fn agent_of(&mut self, life: u64) -> Option<&mut Life> {
        match &mut self.state {
            State::Attached(agent) if self.life == life => Some(agent),
            _ => None,
        }
    }
}

/// An agent that does not keep to the protocol.
pub(crate) fn nonsense(what: &str) -> ClientError {
    let reason = format!("the agent does not make sense: {what}; please report this");
    ClientError::Refused { kind: Refusal::Value, reason }
}

fn lost(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe => "it hung up".to_owned(),
        _ => error.to_string(),
    }
}
