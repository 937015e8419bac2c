//! One byte budget for what an agent keeps and for what its jobs share.
//!
//! Encoded and decoded samples are kept in caches. An augmented sample is never kept for the job it was made for: it waits
//! in the shared window for the jobs that still lack it. So the third number of a split is the window's size in bytes, out
//! of the same budget. Where that number is 0 the window is a share of each dataset and comes on top, so that an agent
//! without any memory for caches shares, too.

use sutler_core::plan::Split;

/// How much an agent keeps, and in which forms.
#[derive(Clone, Copy, Debug)]
pub struct ShelfOptions {
    /// The bytes for the samples of all datasets together; 0 for none.
    pub memory: u64,
    /// How they are shared out: encoded, decoded, and augmented, which is the window.
    pub split: Split,
    /// The window of prepared samples as a share of each dataset's samples, where the split has none for it.
    pub window: f64,
}

/// A window has room for some samples, however small the dataset.
const MIN_WINDOW_SAMPLES: f64 = 8.0;

impl ShelfOptions {
    fn bytes_of(&self, percent: u32) -> u64 {
        (u128::from(self.memory) * u128::from(percent.min(100)) / 100) as u64
    }

    /// The bytes for caches, and how they are shared out over encoded and decoded samples, in percent.
    #[must_use]
    pub fn kept(&self) -> (u64, [u32; 2]) {
        let Split { encoded, decoded, .. } = self.split;
        let kept = encoded + decoded;
        if kept == 0 {
            return (0, [0, 0]);
        }
        let encoded = (encoded * 100 + kept / 2) / kept;
        (self.bytes_of(kept), [encoded, 100 - encoded])
    }

    /// The window for a dataset of so many samples with rows of so many bytes, where other windows have taken some. A window
    /// takes no more than the whole dataset.
    #[must_use]
    pub fn window_bytes(&self, samples: u32, row_bytes: u64, taken: u64) -> u64 {
        if self.split.augmented == 0 {
            return ((f64::from(samples) * self.window).max(MIN_WINDOW_SAMPLES) * row_bytes as f64) as u64;
        }
        let left = self.bytes_of(self.split.augmented).saturating_sub(taken);
        left.min(u64::from(samples).saturating_mul(row_bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn options(split: (u32, u32, u32)) -> ShelfOptions {
        ShelfOptions { memory: 1000, split: Split::new(split.0, split.1, split.2), window: 0.02 }
    }

    #[test]
    fn the_third_number_is_the_window() {
        let shared = options((30, 50, 20));
        assert_eq!(shared.kept(), (800, [38, 62]));
        assert_eq!(shared.window_bytes(1000, 10, 0), 200);
        assert_eq!(shared.window_bytes(1000, 10, 150), 50, "another dataset's window has the rest");
        assert_eq!(shared.window_bytes(3, 10, 0), 30, "no more than the dataset");
        assert_eq!(options((0, 0, 100)).kept(), (0, [0, 0]));
    }

    #[test]
    fn without_it_the_window_is_a_share_of_the_dataset() {
        let kept = options((100, 0, 0));
        assert_eq!(kept.kept(), (1000, [100, 0]));
        assert_eq!(kept.window_bytes(1000, 10, 0), 200);
        assert_eq!(kept.window_bytes(10, 10, 0), 80);
    }

    proptest! {
        #[test]
        fn caches_and_windows_together_stay_inside_the_budget(
            memory: u64, encoded in 0u32..=99, decoded in 0u32..=99, datasets in prop::collection::vec((1u32.., 1u64..1 << 30), 1..5),
        ) {
            prop_assume!(encoded + decoded < 100);
            let split = Split::new(encoded, decoded, 100 - encoded - decoded);
            let options = ShelfOptions { memory, split, window: 0.5 };
            let (kept, [first, second]) = options.kept();
            let shared_out = if encoded + decoded == 0 { 0 } else { 100 };
            prop_assert_eq!(first + second, shared_out);
            let mut taken = 0;
            for (samples, row) in datasets {
                taken += options.window_bytes(samples, row, taken);
            }
            prop_assert!(u128::from(kept) + u128::from(taken) <= u128::from(memory));
        }
    }
}
