//! What each step of a chain takes, and what a sample that stands between two of them still has before it.
//!
//! A sample that has taken long so far may be all but finished, or have the worst before it. Which of the two follows from
//! where it stands: the time from there to the end is learnt for each place in the chain, as a line through what samples
//! had taken up to there. Where the first steps say nothing about the later ones, as when one sample in five has a heavy
//! step in the middle, the line is flat, and what is left is what is left for everybody.

use super::durations::Durations;
use super::line::Line;

/// How many steps are told apart; those beyond count as the last one. Chains have three to ten.
pub const STEPS_MAX: usize = 16;

/// What the steps of one sample took. It travels with the sample, so it takes no memory of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    microseconds: [u32; STEPS_MAX],
    count: u8,
}

impl StepTimes {
    /// Step `step` has taken so much, or so much more.
    pub fn add(&mut self, step: usize, microseconds: u64) {
        let step = step.min(STEPS_MAX - 1);
        let longer = u64::from(self.microseconds[step]).saturating_add(microseconds);
        self.microseconds[step] = u32::try_from(longer).unwrap_or(u32::MAX);
        self.count = self.count.max(step as u8 + 1);
    }

    /// The times of all steps, in microseconds; empty where nobody has told them apart.
    #[must_use]
    pub fn steps(&self) -> &[u32] {
        &self.microseconds[..usize::from(self.count)]
    }
}

/// What is known of one step.
#[derive(Clone, Debug, Default)]
pub struct Step {
    durations: Durations,
    count: u64,
    sum: f64,
    /// From what a sample had taken before this step to what it took from here to its end.
    rest: Line,
    /// The most that any had taken before it.
    before_max: u64,
}

impl Step {
    /// How many samples have gone through it.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// What it took, in microseconds, in the mean over all of them.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    /// What it takes, in microseconds, the latest samples counting most.
    #[must_use]
    pub fn durations(&self) -> &Durations {
        &self.durations
    }
}

/// What is known of a chain.
#[derive(Clone, Debug, Default)]
pub(super) struct Chain {
    steps: Vec<Step>,
}

impl Chain {
    /// A sample has gone through its steps.
    pub fn note(&mut self, times: &StepTimes) {
        let times = times.steps();
        if self.steps.len() < times.len() {
            self.steps.resize_with(times.len(), Step::default);
        }
        let all: u64 = times.iter().map(|&time| u64::from(time)).sum();
        let mut before = 0;
        for (step, &time) in self.steps.iter_mut().zip(times) {
            let time = u64::from(time);
            step.durations.note(time);
            step.count += 1;
            step.sum += time as f64;
            step.rest.note(before as f64, (all - before) as f64);
            step.before_max = step.before_max.max(before);
            before += time;
        }
    }

    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// What a sample will still take that has this many steps behind it, for which it took so long; `None` where too few samples
    /// have come that far, or none like it: what quick ones have left says nothing about the first that is slow.
    pub fn expect_more(&self, done: usize, microseconds: u64) -> Option<u64> {
        let Step { rest, before_max, .. } = self.steps.get(done)?;
        let is_known = rest.is_known() && microseconds <= before_max.saturating_mul(2);
        is_known.then(|| rest.at(microseconds as f64).max(0.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lanes::{Experience, Hints};
    use crate::{SampleId, SampleRng};

    fn times(steps: &[u64]) -> StepTimes {
        let mut times = StepTimes::default();
        steps.iter().enumerate().for_each(|(step, &time)| times.add(step, time));
        times
    }

    #[test]
    fn steps_beyond_the_last_count_as_the_last() {
        let long = times(&[3; STEPS_MAX + 4]);
        assert_eq!(long.steps().len(), STEPS_MAX);
        assert_eq!(long.steps()[STEPS_MAX - 1], 3 * 5);
        assert_eq!(times(&[u64::MAX, 1]).steps(), [u32::MAX, 1]);
        assert!(StepTimes::default().steps().is_empty());
    }

    #[test]
    fn after_a_heavy_step_little_is_left_and_before_one_a_lot() {
        let mut chain = Chain::default();
        assert_eq!(chain.expect_more(1, 100), None);
        for sample in 0..200u64 {
            let heavy = if sample.is_multiple_of(5) { 50_000 } else { 500 };
            chain.note(&times(&[1_000 + sample % 7, heavy, 300, 200]));
        }
        let after = chain.expect_more(2, 51_000).unwrap();
        assert!((450..=550).contains(&after), "{after}");
        assert!(chain.expect_more(1, 1_000).unwrap() > 9_000, "one in five is heavy");
        assert_eq!(chain.expect_more(4, 51_500), None, "nobody has been there");
        assert_eq!(chain.expect_more(1, 51_500), None, "nobody has taken that long until here");
        let heavy = &chain.steps()[1];
        assert_eq!(heavy.count(), 200);
        assert!((heavy.mean() - 10_400.0).abs() < 1.0, "{}", heavy.mean());
        assert!((500..600).contains(&heavy.durations().quantile(0.5).unwrap()));
        assert!((50_000..55_000).contains(&heavy.durations().quantile(0.95).unwrap()));
    }

    #[test]
    fn what_is_large_in_every_step_is_foreseen_as_such() {
        let mut chain = Chain::default();
        (0..200).for_each(|sample: u64| {
            let size = 1 + sample * 7 % 40;
            chain.note(&times(&[100 * size, 300 * size, 50 * size]));
        });
        let left = chain.expect_more(1, 100 * 60).unwrap();
        assert!((20_500..21_500).contains(&left), "{left}");
    }

    /// A chain whose steps vary a little, one of which is heavy for one sample in five.
    fn chains() -> impl Strategy<Value = (Vec<u64>, usize, u64)> {
        (prop::collection::vec(200u64..20_000, 2..9), any::<prop::sample::Index>(), any::<u64>())
            .prop_map(|(base, heavy, seed)| (base.clone(), heavy.index(base.len()), seed))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Of samples that have turned out to be slow, knowing the steps tells better what they still take than knowing
        /// only how long samples take as a whole.
        #[test]
        fn knowing_the_steps_is_never_worse((base, heavy, seed) in chains()) {
            let draw = |sample: u32| -> Vec<u64> {
                let mut rng = SampleRng::new(seed, 0, SampleId(sample));
                let slow = rng.below(5) == 0;
                let each = base.iter().enumerate().map(|(step, &time)| {
                    let varied = time * u64::from(80 + rng.below(41)) / 100;
                    if slow && step == heavy { varied * 40 } else { varied }
                });
                each.collect()
            };
            let (mut steps, mut whole) = (Experience::default(), Experience::default());
            for sample in 0..400 {
                let (drawn, id) = (draw(sample), SampleId(sample));
                let took = drawn.iter().sum();
                steps.note(id, &Hints::default(), &times(&drawn), took, 0);
                whole.note(id, &Hints::default(), &StepTimes::default(), took, 0);
            }
            let slow_after = steps.slow_after().unwrap();
            let (mut with, mut without) = (0, 0);
            for sample in 400..600 {
                let drawn = draw(sample);
                let mut done = 0;
                for (step, time) in drawn.iter().enumerate().take(drawn.len() - 1) {
                    done += time;
                    if done > slow_after {
                        let left: u64 = drawn[step + 1..].iter().sum();
                        with += steps.expect_more(step + 1, done).abs_diff(left);
                        without += whole.expect_more(step + 1, done).abs_diff(left);
                    }
                }
            }
            prop_assert!(with <= without, "{with} µs off with the steps, {without} µs without");
        }

        #[test]
        fn the_times_of_steps_add_up(all in prop::collection::vec(prop::collection::vec(0u64..1 << 30, 1..20), 1..40)) {
            let mut chain = Chain::default();
            all.iter().for_each(|steps| chain.note(&times(steps)));
            let noted: f64 = chain.steps().iter().map(|step| step.mean() * step.count() as f64).sum();
            let exact = all.iter().flatten().sum::<u64>() as f64;
            prop_assert!((noted - exact).abs() <= exact * 1e-9 + 1.0, "{noted} for {exact}");
            let counts: Vec<u64> = chain.steps().iter().map(Step::count).collect();
            prop_assert!(counts.is_sorted_by(|one, next| one >= next) && counts[0] == all.len() as u64);
        }
    }
}
