//! Samples that cannot be served, and what the user wants done about them.

use sutler_core::{SampleId, counted};

use crate::Parcel;

/// A sample that could not be prepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("sample {} ({path}): {reason}", sample.0)]
pub struct Failure {
    /// Which one.
    pub sample: SampleId,
    /// Where it comes from.
    pub path: String,
    /// A short stable word: `missing`, `truncated`, `corrupt`, `too_large`, …
    pub kind: &'static str,
    /// The reason as a sentence.
    pub reason: String,
    /// The exception behind it, where there is one.
    pub exception: Option<Parcel>,
    /// Whether the preparer itself is gone, so that waiting for the batch's turn would only hide it.
    pub fatal: bool,
}

impl Failure {
    /// A sample that is bad in itself.
    #[must_use]
    pub fn new(sample: SampleId, path: String, kind: &'static str, reason: String) -> Self {
        Self { sample, path, kind, reason, exception: None, fatal: false }
    }
}

/// What a bad sample does to the epoch. Budgets count per epoch, since a bad file is bad in each of them.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum ErrorPolicy {
    /// The batch that should have held it raises.
    #[default]
    Raise,
    /// It is left out and listed.
    Skip,
    /// It is left out and listed until there are too many.
    Budget {
        /// The most failures an epoch may have.
        count_max: Option<u64>,
        /// The largest share of an epoch's samples that may fail.
        rate_max: Option<f64>,
    },
}

impl ErrorPolicy {
    /// How many failures an epoch of `samples` may have before it ends in an error; `None` for any number.
    #[must_use]
    pub fn allowed(self, samples: u64) -> Option<u64> {
        match self {
            ErrorPolicy::Raise => Some(0),
            ErrorPolicy::Skip => None,
            ErrorPolicy::Budget { count_max, rate_max } => {
                let by_rate = rate_max.map(|rate| (rate * samples as f64).floor() as u64);
                match (count_max, by_rate) {
                    (Some(count), Some(rate)) => Some(count.min(rate)),
                    (count, rate) => count.or(rate),
                }
            }
        }
    }
}

/// Why a run cannot hand out its next batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// A sample is bad and the policy is to stop.
    #[error("{0}")]
    Sample(Failure),
    /// More samples are bad than the budget allows.
    #[error("{} failed in this epoch, and {allowed} may; the last was {last}", counted(*failed, "sample"))]
    Budget {
        /// Failures so far.
        failed: u64,
        /// The budget.
        allowed: u64,
        /// The one that was too many.
        last: Failure,
    },
    /// A rank of several has a batch without a single good sample.
    #[error(
        "every sample of batch {batch} failed, and without a batch this rank would fall behind the others; the last was {last}"
    )]
    OutOfStep {
        /// Its number in the epoch.
        batch: u64,
        /// Its last sample.
        last: Failure,
    },
    /// Batch memory ran out.
    #[error("{0}")]
    Memory(String),
    /// The engine was closed while somebody was waiting for it.
    #[error("the loader was closed")]
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stricter_bound_counts() {
        let both = ErrorPolicy::Budget { count_max: Some(10), rate_max: Some(0.01) };
        assert_eq!(both.allowed(100), Some(1));
        assert_eq!(both.allowed(100_000), Some(10));
        assert_eq!(ErrorPolicy::Raise.allowed(5), Some(0));
        assert_eq!(ErrorPolicy::Skip.allowed(5), None);
        assert_eq!(ErrorPolicy::Budget { count_max: None, rate_max: Some(0.5) }.allowed(5), Some(2));
    }
}
