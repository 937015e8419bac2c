//! Samples that are prepared once for several jobs.
//!
//! Jobs over the same dataset can have a [`Pool`] in common. Who gets which sample is decided by
//! [`SharedOrder`], and in which form it is left for others by [`Wanting`]; both are pure. Here are the bytes of the window, the clock that
//! finds out who has paused, and the lock. It is held for a decision, never while samples are prepared or copied.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sutler_core::{
    Choice, EntryId, Form, JobKey, Leaving, Ledger, Part, SampleId, Seat, SharedError, SharedOrder,
    SharedSettings, SharedStats, Verdict, Wanting,
};

use crate::preparation::{Common, Likeness};
use crate::{OwnSample, Request};

/// A job that has not asked for a sample for so long has paused: nothing is kept for it until it asks again.
const PAUSED_AFTER: Duration = Duration::from_secs(5);

/// How often it is worth looking who has paused.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long a job waits for what others are preparing before it prepares a copy of its own.
const PATIENCE: Duration = Duration::from_millis(500);

/// What several jobs share.
pub struct Pool {
    state: Mutex<State>,
    samples: u32,
    /// Added to the number of a preparation, so that one that is started anew does not make the same samples again.
    first_preparation: u32,
    /// Whether its one job has nobody to share with, so that its samples are those of its own epoch, as in any other order.
    alone: bool,
}

struct State {
    order: SharedOrder,
    /// What the window may take.
    window_bytes: u64,
    /// What one decoded sample may take of it. A larger one is left encoded: it would take the place of too many others.
    decoded_bytes_max: u64,
    /// What stands in the window.
    entries: HashMap<EntryId, Standing>,
    /// The memory of finished samples that stood there, to be used again.
    spare: Vec<OwnSample>,
    /// What jobs make of samples, and how they decode them: a kind is a place in these lists.
    finished_kinds: Vec<String>,
    decoded_kinds: Vec<String>,
    dropped: Vec<EntryId>,
    guests: Vec<Guest>,
    looked: Instant,
    next_key: u64,
}

/// What stands in the window of one sample.
#[derive(Default)]
struct Standing {
    /// Finished copies, by what was made of the sample.
    finished: Vec<(u32, Arc<OwnSample>)>,
    /// What serves jobs with other transforms: all of them, or, decoded, those that decode like this.
    common: Option<(u32, Arc<Common>)>,
}

impl Standing {
    /// What a job of this kind finds here.
    fn find(&self, kind: Kind) -> Found {
        let finished = self.finished.iter().find(|(finished, _)| *finished == kind.finished);
        match (finished, &self.common) {
            (Some((_, sample)), _) => Found::Finished(Arc::clone(sample)),
            (None, Some((decoded, common))) if common.form == Form::Encoded || *decoded == kind.decoded => {
                Found::Common(Arc::clone(common))
            }
            _ => Found::Nothing,
        }
    }

    /// Whether a job of this kind can do anything with it.
    fn serves(&self, kind: Kind) -> bool {
        !matches!(self.find(kind), Found::Nothing)
    }
}

/// What a job makes of its samples, as a pool tells it from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    finished: u32,
    decoded: u32,
    decoded_on_the_way: bool,
}

/// What a job finds of a sample that it was told to take.
pub(crate) enum Found {
    /// All that is to be done is to copy it.
    Finished(Arc<OwnSample>),
    /// It goes on from there.
    Common(Arc<Common>),
    /// Nothing that it can use. The order does not offer a job what holds nothing for it, so this is only the answer to a question that nobody
    /// had to ask.
    Nothing,
}

struct Guest {
    seat: Seat,
    job: JobKey,
    kind: Kind,
    /// The epoch that its trainer is in.
    epoch: u32,
    /// Whether that is all of the dataset, as the next one will be then.
    whole: bool,
    /// Whether the order has begun the next one, since it has nothing left to hand out in this.
    ahead: bool,
    /// Whether its trainer is between two epochs.
    absent: bool,
    asked: Instant,
    /// Since when it has been waiting for what others are preparing.
    waiting: Option<Instant>,
}

/// A job's or a rank's part in a pool, for one epoch. Dropping it gives up what is left of the epoch.
///
/// A trainer that has everything of an epoch on its way will most likely begin another, and until it does, others go on preparing. Were it not counted among
/// those who lack what they prepare, all of that would have to be prepared again. So the order begins the next epoch the moment the last sample of
/// this one is handed out, and the job finds its seat when it comes. One that does not come is found paused like any other, and one that ends is
/// [dismissed](Pool::dismiss).
pub(crate) struct Membership {
    pool: Arc<Pool>,
    seat: Seat,
    epoch: u32,
}

/// What a job does about its next sample.
pub(crate) enum Task {
    /// Takes what stands ready. Where that is not finished, finishes it with the random numbers of this preparation, and leaves a copy if others
    /// with the same transforms want it.
    Take { sample: SampleId, entry: EntryId, preparation: u32, leave: bool },
    /// Prepares it with the random numbers of this preparation, and leaves for others what they want of it.
    Prepare { sample: SampleId, preparation: u32, share: Option<(EntryId, Leaving)> },
}

impl Task {
    pub fn sample(&self) -> SampleId {
        match self {
            Task::Take { sample, .. } | Task::Prepare { sample, .. } => *sample,
        }
    }
}

impl Pool {
    /// A pool that nobody uses yet.
    #[must_use]
    pub fn new(settings: SharedSettings) -> Arc<Self> {
        Self::with(settings, false)
    }

    /// A pool for one job that has nobody to share with: its samples are the same as in any other order.
    #[must_use]
    pub fn alone(samples: u32, seed: u64) -> Arc<Self> {
        let window_form = sutler_core::Form::Augmented;
        Self::with(SharedSettings { samples, seed, window_bytes: 0, window_form, mixing: 0.0 }, true)
    }

    fn with(settings: SharedSettings, alone: bool) -> Arc<Self> {
        let SharedSettings { samples, seed, window_bytes, .. } = settings;
        let state = State {
            window_bytes,
            decoded_bytes_max: window_bytes,
            finished_kinds: Vec::new(),
            decoded_kinds: Vec::new(),
            order: SharedOrder::new(settings),
            entries: HashMap::new(),
            spare: Vec::new(),
            dropped: Vec::new(),
            guests: Vec::new(),
            looked: Instant::now(),
            next_key: 0,
        };
        let first_preparation = (seed ^ (seed >> 32)) as u32;
        Arc::new(Self { state: Mutex::new(state), samples, first_preparation, alone })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many samples the dataset has.
    #[must_use]
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// A name for a job that has none in common with others; its ranks use the same one.
    #[must_use]
    pub fn new_job(&self) -> JobKey {
        let mut state = self.state();
        state.next_key += 1;
        // Names that callers choose are small numbers or hashes; these count down from the top.
        JobKey(u64::MAX - state.next_key)
    }

    /// Gives the window so many bytes, of which a decoded sample may take so many. A smaller window takes nothing in until enough has been used
    /// up.
    pub fn set_window(&self, bytes: u64, decoded_bytes_max: u64) {
        let mut state = self.state();
        state.window_bytes = bytes;
        state.decoded_bytes_max = decoded_bytes_max;
        state.order.set_window_bytes(bytes);
    }

    /// What the window may take.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        self.state().window_bytes
    }

    /// How a job with this likeness is told from others.
    pub(crate) fn kind_of(&self, likeness: &Likeness) -> Kind {
        fn place(known: &mut Vec<String>, name: &str) -> u32 {
            let place = known.iter().position(|each| each == name).unwrap_or_else(|| {
                known.push(name.to_owned());
                known.len() - 1
            });
            place as u32
        }
        let mut state = self.state();
        Kind {
            finished: place(&mut state.finished_kinds, &likeness.finished),
            decoded: place(&mut state.decoded_kinds, &likeness.decoded),
            decoded_on_the_way: likeness.decoded_on_the_way,
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> SharedStats {
        self.state().order.stats()
    }

    /// The bytes in the window.
    #[must_use]
    pub fn window_used_bytes(&self) -> u64 {
        self.state().order.window_used_bytes()
    }

    /// The sample is kept in memory in this form, or not at all. Decoded it counts only where all decode alike.
    pub(crate) fn note_kept(&self, sample: SampleId, form: Form) {
        let mut state = self.state();
        let alike = state.guests.windows(2).all(|pair| pair[0].kind.decoded == pair[1].kind.decoded);
        let kept = form == Form::Encoded || (form == Form::Decoded && alike);
        // Only a sample that the dataset does not have is refused, and nobody prepares such.
        let _ = state.order.set_pinned(sample, kept);
    }

    /// Begins a job's epoch over some samples, without those that are done.
    pub(crate) fn join(
        self: &Arc<Self>,
        (job, kind): (JobKey, Kind),
        epoch: u32,
        samples: &[SampleId],
        done: &Ledger,
    ) -> Result<Membership, SharedError> {
        let whole = samples.len() == self.samples as usize;
        let mut state = self.state();
        if whole
            && done.served() == 0
            && let Some(seat) = state.take_up(job, kind, epoch)
        {
            drop(state);
            return Ok(Membership { pool: Arc::clone(self), seat, epoch });
        }
        // It was expected in another epoch than it has come for.
        state.dismiss(job);
        let mut dropped = std::mem::take(&mut state.dropped);
        let joined = state.order.join(job, &mut dropped);
        state.clear(&mut dropped);
        let seat = joined?;
        let part = if whole { Part::Whole } else { Part::Of(samples) };
        let checkpoint = (done.served() > 0).then(|| {
            let mut done = done.clone();
            done.extend(self.samples);
            done.save()
        });
        if let Err(error) = state.order.begin(seat, epoch, part, checkpoint.as_ref()) {
            state.leave(seat);
            return Err(error);
        }
        let (ahead, absent) = (false, false);
        let asked = Instant::now();
        state.guests.push(Guest { seat, job, kind, epoch, whole, ahead, absent, asked, waiting: None });
        // What stands there was left for those who were here. A newcomer with other transforms who was told to take what holds nothing for it would have to
        // read the sample for itself alone; so it lacks it until it can be prepared for all who do.
        let State { order, entries, .. } = &mut *state;
        for (&id, _) in entries.iter().filter(|(_, standing)| !standing.serves(kind)) {
            order.bar(id, seat);
        }
        drop(state);
        Ok(Membership { pool: Arc::clone(self), seat, epoch })
    }

    /// A job has ended: it is not expected back.
    pub(crate) fn dismiss(&self, job: JobKey) {
        self.state().dismiss(job);
    }
}

impl State {
    /// Lets go of the memory of entries that have left the window.
    fn clear(&mut self, dropped: &mut Vec<EntryId>) {
        for id in dropped.drain(..) {
            let standing = self.entries.remove(&id).unwrap_or_default();
            self.keep_memory_of(standing);
        }
        self.dropped = std::mem::take(dropped);
    }

    /// Finished samples that nobody wants any more: their memory is used again.
    fn keep_memory_of(&mut self, standing: Standing) {
        self.spare.extend(standing.finished.into_iter().filter_map(|(_, sample)| Arc::into_inner(sample)));
    }

    fn leave(&mut self, seat: Seat) {
        let mut dropped = std::mem::take(&mut self.dropped);
        // A seat that is not taken has been left before.
        let _ = self.order.leave(seat, &mut dropped);
        self.clear(&mut dropped);
        self.guests.retain(|guest| guest.seat != seat);
        if self.guests.is_empty() {
            self.spare.clear();
        }
    }

    /// The seat of a job that was expected in this epoch.
    fn take_up(&mut self, job: JobKey, kind: Kind, epoch: u32) -> Option<Seat> {
        let expected = |guest: &&mut Guest| {
            let next = guest.epoch.checked_add(1) == Some(epoch);
            guest.absent && guest.job == job && guest.kind == kind && next
        };
        let guest = self.guests.iter_mut().find(expected)?;
        (guest.epoch, guest.ahead, guest.absent, guest.asked) = (epoch, false, false, Instant::now());
        Some(guest.seat)
    }

    fn dismiss(&mut self, job: JobKey) {
        let absent = self.guests.iter().filter(|guest| guest.job == job && guest.absent);
        let seats: Vec<Seat> = absent.map(|guest| guest.seat).collect();
        seats.into_iter().for_each(|seat| self.leave(seat));
    }

    /// Who waits for an entry, as a job of this kind sees them.
    fn wanting(&self, entry: EntryId, kind: Kind) -> Wanting {
        let mut wanting = Wanting::default();
        for guest in self.guests.iter().filter(|guest| self.order.is_wanted_by(entry, guest.seat)) {
            if guest.kind.finished == kind.finished {
                wanting.alike += 1;
            } else if guest.kind.decoded == kind.decoded {
                wanting.decoding_alike += 1;
            } else {
                wanting.others += 1;
            }
        }
        wanting
    }

    /// Finds out who has paused.
    fn look_around(&mut self, now: Instant) {
        if now.duration_since(self.looked) < LOOK_EVERY {
            return;
        }
        self.looked = now;
        let mut dropped = std::mem::take(&mut self.dropped);
        for guest in &self.guests {
            if now.duration_since(guest.asked) > PAUSED_AFTER {
                let _ = self.order.expire(guest.seat, &mut dropped);
            }
        }
        self.clear(&mut dropped);
    }
}

impl Membership {
    /// What to do next; `None` when nothing is left, or others are just preparing all of it.
    pub fn next(&self) -> Option<Task> {
        let mut state = self.pool.state();
        let now = Instant::now();
        state.look_around(now);
        let State { order, guests, .. } = &mut *state;
        let guest = guests.iter_mut().find(|guest| guest.seat == self.seat)?;
        if guest.ahead {
            return None;
        }
        guest.asked = now;
        let impatient = guest.waiting.is_some_and(|since| now.duration_since(since) > PATIENCE);
        let choice = if impatient { order.insist(self.seat) } else { order.next(self.seat) };
        guest.waiting = match &choice {
            Ok(Choice::Await) => guest.waiting.or(Some(now)),
            _ => None,
        };
        let kind = guest.kind;
        if guest.whole && !self.pool.alone && order.lacks(self.seat) == Ok(0) {
            guest.ahead = order.begin(self.seat, self.epoch.saturating_add(1), Part::Whole, None).is_ok();
        }
        let preparation = |generation: u64| match self.pool.alone {
            true => self.epoch,
            false => self.pool.first_preparation.wrapping_add(generation as u32),
        };
        match choice.ok()? {
            Choice::Take { sample, entry } => {
                let leave = state.wanting(entry, kind).alike > 0;
                Some(Task::Take { sample, entry, preparation: preparation(entry.generation()), leave })
            }
            Choice::Prepare { sample, generation, share, .. } => {
                let share =
                    share.map(|entry| (entry, state.wanting(entry, kind).leaving(kind.decoded_on_the_way)));
                Some(Task::Prepare { sample, preparation: preparation(generation), share })
            }
            Choice::Await | Choice::EpochDone => None,
        }
    }

    /// Whether this job is waiting for what others are preparing.
    pub fn is_waiting(&self) -> bool {
        self.pool.state().guests.iter().any(|guest| guest.seat == self.seat && guest.waiting.is_some())
    }

    /// A sample has reached the trainer, or is bad and was left out.
    pub fn settle(&self, sample: SampleId, failed: bool) {
        let mut state = self.pool.state();
        let settled = if failed {
            state.order.failed(self.seat, self.epoch, sample)
        } else {
            state.order.served(self.seat, self.epoch, sample)
        };
        if let Err(error) = settled {
            unreachable!("only what was handed out is settled: {error}");
        }
    }

    /// The pool itself, for a worker that brings something or takes something.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        let State { order, guests, .. } = &mut *state;
        let here = guests.iter().position(|guest| guest.seat == self.seat && guest.ahead);
        // Who has come for the next epoch before this one ended is not expected a second time.
        let expected = here.filter(|&index| {
            let job = guests[index].job;
            guests.iter().filter(|guest| guest.job == job && !guest.absent).count() == 1
        });
        match expected {
            Some(index) => {
                guests[index].absent = true;
                order.forget_epoch(self.seat, self.epoch);
            }
            None => state.leave(self.seat),
        }
    }
}

/// What workers do, without the membership, which may end meanwhile.
impl Pool {
    /// What there is of an entry that a job was told to take. It is there until [`Pool::copied`].
    pub(crate) fn found(&self, id: EntryId, kind: Kind) -> Found {
        self.state().entries.get(&id).map_or(Found::Nothing, |standing| standing.find(kind))
    }

    /// A job is done with what it was told to take.
    pub(crate) fn copied(&self, id: EntryId, found: Found) {
        drop(found);
        let mut state = self.state();
        let mut dropped = std::mem::take(&mut state.dropped);
        state.order.copied(id, &mut dropped);
        state.clear(&mut dropped);
    }

    /// Memory for a sample that others want as well.
    pub(crate) fn spare(&self) -> OwnSample {
        self.state().spare.pop().unwrap_or_default()
    }

    /// What is asked of whoever prepares a sample that jobs with other transforms want.
    pub(crate) fn request(&self, form: Form) -> Request {
        Request { form, bytes_max: self.state().decoded_bytes_max, left: None }
    }

    /// A sample that others want as well is prepared: finished, for those of the same kind, and in a form that serves others.
    pub(crate) fn ready(&self, id: EntryId, kind: Kind, finished: Option<OwnSample>, common: Option<Common>) {
        let bytes = |data: &[u8]| data.len() as u64;
        let all_bytes = finished.as_ref().map_or(0, |sample| bytes(&sample.data))
            + common.as_ref().map_or(0, |common| bytes(&common.data));
        let standing = Standing {
            finished: finished.into_iter().map(|sample| (kind.finished, Arc::new(sample))).collect(),
            common: common.map(|common| (kind.decoded, Arc::new(common))),
        };
        let mut state = self.state();
        let mut dropped = std::mem::take(&mut state.dropped);
        let State { order, guests, .. } = &mut *state;
        // Some may have come since it was decided what to leave, and where the sample lay in a cache there was nothing to leave for those with other transforms.
        for guest in guests.iter().filter(|guest| !standing.serves(guest.kind)) {
            order.bar(id, guest.seat);
        }
        if standing.finished.is_empty() && standing.common.is_none() {
            // Whoever wants it finds it in the cache.
            order.abandon(id);
        } else if order.ready(id, all_bytes, &mut dropped) == Verdict::Keep {
            state.entries.insert(id, standing);
        } else {
            state.keep_memory_of(standing);
        }
        state.clear(&mut dropped);
    }

    /// A job that was told to take an entry, and is not done with it, has finished the sample for others of its kind.
    pub(crate) fn add(&self, id: EntryId, kind: Kind, finished: OwnSample) {
        let mut state = self.state();
        let State { order, entries, spare, .. } = &mut *state;
        let standing = entries.get_mut(&id).filter(|standing| {
            let present = standing.finished.iter().any(|(other, _)| *other == kind.finished);
            !present && order.enlarge(id, finished.data.len() as u64)
        });
        match standing {
            Some(standing) => standing.finished.push((kind.finished, Arc::new(finished))),
            None => spare.push(finished),
        }
    }

    /// The preparation of a sample that others want as well has come to nothing.
    pub(crate) fn abandon(&self, id: EntryId) {
        self.state().order.abandon(id);
    }
}
