//! Samples prepared by worker processes, or by threads that run Python: how a dataset written in Python is served.
//!
//! Every worker thread of the engine has one process of its own and talks to it over a socket: samples out, results
//! back. So the engine schedules by the sample, as for native datasets: a process that is at a slow sample holds up
//! nobody else.
//!
//! Results do not travel through the socket. Arrays of one shape go straight into the batch: its memory is an anonymous
//! file that the processes have mapped too. Everything else is left in the process's *mailbox*, an anonymous file of
//! its own, and copied from there. Which arrays a sample has is not known beforehand: the first worker to finish a
//! sample proposes a *schema*, and batches opened from then on have shared memory laid out by it.

mod handover;
mod kept;
mod keys;
mod lifeline;
mod link;
mod mailbox;
mod preparer;
mod standing;
mod step_names;

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

pub use handover::{Connection, Handover};
use kept::Keeping;
use keys::Keys;
pub use keys::{FIRST_KEYED, Key};
pub use lifeline::end_with;
use link::Link;
use mailbox::Watch;
use preparer::ProcessPreparer;
use standing::Forgotten;
use step_names::StepNames;
use sutler_core::{Depth, Rota, SampleId};
use sutler_store::cache::Cache;

use crate::{Arena, Preparation, Preparer, RowSpec};

/// Whoever starts worker processes.
pub trait Revive: Send + Sync {
    /// Whether a worker runs.
    fn is_alive(&self, worker: usize) -> bool;

    /// What became of a worker that no longer answers, as the end of a sentence: "was killed by signal 9 (SIGKILL)".
    fn post_mortem(&self, worker: usize) -> String;

    /// Starts a worker anew and returns the way to it. Where the one before it has told what its copy of the dataset had
    /// come to, the new one begins from there.
    ///
    /// # Errors
    /// When no process or thread can be started.
    fn revive(&self, worker: usize, dataset_state: Option<&[u8]>) -> std::io::Result<Connection>;
}

/// What a job with worker processes is made of.
pub struct ProcessOptions {
    /// Whoever starts workers.
    pub revive: Arc<dyn Revive>,
    /// Whether a sample whose worker died is tried once more by a new one.
    pub retry: bool,
    /// How many batches are prepared ahead, which the shared memory is to hold.
    pub ahead: Depth,
    /// How many delivered ones it is to hold beside them.
    pub held: usize,
    /// Whether a batch is one worker's: where the workers collate, or the dataset is asked for many samples at once.
    pub whole_batches: bool,
    /// Whether workers come and go with the engine's threads: one is started when a thread has none, and ends when its
    /// thread goes off duty.
    pub elastic: bool,
    /// Where the deterministic part of samples is kept, in memory that other processes can map.
    pub cache: Option<Arc<Cache>>,
    /// Whether a worker may let a sample stand between two transforms and take up another. It then runs the other in
    /// another of its threads.
    pub hand_over: bool,
}

/// A proposal for the layout of batches, and the memory made for it.
struct Schema {
    description: Vec<u8>,
    arena: Arc<Arena>,
}

struct Shared {
    /// The workers there are. Locked to take one or bring one back, never while talking to one.
    workers: Mutex<Workers>,
    /// Tells whoever waits for a worker that one has come, or that none will.
    arrival: Condvar,
    schema: OnceLock<Schema>,
    keys: Keys,
    revive: Arc<dyn Revive>,
    retry: bool,
    ahead: Depth,
    held: usize,
    whole_batches: bool,
    elastic: bool,
    keeping: Option<Keeping>,
    hand_over: bool,
    /// Samples that workers let stand and nobody will go on with.
    forgotten: Arc<Forgotten>,
    /// What the steps of samples are called.
    steps: StepNames,
    /// Who prepares which batch of the next run, where workers take turns.
    rota: Mutex<Option<Rota>>,
    /// What each worker is at, for whoever waits too long. Filled when an order goes out, emptied when it is answered.
    under_way: Mutex<BTreeMap<usize, UnderWay>>,
}

/// An order that a worker has not answered yet.
struct UnderWay {
    samples: Vec<SampleId>,
    /// How far the worker is with it.
    watch: Watch,
}

/// One generation of worker processes.
#[derive(Default)]
struct Workers {
    /// Counts up with every new set; whoever holds a link of an older one drops it.
    generation: u64,
    /// Links that no preparer holds.
    idle: Vec<Link>,
    /// A second handle to every socket, to hang up on workers that somebody waits for.
    sockets: Vec<Option<UnixStream>>,
    /// The numbers of workers that have ended because nobody needed them.
    retired: Vec<usize>,
    /// How many workers are being started, one after the other.
    to_come: usize,
    /// Whether we hung up ourselves, so that nobody need ask what became of a worker: whoever started them may be
    /// on the way out, too.
    ended: bool,
}

impl Workers {
    /// Where among the idle ones a certain worker is, or any.
    fn idle_place(&self, wanted: Option<usize>) -> Option<usize> {
        match wanted {
            Some(number) => self.idle.iter().position(|link| link.worker() == number),
            None => self.idle.len().checked_sub(1),
        }
    }
}

impl Shared {
    fn workers(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rota(&self) -> MutexGuard<'_, Option<Rota>> {
        self.rota.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn under_way(&self) -> MutexGuard<'_, BTreeMap<usize, UnderWay>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The samples of a dataset that worker processes prepare.
#[derive(Clone)]
pub struct ProcessPreparation {
    shared: Arc<Shared>,
}

impl ProcessPreparation {
    /// A preparation that has no workers yet; see [`ProcessPreparation::use_workers`].
    #[must_use]
    pub fn new(options: ProcessOptions) -> Self {
        Self {
            shared: Arc::new(Shared {
                workers: Mutex::default(),
                arrival: Condvar::new(),
                schema: OnceLock::new(),
                keys: Keys::default(),
                revive: options.revive,
                retry: options.retry,
                ahead: options.ahead,
                held: options.held,
                whole_batches: options.whole_batches,
                elastic: options.elastic,
                keeping: options.cache.map(Keeping::new),
                rota: Mutex::default(),
                under_way: Mutex::default(),
                hand_over: options.hand_over,
                forgotten: Arc::default(),
                steps: StepNames::default(),
            }),
        }
    }

    /// Talks to these workers from now on, one for each thread of the engine. So many more will come, for which the threads
    /// that get none of these wait, until they are there or are hung up on: see [`ProcessPreparation::add_worker`].
    ///
    /// # Errors
    /// When a socket cannot be duplicated.
    pub fn use_workers(&self, connections: Vec<Connection>, to_come: usize) -> std::io::Result<()> {
        let mut workers = self.shared.workers();
        workers.generation += 1;
        workers.ended = false;
        workers.idle.clear();
        workers.sockets.clear();
        workers.retired.clear();
        workers.to_come = to_come;
        let generation = workers.generation;
        for (number, connection) in connections.into_iter().enumerate() {
            workers.sockets.push(Some(connection.socket.try_clone()?));
            workers.idle.push(Link::new(number, generation, connection));
        }
        workers.idle.reverse(); // taken from the end: worker 0 first
        Ok(())
    }

    /// Another of the workers that were to come is there.
    ///
    /// # Errors
    /// When its socket cannot be duplicated.
    pub fn add_worker(&self, connection: Connection) -> std::io::Result<()> {
        let second = connection.socket.try_clone()?;
        let mut workers = self.shared.workers();
        let (number, generation) = (workers.sockets.len(), workers.generation);
        workers.sockets.push(Some(second));
        workers.idle.push(Link::new(number, generation, connection));
        workers.to_come = workers.to_come.saturating_sub(1);
        self.shared.arrival.notify_all();
        Ok(())
    }

    /// Has workers take whole batches in turn in runs that begin from now on.
    pub fn take_turns(&self, rota: Rota) {
        *self.shared.rota() = Some(rota);
    }

    /// Names further samples by something else than a number; they are numbered on from [`FIRST_KEYED`].
    pub fn add_keys(&self, keys: Vec<Key>) {
        self.shared.keys.add(keys);
    }

    /// The layout of batches that have shared memory, as a worker described it.
    #[must_use]
    pub fn schema(&self) -> Option<&[u8]> {
        self.shared.schema.get().map(|schema| schema.description.as_slice())
    }

    /// Which sample each worker is at that has an order, by the worker's number and as messages refer to it.
    #[must_use]
    pub fn under_way(&self) -> Vec<(usize, String)> {
        let under_way = self.shared.under_way();
        let at = |(&worker, order): (&usize, &UnderWay)| {
            // One that has finished all of them waits for a row, or its answer is on the way.
            let sample = order.samples.get(order.watch.finished())?;
            Some((worker, self.shared.keys.name(*sample)))
        };
        under_way.iter().filter_map(at).collect()
    }

    /// Hangs up on all workers: whoever waits for one stops waiting, and the workers end.
    pub fn hang_up(&self) {
        let mut workers = self.shared.workers();
        workers.ended = true;
        workers.to_come = 0;
        self.shared.arrival.notify_all();
        for socket in workers.sockets.iter_mut().filter_map(Option::take) {
            // A worker that is gone already has hung up itself.
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Preparation for ProcessPreparation {
    fn row(&self) -> RowSpec {
        RowSpec::Varies
    }

    fn is_elsewhere(&self) -> bool {
        true
    }

    fn takes_whole_batches(&self) -> bool {
        self.shared.whole_batches
    }

    fn rota(&self) -> Option<Rota> {
        *self.shared.rota()
    }

    fn shared_memory(&self) -> Option<Arc<Arena>> {
        self.shared.schema.get().map(|schema| Arc::clone(&schema.arena))
    }

    fn steps(&self) -> Vec<String> {
        self.shared.steps.get()
    }

    fn label(&self, _sample: SampleId) -> i64 {
        0
    }

    fn describe(&self, sample: SampleId) -> String {
        self.shared.keys.name(sample)
    }

    fn preparer(&self) -> Box<dyn Preparer> {
        Box::new(ProcessPreparer::new(Arc::clone(&self.shared)))
    }
}
