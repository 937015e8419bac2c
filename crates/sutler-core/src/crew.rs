//! How many workers should run: as many as the consumers' demand takes, and no more than the processors can carry.
//!
//! The answer is worked out, not groped for. Two means decide, both taken over the samples that workers finished lately: the
//! *toil* of a sample, the time a worker spends on it when nobody keeps the worker from a processor, and its *burn*, the
//! part of that spent on a processor. A demand of `d` samples a second needs `d × toil` workers (Little's law), and with
//! `toil / burn` workers to a core all cores are busy. Time that workers spend waiting *for* a processor is taken out of
//! the toil: counted in, more workers would make each sample look dearer, which would call for more workers still.
//!
//! Growing is prompt, shrinking is patient, and the two have a gap between them; where the processors are overrun already,
//! whoever runs what, nothing grows.

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

/// How far reality may be from the means: samples of very uneven cost take more workers than their mean tells.
const CORRECTION_MAX: f64 = 4.0;

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
    /// Samples that workers finished.
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
}

impl CrewReason {
    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CrewReason::Beginning => "beginning",
            CrewReason::Demand => "demand",
            CrewReason::Cores => "cores",
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
        let Some(demand) = seen.demand else { return false };
        if seen.samples == 0 || seen.working <= 0.0 {
            return false;
        }
        self.means.add(seen);
        let before = self.workers;
        let (needed, reason) = self.needed(demand, seen);
        let called_for = self.within_limits(needed);
        if called_for > self.workers {
            self.surplus = (0, 0);
            if seen.queued <= OVERRUN * seen.working {
                self.workers = called_for.min(self.workers * 2);
                self.reason = reason;
            }
        } else if self.within_limits(needed * SURPLUS) < self.workers {
            let (times, most) = self.surplus;
            self.surplus = (times + 1, most.max(called_for));
            if self.surplus.0 >= PATIENCE {
                self.workers = self.surplus.1;
                self.reason = reason;
                self.surplus = (0, 0);
            }
        } else {
            self.surplus = (0, 0);
        }
        self.workers != before
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
    }

    impl Workload {
        fn capacity(&self, workers: usize) -> f64 {
            let free = (self.cores as f64 - self.others).max(0.5);
            (workers as f64 / (self.waiting + self.burning)).min(free / self.burning.max(1e-12))
        }

        /// What a second looks like with so many workers.
        fn second(&self, workers: usize, draw: &mut impl FnMut() -> f64) -> CrewObservation {
            let mut off = || 1.0 + self.noise * (2.0 * draw() - 1.0);
            let demand = 1.0 / self.step.max(1e-12);
            let capacity = self.capacity(workers);
            let rate = demand.min(capacity);
            let toil = rate * (self.waiting + self.burning);
            // Workers that the cores cannot carry wait for one.
            let queued = if capacity < demand { (workers as f64 - toil).max(0.0) } else { 0.0 };
            CrewObservation {
                samples: (rate * off()).round().max(1.0) as u64,
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
        Workload { cores: 4, others: 0.0, waiting: 0.0, burning: 0.01, step: 0.0, noise: 0.0 };

    #[test]
    fn work_that_burns_takes_a_worker_for_each_core() {
        assert_eq!(trace(STILL, 64, 20, 1), vec![4; 20]);
    }

    #[test]
    fn work_that_waits_takes_as_many_as_keep_the_cores_busy() {
        // A tenth of the time on a processor: ten workers to a core.
        let workload = Workload { waiting: 0.009, burning: 0.001, ..STILL };
        assert_eq!(trace(workload, 64, 20, 1)[..5], [8, 16, 32, 40, 40]);
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
    fn nothing_changes_while_nobody_asks() {
        let mut crew = Crew::new(CrewLimits { workers_min: 1, workers_max: 8, cores: 2 });
        let idle = CrewObservation { samples: 5, working: 1.0, running: 1.0, ..CrewObservation::default() };
        for _ in 0..100 {
            assert!(!crew.observe(&idle));
        }
    }

    #[test]
    fn samples_of_very_uneven_cost_get_more_than_their_mean_tells() {
        // The mean says two; the consumer still waits for a tenth of its time until there are four.
        let mut crew = Crew::new(CrewLimits { workers_min: 1, workers_max: 16, cores: 8 });
        let mut trace = Vec::new();
        for _ in 0..60 {
            let waited = if crew.workers() < 4 { 0.1 } else { 0.0 };
            let seen = CrewObservation {
                samples: 100,
                working: 1.5,
                running: 1.5,
                queued: 0.0,
                demand: Some(100.0),
                waited,
            };
            crew.observe(&seen);
            trace.push(crew.workers());
        }
        assert!(trace[20..].iter().all(|&workers| workers == 4), "{trace:?}");
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
            seed in any::<u64>(),
        ) {
            let workload = Workload { cores, others, waiting, burning, step, noise };
            let trace = trace(workload, 64, 400, seed);
            let settled = &trace[100..];
            let changes: Vec<_> = settled.windows(2).filter(|pair| pair[0] != pair[1]).collect();
            prop_assert!(changes.len() <= 3, "{changes:?} in {workload:?}: {settled:?}");
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
            let workload = Workload { cores, others: 0.0, waiting, burning, step, noise: 0.05 };
            let needed = (waiting + burning) / step;
            prop_assume!(needed < 200.0);
            let trace = trace(workload, 256, 200, seed);
            prop_assert!(workload.capacity(trace[199]) * step > 0.99, "{:?} in {workload:?}", &trace[190..]);
        }
    }
}
