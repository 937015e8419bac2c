//! One byte budget, split over the forms.

use serde::{Deserialize, Serialize};

use crate::Form;

/// How many bytes each form may take, and how many the shared window.
///
/// The four add up to the budget that the user gave; there is no other memory for samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// For samples as they were stored.
    pub encoded_bytes: u64,
    /// For samples after every transform that draws no random number.
    pub decoded_bytes: u64,
    /// For samples after all transforms that stay here until someone takes them.
    pub augmented_bytes: u64,
    /// For prepared samples on their way to several jobs.
    pub window_bytes: u64,
}

/// Shares that are no split of a budget.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PartitionError {
    /// The shares of the forms are percentages of what the window leaves.
    #[error(
        "the shares {encoded}-{decoded}-{augmented} add up to {sum} percent, more than the 100 there are"
    )]
    MoreThanWhole {
        /// Percent for encoded samples.
        encoded: u32,
        /// Percent for decoded samples.
        decoded: u32,
        /// Percent for augmented samples.
        augmented: u32,
        /// What they add up to.
        sum: u64,
    },
    /// The window is part of the budget.
    #[error(
        "the shared window asks for {window_bytes} bytes of a budget of {budget_bytes}; give it less, or raise the budget"
    )]
    WindowTooLarge {
        /// What the window asks for.
        window_bytes: u64,
        /// What there is.
        budget_bytes: u64,
    },
}

impl Partition {
    /// Gives the window its bytes and splits what is left by percent: encoded, decoded, augmented.
    ///
    /// Shares are rounded down to whole bytes, so that together they never pass the budget.
    ///
    /// # Errors
    /// When the percentages add up to more than 100, or the window is larger than the budget.
    pub fn of_percent(
        budget_bytes: u64,
        window_bytes: u64,
        [encoded, decoded, augmented]: [u32; 3],
    ) -> Result<Self, PartitionError> {
        let sum = u64::from(encoded) + u64::from(decoded) + u64::from(augmented);
        if sum > 100 {
            return Err(PartitionError::MoreThanWhole { encoded, decoded, augmented, sum });
        }
        let rest = budget_bytes
            .checked_sub(window_bytes)
            .ok_or(PartitionError::WindowTooLarge { window_bytes, budget_bytes })?;
        let share = |percent: u32| (u128::from(rest) * u128::from(percent) / 100) as u64;
        Ok(Self {
            encoded_bytes: share(encoded),
            decoded_bytes: share(decoded),
            augmented_bytes: share(augmented),
            window_bytes,
        })
    }

    /// All shares together.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        [self.encoded_bytes, self.decoded_bytes, self.augmented_bytes, self.window_bytes]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// The share of one form. Samples in storage take no memory.
    #[must_use]
    pub fn bytes_of(&self, form: Form) -> u64 {
        match form {
            Form::Storage => 0,
            Form::Encoded => self.encoded_bytes,
            Form::Decoded => self.decoded_bytes,
            Form::Augmented => self.augmented_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shares_never_pass_the_budget(budget: u64, window: u64, encoded in 0u32..=100, decoded in 0u32..=100, augmented in 0u32..=100) {
            match Partition::of_percent(budget, window, [encoded, decoded, augmented]) {
                Ok(partition) => {
                    prop_assert!(partition.total_bytes() <= budget);
                    prop_assert_eq!(partition.window_bytes, window);
                    prop_assert!(encoded + decoded + augmented <= 100);
                    // Whoever asks for all of it gets it, but for one byte per rounding.
                    if encoded + decoded + augmented == 100 {
                        prop_assert!(budget - partition.total_bytes() <= 2);
                    }
                }
                Err(PartitionError::MoreThanWhole { .. }) => prop_assert!(encoded + decoded + augmented > 100),
                Err(PartitionError::WindowTooLarge { .. }) => prop_assert!(window > budget),
            }
        }
    }

    #[test]
    fn impossible_shares_are_explained() {
        assert_eq!(
            Partition::of_percent(100, 0, [60, 40, 1]).unwrap_err().to_string(),
            "the shares 60-40-1 add up to 101 percent, more than the 100 there are"
        );
        assert_eq!(
            Partition::of_percent(100, 101, [0, 0, 0]).unwrap_err().to_string(),
            "the shared window asks for 101 bytes of a budget of 100; give it less, or raise the budget"
        );
    }
}
