//! The host agent: one engine, a socket, and a thread for each client.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::Write;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags};
use serde::Serialize;
use serde_json::{Value, json};
use sutler_engine::{Engine, Job};

use crate::catalogue::Catalogue;
use crate::channel::{Channel, wait_readable};
use crate::http::{Http, HttpError, HttpOptions};
use crate::message::{Answer, Answered, HELLO, Refusal};
use crate::rendezvous::{BindError, Rendezvous, trusted_peer};
use crate::session::Session;
use crate::shelf::{Shelf, ShelfOptions};
use crate::spec::{JobSpec, SequenceSpec};

/// How often the agent looks what of its memory is still of use.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Over which time a job's pace is measured.
const PACE_OVER: Duration = Duration::from_secs(10);

/// How an agent is run.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Where it listens.
    pub socket: PathBuf,
    /// How many threads prepare samples.
    pub threads: usize,
    /// What is kept and shared.
    pub shelf: ShelfOptions,
    /// Where people can look at it, if they can.
    pub http: Option<HttpOptions>,
}

/// Why an agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Its socket cannot be opened.
    #[error(transparent)]
    Socket(#[from] BindError),
    /// Its page cannot be served.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// Its threads cannot be started.
    #[error("{threads} worker threads could not be started: {source}; lower --threads")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// The socket does not work any more.
    #[error("the agent's socket failed: {0}")]
    Listening(std::io::Error),
}

/// A client's job, as the other clients' requests see it.
pub struct JobEntry {
    pub spec: JobSpec,
    pub job: Weak<Job>,
    /// The number of its latest epoch, and the order of that.
    latest: Option<(u32, SequenceSpec)>,
    /// How many batches the client holds.
    pub held: usize,
    /// How far its latest epoch is.
    pub progress: Option<Progress>,
    pace: Pace,
}

impl JobEntry {
    pub fn new(spec: JobSpec, job: &Arc<Job>) -> Self {
        Self { spec, job: Arc::downgrade(job), latest: None, held: 0, progress: None, pace: Pace::default() }
    }
}

/// How far an epoch is.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Progress {
    pub epoch: u32,
    /// Batches delivered since it was begun or resumed.
    pub batches: u64,
    /// How many there will be, as far as is known.
    pub planned: Option<u64>,
}

/// How many samples there were at some moments of late.
#[derive(Default)]
struct Pace {
    marks: VecDeque<(Instant, u64)>,
}

impl Pace {
    fn note(&mut self, samples: u64) {
        let now = Instant::now();
        while self.marks.front().is_some_and(|(at, _)| now.duration_since(*at) > PACE_OVER) {
            self.marks.pop_front();
        }
        self.marks.push_back((now, samples));
    }

    fn samples_per_s(&self) -> f64 {
        match (self.marks.front(), self.marks.back()) {
            (Some((from, before)), Some((to, after))) if to > from => {
                (after - before) as f64 / to.duration_since(*from).as_secs_f64()
            }
            _ => 0.0,
        }
    }
}

/// A host agent.
pub struct Agent {
    socket: PathBuf,
    engine: Engine,
    catalogue: Catalogue,
    shelf: Shelf,
    /// The jobs of all clients, by the number of the connection. Held for a look, never while working.
    jobs: Mutex<BTreeMap<u64, JobEntry>>,
    /// The clients' sockets and processes, so that they can be hung up on.
    clients: Mutex<HashMap<u64, (UnixStream, i32)>>,
}

impl Agent {
    /// Opens the socket and starts the threads; clients can attach from now on. They are served by [`Listening::serve`].
    ///
    /// # Errors
    /// When another agent is there, or the system refuses.
    pub fn listen(options: &AgentOptions) -> Result<Listening, AgentError> {
        let rendezvous = Rendezvous::open(&options.socket)?;
        let threads = options.threads;
        let engine =
            Engine::for_other_processes(threads).map_err(|source| AgentError::Threads { threads, source })?;
        let agent = Arc::new(Self {
            socket: options.socket.clone(),
            engine,
            catalogue: Catalogue::default(),
            shelf: Shelf::new(options.shelf, threads),
            jobs: Mutex::default(),
            clients: Mutex::default(),
        });
        let http = options.http.map(Http::open).transpose()?;
        Ok(Listening { agent, rendezvous, http })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    pub(crate) fn shelf(&self) -> &Shelf {
        &self.shelf
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeMap<u64, JobEntry>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<u64, (UnixStream, i32)>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a client's job down, unless it contradicts another one of its name.
    pub(crate) fn enter(&self, client: u64, entry: JobEntry) -> Result<(), String> {
        let mut jobs = self.jobs();
        let spec = &entry.spec;
        let mut namesakes = jobs.values().filter(|other| spec.name.is_some() && other.spec.name == spec.name);
        if let Some(contradiction) = namesakes.find_map(|other| spec.contradicts(&other.spec)) {
            return Err(contradiction);
        }
        jobs.insert(client, entry);
        Ok(())
    }

    /// Writes down in which order a client's job has its samples in an epoch, unless that contradicts another job of its name.
    /// From one epoch to the next it may change, and ranks do not come there at the same moment.
    pub(crate) fn begin(&self, client: u64, epoch: u32, sequence: SequenceSpec) -> Result<(), String> {
        let mut jobs = self.jobs();
        let name = jobs.get(&client).and_then(|entry| entry.spec.name.clone());
        if let Some(name) = &name {
            let mut namesakes = jobs
                .iter()
                .filter(|(number, other)| **number != client && other.spec.name.as_ref() == Some(name))
                .filter_map(|(_, other)| other.latest.filter(|(number, _)| *number == epoch));
            if let Some(contradiction) = namesakes.find_map(|(_, theirs)| sequence.contradicts(&theirs, name))
            {
                return Err(contradiction);
            }
        }
        if let Some(entry) = jobs.get_mut(&client) {
            entry.latest = Some((epoch, sequence));
        }
        Ok(())
    }

    pub(crate) fn note(&self, client: u64, held: usize, progress: Option<Progress>) {
        if let Some(entry) = self.jobs().get_mut(&client) {
            entry.held = held;
            entry.progress = progress;
        }
    }

    /// Sees to what has to be seen to now and then.
    fn look(&self) {
        self.shelf.look();
        for entry in self.jobs().values_mut() {
            if let Some(job) = entry.job.upgrade() {
                entry.pace.note(job.metrics().snapshot().samples);
            }
        }
    }

    pub(crate) fn leave(&self, client: u64) {
        self.jobs().remove(&client);
        self.shelf.leave(client);
    }

    /// What the agent is doing, as JSON.
    pub(crate) fn status(&self) -> Value {
        let clients = self.clients();
        let pid_of = |client: &u64| clients.get(client).map(|(_, pid)| *pid);
        let jobs: Vec<Value> = self
            .jobs()
            .iter()
            .filter_map(|(client, entry)| {
                let job = entry.job.upgrade()?;
                let snapshot = job.metrics().snapshot();
                let delivered = snapshot.samples + snapshot.failed;
                let reads_per_sample =
                    (delivered > 0).then(|| snapshot.storage_reads as f64 / delivered as f64);
                Some(json!({
                    "name": entry.spec.name,
                    "pid": pid_of(client),
                    "client": client,
                    "dataset": entry.spec.dataset.place().display().to_string(),
                    "progress": entry.progress,
                    "samples": snapshot.samples,
                    "samples_per_s": entry.pace.samples_per_s(),
                    "batches": snapshot.batches,
                    "failed": snapshot.failed,
                    "seconds": snapshot.seconds,
                    "wait_seconds": snapshot.wait_seconds,
                    "stalls": snapshot.stalls,
                    "served": snapshot.served,
                    "storage_reads": snapshot.storage_reads,
                    "storage_bytes": snapshot.storage_bytes,
                    "reads_per_sample": reads_per_sample,
                    "batches_held": entry.held,
                    "memory_bytes": job.arena().map_or(0, |arena| arena.range().1),
                }))
            })
            .collect();
        json!({
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "socket": self.socket.display().to_string(),
            "threads": self.engine.threads(),
            "jobs": jobs,
            "shared": self.shelf.figures(),
        })
    }

    /// Serves one client to its end.
    fn attend(&self, number: u64, socket: UnixStream, pid: i32) {
        let _presence = Presence { agent: self, number };
        let result = Channel::new(socket).and_then(|mut channel| {
            // An old kernel, or a process in another namespace, cannot be watched; then the socket alone tells.
            let process =
                Pid::from_raw(pid).and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
            Session::new(self, number).serve(&mut channel, process.as_ref().map(AsFd::as_fd))
        });
        if let Err(error) = result
            && error.kind() != std::io::ErrorKind::BrokenPipe
        {
            say(&format!("the connection with process {pid} ended: {error}"));
        }
    }
}

/// A client's place in the list of clients. The list has a copy of its socket, so even a client whose thread panicked must
/// leave it, or it would wait for its answer for ever.
struct Presence<'a> {
    agent: &'a Agent,
    number: u64,
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        self.agent.clients().remove(&self.number);
    }
}

/// Tells whoever reads standard error, if anybody does.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "sutler: {text}");
}

/// An agent whose socket is open.
pub struct Listening {
    agent: Arc<Agent>,
    rendezvous: Rendezvous,
    http: Option<Http>,
}

impl Listening {
    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.agent.socket
    }

    /// Where people can look at it, if they can.
    #[must_use]
    pub fn http(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(Http::address)
    }

    /// Serves clients until `stop` becomes readable. Then hangs up on all of them and removes the socket.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn serve(mut self, stop: &OwnedFd) -> Result<(), AgentError> {
        let _http = self
            .http
            .take()
            .map(|http| http.serve(&self.agent))
            .transpose()
            .map_err(AgentError::Listening)?;
        let mut threads = Vec::new();
        let mut number = 0;
        let mut look_at = Instant::now() + LOOK_EVERY;
        let ended = loop {
            if Instant::now() >= look_at {
                self.agent.look();
                look_at = Instant::now() + LOOK_EVERY;
            }
            match wait_readable(self.rendezvous.listener.as_fd(), Some(stop.as_fd()), Some(look_at)) {
                Err(error) => break Err(AgentError::Listening(error)),
                Ok(ready) if ready.other => break Ok(()),
                Ok(ready) if !ready.socket => continue,
                Ok(_) => {}
            }
            number += 1;
            threads.retain(|thread: &std::thread::JoinHandle<()>| !thread.is_finished());
            match self.admit(number) {
                Ok(Some(thread)) => threads.push(thread),
                Ok(None) => {}
                Err(error) => {
                    // Out of descriptors or threads: clients that end give some back.
                    say(&format!("a connection could not be accepted: {error}"));
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        };
        drop(self.rendezvous);
        for (socket, _) in self.agent.clients().values() {
            // One that has hung up meanwhile needs no hanging up on.
            let _ = socket.shutdown(Shutdown::Both);
        }
        for thread in threads {
            // A thread that panicked has told so.
            let _ = thread.join();
        }
        ended
    }

    /// Accepts a connection and gives it a thread, if it is from somebody we serve.
    fn admit(&self, number: u64) -> std::io::Result<Option<std::thread::JoinHandle<()>>> {
        let (socket, _) = self.rendezvous.listener.accept()?;
        let pid = match trusted_peer(&socket) {
            Ok(peer) => peer.pid.as_raw_nonzero().get(),
            Err(reason) => {
                say(&format!("a connection was refused: {reason}"));
                let reason = format!("the agent serves its own user and root only: {reason}");
                let answer = Answer::Refused { kind: Refusal::Denied, reason };
                // Who does not listen to the reason need not know it.
                let _ = Channel::new(socket)
                    .and_then(|mut channel| channel.send(&Answered { id: HELLO, answer }, None));
                return Ok(None);
            }
        };
        self.agent.clients().insert(number, (socket.try_clone()?, pid));
        let agent = Arc::clone(&self.agent);
        let named = std::thread::Builder::new().name(format!("client-{pid}"));
        let started = named.spawn(move || agent.attend(number, socket, pid));
        if started.is_err() {
            self.agent.clients().remove(&number);
        }
        started.map(Some)
    }
}
