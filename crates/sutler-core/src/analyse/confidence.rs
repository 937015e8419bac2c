//! Figures that are known only so well.

use serde::{Deserialize, Serialize};

/// Student's t for 95 of 100, two-sided, by degrees of freedom from 1 on. Beyond the last the normal distribution's value is
/// used, which is 4 % smaller than the exact one at most.
const STUDENT_T: [f64; 20] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086,
];
const NORMAL: f64 = 1.96;

/// Whoever does not know a figure to a factor of ten does not know it, and no use is made of how much less it is known.
pub(super) const FACTOR_MAX: f64 = 10.0;

/// A figure and between which bounds the truth lies in 95 of 100 cases.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Known {
    /// The best guess.
    pub value: f64,
    /// The truth is hardly below this.
    pub low: f64,
    /// Nor above this.
    pub high: f64,
}

impl Known {
    /// A figure without doubt.
    #[must_use]
    pub fn exactly(value: f64) -> Self {
        Self { value, low: value, high: value }
    }

    /// The mean of repeated measurements of something positive. A single one says nothing about how well it is known, and two that
    /// differ say little; bounds are never further off than [`FACTOR_MAX`], so that rates can be worked out from them.
    #[must_use]
    pub fn mean(values: &[f64]) -> Option<Self> {
        let count = values.len();
        if count == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let half = if count == 1 {
            f64::INFINITY
        } else {
            let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
            let quantile = STUDENT_T.get(count - 2).copied().unwrap_or(NORMAL);
            quantile * (squares / (count - 1) as f64 / count as f64).sqrt()
        };
        let (low, high) = ((mean - half).max(mean / FACTOR_MAX), (mean + half).min(mean * FACTOR_MAX));
        Some(Self { value: mean, low, high })
    }

    /// So many per second, where this is so many seconds each.
    #[must_use]
    pub fn inverse(&self) -> Self {
        Self { value: 1.0 / self.value, low: 1.0 / self.high, high: 1.0 / self.low }
    }

    /// Half of the width, as a part of the value.
    #[must_use]
    pub fn error(&self) -> f64 {
        (self.high - self.low) / 2.0 / self.value
    }

    /// The same value, with bounds at least as far off as this part of it.
    #[must_use]
    pub fn known_no_better_than(&self, part: f64) -> Self {
        let low = (self.value * (1.0 - part)).max(self.value / FACTOR_MAX);
        let high = (self.value * (1.0 + part)).min(self.value * FACTOR_MAX);
        Self { value: self.value, low: self.low.min(low), high: self.high.max(high) }
    }

    /// The same, so many times.
    #[must_use]
    pub fn times(&self, factor: f64) -> Self {
        Self { value: self.value * factor, low: self.low * factor, high: self.high * factor }
    }

    pub(super) fn is_positive(&self) -> bool {
        [self.value, self.low, self.high].iter().all(|value| *value > 0.0 && value.is_finite())
            && self.low <= self.value
            && self.value <= self.high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_students() {
        // Mean 10, deviation 1: the half-width is 4.303 / √3.
        let known = Known::mean(&[9.0, 10.0, 11.0]).unwrap();
        assert!((known.value - 10.0).abs() < 1e-12);
        assert!((known.high - 10.0 - 4.303 / 3f64.sqrt()).abs() < 1e-9, "{known:?}");
        assert!((known.error() - 0.248_4).abs() < 1e-3);
    }

    #[test]
    fn one_measurement_proves_nothing_and_none_is_none() {
        assert_eq!(Known::mean(&[]), None);
        let single = Known::mean(&[5.0]).unwrap();
        assert_eq!((single.low, single.high), (0.5, 50.0));
        assert_eq!(Known::mean(&[2.0; 40]), Some(Known::exactly(2.0)));
    }

    #[test]
    fn seconds_turn_into_rates_with_their_bounds() {
        let rate = Known { value: 0.5, low: 0.25, high: 1.0 }.inverse();
        assert_eq!(rate, Known { value: 2.0, low: 1.0, high: 4.0 });
    }
}
