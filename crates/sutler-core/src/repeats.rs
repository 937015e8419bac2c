//! How often samples came before.
//!
//! Whoever draws without replacement has nothing to count, so nothing is kept until a sample comes again.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::SampleId;
use crate::bits::Bits;

/// For each of some samples in a row, how often it came before in the same epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Repeats {
    /// As far as to the last one that came before; the others did not.
    counts: Vec<u32>,
}

impl Repeats {
    /// What is noted by these numbers, in order.
    #[must_use]
    pub fn noted(numbers: impl IntoIterator<Item = u32>) -> Self {
        let mut repeats = Self::default();
        for (index, repeat) in numbers.into_iter().enumerate() {
            repeats.note(index, repeat);
        }
        repeats
    }

    /// How often each of these came before among them.
    #[must_use]
    pub fn among(samples: &[SampleId]) -> Self {
        let mut repeats = Self::default();
        let Some(last) = samples.iter().max() else { return repeats };
        let mut seen = Bits::new(last.0.saturating_add(1));
        let mut again: HashMap<SampleId, u32> = HashMap::new();
        for (index, &sample) in samples.iter().enumerate() {
            if seen.get(sample.0) {
                let count = again.entry(sample).or_default();
                *count += 1;
                repeats.note(index, *count);
            }
            seen.set(sample.0, true);
        }
        repeats
    }

    /// The sample at `index`, after all that were noted, came so often before.
    pub fn note(&mut self, index: usize, repeat: u32) {
        if repeat > 0 {
            self.counts.resize(index, 0);
            self.counts.push(repeat);
        }
    }

    /// How often the sample at `index` came before.
    #[must_use]
    pub fn get(&self, index: usize) -> u32 {
        self.counts.get(index).copied().unwrap_or(0)
    }

    /// Whether none came before.
    #[must_use]
    pub fn are_none(&self) -> bool {
        self.counts.is_empty()
    }

    /// The same of the samples from `start` to before `end`.
    #[must_use]
    pub fn slice(&self, start: usize, end: usize) -> Self {
        let end = end.min(self.counts.len());
        Self::noted(self.counts.get(start..end).unwrap_or_default().iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_came_before_are_counted() {
        let samples = [7, 3, 7, 0, 7, 3, 1].map(SampleId);
        let repeats = Repeats::among(&samples);
        assert_eq!((0..8).map(|index| repeats.get(index)).collect::<Vec<_>>(), [0, 0, 1, 0, 2, 1, 0, 0]);
        assert_eq!(repeats.slice(2, 5), Repeats::noted([1, 0, 2]));
        assert_eq!(repeats.slice(6, 7), Repeats::default());
    }

    #[test]
    fn nothing_is_kept_where_none_came_before() {
        let repeats = Repeats::among(&[4, 2, 9].map(SampleId));
        assert!(repeats.are_none() && repeats.counts.capacity() == 0);
        assert!(Repeats::among(&[]).are_none());
    }
}
