//! What a job has learnt of its samples: which ones are slow, and how slow.

use super::durations::Durations;
use super::forecast::{FORGETTING, Forecast, Hints};
use super::steps::{Chain, Step, StepTimes};
use crate::costs::SLOW_MICROS_MIN;
use crate::{Costs, SampleId};

/// How many samples must be known before any counts as slow.
const KNOWN_MIN: u32 = 16;

/// What counts as slow takes at least this many times the median: below that nothing is gained by treating it apart.
const MEDIANS_MIN: u64 = 2;

/// And what takes this many times the median is slow even where a quarter of all samples does.
const MEDIANS_MAX: u64 = 4;

/// Where fewer are slow than this, it is not worth looking for them among samples that nobody has seen.
const SLOW_SHARE_MIN: f64 = 0.005;

/// What the samples of a job took, over all of its epochs.
#[derive(Clone, Debug, Default)]
pub struct Experience {
    costs: Costs,
    durations: Durations,
    forecast: Forecast,
    chain: Chain,
    /// How long what counts as slow takes, how long half of all samples take at most, and whether hints tell who will be slow;
    /// worked out anew now and then.
    slow_after: Option<u64>,
    median: u64,
    hints_tell: bool,
    noted: u32,
    /// The work of all samples and of slow ones, older ones counting less.
    work: f64,
    slow_work: f64,
}

impl Experience {
    /// A sample has taken so long, and its steps as they say. Samples beyond `samples_max` are not remembered one by one, as
    /// their numbers mean nothing.
    pub fn note(
        &mut self,
        sample: SampleId,
        hints: &Hints,
        steps: &StepTimes,
        microseconds: u64,
        samples_max: usize,
    ) {
        self.costs.note(sample, microseconds, samples_max);
        self.durations.note(microseconds);
        self.chain.note(steps);
        self.forecast.note(hints, microseconds);
        let slow = self.slow_after.is_some_and(|slow_after| microseconds > slow_after);
        self.work = self.work * FORGETTING + microseconds as f64;
        self.slow_work = self.slow_work * FORGETTING + if slow { microseconds as f64 } else { 0.0 };
        // Quantiles move slowly once there are some: one look in sixteen is enough.
        self.noted = self.noted.wrapping_add(1);
        if self.slow_after.is_none() || self.noted.is_multiple_of(KNOWN_MIN) {
            self.slow_after = threshold(&self.durations);
            self.median = self.durations.quantile(0.5).unwrap_or(0);
            let share = self.slow_after.map_or(0.0, |slow_after| self.durations.share_beyond(slow_after));
            self.hints_tell = share >= SLOW_SHARE_MIN && self.forecast.explains_something();
        }
    }

    /// How long, in microseconds, a sample takes at least that counts as slow; `None` while too little is known.
    ///
    /// It is the 75th percentile, but not less than twice the median, so that nobody is slow where all are alike, and
    /// not more than four times the median, so that many slow samples do not make slowness the rule. And it is no less than
    /// a millisecond, which nobody notices.
    #[must_use]
    pub fn slow_after(&self) -> Option<u64> {
        self.slow_after
    }

    /// The mean of what samples took.
    #[must_use]
    pub fn mean(&self) -> Option<u64> {
        self.forecast.mean()
    }

    /// The share of all work that slow samples make.
    #[must_use]
    pub fn slow_work_share(&self) -> f64 {
        if self.work > 0.0 { self.slow_work / self.work } else { 0.0 }
    }

    /// What a sample will take: by what it took before where that was long, and else by what is known of it.
    #[must_use]
    pub fn expect(&self, sample: SampleId, hints: &Hints) -> Option<u64> {
        let expected = self.forecast.expect(hints)?;
        let before = if self.costs.is_slow(sample) { self.costs.expect(sample) } else { None };
        Some(before.map_or(expected, |before| before.max(expected)))
    }

    /// What half of all samples take at most; 0 while too little is known.
    #[must_use]
    pub fn median(&self) -> u64 {
        self.median
    }

    /// What is known of the steps of the chain, in order; empty where nobody tells them apart.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        self.chain.steps()
    }

    /// What a sample will still take that has taken this long for so many steps.
    #[must_use]
    pub fn expect_more(&self, done: usize, microseconds: u64) -> u64 {
        if let Some(more) = self.chain.expect_more(done, microseconds) {
            return more;
        }
        // What is longer than all before it: half as long again is as good a guess as any.
        let whole = self.durations.median_beyond(microseconds).unwrap_or(microseconds + microseconds / 2);
        whole.saturating_sub(microseconds)
    }

    /// Whether a sample that has not begun is slow, as far as anybody knows.
    #[must_use]
    pub fn is_slow(&self, sample: SampleId, hints: &Hints) -> bool {
        let Some(slow_after) = self.slow_after else { return false };
        self.costs.is_slow(sample)
            || (!hints.are_empty() && self.forecast.expect(hints).is_some_and(|cost| cost > slow_after))
    }

    /// Whether it is worth looking for slow samples among those ahead: some sample is known to be slow, or hints tell.
    #[must_use]
    pub fn tells_slow_ones(&self) -> bool {
        self.costs.any_slow() || self.hints_tell
    }

    /// Whether some samples are slow, and hints tell which.
    #[must_use]
    pub fn hints_tell(&self) -> bool {
        self.hints_tell
    }
}

/// How long what counts as slow takes, as [`Experience::slow_after`] says.
pub(super) fn threshold(durations: &Durations) -> Option<u64> {
    if durations.known() < KNOWN_MIN {
        return None;
    }
    let (median, upper) = (durations.quantile(0.5)?, durations.quantile(0.75)?);
    let slow_after = upper.clamp(median.saturating_mul(MEDIANS_MIN), median.saturating_mul(MEDIANS_MAX));
    Some(slow_after.max(SLOW_MICROS_MIN))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn experience(costs: impl Iterator<Item = u64>) -> Experience {
        let mut experience = Experience::default();
        for (index, cost) in costs.enumerate() {
            experience.note(
                SampleId(index as u32),
                &Hints::default(),
                &StepTimes::default(),
                cost,
                usize::MAX,
            );
        }
        experience
    }

    #[test]
    fn nobody_is_slow_where_all_are_alike() {
        let alike = experience((0..200).map(|index| 1000 + index % 97));
        assert!(alike.slow_after().unwrap() >= 2000);
        assert!(!alike.tells_slow_ones());
        assert!((0..200).all(|id| !alike.is_slow(SampleId(id), &Hints::default())));
    }

    #[test]
    fn a_share_of_slow_samples_is_told_from_the_rest() {
        for every in [3, 5, 20] {
            let mixed =
                experience((0..600).map(|index: i32| if index % every == 0 { 50_000 } else { 1_000 }));
            let slow_after = mixed.slow_after().unwrap();
            assert!((2_000..=5_000).contains(&slow_after), "one in {every}: {slow_after}");
            assert!(mixed.is_slow(SampleId(0), &Hints::default()));
            assert!(!mixed.is_slow(SampleId(1), &Hints::default()));
            assert!((33_000..66_000).contains(&mixed.expect(SampleId(0), &Hints::default()).unwrap()));
            assert!(mixed.expect_more(1, 5_000) > 40_000);
            let (slow, all) = (50.0, 50.0 + f64::from(every - 1));
            assert!((mixed.slow_work_share() - slow / all).abs() < 0.05, "{}", mixed.slow_work_share());
        }
    }

    #[test]
    fn a_large_file_is_slow_before_it_was_ever_read() {
        let mut experience = Experience::default();
        let hints = |size: u64| Hints { size: Some(size as f64), ..Hints::default() };
        for id in 0..100u32 {
            let size = if id % 10 == 0 { 5_000_000 } else { 100_000 + u64::from(id) * 100 };
            experience.note(SampleId(id), &hints(size), &StepTimes::default(), size / 50, usize::MAX);
        }
        assert!(experience.hints_tell());
        assert!(experience.is_slow(SampleId(7777), &hints(6_000_000)));
        assert!(!experience.is_slow(SampleId(7778), &hints(110_000)));
        assert!(!experience.is_slow(SampleId(7779), &Hints::default()));
    }

    proptest! {
        #[test]
        fn at_most_half_are_slow(costs in prop::collection::vec(1u64..1 << 30, 16..300)) {
            let experience = experience(costs.iter().copied());
            let slow_after = experience.slow_after().unwrap();
            // The threshold is at most sixteen samples old.
            let late = threshold(&experience.durations).unwrap();
            prop_assert!(costs.iter().filter(|&&cost| cost > late).count() * 2 <= costs.len());
            prop_assert!(slow_after >= 2);
        }
    }
}
