//! Which sample a worker of a run takes up next, and which one makes room: what `core::Lanes` decides, done to a run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sutler_core::{Draw, Hints, LaneVerdict, Lanes, Repeats, SampleId, Turn, Waiting};

use super::{RunState, fair_share, lease};
use crate::ServingOrder;
use crate::ticket::{SCOUTS, Scout, TICKET_MAX, Ticket, TicketRows, TicketSamples};

/// What a run knows of who is quick and who is slow.
#[derive(Default)]
pub(super) struct Traffic {
    lanes: Lanes,
    /// Samples between two transforms, by their ids. The lanes have them in their list of parked ones.
    standing: HashMap<u64, Ticket>,
    /// What workers have found out about samples that are not begun.
    hints: HashMap<u64, Hints>,
    /// Samples before this one were given to workers to find something out about, or need not be.
    scouted: u64,
    /// Samples before this one were looked at: whether they are slow.
    looked: u64,
    /// How many workers there were when one last asked for something to do.
    workers: usize,
}

impl Traffic {
    /// The run has ended: nobody goes on with anything.
    pub fn clear(&mut self) {
        self.lanes.clear();
        self.standing.clear();
    }
}

/// A sample that may be begun.
#[derive(Clone, Copy)]
struct Candidate {
    sample: SampleId,
    position: u32,
    own_batch: u64,
}

impl RunState {
    /// What `worker` is to do, by the lane that is next.
    pub(super) fn take_by_lane(&mut self, worker: usize, appetite: usize, threads: usize) -> Option<Ticket> {
        self.traffic.workers = threads;
        self.look_ahead();
        loop {
            let traffic = self.traffic();
            let ticket = match self.traffic.lanes.next(worker, &traffic) {
                Turn::Nothing => return None,
                Turn::Fast => return self.take_fast(appetite, threads),
                Turn::Slow(waiting) => self.begin(waiting.id),
                Turn::Parked(waiting) => self.traffic.standing.remove(&waiting.id),
            };
            match ticket {
                Some(ticket) => {
                    let scouts = self.scouts();
                    return Some(Ticket { in_lane: true, scouts, ..ticket });
                }
                // Whoever was in the slow lane is gone with its batch.
                None => self.traffic.lanes.finish(),
            }
        }
    }

    /// The next samples of the fast lane.
    fn take_fast(&mut self, appetite: usize, threads: usize) -> Option<Ticket> {
        let first = self.next_fast()?;
        let end = self.reach();
        let own_batch = self.candidate(first)?.own_batch;
        let experience = self.job.experience();
        let goes_along = |id: &u64| {
            self.candidate(*id).is_some_and(|next| {
                next.own_batch == own_batch
                    && self.ledger.is_left(next.position)
                    && !self.traffic.lanes.holds(*id)
                    && (*id == first || !experience.is_slow(next.sample, &self.hints(*id)))
            })
        };
        // A worker that takes one at a time need not know how many it could take.
        let in_sight = if appetite > 1 { end } else { end.min(first + 1) };
        let left = (first..in_sight).take_while(goes_along).count();
        drop(experience);
        let count = fair_share(appetite, left, threads);
        let mut samples = [SampleId(0); TICKET_MAX];
        let mut repeats = Repeats::default();
        for (offset, cell) in samples.iter_mut().enumerate().take(count) {
            let candidate = self.candidate(first + offset as u64)?;
            *cell = candidate.sample;
            repeats.note(offset, self.plan.repeat(candidate.position));
            lease(&mut self.ledger, std::iter::once(candidate.position));
            self.traffic.hints.remove(&(first + offset as u64));
        }
        self.next_id = first + count as u64;
        let rows = self.rows_from(first)?;
        let ticket = self.ticket(TicketSamples::Few(samples, count), rows, (first, own_batch));
        Some(Ticket { repeats, scouts: self.scouts(), ..ticket })
    }

    /// Begins a sample of the slow lane.
    fn begin(&mut self, id: u64) -> Option<Ticket> {
        let Candidate { sample, position, own_batch } = self.candidate(id)?;
        let rows = self.rows_from(id)?;
        if !self.ledger.is_left(position) {
            return None;
        }
        lease(&mut self.ledger, std::iter::once(position));
        self.traffic.hints.remove(&id);
        let repeats = self.repeats(&[position]);
        Some(Ticket { repeats, ..self.ticket(TicketSamples::few(&[sample]), rows, (id, own_batch)) })
    }

    /// Where the sample and those after it go.
    fn rows_from(&self, id: u64) -> Option<TicketRows> {
        if self.late.is_some() {
            return Some(TicketRows::Late(id));
        }
        let entry = self.entry_of(id)?;
        Some(TicketRows::Known(Arc::clone(&entry.batch), (id - entry.first_id) as usize))
    }

    /// The open batch of a sample, where rows are known from the start.
    fn entry_of(&self, id: u64) -> Option<&super::InFlight> {
        self.in_flight
            .iter()
            .find(|entry| (entry.first_id..entry.first_id + entry.samples.len() as u64).contains(&id))
    }

    /// Samples before this one can be begun as things are.
    fn reach(&self) -> u64 {
        if self.late.is_some() { self.late_window() } else { self.opened }
    }

    fn candidate(&self, id: u64) -> Option<Candidate> {
        if self.late.is_some() {
            let own_batch = id / u64::from(self.plan.batch_size()?);
            return Some(Candidate {
                sample: self.plan.sample(id),
                position: self.plan.position(id),
                own_batch,
            });
        }
        let entry = self.entry_of(id)?;
        let row = (id - entry.first_id) as usize;
        let own_batch = entry.batch.index;
        Some(Candidate { sample: entry.samples[row], position: entry.positions[row], own_batch })
    }

    /// The next sample of the fast lane, if there is one. Slow ones before it are set aside.
    fn next_fast(&mut self) -> Option<u64> {
        loop {
            let id = self.next_id;
            if id >= self.reach() {
                if self.late.is_some() {
                    return None;
                }
                self.open_planned_batch()?;
                continue;
            }
            if !self.set_aside_if_slow(id)
                && !self.traffic.lanes.holds(id)
                && self.candidate(id).is_some_and(|candidate| self.ledger.is_left(candidate.position))
            {
                return Some(id);
            }
            self.next_id += 1;
        }
    }

    /// Puts a sample that nobody has begun into the slow lane, if it is known to be slow; tells whether it is there now.
    fn set_aside_if_slow(&mut self, id: u64) -> bool {
        let Some(candidate) = self.candidate(id) else { return false };
        let hints = self.hints(id);
        let experience = self.job.experience();
        if !self.ledger.is_left(candidate.position) || !experience.is_slow(candidate.sample, &hints) {
            return false;
        }
        let work = experience.expect(candidate.sample, &hints).unwrap_or(0);
        self.traffic.lanes.set_aside(Waiting { id, batch: candidate.own_batch, work, holder: None });
        true
    }

    fn hints(&self, id: u64) -> Hints {
        self.traffic.hints.get(&id).copied().unwrap_or_default()
    }

    /// Sets aside all samples in reach that are known to be slow.
    fn look_ahead(&mut self) {
        if !self.job.experience().tells_slow_ones() {
            return;
        }
        let end = if self.delivered > 0 {
            while self.late.is_none() && self.open_planned_batch().is_some() {}
            self.reach()
        } else {
            self.end_of_first_batch()
        };
        for id in self.traffic.looked.max(self.next_id)..end {
            self.set_aside_if_slow(id);
        }
        self.traffic.looked = self.traffic.looked.max(end);
    }

    /// Where the first batch ends. It is wanted soonest, so all hands are to work at it. Where it is known what is in it and
    /// that it waits for all of that, its slow samples come first, as nothing else makes it sooner.
    fn end_of_first_batch(&mut self) -> u64 {
        if self.job.options.order != ServingOrder::Strict {
            return 0;
        }
        if self.in_flight.is_empty() {
            self.open_planned_batch();
        }
        self.in_flight.front().map_or(0, |first| first.first_id + first.samples.len() as u64)
    }

    /// The next samples that workers are to find something out about.
    fn scouts(&mut self) -> [Option<Scout>; SCOUTS] {
        let mut scouts = [None; SCOUTS];
        // Finding out costs a look at the file, which nobody should pay where it tells nothing.
        if self.plan.batch_size().is_none() || !self.job.experience().hints_tell() {
            return scouts;
        }
        // Steps, not rows: of batches that are not open yet something can be found out, too.
        let end = self.late_window();
        self.traffic.scouted = self.traffic.scouted.max(self.next_id);
        for cell in &mut scouts {
            if self.traffic.scouted < end {
                let id = self.traffic.scouted;
                let repeat = self.plan.repeat(self.plan.position(id));
                let draw = Draw { epoch: self.epoch, repeat };
                *cell = Some(Scout { id, sample: self.plan.sample(id), draw });
                self.traffic.scouted += 1;
            }
        }
        scouts
    }

    /// A worker has found something out about a sample.
    pub fn note_hints(&mut self, id: u64, hints: Hints) {
        if id < self.next_id || hints.are_empty() {
            return;
        }
        self.traffic.hints.insert(id, hints);
        if self.delivered > 0 && id < self.reach() {
            self.set_aside_if_slow(id);
        }
    }

    fn traffic(&mut self) -> sutler_core::Traffic {
        let fast = self.next_fast().and_then(|id| self.candidate(id)).map(|next| next.own_batch);
        let front = match (&self.late, self.in_flight.front()) {
            (None, Some(entry)) => entry.batch.index,
            _ => self.delivered,
        };
        let options = &self.job.options;
        sutler_core::Traffic {
            front,
            lateness: u64::from(options.order.lateness().unwrap_or(0)),
            last: self.last_batch(),
            ..sutler_core::Traffic::new(
                &self.job.experience(),
                self.traffic.workers,
                options.batch_size,
                fast,
            )
        }
    }

    /// The last batch of the epoch, as far as it is known.
    fn last_batch(&self) -> u64 {
        let of_fixed_size = self.plan.batch_size().filter(|_| self.late.is_some());
        of_fixed_size.map_or(u64::MAX, |size| self.plan.steps().div_ceil(u64::from(size)).saturating_sub(1))
    }

    /// A sample has taken longer than most and is between two transforms; whether it makes room for others. `in_lane` says whether it is
    /// in the slow lane, before and after.
    pub fn makes_room(&mut self, sample: Waiting, in_lane: &mut bool) -> bool {
        if self.broken.is_some() || self.membership.is_some() {
            return false;
        }
        let traffic = self.traffic();
        let verdict = self.traffic.lanes.between(sample, *in_lane, &traffic);
        *in_lane = verdict == LaneVerdict::GoOn;
        verdict == LaneVerdict::Park
    }

    /// A sample that makes room stands ready to be gone on with.
    pub fn park(&mut self, sample: Waiting, ticket: Ticket) {
        if self.broken.is_some() {
            return;
        }
        self.traffic.standing.insert(sample.id, ticket);
        self.traffic.lanes.park(sample);
    }

    /// A sample that was to make room has not.
    pub fn park_not(&mut self) {
        self.traffic.lanes.park_not();
    }

    /// What a sample that has taken this long for so many steps will still take, in microseconds.
    pub fn expect_more(&self, done: usize, worked: Duration) -> u64 {
        let microseconds = u64::try_from(worked.as_micros()).unwrap_or(u64::MAX);
        self.job.experience().expect_more(done, microseconds)
    }

    /// A sample of the slow lane is finished.
    pub fn finish_in_lane(&mut self) {
        self.traffic.lanes.finish();
    }
}
