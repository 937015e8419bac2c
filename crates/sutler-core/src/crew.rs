//! How many workers should run: as many as the consumers' demand takes, and no more than the processors can carry.
//!
//! The answer is worked out, not groped for. Two means decide, both taken over the samples that workers finished lately: the
//! *toil* of a sample, the time a worker spends on it when nobody keeps the worker from a processor, and its *burn*, the
//! part of that spent on a processor. A demand of `d` samples a second needs `d × toil` workers (Little's law), and with
//! `toil / burn` workers to a core all cores are busy. Time that workers spend waiting *for* a processor is taken out of
//! the toil: counted in, more workers would make each sample look dearer, which would call for more workers still.
//!
//! Growing is prompt, shrinking is patient, the more so where it was regretted, and the two have a gap between them; where the processors are overrun already,
//! whoever runs what, nothing grows. What no mean can tell is whether more workers help at all: those that wait for storage which
//! gives no more only wait longer. So growth is on trial: where it has brought nothing, it is taken back, and not tried again for a while.

/// What is kept in reserve: demand is never perfectly even.
const RESERVE: f64 = 1.1;

/// How much a mean forgets from one observation to the next.
const FORGET: f64 = 0.7;

/// Workers that spend this share of their time waiting for a processor show that there are too few of them.
const OVERRUN: f64 = 0.2;

/// A consumer that waits for more than this share of its time has too few workers, whatever the means say.
const WAITING: f64 = 0.03;

/// Workers are let go when they would be too many for this many times the need, …
const SURPLUS: f64 = 1.25;

/// … in so many observations on end.
const PATIENCE: u32 = 4;

/// Who is taken on again within so many observations after others were let go was let go too soon: from then on it takes twice the patience, …
const REGRET: u32 = 40;

/// … up to this.
const PATIENCE_MAX: u32 = 128;

/// How far reality may be from the means: samples of very uneven cost take more workers than their mean tells.
const CORRECTION_MAX: f64 = 4.0;

/// A trial has brought something when it has brought this share of what as many more workers might have.
const WORTH: f64 = 0.5;

/// How many observations pass before it is looked at what a trial has brought; what was under way before, and chance, have worn off then.
const SETTLING: u32 = 5;

/// For how many observations growth that has brought nothing is not tried again; the second time for twice as many, and so on.
const GIVEN_UP_FOR: u32 = 120;

/// Means that change by more than this factor are another workload, of which nothing is known yet.
const ANOTHER_WORKLOAD: f64 = 2.0;

/// Between how many workers the crew may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrewLimits {
    /// The fewest, at least one.
    pub workers_min: usize,
    /// The most.
    pub workers_max: usize,
    /// How many cores may be used: the affinity mask and the quota, whichever is smaller.
    pub cores: usize,
}

/// What was seen since the last observation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrewObservation {
    /// How long ago that was, in seconds.
    pub seconds: f64,
    /// Samples that workers finished.
    pub finished: u64,
    /// Those of them of which the following is known.
    pub samples: u64,
    /// Seconds that workers, added up, spent on samples.
    pub working: f64,
    /// How many of those on a processor.
    pub running: f64,
    /// How many of those waiting for a processor.
    pub queued: f64,
    /// Samples per second that the consumers would take if they never waited; infinite where they do nothing but
    /// wait, `None` where nobody asked.
    pub demand: Option<f64>,
    /// The share of their time that consumers waited.
    pub waited: f64,
}

/// Why there are as many workers as there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrewReason {
    /// It begins with so many.
    Beginning,
    /// The consumers' demand takes so many.
    Demand,
    /// More would not find a free core.
    Cores,
    /// More have brought nothing: something else sets the pace, storage most likely.
    InVain,
}

impl CrewReason {
    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CrewReason::Beginning => "beginning",
            CrewReason::Demand => "demand",
            CrewReason::Cores => "cores",
            CrewReason::InVain => "more were in vain",
        }
    }
}

/// The means over samples finished lately.
#[derive(Clone, Copy, Debug, Default)]
struct Means {
    samples: f64,
    toil: f64,
    burn: f64,
}

impl Means {
    fn add(&mut self, seen: &CrewObservation) {
        let keep = |sum: f64, new: f64| sum * FORGET + new;
        self.samples = keep(self.samples, seen.samples as f64);
        self.toil = keep(self.toil, (seen.working - seen.queued).max(seen.running));
        self.burn = keep(self.burn, seen.running);
    }

    fn toil(&self) -> f64 {
        self.toil / self.samples
    }

    /// Workers that keep a core busy.
    fn per_core(&self) -> f64 {
        if self.burn > 0.0 { (self.toil / self.burn).max(1.0) } else { f64::INFINITY }
    }
}

/// The number of workers, decided anew with every observation.
#[derive(Clone, Debug)]
pub struct Crew {
    limits: CrewLimits,
    workers: usize,
    reason: CrewReason,
    means: Means,
    /// By how much demand has proved to take more workers than the means tell.
    correction: f64,
    /// The demand times toil for which that was found out.
    corrected_for: f64,
    /// For how many observations there have been too many workers, and the most that any of those called for.
    surplus: (u32, usize),
    /// How many such observations it takes to let workers go.
    patience: u32,
    /// How many observations ago that was done, up to [`REGRET`].
    let_go: u32,
    /// Samples per second, lately, with as many workers as now; 0 where that is not known.
    rate: f64,
    trial: Option<Trial>,
    /// The number beyond which growth was in vain, and for how many more observations that counts.
    in_vain: Option<(usize, u32)>,
    /// How often on end it was.
    vain_trials: u32,
}

/// Growth of which it is not known yet what it brings.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// The number of workers before.
    workers: usize,
    /// Samples per second with them.
    rate: f64,
    /// By what share that could have grown, had the workers been all that was missing.
    hope: f64,
    /// How many observations until it is judged.
    left: u32,
}

impl Crew {
    /// A crew that begins with a worker for each core.
    #[must_use]
    pub fn new(limits: CrewLimits) -> Self {
        let workers_min = limits.workers_min.max(1);
        let limits = CrewLimits { workers_min, workers_max: limits.workers_max.max(workers_min), ..limits };
        Self {
            limits,
            workers: limits.cores.clamp(limits.workers_min, limits.workers_max),
            reason: CrewReason::Beginning,
            means: Means::default(),
            correction: 1.0,
            corrected_for: 0.0,
            surplus: (0, 0),
            patience: PATIENCE,
            let_go: REGRET,
            rate: 0.0,
            trial: None,
            in_vain: None,
            vain_trials: 0,
        }
    }

    /// How many workers should run now.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Why.
    #[must_use]
    pub fn reason(&self) -> CrewReason {
        self.reason
    }

    /// Takes in what was seen; true when the number of workers changes.
    pub fn observe(&mut self, seen: &CrewObservation) -> bool {
        let before = self.workers;
        self.decide(seen);
        if self.workers != before {
            self.rate = 0.0; // that of another number tells nothing
        }
        self.workers != before
    }

    fn decide(&mut self, seen: &CrewObservation) {
        let Some(demand) = seen.demand else { return };
        if seen.samples == 0 || seen.working <= 0.0 {
            return;
        }
        self.means.add(seen);
        let before = self.workers;
        if seen.seconds > 0.0 {
            let now = seen.finished as f64 / seen.seconds;
            self.rate = if self.rate > 0.0 { f64::midpoint(self.rate, now) } else { now };
        }
        let rate = self.rate;
        self.in_vain = self.in_vain.and_then(|(limit, left)| (left > 0).then(|| (limit, left - 1)));
        if let Some(trial) = &mut self.trial {
            trial.left = trial.left.saturating_sub(1);
            let trial = *trial;
            if trial.left > 0 {
                return;
            }
            self.trial = None;
            // A consumer that no longer waits takes what it needs, not what it could have.
            if seen.waited > WAITING && rate < trial.rate * (1.0 + WORTH * trial.hope) {
                self.workers = trial.workers;
                self.reason = CrewReason::InVain;
                self.in_vain = Some((trial.workers, GIVEN_UP_FOR << self.vain_trials.min(8)));
                self.vain_trials += 1;
                return;
            }
            self.vain_trials = 0;
        }
        self.let_go = (self.let_go + 1).min(REGRET);
        let (needed, reason) = self.needed(demand, seen);
        let called_for = self.within_limits(needed);
        // A few more of many are not worth a change: the means are not that exact.
        if called_for > self.workers + self.workers / 8 {
            self.surplus = (0, 0);
            let in_vain = self.in_vain.is_some_and(|(limit, _)| self.workers >= limit);
            if seen.queued <= OVERRUN * seen.working && !in_vain {
                self.workers = called_for.min(self.workers * 2);
                self.reason = reason;
                if self.let_go < REGRET {
                    self.patience = (self.patience * 2).min(PATIENCE_MAX);
                    self.let_go = REGRET; // regretted once
                }
                let more = self.workers as f64 / before as f64 - 1.0;
                // Who waits for half of the time can take twice as much, and no more.
                let hope = more.min(seen.waited / (1.0 - seen.waited).max(1e-9));
                self.trial = Some(Trial { workers: before, rate, hope, left: SETTLING });
            }
        } else if self.within_limits(needed * SURPLUS) < self.workers {
            let (times, most) = self.surplus;
            self.surplus = (times + 1, most.max(called_for));
            if self.surplus.0 >= self.patience {
                self.workers = self.surplus.1;
                self.reason = reason;
                self.surplus = (0, 0);
                self.let_go = 0;
            }
        } else {
            self.surplus = (0, 0);
        }
    }

    /// How many workers the means call for, and what sets that number.
    fn needed(&mut self, demand: f64, seen: &CrewObservation) -> (f64, CrewReason) {
        let by_cores = self.means.per_core() * self.limits.cores as f64;
        let busy = demand * self.means.toil();
        if busy > self.corrected_for * ANOTHER_WORKLOAD || busy * ANOTHER_WORKLOAD < self.corrected_for {
            self.correction = 1.0;
            self.corrected_for = busy;
        }
        let mut by_demand = busy * RESERVE * self.correction;
        let enough = count(by_demand) <= self.workers && self.workers < count(by_cores);
        if enough && seen.waited > WAITING && seen.queued <= OVERRUN * seen.working {
            // So many should do, and do not: one more, now and from now on.
            let more = (self.workers + 1) as f64 / by_demand;
            self.correction = (self.correction * more).min(CORRECTION_MAX);
            by_demand = busy * RESERVE * self.correction;
        }
        if by_demand < by_cores { (by_demand, CrewReason::Demand) } else { (by_cores, CrewReason::Cores) }
    }

    fn within_limits(&self, workers: f64) -> usize {
        count(workers).clamp(self.limits.workers_min, self.limits.workers_max)
    }
}

/// A number of workers, rounded up but for what is only noise.
fn count(workers: f64) -> usize {
    // The cast turns what is too large into the largest number there is.
    (workers - 0.05).ceil().max(1.0) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::SampleRng;

    /// A workload in virtual time: samples that wait for storage and burn processor time, and a consumer.
    #[derive(Clone, Copy, Debug)]
    struct Workload {
        cores: usize,
        /// Cores' worth of processor time that somebody else takes.
        others: f64,
        waiting: f64,
        burning: f64,
        /// Seconds of a consumer per sample.
        step: f64,
        /// How far measurements are off, at most.
        noise: f64,
        /// Samples per second that storage gives, however many ask for them.
        storage: f64,
    }

    impl Workload {
        fn capacity(&self, workers: usize) -> f64 {
            let free = (self.cores as f64 - self.others).max(0.5);
            let by_workers = workers as f64 / (self.waiting + self.burning);
            by_workers.min(free / self.burning.max(1e-12)).min(self.storage)
        }

        /// What a second looks like with so many workers.
        fn second(&self, workers: usize, draw: &mut impl FnMut() -> f64) -> CrewObservation {
            let mut off = || 1.0 + self.noise * (2.0 * draw() - 1.0);
            let demand = 1.0 / self.step.max(1e-12);
            let capacity = self.capacity(workers);
            let rate = demand.min(capacity);
            let mut toil = rate * (self.waiting + self.burning);
            let mut queued = 0.0;
            if capacity < demand && self.storage <= capacity {
                toil = workers as f64; // all the rest of them wait for storage
            } else if capacity < demand {
                queued = (workers as f64 - toil).max(0.0); // those that the cores cannot carry wait for one
            }
            let samples = (rate * off()).round().max(1.0) as u64;
            CrewObservation {
                seconds: 1.0,
                finished: samples,
                samples,
                working: (toil + queued) * off(),
                running: rate * self.burning * off(),
                queued: queued * off(),
                demand: Some(if self.step > 0.0 { demand * off() } else { f64::INFINITY }),
                waited: (1.0 - rate / demand).max(0.0),
            }
        }
    }

    fn trace(workload: Workload, workers_max: usize, seconds: usize, seed: u64) -> Vec<usize> {
        let mut random = SampleRng::new(seed, 0, crate::SampleId(0));
        let limits = CrewLimits { workers_min: 1, workers_max, cores: workload.cores };
        let mut crew = Crew::new(limits);
        (0..seconds)
            .map(|_| {
                crew.observe(&workload.second(crew.workers(), &mut || random.unit()));
                crew.workers()
            })
            .collect()
    }

    const STILL: Workload =
        Workload { cores: 4, others: 0.0, waiting: 0.0, burning: 0.01, step: 0.0, noise: 0.0, storage: 1e9 };

    #[test]
    fn work_that_burns_takes_a_worker_for_each_core() {
        assert_eq!(trace(STILL, 64, 20, 1), vec![4; 20]);
    }

    #[test]
    fn work_that_waits_takes_as_many_as_keep_the_cores_busy() {
        // A tenth of the time on a processor: ten workers to a core.
        let workload = Workload { waiting: 0.009, burning: 0.001, ..STILL };
        assert_eq!(
            trace(workload, 64, 20, 1)[..16],
            [8, 8, 8, 8, 8, 16, 16, 16, 16, 16, 32, 32, 32, 32, 32, 40]
        );
        assert_eq!(trace(workload, 24, 20, 1)[19], 24);
    }

    #[test]
    fn a_slow_consumer_takes_few() {
        // 100 samples a second of 10 ms each: one worker, and a little in reserve.
        let workload = Workload { step: 0.01, ..STILL };
        assert_eq!(trace(workload, 64, 20, 1)[19], 2);
    }

    #[test]
    fn processors_that_others_have_are_a_reason_not_to_grow() {
        let workload = Workload { others: 3.0, waiting: 0.01, ..STILL };
        let trace = trace(workload, 64, 40, 1);
        assert!(trace.iter().all(|&workers| workers <= 8), "{trace:?}");
    }

    #[test]
    fn storage_that_gives_no_more_is_not_asked_by_more() {
        // Sixteen workers get all that storage gives; the means alone would call for all there may be.
        let workload = Workload { waiting: 0.015, burning: 0.001, storage: 1000.0, ..STILL };
        let trace = trace(workload, 256, 500, 1);
        assert_eq!(trace[40..120], [16; 80], "{trace:?}");
        let more = trace[120..].iter().filter(|&&workers| workers > 16).count();
        assert!(more < 12, "tried now and then: {trace:?}");
    }

    /// A trainer that takes all there is for a while, and then hardly anything: not its every turn is followed.
    #[test]
    fn a_consumer_that_comes_and_goes_keeps_its_workers() {
        let hungry = Workload { waiting: 0.019, burning: 0.001, ..STILL };
        let slow = Workload { step: 0.025, ..hungry };
        let mut crew = Crew::new(CrewLimits { workers_min: 1, workers_max: 8, cores: 2 });
        let workers: Vec<usize> = (0..600)
            .map(|second| {
                let workload = if second / 12 % 2 == 0 { hungry } else { slow };
                crew.observe(&workload.second(crew.workers(), &mut || 0.5));
                crew.workers()
            })
            .collect();
        let let_go = workers.windows(2).filter(|pair| pair[1] < pair[0]).count();
        assert!((1..=3).contains(&let_go), "{workers:?}");
        assert_eq!(workers[200..], [8; 400], "{workers:?}");
        // Once it hardly takes anything for good, they are let go all the same.
        for _ in 0..PATIENCE_MAX {
            crew.observe(&slow.second(crew.workers(), &mut || 0.5));
        }
        assert!(crew.workers() < 3, "{crew:?}");
    }

    #[test]
    fn nothing_changes_while_nobody_asks() {
        let mut crew = Crew::new(CrewLimits { workers_min: 1, workers_max: 8, cores: 2 });
        let idle = CrewObservation { samples: 5, working: 1.0, running: 1.0, ..CrewObservation::default() };
        for _ in 0..100 {
            assert!(!crew.observe(&idle));
        }
    }

    #[test]
    fn samples_of_very_uneven_cost_get_more_than_their_mean_tells() {
        // The mean says two; the consumer still waits for an eighth of its time then, and a little with three.
        let mut crew = Crew::new(CrewLimits { workers_min: 1, workers_max: 16, cores: 8 });
        let mut trace = Vec::new();
        for _ in 0..60 {
            let waited = [0.12, 0.12, 0.12, 0.04, 0.0][crew.workers().min(4)];
            let samples = (100.0 * (1.0 - waited)) as u64;
            let seen = CrewObservation {
                seconds: 1.0,
                finished: samples,
                samples,
                working: 1.5 * (1.0 - waited),
                running: 1.5 * (1.0 - waited),
                queued: 0.0,
                demand: Some(100.0),
                waited,
            };
            crew.observe(&seen);
            trace.push(crew.workers());
        }
        assert!(trace[40..].iter().all(|&workers| workers == 4), "{trace:?}");
    }

    proptest! {
        #[test]
        fn no_workload_makes_it_oscillate(
            cores in 1usize..32,
            others in 0.0..4.0,
            waiting in 0.0..0.05,
            burning in 0.0001..0.05,
            step in prop_oneof![Just(0.0), 0.0001..0.1],
            noise in 0.0..0.1,
            storage in prop_oneof![Just(1e9), 10.0..2000.0],
            seed in any::<u64>(),
        ) {
            let workload = Workload { cores, others, waiting, burning, step, noise, storage };
            let trace = trace(workload, 64, 400, seed);
            let settled = &trace[100..];
            let changes: Vec<_> = settled.windows(2).filter(|pair| pair[0] != pair[1]).collect();
            // Now and then it is tried whether more help by now; nothing else goes up and down.
            prop_assert!(changes.len() <= 8, "{changes:?} in {workload:?}: {settled:?}");
        }

        #[test]
        fn where_the_cores_suffice_the_consumer_is_served(
            cores in 1usize..32,
            waiting in 0.0..0.05,
            burning in 0.0001..0.02,
            utilisation in 0.05..0.9,
            seed in any::<u64>(),
        ) {
            // The consumer takes this share of what all cores could do.
            let step = burning / (cores as f64 * utilisation);
            let workload = Workload { cores, others: 0.0, waiting, burning, step, noise: 0.05, storage: 1e9 };
            let needed = (waiting + burning) / step;
            prop_assume!(needed < 200.0);
            let trace = trace(workload, 256, 200, seed);
            prop_assert!(workload.capacity(trace[199]) * step > 0.99, "{:?} in {workload:?}", &trace[190..]);
        }
    }
}
