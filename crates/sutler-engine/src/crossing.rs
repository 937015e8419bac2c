//! The moment between two transforms: whether the sample makes room for others.

use std::time::{Duration, Instant};

use sutler_core::Waiting;

use crate::engine::Shared;
use crate::preparation::Boundary;
use crate::ticket::{Standing, Ticket};

/// A sample on its way through its transforms, as seen from the engine.
pub(crate) struct Crossing<'a> {
    shared: &'a Shared,
    ticket: &'a Ticket,
    index: usize,
    /// The only worker that could go on with it.
    holder: Option<usize>,
    begun: Instant,
    /// How long workers were at it before it was parked the last time.
    before: Duration,
    in_lane: bool,
    /// What the lanes were last told of it, and whether they count on its being parked.
    waiting: Waiting,
    parking: bool,
}

impl<'a> Crossing<'a> {
    /// Of sample `index` of a ticket, which a worker begins or goes on with now.
    pub fn of(shared: &'a Shared, ticket: &'a Ticket, index: usize, holder: Option<usize>) -> Self {
        let id = ticket.id + index as u64;
        Self {
            shared,
            ticket,
            index,
            holder,
            begun: Instant::now(),
            before: Duration::ZERO,
            in_lane: ticket.in_lane,
            waiting: Waiting { id, batch: ticket.own_batch, work: 0, holder },
            parking: false,
        }
    }

    /// Others were at it before.
    pub fn worked_before(&mut self, worked: Duration) {
        self.before = worked;
    }

    /// When this worker began with it.
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// How long workers have been at it.
    pub fn worked(&self) -> Duration {
        self.before + self.begun.elapsed()
    }

    /// Whether it is in the slow lane.
    pub fn in_lane(&self) -> bool {
        self.in_lane
    }

    /// It has made room, and stands ready to be gone on with.
    pub fn park(&mut self, standing: Standing) {
        self.parking = false;
        let ticket = self.ticket.standing(self.index, standing);
        self.shared.with_run(self.ticket.run, |run| run.park(self.waiting, ticket));
        // Somebody may have gone idle in the moment when it was nobody's.
        self.shared.ring();
    }

    /// Whether there is anybody who could go on with something else: a consumer that prepares for itself wants its batch, and
    /// whoever takes several samples at once takes them for being quick.
    fn is_open(&self) -> bool {
        !self.shared.is_alone()
            && !self.ticket.is_whole_batch()
            && self.ticket.task.is_none()
            && (self.holder.is_none() || self.ticket.samples().len() == 1)
    }
}

impl Boundary for Crossing<'_> {
    fn parks(&mut self, done: usize) -> bool {
        let worked = self.worked();
        // Most samples are quick, and never come to the lock.
        if self.asks_after().is_none_or(|after| worked <= after) {
            return false;
        }
        let Self { shared, ticket, waiting, in_lane, .. } = self;
        let parks = shared.with_run(ticket.run, |run| {
            waiting.work = run.expect_more(done, worked);
            run.makes_room(*waiting, in_lane)
        });
        self.parking = parks.unwrap_or(false);
        self.parking
    }

    fn asks_after(&self) -> Option<Duration> {
        self.ticket.job.slow_after().filter(|_| self.is_open())
    }
}

impl Drop for Crossing<'_> {
    /// Whoever was to be parked and never was, as after a panic, is not counted on.
    fn drop(&mut self) {
        if self.parking {
            self.shared.with_run(self.ticket.run, |run| run.park_not());
        }
    }
}
