//! Samples that are prepared once for several jobs.
//!
//! Jobs over the same dataset with the same pipeline can have a [`Pool`] in common. Who gets which sample is decided by
//! [`SharedOrder`], which is pure; here are the bytes of the window, the clock that finds out who has paused, and the
//! lock. It is held for a decision, never while samples are prepared or copied.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sutler_core::{
    Choice, EntryId, JobKey, Ledger, Part, SampleId, Seat, SharedError, SharedOrder, SharedSettings,
    SharedStats, Verdict,
};

use crate::OwnSample;

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
}

struct State {
    order: SharedOrder,
    /// What stands in the window.
    entries: HashMap<EntryId, Arc<OwnSample>>,
    /// The memory of what stood there, to be used again.
    spare: Vec<OwnSample>,
    dropped: Vec<EntryId>,
    guests: Vec<Guest>,
    looked: Instant,
    next_key: u64,
}

struct Guest {
    seat: Seat,
    asked: Instant,
    /// Since when it has been waiting for what others are preparing.
    waiting: Option<Instant>,
}

/// A job's or a rank's part in a pool, for one epoch. Dropping it gives up what is left of the epoch.
pub(crate) struct Membership {
    pool: Arc<Pool>,
    seat: Seat,
    epoch: u32,
}

/// What a job does about its next sample.
pub(crate) enum Task {
    /// Copies what stands ready.
    Take { sample: SampleId, entry: EntryId },
    /// Prepares it with the random numbers of this preparation, and tells the others if they want it too.
    Prepare { sample: SampleId, preparation: u32, share: Option<EntryId> },
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
        let (samples, seed) = (settings.samples, settings.seed);
        let state = State {
            order: SharedOrder::new(settings),
            entries: HashMap::new(),
            spare: Vec::new(),
            dropped: Vec::new(),
            guests: Vec::new(),
            looked: Instant::now(),
            next_key: 0,
        };
        Arc::new(Self { state: Mutex::new(state), samples, first_preparation: (seed ^ (seed >> 32)) as u32 })
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

    /// The sample has come into memory, or left it.
    pub(crate) fn set_kept(&self, sample: SampleId, kept: bool) {
        // Only a sample that the dataset does not have is refused, and nobody prepares such.
        let _ = self.state().order.set_pinned(sample, kept);
    }

    /// Begins a job's epoch over some samples, without those that are done.
    pub(crate) fn join(
        self: &Arc<Self>,
        job: JobKey,
        epoch: u32,
        samples: &[SampleId],
        done: &Ledger,
    ) -> Result<Membership, SharedError> {
        let mut state = self.state();
        let mut dropped = std::mem::take(&mut state.dropped);
        let joined = state.order.join(job, &mut dropped);
        state.clear(&mut dropped);
        let seat = joined?;
        let whole = samples.len() == self.samples as usize;
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
        state.guests.push(Guest { seat, asked: Instant::now(), waiting: None });
        drop(state);
        Ok(Membership { pool: Arc::clone(self), seat, epoch })
    }
}

impl State {
    /// Lets go of the memory of entries that have left the window.
    fn clear(&mut self, dropped: &mut Vec<EntryId>) {
        for id in dropped.drain(..) {
            if let Some(sample) = self.entries.remove(&id).and_then(Arc::into_inner) {
                self.spare.push(sample);
            }
        }
        self.dropped = std::mem::take(dropped);
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
        guest.asked = now;
        let impatient = guest.waiting.is_some_and(|since| now.duration_since(since) > PATIENCE);
        let choice = if impatient { order.insist(self.seat) } else { order.next(self.seat) };
        guest.waiting = match &choice {
            Ok(Choice::Await) => guest.waiting.or(Some(now)),
            _ => None,
        };
        match choice.ok()? {
            Choice::Take { sample, entry } => Some(Task::Take { sample, entry }),
            Choice::Prepare { sample, generation, share, .. } => {
                let preparation = self.pool.first_preparation.wrapping_add(generation as u32);
                Some(Task::Prepare { sample, preparation, share })
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
        self.pool.state().leave(self.seat);
    }
}

/// What workers do, without the membership, which may end meanwhile.
impl Pool {
    /// The bytes of an entry that a job was told to take. It is there until [`Pool::copied`].
    pub(crate) fn entry(&self, id: EntryId) -> Option<Arc<OwnSample>> {
        self.state().entries.get(&id).map(Arc::clone)
    }

    /// A job has copied what it was told to take.
    pub(crate) fn copied(&self, id: EntryId, bytes: Option<Arc<OwnSample>>) {
        drop(bytes);
        let mut state = self.state();
        let mut dropped = std::mem::take(&mut state.dropped);
        state.order.copied(id, &mut dropped);
        state.clear(&mut dropped);
    }

    /// Memory for a sample that others want as well.
    pub(crate) fn spare(&self) -> OwnSample {
        self.state().spare.pop().unwrap_or_default()
    }

    /// A sample that others want as well is prepared.
    pub(crate) fn ready(&self, id: EntryId, sample: OwnSample) {
        let mut state = self.state();
        let mut dropped = std::mem::take(&mut state.dropped);
        match state.order.ready(id, sample.data.len() as u64, &mut dropped) {
            Verdict::Keep => {
                state.entries.insert(id, Arc::new(sample));
            }
            Verdict::LetGo => state.spare.push(sample),
        }
        state.clear(&mut dropped);
    }

    /// The preparation of a sample that others want as well has come to nothing.
    pub(crate) fn abandon(&self, id: EntryId) {
        self.state().order.abandon(id);
    }
}
