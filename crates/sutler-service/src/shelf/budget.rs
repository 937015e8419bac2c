//! One byte budget for what an agent keeps and for what its jobs share.
//!
//! Encoded and decoded samples are kept in caches. An augmented sample is never kept for the job it was made for: it waits
//! in the shared window for the jobs that still lack it. So the third number of a split is the windows' size in bytes, out
//! of the same budget. Where that number is 0 the window is a share of each dataset and comes on top, so that an agent
//! without any memory for caches shares, too.

use sutler_core::plan::Split;

use super::{ShelfOptions, SplitChoice};

/// A window has room for some samples, however small the dataset.
const MIN_WINDOW_SAMPLES: f64 = 8.0;

impl ShelfOptions {
    fn bytes_of(&self, percent: u32) -> u64 {
        (u128::from(self.memory) * u128::from(percent.min(100)) / 100) as u64
    }

    /// The bytes for all caches together.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        match self.split {
            SplitChoice::Fixed(split) => self.bytes_of(split.encoded + split.decoded),
            SplitChoice::Auto => self.memory,
        }
    }

    /// How a cache shares out its part of those where the user has decided.
    #[must_use]
    pub fn kept_split(&self) -> Option<Split> {
        let SplitChoice::Fixed(Split { encoded, decoded, .. }) = self.split else { return None };
        let kept = encoded + decoded;
        let encoded = (encoded * 100 + kept / 2).checked_div(kept).unwrap_or(100);
        Some(Split::new(encoded, 100 - encoded, 0))
    }

    /// The bytes for all windows together, where they are a part of the memory.
    #[must_use]
    pub fn windows_bytes(&self) -> Option<u64> {
        match self.split {
            SplitChoice::Fixed(split) if split.augmented > 0 => Some(self.bytes_of(split.augmented)),
            _ => None,
        }
    }

    /// The samples in the window of a dataset of so many, where it is a share of the dataset.
    #[must_use]
    pub fn window_samples(&self, samples: u32) -> f64 {
        (f64::from(samples) * self.window).max(MIN_WINDOW_SAMPLES)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sutler_core::divide;

    use super::*;

    fn options(memory: u64, [encoded, decoded, augmented]: [u32; 3]) -> ShelfOptions {
        let split = SplitChoice::Fixed(Split::new(encoded, decoded, augmented));
        ShelfOptions { memory, split, ..ShelfOptions::default() }
    }

    #[test]
    fn the_third_number_is_the_windows() {
        let shared = options(1000, [30, 50, 20]);
        assert_eq!((shared.kept_bytes(), shared.windows_bytes()), (800, Some(200)));
        assert_eq!(shared.kept_split(), Some(Split::new(38, 62, 0)));
        assert_eq!(options(1000, [0, 0, 100]).kept_bytes(), 0);
    }

    #[test]
    fn without_it_the_window_is_a_share_of_the_dataset() {
        let kept = options(1000, [100, 0, 0]);
        assert_eq!((kept.kept_bytes(), kept.windows_bytes()), (1000, None));
        assert_eq!((kept.window_samples(1000), kept.window_samples(10)), (20.0, 8.0));
        let planned = ShelfOptions { split: SplitChoice::Auto, ..kept };
        assert_eq!((planned.kept_bytes(), planned.kept_split()), (1000, None));
    }

    proptest! {
        #[test]
        fn caches_and_windows_together_stay_inside_the_budget(
            memory: u64,
            encoded in 0u32..=99,
            decoded in 0u32..=99,
            usable in prop::collection::vec(1u64..1 << 40, 1..5),
        ) {
            prop_assume!(encoded + decoded < 100);
            let options = options(memory, [encoded, decoded, 100 - encoded - decoded]);
            let split = options.kept_split().unwrap();
            prop_assert_eq!(split.encoded + split.decoded, 100);
            let windows: u128 =
                divide(options.windows_bytes().unwrap(), &usable).into_iter().map(u128::from).sum();
            prop_assert!(u128::from(options.kept_bytes()) + windows <= u128::from(memory));
        }
    }
}
