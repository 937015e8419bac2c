//! Memory that goes from batch to batch: fresh memory from the system would cost more than filling it.

use std::sync::{Mutex, PoisonError};

/// Vectors that nobody needs at the moment.
#[derive(Debug)]
pub(crate) struct Reused<T> {
    /// Taken and brought back once for each sample or batch, by workers and by the consumer.
    kept: Mutex<Vec<Vec<T>>>,
    /// More are not kept.
    count_max: usize,
}

impl<T: Clone + Default> Reused<T> {
    pub fn new(count_max: usize) -> Self {
        Self { kept: Mutex::default(), count_max }
    }

    /// Room for so many values, of any content: the smallest that is large enough, or else the largest; `None` where the system
    /// has no memory for it.
    pub fn take(&self, values: usize) -> Option<Vec<T>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let best = (0..kept.len()).min_by_key(|&index| {
            let capacity = kept[index].capacity();
            if capacity >= values { (false, capacity) } else { (true, usize::MAX - capacity) }
        });
        let mut taken = best.map(|index| kept.swap_remove(index)).unwrap_or_default();
        drop(kept);
        taken.try_reserve_exact(values.saturating_sub(taken.len())).ok()?;
        taken.resize(values, T::default());
        Some(taken)
    }

    /// It is not needed any more.
    pub fn give_back(&self, values: Vec<T>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < self.count_max {
            kept.push(values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_fit_is_taken_and_no_more_are_kept_than_allowed() {
        let reused = Reused::<u8>::new(2);
        for capacity in [100, 10, 1000] {
            reused.give_back(Vec::with_capacity(capacity));
        }
        let capacity = |values| reused.take(values).map(|taken| taken.capacity());
        assert_eq!((capacity(50), capacity(5)), (Some(100), Some(10)));
        assert_eq!(reused.take(5).map(|taken| taken.len()), Some(5));
        assert_eq!(reused.take(usize::MAX / 2), None, "more than there is");
    }
}
