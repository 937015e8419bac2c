//! Splits in percent, what they hold, and the search through all of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Resource;
use crate::{Partition, PartitionError};

/// How a byte budget is shared out over the forms, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Split {
    /// For samples as they were stored.
    pub encoded: u32,
    /// For samples after every transform that draws no random number.
    pub decoded: u32,
    /// For samples after all transforms.
    pub augmented: u32,
}

/// Written as in the literature: `58-42-0` is encoded, decoded, augmented.
impl fmt::Display for Split {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}-{}", self.encoded, self.decoded, self.augmented)
    }
}

impl Split {
    /// A split by percent.
    #[must_use]
    pub fn new(encoded: u32, decoded: u32, augmented: u32) -> Self {
        Self { encoded, decoded, augmented }
    }

    /// Every split in steps of one percent that uses the whole budget, the most encoded first.
    pub fn all() -> impl Iterator<Item = Split> {
        (0..=100).rev().flat_map(|encoded| {
            (0..=100 - encoded)
                .rev()
                .map(move |decoded| Split::new(encoded, decoded, 100 - encoded - decoded))
        })
    }

    /// The split in bytes, beside a shared window.
    ///
    /// # Errors
    /// When the percentages add up to more than 100, or the window is larger than the budget.
    pub fn partition(self, budget_bytes: u64, window_bytes: u64) -> Result<Partition, PartitionError> {
        Partition::of_percent(budget_bytes, window_bytes, [self.encoded, self.decoded, self.augmented])
    }

    /// Which part of the samples each form holds. What is nearest to the trainer is filled first, and no sample is kept
    /// twice, so a share that is larger than what is left over stays partly empty.
    #[must_use]
    pub fn fractions(
        self,
        samples: f64,
        budget_bytes: f64,
        [encoded, decoded, augmented]: [f64; 3],
    ) -> Fractions {
        let holds = |percent: u32, bytes: f64| f64::from(percent) / 100.0 * budget_bytes / bytes / samples;
        let augmented = holds(self.augmented, augmented).min(1.0);
        let decoded = holds(self.decoded, decoded).min(1.0 - augmented);
        let encoded = holds(self.encoded, encoded).min(1.0 - augmented - decoded);
        Fractions { storage: (1.0 - augmented - decoded - encoded).max(0.0), encoded, decoded, augmented }
    }
}

/// Which part of the samples is served from which form; together 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fractions {
    /// Read from where the dataset lives.
    pub storage: f64,
    /// Kept as stored.
    pub encoded: f64,
    /// Kept decoded.
    pub decoded: f64,
    /// Kept ready for a batch.
    pub augmented: f64,
}

/// What a model says of one split.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The split.
    pub split: Split,
    /// What it holds.
    pub fractions: Fractions,
    /// Samples served in a second, to all jobs together.
    pub samples_per_s: f64,
    /// The resource that is exhausted first. The published model has none: it averages over pipelines that each have their own.
    pub binds: Option<Resource>,
}

/// What a model says of all splits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The best of them; of equally good ones, that with the most encoded and then the most decoded, which are cheapest to fill.
    pub best: Prediction,
    /// All of them.
    pub predictions: Vec<Prediction>,
}

/// Two predictions closer than this are equal: sums of fractions differ in their last digits.
const EQUAL: f64 = 1e-9;

impl Plan {
    /// Asks a model about every split.
    pub(super) fn search(predict: impl Fn(Split) -> Prediction) -> Self {
        let predictions: Vec<Prediction> = Split::all().map(predict).collect();
        let best = best_of(predictions.iter().copied());
        Self { best: best.expect("there are 5,151 splits"), predictions }
    }

    /// The best split that keeps no augmented samples: for a cache that serves a single job, which may have each of those only once.
    #[must_use]
    pub fn best_without_augmented(&self) -> Prediction {
        let kept = self.predictions.iter().copied().filter(|prediction| prediction.split.augmented == 0);
        best_of(kept).unwrap_or(self.best)
    }

    /// The prediction for one split in whole percents that add up to 100.
    #[must_use]
    pub fn prediction(&self, split: Split) -> Option<&Prediction> {
        self.predictions.iter().find(|prediction| prediction.split == split)
    }
}

fn best_of(predictions: impl Iterator<Item = Prediction>) -> Option<Prediction> {
    predictions.reduce(
        |best, next| {
            if next.samples_per_s > best.samples_per_s * (1.0 + EQUAL) { next } else { best }
        },
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn there_are_5151_splits_and_they_use_everything() {
        let all: Vec<Split> = Split::all().collect();
        assert_eq!(all.len(), 101 * 102 / 2);
        assert!(all.iter().all(|split| split.encoded + split.decoded + split.augmented == 100));
        assert_eq!(all.iter().collect::<std::collections::HashSet<_>>().len(), all.len());
        assert_eq!(all[0].to_string(), "100-0-0");
    }

    #[test]
    fn a_split_becomes_bytes_beside_the_window() {
        let partition = Split::new(58, 42, 0).partition(1_100, 100).unwrap();
        let expected =
            Partition { encoded_bytes: 580, decoded_bytes: 420, augmented_bytes: 0, window_bytes: 100 };
        assert_eq!(partition, expected);
    }

    proptest! {
        #[test]
        fn fractions_add_up_and_fit_the_budget(
            index in 0usize..5_151,
            samples in 1f64..1e8,
            budget in 0f64..1e13,
            sizes in prop::array::uniform3(1f64..1e7),
        ) {
            let split = Split::all().nth(index).unwrap();
            let held = split.fractions(samples, budget, sizes);
            let parts = [held.storage, held.encoded, held.decoded, held.augmented];
            prop_assert!(parts.iter().all(|part| (0.0..=1.0).contains(part)), "{:?}", held);
            prop_assert!((parts.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            let bytes: f64 = sizes.iter().zip(&parts[1..]).map(|(size, part)| size * part * samples).sum();
            prop_assert!(bytes <= budget * (1.0 + 1e-9));
        }
    }
}
