//! Whole epochs in virtual time, over costs that somebody has thought up to hurt.

use proptest::prelude::*;

use super::*;
use crate::{Assembly, Depth, SampleId, SampleRng};

/// An epoch: what each transform of each sample costs, in microseconds, and who prepares and takes it.
#[derive(Clone, Debug)]
struct Case {
    costs: Vec<Vec<u64>>,
    /// What is known of samples beforehand, if anything is.
    sizes: bool,
    workers: usize,
    batch_size: usize,
    ahead: usize,
    /// Whether more batches are prepared ahead where these are too few.
    grows: bool,
    /// `None` in strict order.
    lateness: Option<u32>,
    /// What the consumer does with a batch.
    step: u64,
    /// Whether parked samples can be finished by the worker that began them only.
    held: bool,
    /// Whether it is told what each transform took, and not only all of them together.
    told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    /// Everything in order, and to the end.
    Fifo,
    Lanes,
}

#[derive(Debug, Default, PartialEq)]
struct Outcome {
    batches: Vec<Vec<u64>>,
    /// What the consumer waited for each batch.
    waits: Vec<u64>,
    time: u64,
    work: u64,
    parked: usize,
}

/// What a worker is at.
#[derive(Clone, Copy)]
struct Work {
    step: u64,
    transform: usize,
    until: u64,
    done: u64,
    in_lane: bool,
}

struct Epoch<'a> {
    case: &'a Case,
    policy: Policy,
    experience: &'a mut Experience,
    lanes: Lanes,
    assembly: Assembly,
    depth: Depth,
    /// When the consumer wants the batch at the front.
    asks: u64,
    workers: Vec<Option<Work>>,
    parked: Vec<Work>,
    cursor: u64,
    begun: Vec<bool>,
    filled: Vec<Vec<u64>>,
    now: u64,
    outcome: Outcome,
}

impl Epoch<'_> {
    fn steps(&self) -> u64 {
        self.case.costs.len() as u64
    }

    fn own(&self, step: u64) -> u64 {
        step / self.case.batch_size as u64
    }

    fn cost(&self, step: u64) -> u64 {
        self.case.costs[step as usize].iter().sum()
    }

    fn hints(&self, step: u64) -> Hints {
        Hints { size: self.case.sizes.then(|| self.cost(step) as f64), ..Hints::default() }
    }

    fn end(&self) -> u64 {
        let reach = (self.outcome.batches.len() + self.depth.batches()) * self.case.batch_size;
        self.steps().min(reach as u64)
    }

    /// The next sample of the fast lane; slow ones on the way there are set aside.
    fn fast(&mut self) -> Option<u64> {
        while self.cursor < self.end() {
            let step = self.cursor;
            let slow = self.policy == Policy::Lanes
                && self.experience.is_slow(SampleId(step as u32), &self.hints(step));
            if !self.begun[step as usize] && slow && !self.lanes.holds(step) {
                let work = self.experience.expect(SampleId(step as u32), &self.hints(step)).unwrap();
                self.lanes.set_aside(Waiting { id: step, batch: self.own(step), work, holder: None });
            }
            if !self.begun[step as usize] && !self.lanes.holds(step) {
                return Some(step);
            }
            self.cursor += 1;
        }
        None
    }

    fn look_ahead(&mut self) {
        if self.policy == Policy::Lanes && !self.outcome.batches.is_empty() {
            for step in self.cursor..self.end() {
                let hints = self.hints(step);
                if !self.begun[step as usize] && self.experience.is_slow(SampleId(step as u32), &hints) {
                    let work = self.experience.expect(SampleId(step as u32), &hints).unwrap();
                    self.lanes.set_aside(Waiting { id: step, batch: self.own(step), work, holder: None });
                }
            }
        }
    }

    fn traffic(&mut self) -> Traffic {
        let fast = self.fast().map(|step| self.own(step));
        let case = self.case;
        Traffic {
            front: self.outcome.batches.len() as u64,
            lateness: u64::from(case.lateness.unwrap_or(0)),
            last: (case.costs.len().div_ceil(case.batch_size) - 1) as u64,
            ..Traffic::new(self.experience, case.workers, case.batch_size, fast)
        }
    }

    fn begin(&mut self, worker: usize, step: u64, in_lane: bool) {
        assert!(!std::mem::replace(&mut self.begun[step as usize], true), "step {step} is begun twice");
        let until = self.now + self.case.costs[step as usize][0];
        self.workers[worker] = Some(Work { step, transform: 0, until, done: 0, in_lane });
    }

    fn dispatch(&mut self) {
        self.look_ahead();
        for worker in 0..self.workers.len() {
            if self.workers[worker].is_some() {
                continue;
            }
            let traffic = self.traffic();
            let turn = match (self.policy, traffic.fast) {
                (Policy::Lanes, _) => self.lanes.next(worker, &traffic),
                (Policy::Fifo, Some(_)) => Turn::Fast,
                (Policy::Fifo, None) => Turn::Nothing,
            };
            match turn {
                Turn::Nothing if self.is_held_up() && self.depth.grow() => return self.dispatch(),
                Turn::Fast => {
                    let step = self.fast().unwrap();
                    self.begin(worker, step, false);
                }
                Turn::Slow(waiting) => self.begin(worker, waiting.id, true),
                Turn::Parked(waiting) => {
                    assert!(waiting.holder.is_none_or(|holder| holder == worker));
                    let index = self.parked.iter().position(|work| work.step == waiting.id).unwrap();
                    let work = self.parked.swap_remove(index);
                    let until = self.now + self.case.costs[work.step as usize][work.transform];
                    self.workers[worker] = Some(Work { until, in_lane: true, ..work });
                }
                Turn::Nothing => {
                    // Nobody idles while there is anything for them.
                    let mine = |waiting: &Waiting| waiting.holder.is_none_or(|holder| holder == worker);
                    assert!(traffic.fast.is_none() && self.lanes.waiting.is_empty());
                    assert!(!self.lanes.parked.iter().any(mine));
                }
            }
        }
    }

    fn rows(&self, batch: usize) -> usize {
        let case = self.case;
        (case.costs.len() - batch * case.batch_size).min(case.batch_size)
    }

    /// Whether the consumer waits, though there is more to begin than may be begun. It always does for the first batch.
    fn is_held_up(&self) -> bool {
        let front = self.outcome.batches.len();
        front > 0
            && self.asks <= self.now
            && self.filled[front].len() < self.rows(front)
            && self.end() < self.steps()
    }

    /// A worker is through with a transform.
    fn advance(&mut self, worker: usize) {
        let mut work = self.workers[worker].take().unwrap();
        let costs = &self.case.costs[work.step as usize];
        work.done += costs[work.transform];
        self.outcome.work += costs[work.transform];
        work.transform += 1;
        if work.transform == costs.len() {
            if work.in_lane {
                self.lanes.finish();
            }
            let batch = match self.case.lateness {
                Some(_) => self.assembly.place(work.step).batch,
                None => self.own(work.step),
            };
            self.filled[batch as usize].push(work.step);
            return;
        }
        let found_slow = self.experience.slow_after().is_some_and(|slow_after| work.done > slow_after);
        if self.policy == Policy::Lanes && found_slow {
            let traffic = self.traffic();
            let holder = self.case.held.then_some(worker);
            let more = self.experience.expect_more(work.transform, work.done);
            let waiting = Waiting { id: work.step, batch: self.own(work.step), work: more, holder };
            let verdict = self.lanes.between(waiting, work.in_lane, &traffic);
            work.in_lane = true;
            if verdict == Verdict::Park {
                self.outcome.parked += 1;
                self.lanes.park(waiting);
                assert!(self.lanes.parked() <= PARKED_PER_WORKER * self.case.workers);
                self.parked.push(work);
                return;
            }
        }
        work.until = self.now + costs[work.transform];
        self.workers[worker] = Some(work);
    }
}

/// Runs an epoch, going by what earlier ones have taught and adding to it.
fn run(case: &Case, policy: Policy, experience: &mut Experience) -> Outcome {
    let steps = case.costs.len();
    let batches = steps.div_ceil(case.batch_size);
    let mut epoch = Epoch {
        case,
        policy,
        experience,
        lanes: Lanes::default(),
        assembly: Assembly::new(case.batch_size as u32, case.lateness.unwrap_or(0), steps as u64),
        depth: if case.grows { Depth::growing(case.ahead) } else { Depth::fixed(case.ahead) },
        asks: 0,
        workers: vec![None; case.workers],
        parked: Vec::new(),
        cursor: 0,
        begun: vec![false; steps],
        filled: vec![Vec::new(); batches],
        now: 0,
        outcome: Outcome::default(),
    };
    loop {
        for worker in 0..case.workers {
            if epoch.workers[worker].is_some_and(|work| work.until <= epoch.now) {
                epoch.advance(worker);
            }
        }
        let front = epoch.outcome.batches.len();
        if epoch.asks <= epoch.now && epoch.filled[front].len() == epoch.rows(front) {
            epoch.outcome.waits.push(epoch.now - epoch.asks);
            let batch = std::mem::take(&mut epoch.filled[front]);
            for &step in &batch {
                let (hints, cost) = (epoch.hints(step), epoch.cost(step));
                let mut times = StepTimes::default();
                if case.told {
                    let costs = case.costs[step as usize].iter().enumerate();
                    costs.for_each(|(transform, &cost)| times.add(transform, cost));
                }
                epoch.experience.note(SampleId(step as u32), &hints, &times, cost, usize::MAX);
            }
            epoch.outcome.batches.push(batch);
            epoch.assembly.leave();
            epoch.depth.deliver(1);
            epoch.asks = epoch.now + case.step;
            if epoch.outcome.batches.len() == batches {
                epoch.outcome.time = epoch.now;
                return epoch.outcome;
            }
        }
        epoch.dispatch();
        let workers = epoch.workers.iter().flatten().map(|work| work.until);
        let front = epoch.outcome.batches.len();
        let ready = epoch.filled[front].len() == epoch.rows(front);
        let next = workers.chain(ready.then_some(epoch.asks)).min();
        epoch.now = next.expect("somebody is at work, or a batch is ready").max(epoch.now);
    }
}

fn p99(waits: &[u64]) -> u64 {
    let mut sorted = waits.to_vec();
    sorted.sort_unstable();
    sorted[(sorted.len() * 99).div_ceil(100).max(1) - 1]
}

fn check(case: &Case, outcome: &Outcome) {
    let steps = case.costs.len() as u64;
    let mut all: Vec<u64> = outcome.batches.concat();
    all.sort_unstable();
    assert_eq!(all, (0..steps).collect::<Vec<_>>(), "every sample once, and none beyond the epoch");
    for (index, batch) in outcome.batches.iter().enumerate() {
        for step in batch {
            let own = step / case.batch_size as u64;
            assert!(index as u64 <= own + u64::from(case.lateness.unwrap_or(0)), "step {step} is too late");
        }
    }
    assert_eq!(outcome.work, case.costs.iter().flatten().sum::<u64>(), "nothing is done twice");
}

fn costs() -> impl Strategy<Value = Vec<Vec<u64>>> {
    let cost =
        prop_oneof![6 => 1u64..2_000, 2 => 20_000u64..100_000, 1 => Just(1_000_000u64), 1 => Just(0u64)];
    prop::collection::vec(prop::collection::vec(cost, 1..5), 1..160)
}

fn cases() -> impl Strategy<Value = Case> {
    let lateness = prop_oneof![Just(None), (0u32..9).prop_map(Some)];
    let known = (any::<bool>(), any::<bool>());
    let ahead = (1usize..6, any::<bool>());
    (costs(), known, 1usize..7, 1usize..9, ahead, lateness, 0u64..50_000, any::<bool>()).prop_map(
        |(costs, (sizes, told), workers, batch_size, (ahead, grows), lateness, step, held)| Case {
            costs,
            sizes,
            workers,
            batch_size,
            ahead,
            grows,
            lateness,
            step,
            held,
            told,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever samples cost: exactly once, within the bound, nothing done twice, and nobody idle while there is work
    /// (asserted on the way). In the second epoch it is known who is slow.
    #[test]
    fn nothing_is_lost_late_or_repeated(case in cases()) {
        let mut experience = Experience::default();
        for _ in 0..2 {
            check(&case, &run(&case, Policy::Lanes, &mut experience));
        }
    }

    /// Where all samples cost about the same, fast or slow, lanes change nothing at all.
    #[test]
    fn equal_costs_are_served_as_ever(
        mut case in cases(), cost in prop_oneof![Just(500u64), Just(300_000)], seed: u64,
    ) {
        for (sample, transforms) in case.costs.iter_mut().enumerate() {
            let mut rng = SampleRng::new(seed, 0, SampleId(sample as u32));
            *transforms = (0..3).map(|_| cost + u64::from(rng.below(cost as u32 / 5))).collect();
        }
        let mut experience = Experience::default();
        for _ in 0..2 {
            let lanes = run(&case, Policy::Lanes, &mut experience);
            prop_assert_eq!(&lanes, &run(&case, Policy::Fifo, &mut Experience::default()));
        }
    }
}

/// Epochs in which one sample in `every` is slow, in random places: the waits and the times of both policies, first and
/// second epoch together.
fn compare(base: &Case, every: u32, slow: u64, seeds: u64) -> [(Vec<u64>, u64); 2] {
    let mut sums = [(Vec::new(), 0), (Vec::new(), 0)];
    for seed in 0..seeds {
        let mut case = base.clone();
        for (sample, transforms) in case.costs.iter_mut().enumerate() {
            let mut rng = SampleRng::new(seed, 0, SampleId(sample as u32));
            let factor = if rng.below(every) == 0 { slow } else { 1 };
            *transforms = (0..4).map(|_| (400 + u64::from(rng.below(200))) * factor).collect();
        }
        for (policy, (waits, time)) in [Policy::Fifo, Policy::Lanes].into_iter().zip(&mut sums) {
            let mut experience = Experience::default();
            for _ in 0..2 {
                let outcome = run(&case, policy, &mut experience);
                check(&case, &outcome);
                waits.extend(&outcome.waits[1..]);
                *time += outcome.time;
            }
        }
    }
    sums
}

fn base(lateness: Option<u32>, sizes: bool, step: u64) -> Case {
    let costs = vec![vec![0]; 640];
    Case {
        costs,
        sizes,
        workers: 4,
        batch_size: 16,
        ahead: 8,
        grows: false,
        lateness,
        step,
        held: false,
        told: true,
    }
}

#[test]
fn waits_are_no_longer_than_in_order_and_mostly_shorter() {
    for lateness in [None, Some(8)] {
        for sizes in [false, true] {
            for (every, slow) in [(5, 10), (20, 20), (10, 40)] {
                // A step that leaves the workers some air: total work fits.
                let mean = 2_000 * (u64::from(every) - 1 + slow) / u64::from(every);
                let case = base(lateness, sizes, mean * 16 / 4 * 11 / 10);
                let [(fifo, fifo_time), (lanes, lanes_time)] = compare(&case, every, slow, 12);
                let (before, after) = (p99(&fifo), p99(&lanes));
                let what = format!("lateness {lateness:?}, sizes {sizes}, 1 in {every} {slow} times as slow");
                assert!(after <= before, "{what}: p99 from {before} to {after} µs");
                assert!(lanes_time <= fifo_time + fifo_time / 100, "{what}: {fifo_time} to {lanes_time} µs");
                // Where samples may be late, the longest waits are far shorter.
                assert!(lateness.is_none() || after * 2 <= before, "{what}: p99 from {before} to {after} µs");
            }
        }
    }
}

#[test]
fn a_sample_that_turns_out_slow_makes_room_and_goes_on_later() {
    // One worker, and a slow sample at the beginning of what everybody waits for.
    let mut costs = vec![vec![1_000, 1_000]; 400];
    (100..400).step_by(20).for_each(|slow| costs[slow] = vec![30_000, 30_000, 30_000, 30_000]);
    let case = Case { costs, ahead: 6, batch_size: 8, workers: 1, step: 80_000, ..base(Some(8), false, 0) };
    let outcome = run(&case, Policy::Lanes, &mut Experience::default());
    check(&case, &outcome);
    assert!(outcome.parked >= 10, "{}", outcome.parked);
    let fifo = run(&case, Policy::Fifo, &mut Experience::default());
    let sum = |outcome: &Outcome| outcome.waits.iter().sum::<u64>();
    assert!(sum(&outcome) <= sum(&fifo));
}

#[test]
fn a_trainer_that_waits_for_every_batch_does_not_find_the_slow_samples_at_the_end() {
    for seed in 0..8 {
        let cost = |sample| {
            let slow = SampleRng::new(seed, 0, SampleId(sample)).below(20) == 0;
            vec![if slow { 400_000 } else { 20_000 }]
        };
        let costs: Vec<Vec<u64>> = (0..1280).map(cost).collect();
        let bound = costs.iter().flatten().sum::<u64>() / 8;
        let case = Case { costs, workers: 8, batch_size: 32, ahead: 16, ..base(Some(8), false, 0) };
        let mut experience = Experience::default();
        // From the second epoch on it is known who is slow.
        let epochs: Vec<Outcome> = (0..3).map(|_| run(&case, Policy::Lanes, &mut experience)).collect();
        for outcome in &epochs[1..] {
            check(&case, outcome);
            let longest = outcome.waits[1..].iter().max().unwrap();
            assert!(*longest < 360_000, "seed {seed}: one batch is waited for {longest} µs");
            let time = outcome.time;
            assert!(time <= bound + bound / 50, "seed {seed}: {time} µs where {bound} would do");
        }
    }
}

/// A trainer that takes two batches for each of 16 workers to be prepared ahead, while one sample in ten takes 40 of its steps.
fn long_samples(lateness: Option<u32>, grows: bool, seed: u64) -> Case {
    let step = 10_000;
    // Work for nine tenths of the workers' time.
    let (batch_size, workers, slow) = (3, 16, 40 * step);
    let quick = (step * workers * 9 / 10 / batch_size * 10 - slow) / 9;
    let cost = |sample| {
        let is_slow = SampleRng::new(seed, 0, SampleId(sample)).below(10) == 0;
        vec![if is_slow { slow } else { quick }]
    };
    let costs = (0..3200).map(cost).collect();
    let (batch_size, workers) = (batch_size as usize, workers as usize);
    Case { costs, sizes: true, workers, batch_size, ahead: 2 * workers, grows, ..base(lateness, true, step) }
}

/// The share of the time that the trainer is busy, without the first eighth of the epoch.
fn busy(case: &Case, outcome: &Outcome) -> f64 {
    let waits = &outcome.waits[outcome.waits.len() / 8..];
    let steps = waits.len() as u64 * case.step;
    steps as f64 / (steps + waits.iter().sum::<u64>()) as f64
}

#[test]
fn more_batches_are_prepared_ahead_where_a_sample_takes_longer_than_they_last() {
    let share = |lateness, grows| {
        let epochs = (0..8).map(|seed| {
            let case = long_samples(lateness, grows, seed);
            let outcome = run(&case, Policy::Lanes, &mut Experience::default());
            check(&case, &outcome);
            busy(&case, &outcome)
        });
        epochs.sum::<f64>() / 8.0
    };
    let (before, after) = (share(None, false), share(None, true));
    assert!(before < 0.85 && after >= 0.95, "in strict order busy {before:.3} of the time, then {after:.3}");
    // Where samples may be late by as much as is prepared ahead, they have twice the time from the beginning.
    let (few, many) = (share(Some(8), false), share(Some(32), false));
    assert!(few < 0.95 && many >= 0.97, "busy {few:.3} of the time with a lateness of 8, {many:.3} with 32");
}

/// An epoch in which one sample in five has a heavy transform in the middle, and little to do after it.
fn heavy_middle(told: bool, lateness: Option<u32>, seed: u64) -> Case {
    let mut case = Case { told, ..base(lateness, false, 60_000) };
    for (sample, transforms) in case.costs.iter_mut().enumerate() {
        let mut rng = SampleRng::new(seed, 0, SampleId(sample as u32));
        let heavy = if rng.below(5) == 0 { 50_000 } else { 1_000 };
        *transforms = [800, heavy, 400, 200].map(|cost| cost + u64::from(rng.below(100))).to_vec();
    }
    case
}

/// After its heavy transform a sample has less before it than any other that could be begun, so it is finished: one that is let
/// stand then keeps its memory, and its batch waits for it.
#[test]
fn who_is_all_but_finished_is_not_put_aside() {
    for (workers, step, lateness) in
        [(1, 200_000, None), (1, 200_000, Some(8)), (2, 120_000, None), (2, 120_000, Some(8))]
    {
        let (mut parked, mut waits, mut times) = ([0, 0], [Vec::new(), Vec::new()], [0, 0]);
        for seed in 0..12 {
            for told in [false, true] {
                let case = Case { workers, step, ..heavy_middle(told, lateness, seed) };
                // Nothing is known beforehand of who is slow: it turns out, as for samples that are drawn to be.
                let outcome = run(&case, Policy::Lanes, &mut Experience::default());
                check(&case, &outcome);
                parked[usize::from(told)] += outcome.parked;
                waits[usize::from(told)].extend(&outcome.waits[1..]);
                times[usize::from(told)] += outcome.time;
            }
        }
        let what = format!("{workers} workers, lateness {lateness:?}");
        assert!(parked[0] >= 20 && parked[1] * 8 <= parked[0], "{what}: {parked:?} were put aside");
        assert!(p99(&waits[1]) <= p99(&waits[0]), "{what}: p99 {} to {} µs", p99(&waits[0]), p99(&waits[1]));
        let sums = waits.map(|waits| waits.iter().sum::<u64>());
        assert!(sums[1] <= sums[0], "{what}: {sums:?} µs were waited");
        assert!(times[1] <= times[0], "{what}: {times:?} µs");
    }
}
