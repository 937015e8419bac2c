//! When not to wait: which sample a free worker takes up, and when one that takes long makes room for others.
//!
//! A road with two lanes. Most samples are quick and go in the order of the epoch. One that is known to be slow, or
//! turns out to be, goes in the slow lane, which has room for half of the workers, or for more where slow samples are
//! more than half of the work: enough that they get done, and never so much that the batch which is wanted next has
//! nobody at it. Where the slow lane is full, a sample that turns out to be slow is *parked* between two of its
//! transforms and goes on with the next one later.
//!
//! Five complications.
//!
//! *Deadlines.* A sample is due with its own batch, or `lateness` batches later where batches are filled as samples get
//! ready. Whoever has no more time to lose than the work still takes is *urgent*: it comes before everything else, and
//! is not parked. How much time there is until a batch is wanted follows from how long all workers need for the batches
//! before it, so no clock is needed.
//!
//! *Debt.* While the trainer waits for every batch, work put off is only in the way later: all of it would crowd in the
//! last batches, several slow samples to a worker. So as long as batches leave as soon as they are full, the slow lane
//! is kept within [`DEBT_BATCHES`] of what would have been begun in order, and gets the seats that it takes to be empty
//! when the epoch ends.
//!
//! *Nobody idles.* While anything can be begun or gone on with, a free worker gets it, whatever its lane. Nothing is
//! parked where there is nothing else to begin. So all work is done once, by the same workers, in the same time: lanes
//! only change the order.
//!
//! *What is left.* A sample that has taken long may be all but finished. What it still takes is foreseen from where it
//! stands in its chain, and one that has less before it than most samples take as a whole is finished first: nobody is
//! helped by letting it stand.
//!
//! *Hands.* A sample that a worker process has begun can be finished by no other. So a parked sample may have a holder,
//! and is offered to that one only.

use std::collections::HashSet;

mod durations;
mod experience;
mod forecast;
mod line;
mod slow_share;
mod steps;

pub use durations::Durations;
pub use experience::Experience;
pub use forecast::Hints;
pub use slow_share::SlowShare;
pub use steps::{STEPS_MAX, Step, StepTimes};

/// How many samples may be parked for each worker: every one keeps what was made of it so far in memory.
const PARKED_PER_WORKER: usize = 4;

/// How many batches' slow samples may be put off beyond their turn while the trainer waits for every batch.
const DEBT_BATCHES: u128 = 2;

/// What the lanes go by when they decide.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// How many workers there are.
    pub workers: usize,
    /// How many of them may be in the slow lane while others have something to do.
    pub seats: usize,
    /// How many of them slow samples keep busy on average.
    pub busy_with_slow: usize,
    /// The first batch that has not left.
    pub front: u64,
    /// How many batches later than its own a sample may be.
    pub lateness: u64,
    /// The last batch of the epoch: nothing is later, whatever `lateness` allows.
    pub last: u64,
    /// How long all workers together need for a batch, in microseconds.
    pub batch_time: u64,
    /// How much of that is for its slow samples.
    pub slow_time: u64,
    /// What half of all samples take at most, in microseconds.
    pub median: u64,
    /// The own batch of the next sample in the fast lane that may be begun, if there is one.
    pub fast: Option<u64>,
}

impl Traffic {
    /// As experience has it, for batches of so many samples. `fast` is the own batch of the next sample in the fast
    /// lane.
    #[must_use]
    pub fn new(experience: &Experience, workers: usize, batch_size: usize, fast: Option<u64>) -> Self {
        let workers = workers.max(1);
        let slow_share = experience.slow_work_share();
        let share = slow_share * workers as f64;
        let batch_time = experience.mean().unwrap_or(0).saturating_mul(batch_size as u64) / workers as u64;
        Self {
            workers,
            seats: (share as usize).clamp(workers / 2, workers - 1),
            busy_with_slow: share as usize,
            front: 0,
            lateness: 0,
            last: u64::MAX,
            batch_time,
            slow_time: (batch_time as f64 * slow_share) as u64,
            median: experience.median(),
            fast,
        }
    }

    /// How much time a sample has to lose, in microseconds; none where it is less than nothing. The batch at the front
    /// may be all but finished, so it gives no time.
    fn slack(&self, batch: u64, work: u64) -> i128 {
        let due = i128::from(batch) + i128::from(self.lateness);
        let between = due - i128::from(self.front) - 1;
        between.max(0) * i128::from(self.batch_time) - i128::from(work)
    }

    fn is_urgent(&self, batch: u64, work: u64) -> bool {
        self.slack(batch, work) <= 0
    }

    /// Whether a sample of the slow lane goes before the next one of the fast lane, if it has a seat: begun after that
    /// one, it would be late for its batch by the time that the work on the batches in between leaves it.
    fn goes_first(&self, sample: &Waiting) -> bool {
        let due = sample.batch.saturating_add(self.lateness).min(self.last);
        let due = i128::from(due);
        self.fast.is_none_or(|fast| {
            (due - i128::from(fast)) * i128::from(self.batch_time) <= i128::from(sample.work)
        })
    }

    /// Whether batches leave as soon as they are full: nothing is begun beyond the one at the front.
    fn is_waited_for(&self) -> bool {
        self.fast.is_none_or(|fast| fast <= self.front)
    }

    /// Whether more slow samples than there should be were passed over by the fast lane.
    fn is_in_debt(&self, put_off: impl Iterator<Item = Waiting>) -> bool {
        let passed = put_off.filter(|sample| self.fast.is_none_or(|fast| sample.batch < fast));
        sum_of_work(passed) > DEBT_BATCHES * u128::from(self.slow_time) * self.workers as u128
    }

    /// How many workers have to be at slow samples from now on, so that these end with the epoch and not after it.
    fn seats_to_the_end(&self, running: usize, put_off: impl Iterator<Item = Waiting> + Clone) -> usize {
        let Some(fast) = self.fast else { return self.workers };
        let longest = u128::from(put_off.clone().map(|sample| sample.work).max().unwrap_or(0));
        // Those that are running are half through, as a rule, and so is whoever is begun last when the others are
        // finished.
        let slow = sum_of_work(put_off) + running as u128 * longest / 2;
        let batches = u128::from(self.last.saturating_sub(fast));
        let quick = batches * u128::from(self.batch_time - self.slow_time) * self.workers as u128;
        let rest = ((slow + quick) / self.workers as u128).saturating_sub(longest / 2).max(1);
        usize::try_from(slow.div_ceil(rest)).unwrap_or(usize::MAX).min(self.workers - 1)
    }

    /// Whether slow samples are to be worked off, of which so many are running.
    fn works_off(&self, running: usize, put_off: impl Iterator<Item = Waiting> + Clone) -> bool {
        if self.lateness == 0 || self.front == 0 || !self.is_waited_for() {
            return false;
        }
        // No more of them than slow samples keep busy: with one worker less than quick samples need, every batch is
        // waited for, and so the trainer would go on waiting for as long as there is debt.
        running < self.busy_with_slow && self.is_in_debt(put_off.clone())
            || running < self.seats_to_the_end(running, put_off)
    }

    /// Whether the fast lane has come to what is due with this sample: it has had all the start there was.
    fn has_come_to(&self, sample: &Waiting) -> bool {
        self.fast.is_none_or(|fast| sample.batch.saturating_add(self.lateness) <= fast)
    }

    /// Whether a sample may be late because it is so slow, which where samples may be late at all is worth any seat.
    fn presses(&self, sample: &Waiting) -> bool {
        self.lateness > 0 && self.is_urgent(sample.batch, sample.work)
    }
}

/// A sample in the slow lane that no worker is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// What its owner calls it.
    pub id: u64,
    /// Its own batch.
    pub batch: u64,
    /// What it will (still) take, in microseconds.
    pub work: u64,
    /// The only worker that can go on with it.
    pub holder: Option<usize>,
}

/// What a free worker is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Begin the next sample of the fast lane.
    Fast,
    /// Begin this sample of the slow lane.
    Slow(Waiting),
    /// Go on with this one, which was parked.
    Parked(Waiting),
    /// There is nothing to do.
    Nothing,
}

/// What becomes of a sample between two of its transforms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its worker goes on with it. If it was not in the slow lane, it is now.
    GoOn,
    /// Its worker lets it stand, tells [`Lanes::park`] when it can be taken up again, and takes up another.
    Park,
}

/// The slow lane of a run: who waits in it, who is parked, and how many workers are at such samples.
///
/// A sample is *waiting*, then *running*, and from there *parked* and running again any number of times until it is
/// finished. Those of the fast lane are their owner's, until they turn out to be slow.
#[derive(Clone, Debug, Default)]
pub struct Lanes {
    waiting: Vec<Waiting>,
    /// How many are about to be parked: their workers are clearing up.
    clearing: usize,
    /// The ids of those that wait, as each sample of the fast lane is looked up here.
    aside: HashSet<u64>,
    parked: Vec<Waiting>,
    running: usize,
}

impl Lanes {
    /// A sample that nobody has begun is slow: it leaves the fast lane.
    pub fn set_aside(&mut self, sample: Waiting) {
        if self.aside.insert(sample.id) {
            self.waiting.push(sample);
        }
    }

    /// Whether a sample waits in the slow lane, and is not to be begun as one of the fast lane.
    #[must_use]
    pub fn holds(&self, id: u64) -> bool {
        self.aside.contains(&id)
    }

    /// How many samples are parked.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    /// How many workers are at slow samples.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running
    }

    /// What `worker`, which is free, is to do. A sample of the slow lane counts as running from now on.
    pub fn next(&mut self, worker: usize, traffic: &Traffic) -> Turn {
        let slack = |waiting: &Waiting| traffic.slack(waiting.batch, waiting.work);
        let waiting = least(&self.waiting, |_| true, slack);
        let parked = least(&self.parked, |sample| sample.holder.is_none_or(|holder| holder == worker), slack);
        // The first batch is what a trainer waits for with nothing to do: all hands are for it.
        let has_seat = traffic.front > 0 && self.running < traffic.seats;
        let put_off = self.waiting.iter().chain(&self.parked).copied();
        let works_off = traffic.works_off(self.running, put_off);
        let calls = |samples: &[Waiting], found: Option<(i128, usize)>| {
            found.map(|(_, index)| &samples[index]).is_some_and(|sample| {
                let in_time = has_seat && traffic.goes_first(sample);
                works_off || in_time || traffic.has_come_to(sample) || traffic.presses(sample)
            })
        };
        let wanted = calls(&self.waiting, waiting) || calls(&self.parked, parked);
        match (wanted, waiting, parked) {
            (true, Some((slack, index)), other) if other.is_none_or(|(parked, _)| slack < parked.min(1)) => {
                let begun = self.waiting.swap_remove(index);
                self.aside.remove(&begun.id);
                self.running += 1;
                Turn::Slow(begun)
            }
            // What is parked holds memory, so it goes first unless another is more urgent.
            (true, _, Some((_, index))) => {
                self.running += 1;
                Turn::Parked(self.parked.swap_remove(index))
            }
            _ if traffic.fast.is_some() => Turn::Fast,
            _ => Turn::Nothing,
        }
    }

    /// A sample has taken longer than most and is between two transforms. `in_lane` says whether it runs in the slow
    /// lane already.
    pub fn between(&mut self, sample: Waiting, in_lane: bool, traffic: &Traffic) -> Verdict {
        let running = self.running + usize::from(!in_lane);
        let due = sample.batch.saturating_add(traffic.lateness);
        let holders =
            self.parked.iter().filter(|parked| parked.holder == sample.holder).count() + self.clearing;
        let hands = if sample.holder.is_some() { 1 } else { traffic.workers };
        let park = traffic.fast.is_some_and(|fast| fast <= due)
            && running > traffic.seats
            && sample.work > traffic.median
            && holders < PARKED_PER_WORKER * hands
            && !traffic.is_urgent(sample.batch, sample.work);
        if park {
            self.running = running - 1;
            self.clearing += 1;
            return Verdict::Park;
        }
        self.running = running;
        Verdict::GoOn
    }

    /// A sample that was to be parked is where others can go on with it.
    pub fn park(&mut self, sample: Waiting) {
        debug_assert!(self.clearing > 0, "a sample is parked that was told to go on");
        self.clearing = self.clearing.saturating_sub(1);
        self.parked.push(sample);
    }

    /// A sample that was to be parked was not: its worker has finished it after all, or it failed.
    pub fn park_not(&mut self) {
        self.clearing = self.clearing.saturating_sub(1);
    }

    /// A sample of the slow lane is finished.
    pub fn finish(&mut self) {
        debug_assert!(self.running > 0, "more slow samples are finished than were begun");
        self.running = self.running.saturating_sub(1);
    }

    /// Lets go of all samples that nobody is at: their run has ended.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.aside.clear();
        self.parked.clear();
    }
}

fn sum_of_work(samples: impl Iterator<Item = Waiting>) -> u128 {
    samples.map(|sample| u128::from(sample.work)).sum()
}

/// The one with the least slack among those that may be had; of equal ones, the one that was planned first.
fn least(
    samples: &[Waiting],
    may: impl Fn(&Waiting) -> bool,
    slack: impl Fn(&Waiting) -> i128,
) -> Option<(i128, usize)> {
    let found = samples.iter().enumerate().filter(|(_, sample)| may(sample));
    found
        .map(|(index, sample)| (slack(sample), sample.batch, sample.id, index))
        .min()
        .map(|(slack, _, _, index)| (slack, index))
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod turns;
