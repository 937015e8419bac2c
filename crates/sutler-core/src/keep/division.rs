//! One byte budget for several datasets.

/// Divides a budget over datasets in proportion to what each could use, so that the same part of each is kept: a sample of one is then as likely to
/// be read again as a sample of any other. Shares are rounded down to whole bytes, so that together they never pass the budget.
///
/// A dataset that nothing is known of yet, which says 0, gets nothing unless that goes for all of them.
#[must_use]
pub fn divide(budget_bytes: u64, usable_bytes: &[u64]) -> Vec<u64> {
    let all: u128 = usable_bytes.iter().map(|&bytes| u128::from(bytes)).sum();
    let share = |&bytes: &u64| match all {
        0 => budget_bytes / usable_bytes.len() as u64,
        all => (u128::from(budget_bytes) * u128::from(bytes) / all) as u64,
    };
    usable_bytes.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn all_of_the_budget_is_given_out_and_no_more(budget: u64, usable in prop::collection::vec(any::<u64>(), 0..12)) {
            let shares = divide(budget, &usable);
            let all: u128 = shares.iter().map(|&share| u128::from(share)).sum();
            prop_assert!(all <= u128::from(budget));
            prop_assert!(usable.is_empty() || u128::from(budget) - all < usable.len() as u128);
            // Whoever could use more gets no less.
            for (one, other) in (0..usable.len()).flat_map(|one| (0..one).map(move |other| (one, other))) {
                prop_assert!((usable[one] < usable[other]) || shares[one] >= shares[other]);
            }
        }
    }

    #[test]
    fn one_dataset_gets_everything_and_equal_ones_get_equal_parts() {
        assert_eq!(divide(1_000, &[7]), [1_000]);
        assert_eq!(divide(1_000, &[0]), [1_000]);
        assert_eq!(divide(1_000, &[50, 50]), [500, 500]);
        assert_eq!(divide(1_000, &[10, 90]), [100, 900]);
    }
}
