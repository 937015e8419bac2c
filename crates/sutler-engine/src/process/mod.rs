//! Samples prepared by worker processes: how a dataset written in Python is served.
//!
//! Every worker thread of the engine has one process of its own and talks to it over a socket: samples out, results back. So
//! the engine schedules by the sample, as for native datasets: a process that is at a slow sample holds up nobody else.
//!
//! Results do not travel through the socket. Arrays of one shape go straight into the batch: its memory is an anonymous
//! file that the processes have mapped too. Everything else is left in the process's *mailbox*, an anonymous file of its
//! own, and copied from there. Which arrays a sample has is not known beforehand: the first worker to finish a sample
//! proposes a *schema*, and batches opened from then on have shared memory laid out by it.

mod link;

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use link::{Answer, Link, LinkError, RowAnswer};
use sutler_core::SampleId;

use crate::{
    Arena, Elsewhere, Failure, ForeignRow, Order, Preparation, Preparer, RowSpec, SampleRecord, Target,
};

/// How much work a process should get at a time: enough to hide the handing over, which takes some 50 µs, and little
/// enough that a batch is still spread over all workers.
const WORK_AT_A_TIME: Duration = Duration::from_millis(2);

/// The most samples a process gets at a time.
const SAMPLES_AT_A_TIME: usize = 64;

/// Whoever starts worker processes.
pub trait Revive: Send + Sync {
    /// What became of a worker that no longer answers, as the end of a sentence: "was killed by signal 9 (SIGKILL)".
    fn post_mortem(&self, worker: usize) -> String;

    /// Starts a worker anew and returns the socket to it.
    ///
    /// # Errors
    /// When no process can be started.
    fn revive(&self, worker: usize) -> std::io::Result<UnixStream>;
}

/// What a job with worker processes is made of.
pub struct ProcessOptions {
    /// The sockets to the workers, one each.
    pub workers: Vec<UnixStream>,
    /// Whoever started them.
    pub revive: Arc<dyn Revive>,
    /// Whether a sample whose worker died is tried once more by a new one.
    pub retry: bool,
    /// How many batches the shared memory is to hold.
    pub slots: usize,
}

/// A proposal for the layout of batches, and the memory made for it.
struct Schema {
    description: Vec<u8>,
    arena: Arc<Arena>,
}

struct Shared {
    /// Sockets of workers that no preparer holds.
    idle: Mutex<Vec<Link>>,
    /// A second handle to every socket, to hang up on workers that somebody waits for.
    sockets: Mutex<Vec<Option<UnixStream>>>,
    schema: OnceLock<Schema>,
    revive: Arc<dyn Revive>,
    retry: bool,
    slots: usize,
}

/// The samples of a dataset that worker processes prepare.
#[derive(Clone)]
pub struct ProcessPreparation {
    shared: Arc<Shared>,
}

impl ProcessPreparation {
    /// A preparation that talks to these workers.
    ///
    /// # Errors
    /// When a socket cannot be duplicated.
    pub fn new(options: ProcessOptions) -> std::io::Result<Self> {
        let mut sockets = Vec::new();
        let mut idle = Vec::new();
        for (worker, socket) in options.workers.into_iter().enumerate() {
            sockets.push(Some(socket.try_clone()?));
            idle.push(Link::new(worker, socket));
        }
        idle.reverse(); // taken from the end: worker 0 first
        Ok(Self {
            shared: Arc::new(Shared {
                idle: Mutex::new(idle),
                sockets: Mutex::new(sockets),
                schema: OnceLock::new(),
                revive: options.revive,
                retry: options.retry,
                slots: options.slots,
            }),
        })
    }

    /// The layout of batches that have shared memory, as a worker described it.
    #[must_use]
    pub fn schema(&self) -> Option<&[u8]> {
        self.shared.schema.get().map(|schema| schema.description.as_slice())
    }

    /// Hangs up on all workers: whoever waits for one stops waiting, and the workers end.
    pub fn hang_up(&self) {
        let mut sockets = self.shared.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        for socket in sockets.iter_mut().filter_map(Option::take) {
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

    fn shared_memory(&self) -> Option<Arc<Arena>> {
        self.shared.schema.get().map(|schema| Arc::clone(&schema.arena))
    }

    fn label(&self, _sample: SampleId) -> i64 {
        0
    }

    fn describe(&self, sample: SampleId) -> String {
        format!("index {}", sample.0)
    }

    fn preparer(&self) -> Box<dyn Preparer> {
        let link = self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Box::new(ProcessPreparer { shared: Arc::clone(&self.shared), link, mean: None })
    }
}

struct ProcessPreparer {
    shared: Arc<Shared>,
    /// The worker this preparer talks to; `None` when there are fewer workers than threads, or it died.
    link: Option<Link>,
    /// A moving average of the time a sample takes.
    mean: Option<Duration>,
}

impl Drop for ProcessPreparer {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner).push(link);
        }
    }
}

impl Preparer for ProcessPreparer {
    fn prepare(
        &mut self,
        sample: SampleId,
        _epoch: u32,
        _target: Target<'_>,
        _record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        let reason = "it was to be prepared by a worker process, and there is none".to_owned();
        Err(Failure::new(sample, format!("index {}", sample.0), "internal", reason))
    }

    fn appetite(&self) -> usize {
        // One until we know better: the first samples tell the rest.
        self.mean.map_or(1, |mean| {
            let fit = WORK_AT_A_TIME.as_nanos() / mean.as_nanos().max(1);
            usize::try_from(fit).unwrap_or(SAMPLES_AT_A_TIME).clamp(1, SAMPLES_AT_A_TIME)
        })
    }

    fn prepare_elsewhere(&mut self, order: &Order<'_>) -> Vec<Elsewhere> {
        let mut answers = Vec::with_capacity(order.samples.len());
        let mut retried = false;
        while answers.len() < order.samples.len() {
            let done = answers.len();
            let rest = Order {
                epoch: order.epoch,
                samples: &order.samples[done..],
                first_row: order.first_row + done,
                offset: order.offset,
            };
            let started = Instant::now();
            match self.ask(&rest) {
                Ok(rows) => {
                    let count = rows.len().max(1) as u32;
                    let each = started.elapsed() / count;
                    self.mean = Some(self.mean.map_or(each, |mean| (mean * 7 + each) / 8));
                    answers.extend(rows.into_iter().zip(rest.samples).enumerate().map(|(index, (row, &sample))| {
                        let mut record = SampleRecord::start();
                        record.started = started + each * index as u32;
                        record.decode = each;
                        Elsewhere { record, result: row_result(sample, row) }
                    }));
                }
                Err(error) => {
                    let sample = rest.samples[error.finished.min(rest.samples.len() - 1)];
                    let failure = self.worker_lost(sample, &error);
                    // What the worker had finished of this order is done again: its answers are lost with it.
                    if self.shared.retry && !retried && self.start_anew() {
                        retried = true;
                        continue;
                    }
                    let fatal = !self.shared.retry;
                    answers.push(Elsewhere {
                        record: SampleRecord::start(),
                        result: Err(Failure { fatal, ..failure }),
                    });
                    if self.shared.retry && self.start_anew() {
                        retried = false;
                        continue;
                    }
                    // Nobody is left to prepare the others.
                    let lost = &order.samples[answers.len()..];
                    answers.extend(lost.iter().map(|&sample| Elsewhere {
                        record: SampleRecord::start(),
                        result: Err(Failure { fatal, ..self.worker_lost(sample, &error) }),
                    }));
                }
            }
        }
        answers
    }
}

/// A worker that stopped answering.
struct Lost {
    reason: LinkError,
    /// How many samples of the order it had finished.
    finished: usize,
}

impl ProcessPreparer {
    /// Sends an order and waits for the answers.
    fn ask(&mut self, order: &Order<'_>) -> Result<Vec<RowAnswer>, Lost> {
        let shared = Arc::clone(&self.shared);
        let Some(link) = &mut self.link else {
            return Err(Lost { reason: LinkError::Closed, finished: 0 });
        };
        let lost = |reason| Lost { reason, finished: 0 };
        if let Some(schema) = shared.schema.get() {
            link.announce_schema(&schema.description, &schema.arena).map_err(lost)?;
        }
        link.send_order(order).map_err(lost)?;
        let mut rows: Vec<RowAnswer> = Vec::with_capacity(order.samples.len());
        loop {
            match link.receive() {
                Ok(Answer::Row(row)) => {
                    rows.push(row);
                    if rows.len() == order.samples.len() {
                        return Ok(rows);
                    }
                }
                Ok(Answer::Schema { batch_bytes, description }) => {
                    // The first proposal counts. Without memory for it samples just travel one by one.
                    if shared.schema.get().is_none()
                        && let Ok(arena) = Arena::shared(batch_bytes, shared.slots)
                    {
                        let _ = shared.schema.set(Schema { description, arena });
                    }
                }
                // A worker answers when the whole order is done; how far it got is in its mailbox.
                Err(reason) => return Err(Lost { reason, finished: link.progress().max(rows.len()) }),
            }
        }
    }

    fn worker_lost(&self, sample: SampleId, lost: &Lost) -> Failure {
        let (worker, story) = match &self.link {
            Some(link) => (link.worker(), self.shared.revive.post_mortem(link.worker())),
            None => (0, "is gone".to_owned()),
        };
        let detail = match &lost.reason {
            LinkError::Closed => String::new(),
            LinkError::Broken(text) => format!(" ({text})"),
        };
        let reason = format!(
            "worker process {worker} {story} while it prepared this sample{detail}. Look for an out-of-memory kill or a crash \
             in native code; num_workers=0 prepares it in this process"
        );
        Failure::new(sample, format!("index {}", sample.0), "worker-lost", reason)
    }

    /// Replaces a worker that died; false when that is not possible.
    fn start_anew(&mut self) -> bool {
        let Some(worker) = self.link.as_ref().map(Link::worker) else { return false };
        let Ok(socket) = self.shared.revive.revive(worker) else { return false };
        let Ok(second) = socket.try_clone() else { return false };
        let mut sockets = self.shared.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = sockets.get_mut(worker) {
            *slot = Some(second);
        }
        self.link = Some(Link::new(worker, socket));
        true
    }
}

fn row_result(sample: SampleId, row: RowAnswer) -> Result<ForeignRow, Failure> {
    match row {
        RowAnswer::Done { in_block, payload } => Ok(ForeignRow { in_block, payload }),
        RowAnswer::Raised { text, exception } => Err(Failure {
            exception: Some(exception),
            ..Failure::new(sample, format!("index {}", sample.0), "exception", text)
        }),
    }
}
