//! What samples cost to prepare, remembered from one epoch to the next.
//!
//! A sample that took long will take long again, as a large file or a long recording does. Knowing it beforehand, such
//! samples can be begun before their turn, so that they are ready when it comes. One byte per sample is enough for that:
//! the order of magnitude.

use crate::SampleId;

/// How many times the median a sample must take to count as slow, as a power of two.
const SLOW_OCTAVES: u8 = 2;

/// What takes less than this many microseconds is never slow, whatever others take. No trainer notices it; but to treat a sample
/// apart costs a worker process a message of its own, some 50 µs, and a sample that takes 5 µs among others then takes
/// ten times as long, which would make it slow for good.
pub(crate) const SLOW_MICROS_MIN: u64 = 1024;

/// How many samples must be known before any counts as slow.
const KNOWN_MIN: u64 = 16;

/// The costs of a dataset's samples.
#[derive(Clone, Debug)]
pub struct Costs {
    /// By sample: the number of binary digits of its microseconds, plus one; 0 where nothing is known.
    octaves: Vec<u8>,
    /// How many samples there are in each octave.
    counts: [u64; 66],
    known: u64,
    /// What counts as slow: this octave and those above. Beyond all of them where nothing does.
    slow_from: u8,
    any_slow: bool,
}

impl Default for Costs {
    fn default() -> Self {
        Self { octaves: Vec::new(), counts: [0; 66], known: 0, slow_from: u8::MAX, any_slow: false }
    }
}

impl Costs {
    /// Sample `sample` took so long. Samples beyond `samples_max` are not remembered, as their numbers mean nothing.
    pub fn note(&mut self, sample: SampleId, microseconds: u64, samples_max: usize) {
        let index = sample.index();
        if index >= samples_max {
            return;
        }
        if index >= self.octaves.len() {
            self.octaves.resize(index + 1, 0);
        }
        let octave = octave_of(microseconds);
        let before = std::mem::replace(&mut self.octaves[index], octave);
        if before == octave {
            return;
        }
        if before == 0 {
            self.known += 1;
        } else {
            self.counts[usize::from(before)] -= 1;
        }
        self.counts[usize::from(octave)] += 1;
        self.slow_from = if self.known < KNOWN_MIN {
            u8::MAX
        } else {
            (self.median() + SLOW_OCTAVES).max(octave_of(SLOW_MICROS_MIN))
        };
        self.any_slow = self.counts.iter().skip(usize::from(self.slow_from)).any(|&count| count > 0);
    }

    fn median(&self) -> u8 {
        let mut below = 0;
        for (octave, count) in self.counts.iter().enumerate() {
            below += count;
            if below * 2 > self.known {
                return octave as u8;
            }
        }
        0
    }

    /// Whether any sample is known to be slow.
    #[must_use]
    pub fn any_slow(&self) -> bool {
        self.any_slow
    }

    /// What this sample took the last time, in microseconds, to its order of magnitude; `None` where that is not known.
    #[must_use]
    pub fn expect(&self, sample: SampleId) -> Option<u64> {
        match self.octaves.get(sample.index()) {
            None | Some(0) => None,
            // The middle of the octave: it ends at 2^(octave - 1).
            Some(&octave) => Some(3 << octave >> 3),
        }
    }

    /// Whether this sample is known to take several times as long as most.
    #[must_use]
    pub fn is_slow(&self, sample: SampleId) -> bool {
        self.octaves.get(sample.index()).is_some_and(|&octave| octave >= self.slow_from)
    }
}

/// The number of binary digits of so many microseconds, plus one.
fn octave_of(microseconds: u64) -> u8 {
    (64 - microseconds.leading_zeros()) as u8 + 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn costs(microseconds: &[u64]) -> Costs {
        let mut costs = Costs::default();
        for (index, &cost) in microseconds.iter().enumerate() {
            costs.note(SampleId(index as u32), cost, usize::MAX);
        }
        costs
    }

    #[test]
    fn what_takes_many_times_the_median_is_slow() {
        let mut all = vec![20_000; 95];
        all.extend([400_000; 5]);
        let costs = costs(&all);
        assert!(costs.any_slow());
        let slow: Vec<u32> = (0..100).filter(|&id| costs.is_slow(SampleId(id))).collect();
        assert_eq!(slow, [95, 96, 97, 98, 99]);
        assert!(!costs.is_slow(SampleId(5000)), "nothing is known of it");
        assert_eq!(costs.expect(SampleId(5000)), None);
        assert!((262_144..524_288).contains(&costs.expect(SampleId(95)).unwrap()));
    }

    #[test]
    fn equal_costs_and_few_of_them_make_nobody_slow() {
        assert!(!costs(&[1000; 500]).any_slow());
        assert!(!costs(&[1, 1, 1, 1_000_000]).any_slow());
        assert!(!costs(&[]).any_slow());
    }

    #[test]
    fn what_nobody_notices_is_not_slow() {
        let mut all = vec![5; 95];
        all.extend([900; 5]);
        assert!(!costs(&all).any_slow());
        all.push(1100);
        assert!(costs(&all).is_slow(SampleId(100)));
    }

    proptest! {
        #[test]
        fn the_latest_cost_counts(
            first in prop::collection::vec(0u64..1 << 40, 1..60), second in prop::collection::vec(0u64..1 << 40, 60),
        ) {
            let second = &second[..first.len()];
            let mut changed = costs(&first);
            for (index, &cost) in second.iter().enumerate() {
                changed.note(SampleId(index as u32), cost, usize::MAX);
            }
            let fresh = costs(second);
            prop_assert_eq!(changed.any_slow(), fresh.any_slow());
            for id in (0..second.len() as u32).map(SampleId) {
                prop_assert_eq!(changed.is_slow(id), fresh.is_slow(id));
            }
            prop_assert_eq!(fresh.any_slow(), (0..second.len() as u32).any(|id| fresh.is_slow(SampleId(id))));
        }

        #[test]
        fn most_samples_are_never_slow(all in prop::collection::vec(0u64..1 << 40, 0..200)) {
            let costs = costs(&all);
            let slow = (0..all.len() as u32).filter(|&id| costs.is_slow(SampleId(id))).count();
            prop_assert!(slow * 2 <= all.len());
        }
    }
}
