//! The conversation with one worker: orders out, answers back, and what to do when it is lost.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use sutler_core::{Draw, Form, SampleId, StepTimes};

use super::kept::Looked;
use super::keys::Keys;
use super::link::{Answer, Link, LinkError, RowAnswer};
use super::standing::Standing;
use super::{Schema, Shared, UnderWay, Workers};
use crate::{
    Arena, Boundary, Elsewhere, Failure, ForeignRow, NoBoundary, Order, Place, Preparer, Rows, SampleRecord,
    SharedRow,
};

/// How much work a process should get at a time, where one sample is less. Between two orders a worker waits for the next
/// one, some 50 µs where samples burn and up to 0.3 ms where they sleep, since then it has to be woken: 3 % of this.
/// A sample that turns out slow holds up the rest of its order, and that is of its own batch, by this much at most.
const WORK_AT_A_TIME: Duration = Duration::from_millis(10);

/// The same where a sample may make room for others, which only one that is its whole order does.
const WORK_AT_A_TIME_HANDED_OVER: Duration = Duration::from_millis(1);

/// The most samples a process gets at a time.
const SAMPLES_AT_A_TIME: usize = 64;

/// One thread's side of it: the worker it talks to.
pub(super) struct ProcessPreparer {
    shared: Arc<Shared>,
    /// The worker this preparer talks to; `None` before the first order, and when there are too few.
    link: Option<Link>,
    /// Whether the latest order was the first for this worker, which had to begin first.
    is_new: bool,
    /// A moving average of the time a sample takes.
    mean: Option<Duration>,
}

impl Drop for ProcessPreparer {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            let mut workers = self.shared.workers();
            if link.generation() != workers.generation {
                return;
            }
            if !self.shared.elastic {
                workers.idle.push(link);
                return;
            }
            let number = link.worker();
            if let Some(socket) = workers.sockets.get_mut(number).and_then(Option::take) {
                // It sees that we hung up, and ends. One that is gone already has hung up itself.
                let _ = socket.shutdown(std::net::Shutdown::Both);
                workers.retired.push(number);
            }
        }
    }
}

impl Preparer for ProcessPreparer {
    fn prepare(
        &mut self,
        sample: SampleId,
        _draw: Draw,
        _place: &mut dyn Place,
        _record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        let reason = "it was to be prepared by a worker process, and there is none".to_owned();
        Err(Failure::new(sample, self.shared.keys.name(sample), "internal", reason))
    }

    fn process(&self) -> Option<i32> {
        self.link.as_ref().and_then(Link::process)
    }

    fn worker(&self) -> Option<usize> {
        self.link.as_ref().map(Link::worker)
    }

    fn has_settled(&self) -> bool {
        !self.is_new
    }

    fn appetite(&self) -> usize {
        let work = if self.shared.hand_over { WORK_AT_A_TIME_HANDED_OVER } else { WORK_AT_A_TIME };
        // One until we know better: the first samples tell the rest.
        self.mean.map_or(1, |mean| {
            let fit = work.as_nanos().div_ceil(mean.as_nanos().max(1));
            usize::try_from(fit).unwrap_or(SAMPLES_AT_A_TIME).clamp(1, SAMPLES_AT_A_TIME)
        })
    }

    fn prepare_elsewhere(
        &mut self,
        mut order: Order<'_>,
        rows: &mut dyn Rows,
        boundary: &mut dyn Boundary,
    ) -> Vec<Elsewhere> {
        let mut standing = order.unfinished.take().and_then(|unfinished| unfinished.downcast().ok());
        let count = order.samples.len();
        let mut answers: Vec<Elsewhere> = Vec::with_capacity(count);
        // A worker that dies takes its answers with it, so what it had finished is done again by the next one. The
        // sample it died at gets a second try, and is left out after that.
        let mut tried: Vec<usize> = Vec::new();
        let mut given_up: Vec<Option<Failure>> = vec![None; count];
        while answers.len() < count {
            let start = answers.len();
            if let Some(failure) = given_up[start].take() {
                answers.push(failed(failure));
                continue;
            }
            let end = (start..count).find(|&index| given_up[index].is_some()).unwrap_or(count);
            let part = Order {
                epoch: order.epoch,
                samples: &order.samples[start..end],
                repeats: &order.repeats.slice(start, end),
                whole_batch: order.whole_batch && end - start == count,
                worker: order.worker,
                unfinished: None,
            };
            match self.ask(&part, &mut From(start, rows), standing.take(), boundary) {
                Ok(done) => answers.extend(done),
                Err(_) if self.shared.workers().ended => {
                    let reason = "its worker was ended".to_owned();
                    answers.extend(order.samples[start..].iter().map(|&sample| {
                        let name = self.shared.keys.name(sample);
                        let failure = Failure::new(sample, name, "worker_lost", reason.clone());
                        failed(Failure { fatal: true, ..failure })
                    }));
                }
                Err(lost) => {
                    let culprit = (start + lost.finished).min(end - 1);
                    let failure = self.worker_lost(order.samples[culprit], &lost);
                    if !self.shared.retry || !self.start_anew() {
                        let fatal = Failure { fatal: true, ..failure };
                        answers.extend((start..count).map(|_| failed(fatal.clone())));
                    } else if tried.contains(&culprit) {
                        given_up[culprit] = Some(failure);
                    } else {
                        tried.push(culprit);
                    }
                }
            }
        }
        answers
    }
}

fn failed(failure: Failure) -> Elsewhere {
    Elsewhere::Answered { record: SampleRecord::start(), result: Err(failure) }
}

/// What a worker has said about an order.
enum Said {
    /// Something about each of its samples.
    All(Vec<(RowAnswer, Form)>),
    /// It lets its only sample stand.
    Standing(Standing),
}

/// The rows of an order from some index on.
struct From<'a>(usize, &'a mut dyn Rows);

impl Rows for From<'_> {
    fn are_late(&self) -> bool {
        self.1.are_late()
    }

    fn row(&mut self, index: usize) -> Option<SharedRow> {
        self.1.row(self.0 + index)
    }
}

/// A worker that stopped answering.
struct Lost {
    reason: LinkError,
    /// How many samples of the order it had finished.
    finished: usize,
}

impl ProcessPreparer {
    /// A preparer that finds its worker when there is something to ask for.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, link: None, is_new: false, mean: None }
    }

    /// Has an order prepared by the worker and notes how long that took.
    fn ask(
        &mut self,
        order: &Order<'_>,
        places: &mut dyn Rows,
        standing: Option<Box<Standing>>,
        boundary: &mut dyn Boundary,
    ) -> Result<Vec<Elsewhere>, Lost> {
        self.find_worker(order.worker)?;
        let started = Instant::now();
        let answered = self.converse(order, places, standing, boundary);
        if let Some(link) = &self.link {
            self.shared.under_way().remove(&link.worker());
        }
        let rows = match answered? {
            Said::All(rows) => rows,
            Said::Standing(standing) => return Ok(vec![Elsewhere::Parked(Box::new(standing))]),
        };
        let each = started.elapsed() / rows.len().max(1) as u32;
        self.mean = Some(self.mean.map_or(each, |mean| (mean * 7 + each) / 8));
        let answers =
            rows.into_iter().zip(order.samples).enumerate().map(|(index, ((row, served), &sample))| {
                let begun = started + each * index as u32;
                let steps = match &row {
                    RowAnswer::Done { steps, .. } => *steps,
                    RowAnswer::Raised { .. } => StepTimes::default(),
                };
                let record =
                    SampleRecord { started: begun, decode: each, served, steps, ..SampleRecord::start() };
                Elsewhere::Answered { record, result: row_result(&self.shared.keys, sample, row) }
            });
        Ok(answers.collect())
    }

    /// Makes sure that there is a worker to talk to: one that nobody talks to, or where workers come and go a new one. Where
    /// they take turns, it is this one; each thread has the turns of one worker, so nobody else talks to it.
    fn find_worker(&mut self, wanted: Option<usize>) -> Result<(), Lost> {
        let workers = self.shared.workers();
        self.is_new = self.link.as_ref().is_none_or(|link| link.generation() != workers.generation);
        if !self.is_new {
            return Ok(());
        }
        let nobody_yet = |workers: &mut Workers| workers.idle_place(wanted).is_none() && workers.to_come > 0;
        let arrived = self.shared.arrival.wait_while(workers, nobody_yet);
        let mut workers = arrived.unwrap_or_else(PoisonError::into_inner);
        let generation = workers.generation;
        self.link = workers.idle_place(wanted).map(|place| workers.idle.remove(place));
        if self.link.is_some() || !self.shared.elastic || workers.ended {
            return Ok(());
        }
        let number = workers.retired.pop().unwrap_or_else(|| {
            workers.sockets.push(None);
            workers.sockets.len() - 1
        });
        drop(workers);
        let unable = |text: String| Lost { reason: LinkError::Broken(text), finished: 0 };
        let connection =
            self.shared.revive.revive(number, None).map_err(|error| unable(error.to_string()))?;
        let second = connection.socket.try_clone().map_err(|error| unable(error.to_string()))?;
        let mut workers = self.shared.workers();
        if workers.generation == generation && !workers.ended {
            workers.sockets[number] = Some(second);
            self.link = Some(Link::new(number, generation, connection));
        }
        Ok(())
    }

    /// Sends an order, or has the worker go on with what it let stand, and waits for the answers; with each comes the form
    /// its sample was found in.
    fn converse(
        &mut self,
        order: &Order<'_>,
        places: &mut dyn Rows,
        standing: Option<Box<Standing>>,
        boundary: &mut dyn Boundary,
    ) -> Result<Said, Lost> {
        let shared = Arc::clone(&self.shared);
        let Some(link) = &mut self.link else {
            return Err(Lost { reason: LinkError::Closed, finished: 0 });
        };
        let lost = |reason| Lost { reason, finished: 0 };
        if let Some(schema) = shared.schema.get() {
            link.announce_schema(&schema.description, &schema.arena).map_err(lost)?;
        }
        link.forget(&shared.forgotten).map_err(lost)?;
        // What stood with a worker that is gone is begun anew.
        let standing = standing.filter(|standing| standing.is_with(link.birth()));
        let mut no_boundary = NoBoundary;
        let boundary: &mut dyn Boundary = if shared.hand_over && !link.is_thread() && order.samples.len() == 1
        {
            boundary
        } else {
            &mut no_boundary
        };
        let keys = shared.keys.of(order.samples);
        link.send_keys(keys.iter().map(|(sample, key)| (*sample, key.bytes.as_slice()))).map_err(lost)?;
        let mut looked = shared.keeping.as_ref().map(|keeping| keeping.look_up(order.samples));
        if let Some(keeping) = &shared.keeping {
            link.announce_cache(keeping.cache().memory()).map_err(lost)?;
        }
        match standing {
            Some(standing) => link.send_go_on(standing.take()).map_err(lost)?,
            None => {
                let asks_after = boundary.asks_after();
                link.send_order(order, places, looked.as_ref(), asks_after).map_err(lost)?;
            }
        }
        let order_sent = UnderWay { samples: order.samples.to_vec(), watch: link.watch() };
        shared.under_way().insert(link.worker(), order_sent);
        let mut rows: Vec<(RowAnswer, Form)> = Vec::with_capacity(order.samples.len());
        let worker = link.worker();
        let is_alive = || shared.workers().ended || shared.revive.is_alive(worker);
        loop {
            match link.receive(&is_alive) {
                Ok(Answer::Row(row)) => {
                    let found = found_in(looked.as_mut(), rows.len(), &row);
                    rows.push((row, found));
                    if rows.len() == order.samples.len() {
                        return Ok(Said::All(rows));
                    }
                }
                Ok(Answer::Steps(names)) => shared.steps.tell(names),
                Ok(Answer::Between { token, done }) => {
                    let parks = boundary.parks(done);
                    link.send_verdict(parks).map_err(lost)?;
                    if parks {
                        return Ok(Said::Standing(Standing::new(link.birth(), token, &shared.forgotten)));
                    }
                }
                Ok(Answer::Where) => {
                    let finished = order.samples.len();
                    link.send_rows(finished, places).map_err(|reason| Lost { reason, finished })?;
                }
                Ok(Answer::Schema { batch_bytes, description }) => {
                    // The first proposal counts. Without memory for it samples just travel one by one.
                    if shared.schema.get().is_none() {
                        let memory = if link.is_thread() { Arena::new } else { Arena::shared };
                        if let Ok(arena) = Arena::reserve(batch_bytes, &shared.ahead, shared.held, memory) {
                            let _ = shared.schema.set(Schema { description, arena });
                        }
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
        let advice = if self.link.as_ref().is_some_and(Link::is_thread) {
            "Have the dataset raise an Exception instead, which is reported with its traceback"
        } else {
            "Look for an out-of-memory kill, a crash in native code or a call of exit(); num_workers=0 prepares it in this \
             process"
        };
        let reason =
            format!("DataLoader worker {worker} {story} while it prepared this sample{detail}. {advice}");
        Failure::new(sample, self.shared.keys.name(sample), "worker_lost", reason)
    }

    /// Replaces a worker that died; false when that is not possible.
    fn start_anew(&mut self) -> bool {
        let Some(lost) = &self.link else { return false };
        let (worker, generation) = (lost.worker(), lost.generation());
        let Ok(connection) = self.shared.revive.revive(worker, lost.dataset_state()) else { return false };
        let Ok(second) = connection.socket.try_clone() else { return false };
        let mut workers = self.shared.workers();
        // Whoever hung up in the meantime does not know of the new one, and would wait for it.
        if workers.generation != generation || workers.ended {
            return false;
        }
        if let Some(slot) = workers.sockets.get_mut(worker) {
            *slot = Some(second);
        }
        let inherited = self.link.take().and_then(Link::into_dataset_state);
        self.link = Some(Link::new(worker, generation, connection).beginning_from(inherited));
        true
    }
}

/// The form in which an order's next sample was found. What is new in it is kept.
fn found_in(looked: Option<&mut Looked<'_>>, index: usize, row: &RowAnswer) -> Form {
    match (looked, row) {
        (Some(looked), RowAnswer::Done { prepared: Some(prepared), .. }) => looked.settle(index, prepared),
        _ => Form::Storage,
    }
}

fn row_result(keys: &Keys, sample: SampleId, row: RowAnswer) -> Result<ForeignRow, Failure> {
    match row {
        RowAnswer::Done { in_block, payload, .. } => Ok(ForeignRow { in_block, payload }),
        RowAnswer::Raised { text, exception } => Err(Failure {
            exception: Some(exception),
            ..Failure::new(sample, keys.name(sample), "exception", text)
        }),
    }
}
