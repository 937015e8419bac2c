//! Which batch a sample goes into when batches are filled with whatever is ready.
//!
//! A sample is given its row at the last moment, when all that is left is to write it there. So a slow one holds no row
//! while it is slow, and the batch it would have been in leaves without it. How late it may get is bounded: a step of
//! the epoch whose own batch is `n` is in batch `n + lateness` at the latest. The bound is kept by holding rows back.
//! While some steps must still go into one of the batches up to `k`, as many rows of these batches are not for others.

use std::collections::VecDeque;

/// A row of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The batch's number in the run.
    pub batch: u64,
    /// The row in it.
    pub row: u32,
}

/// The rows of a run's batches, given to its steps as they get ready.
#[derive(Clone, Debug)]
pub struct Assembly {
    batch_size: u32,
    lateness: u64,
    /// How many steps there are as far as is known. More come in whole batches.
    steps: u64,
    /// The first batch that has not left.
    front: u64,
    /// How many rows of each batch are taken, from the front on.
    taken: VecDeque<u32>,
    /// The first batch of which a step has no row yet, and how many have none in this one and those after it. Batches
    /// that are not in the list have none placed.
    oldest: u64,
    unplaced: VecDeque<u32>,
}

impl Assembly {
    /// The rows for `steps` steps in batches of `batch_size`. A step may be `lateness` batches late.
    #[must_use]
    pub fn new(batch_size: u32, lateness: u32, steps: u64) -> Self {
        Self {
            batch_size: batch_size.max(1),
            lateness: u64::from(lateness),
            steps,
            front: 0,
            taken: VecDeque::new(),
            oldest: 0,
            unplaced: VecDeque::new(),
        }
    }

    /// There are more steps than was known: `steps` in all. Those known before must have filled their last batch.
    pub fn extend(&mut self, steps: u64) {
        debug_assert!(self.steps == steps || self.steps.is_multiple_of(u64::from(self.batch_size)));
        self.steps = self.steps.max(steps);
    }

    /// How many rows a batch has.
    #[must_use]
    pub fn rows(&self, batch: u64) -> u32 {
        let start = batch.saturating_mul(u64::from(self.batch_size));
        self.steps.saturating_sub(start).min(u64::from(self.batch_size)) as u32
    }

    /// Gives a step its row; each step may ask once.
    pub fn place(&mut self, step: u64) -> Place {
        let own = step / u64::from(self.batch_size);
        let batch = self.choose(own);
        self.note_placed(own);
        let index = (batch - self.front) as usize;
        while self.taken.len() <= index {
            self.taken.push_back(0);
        }
        let row = self.taken[index];
        self.taken[index] += 1;
        Place { batch, row }
    }

    /// The front batch is full and has left.
    pub fn leave(&mut self) {
        self.taken.pop_front();
        self.front += 1;
    }

    /// The first batch with a row for a step of batch `own`, such that enough rows stay free for all that are due
    /// earlier.
    fn choose(&self, own: u64) -> u64 {
        let due = own + self.lateness;
        let mut chosen = None;
        let (mut free_so_far, mut due_so_far, mut counted) = (0u64, 0u64, self.oldest);
        let mut batch = self.front;
        loop {
            let taken = self.taken.get((batch - self.front) as usize).copied();
            let free = self.rows(batch) - taken.unwrap_or(0);
            if free > 0 {
                chosen = chosen.or(Some(batch));
            }
            if batch >= due {
                // Rows were held back for this one.
                return chosen.unwrap_or(batch);
            }
            free_so_far += u64::from(free);
            while counted + self.lateness <= batch {
                due_so_far += u64::from(self.unplaced_of(counted));
                counted += 1;
            }
            if free_so_far <= due_so_far {
                chosen = None;
            }
            // Later batches are untouched: each has as many rows as steps that can become due with it.
            if let (None, Some(chosen)) = (taken, chosen) {
                return chosen;
            }
            batch += 1;
        }
    }

    fn unplaced_of(&self, batch: u64) -> u32 {
        match self.unplaced.get((batch - self.oldest) as usize) {
            Some(&count) => count,
            None => self.rows(batch),
        }
    }

    fn note_placed(&mut self, own: u64) {
        let index = (own - self.oldest) as usize;
        while self.unplaced.len() <= index {
            let count = self.rows(self.oldest + self.unplaced.len() as u64);
            self.unplaced.push_back(count);
        }
        self.unplaced[index] -= 1;
        while self.unplaced.front() == Some(&0) {
            self.unplaced.pop_front();
            self.oldest += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs an epoch: `ahead` batches may be in the making, and `pick` says which of the steps in hand gets ready next.
    fn run(
        steps: u64,
        batch_size: u32,
        lateness: u32,
        ahead: u64,
        mut pick: impl FnMut(&[u64]) -> usize,
    ) -> Vec<Vec<u64>> {
        let mut assembly = Assembly::new(batch_size, lateness, steps);
        let batches = steps.div_ceil(u64::from(batch_size));
        let mut filled: Vec<Vec<Option<u64>>> =
            (0..batches).map(|k| vec![None; assembly.rows(k) as usize]).collect();
        let (mut leased, mut in_hand, mut front) = (0, Vec::new(), 0);
        while front < batches {
            while leased < steps.min((front + ahead) * u64::from(batch_size)) {
                in_hand.push(leased);
                leased += 1;
            }
            let step = in_hand.remove(pick(&in_hand));
            let place = assembly.place(step);
            assert!(place.batch < front + ahead, "no memory for batch {}", place.batch);
            let cell = &mut filled[place.batch as usize][place.row as usize];
            assert_eq!(*cell, None, "two steps in one row");
            *cell = Some(step);
            while front < batches && filled[front as usize].iter().all(Option::is_some) {
                assembly.leave();
                front += 1;
            }
        }
        filled.into_iter().map(|batch| batch.into_iter().flatten().collect()).collect()
    }

    proptest! {
        /// Exactly once, and never later than the bound, whatever gets ready when.
        #[test]
        fn every_step_has_one_row_and_none_is_too_late(
            steps in 1u64..200, batch_size in 1u32..12, lateness in 0u32..6, ahead in 1u64..6,
            picks in prop::collection::vec(any::<prop::sample::Index>(), 200),
            lazy in 0u8..3,
        ) {
            let mut turn = 0;
            let batches = run(steps, batch_size, lateness, ahead, |in_hand| {
                turn += 1;
                match lazy {
                    0 => picks[turn - 1].index(in_hand.len()),
                    // Adversaries: always the youngest, or the youngest but now and then the oldest.
                    1 => in_hand.len() - 1,
                    _ => if picks[turn - 1].index(4) == 0 { 0 } else { in_hand.len() - 1 },
                }
            });
            let mut seen: Vec<u64> = batches.iter().flatten().copied().collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..steps).collect::<Vec<_>>());
            for (index, batch) in batches.iter().enumerate() {
                for step in batch {
                    prop_assert!(index as u64 <= step / u64::from(batch_size) + u64::from(lateness));
                }
            }
        }

        /// A run that grows while it is under way gives the same rows as one that is known from the start.
        #[test]
        fn growing_makes_no_difference(batches in 1u64..12, batch_size in 1u32..6, rest in 0u32..6, lateness in 0u32..4) {
            let steps = batches * u64::from(batch_size) + u64::from(rest % batch_size);
            let mut whole = Assembly::new(batch_size, lateness, steps);
            let mut growing = Assembly::new(batch_size, lateness, u64::from(batch_size));
            for step in 0..steps {
                growing.extend(steps.min((step / u64::from(batch_size) + 2) * u64::from(batch_size)));
                prop_assert_eq!(whole.place(step), growing.place(step));
            }
        }
    }

    #[test]
    fn what_is_ready_in_order_stays_in_order() {
        let batches = run(10, 4, 8, 2, |_| 0);
        assert_eq!(batches, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
    }

    #[test]
    fn a_slow_sample_holds_up_no_batch_before_its_bound() {
        // Step 0 gets ready when nothing else is left to do.
        let last = |in_hand: &[u64]| usize::from(in_hand.len() > 1);
        let batches = run(12, 2, 2, 6, last);
        assert_eq!(batches[..3], [vec![1, 2], vec![3, 4], vec![5, 0]]);
    }
}
