//! How long things take, as a distribution that is learnt while they happen.
//!
//! A histogram whose bins grow by a fixed ratio: its memory is fixed, a quantile is right to half a bin, and nothing has to
//! be known beforehand of whether times are microseconds or minutes. It forgets: once it holds many values all counts are halved, so that what
//! happened lately counts most, as when a cache has filled or other files come up.

/// Bins to a power of two: each is 9 % wider than the one before, which no scheduling decision can tell apart.
const BINS_PER_OCTAVE: f64 = 8.0;

/// Beyond 2⁴⁰ microseconds, twelve days, everything is one bin.
const BINS: usize = 40 * BINS_PER_OCTAVE as usize;

/// How many values count before they are halved: enough that a 99th percentile stands on dozens of them.
const REMEMBERED: u32 = 4096;

/// A distribution of durations, in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Durations {
    bins: Vec<u32>,
    total: u32,
}

impl Default for Durations {
    fn default() -> Self {
        Self { bins: vec![0; BINS], total: 0 }
    }
}

impl Durations {
    /// Something took so long.
    pub fn note(&mut self, microseconds: u64) {
        self.bins[bin(microseconds)] += 1;
        self.total += 1;
        if self.total >= REMEMBERED {
            self.bins.iter_mut().for_each(|count| *count /= 2);
            self.total = self.bins.iter().sum();
        }
    }

    /// How many values it goes by.
    #[must_use]
    pub fn known(&self) -> u32 {
        self.total
    }

    /// What this share of all durations does not exceed, rounded up to the end of its bin; `None` before the first.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let wanted = (share.clamp(0.0, 1.0) * f64::from(self.total)).ceil().max(1.0) as u32;
        self.beyond(0, wanted)
    }

    /// How long in all, most likely, what has taken this long already: the median of those that took longer; `None` where
    /// none did.
    #[must_use]
    pub fn median_beyond(&self, microseconds: u64) -> Option<u64> {
        let first = bin(microseconds) + 1;
        let longer: u32 = self.bins[first.min(BINS)..].iter().sum();
        if longer == 0 { None } else { self.beyond(first, longer.div_ceil(2)) }
    }

    /// The share of durations in bins beyond that of this one.
    #[must_use]
    pub fn share_beyond(&self, microseconds: u64) -> f64 {
        let longer: u32 = self.bins[(bin(microseconds) + 1).min(BINS)..].iter().sum();
        f64::from(longer) / f64::from(self.total.max(1))
    }

    /// The end of the bin that holds value number `wanted`, counted from the beginning of bin `first`.
    fn beyond(&self, first: usize, wanted: u32) -> Option<u64> {
        let mut seen = 0;
        for (index, count) in self.bins.iter().enumerate().skip(first) {
            seen += count;
            if seen >= wanted {
                return Some(end_of(index));
            }
        }
        None
    }
}

fn bin(microseconds: u64) -> usize {
    let octaves = (microseconds.max(1) as f64).log2();
    ((octaves * BINS_PER_OCTAVE).round() as usize).min(BINS - 1)
}

/// The longest duration in a bin.
fn end_of(bin: usize) -> u64 {
    ((bin as f64 + 0.5) / BINS_PER_OCTAVE).exp2().floor() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn quantiles_are_right_to_a_bin(mut values in prop::collection::vec(1u64..1 << 39, 1..500), share in 0.0f64..=1.0) {
            let mut durations = Durations::default();
            values.iter().for_each(|&value| durations.note(value));
            values.sort_unstable();
            let rank = (share * values.len() as f64).ceil().max(1.0) as usize;
            let (exact, found) = (values[rank - 1] as f64, durations.quantile(share).unwrap() as f64);
            prop_assert!(found + 1.0 >= exact && found <= exact * 1.1 + 1.0, "{found} for {exact}");
        }
    }

    #[test]
    fn it_forgets_what_is_long_ago() {
        let mut durations = Durations::default();
        assert_eq!(durations.quantile(0.5), None);
        (0..10_000).for_each(|_| durations.note(1_000_000));
        (0..5_000).for_each(|_| durations.note(10));
        assert!(durations.quantile(0.5).unwrap() <= 10);
        assert!(durations.known() < REMEMBERED);
    }

    #[test]
    fn what_is_slow_already_will_be_as_slow_as_others_were() {
        let mut durations = Durations::default();
        (0..80).for_each(|_| durations.note(1_000));
        (0..20).for_each(|_| durations.note(50_000));
        assert!((45_000..55_000).contains(&durations.median_beyond(2_000).unwrap()));
        assert_eq!(durations.median_beyond(100_000), None);
    }

    #[test]
    fn extremes_have_a_bin() {
        let mut durations = Durations::default();
        durations.note(0);
        durations.note(u64::MAX);
        assert_eq!(durations.quantile(0.0), Some(1));
        assert!(durations.quantile(1.0).unwrap() > 1 << 39);
        assert_eq!(durations.median_beyond(u64::MAX), None);
    }
}
