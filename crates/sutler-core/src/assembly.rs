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
    /// The batches by which the first steps are due, where an earlier run has left them behind; in whole batches of steps.
    owed: Vec<u64>,
    /// The first batch that has not left.
    front: u64,
    /// How many rows of each batch are taken, from the front on.
    taken: VecDeque<u32>,
    /// The first batch by which a step is due that has no row yet, and how many of those that are due by this one, and by those after it,
    /// have one. Batches that are not in the list have none.
    oldest: u64,
    placed: VecDeque<u32>,
}

impl Assembly {
    /// The rows for `steps` steps in batches of `batch_size`. A step may be `lateness` batches late.
    #[must_use]
    pub fn new(batch_size: u32, lateness: u32, steps: u64) -> Self {
        Self {
            batch_size: batch_size.max(1),
            lateness: u64::from(lateness),
            steps,
            owed: Vec::new(),
            front: 0,
            taken: VecDeque::new(),
            oldest: 0,
            placed: VecDeque::new(),
        }
    }

    /// The same after a resume: how many batches from now the own batches of the first steps are, or ago if less than none.
    #[must_use]
    pub fn owing(mut self, own: &[i64]) -> Self {
        let size = u64::from(self.batch_size);
        let lateness = i64::try_from(self.lateness).unwrap_or(i64::MAX);
        self.owed = Vec::with_capacity(own.len().next_multiple_of(size as usize));
        for (step, own) in (0u64..).zip(own) {
            // Batches of another size, or another bound than before, may not have the rows for all that is due.
            let possible = step / size;
            self.owed.push(u64::try_from(own.saturating_add(lateness)).unwrap_or(0).max(possible));
        }
        let whole = own.len().next_multiple_of(size as usize) as u64;
        self.owed.extend((own.len() as u64..whole).map(|step| step / size + self.lateness));
        self
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
        let due = self.due(step);
        let batch = self.choose(due);
        self.note_placed(due);
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

    /// The batch that a step is in at the latest.
    fn due(&self, step: u64) -> u64 {
        let usually = step / u64::from(self.batch_size) + self.lateness;
        self.owed.get(step as usize).copied().unwrap_or(usually)
    }

    /// How many of the steps that are known are due by a batch and not by the one before it.
    fn due_by(&self, batch: u64) -> u32 {
        let whole_batches = self.owed.len() as u64 / u64::from(self.batch_size);
        let usual = batch.checked_sub(self.lateness).filter(|&own| own >= whole_batches);
        let known = &self.owed[..self.owed.len().min(self.steps as usize)];
        let owed = known.partition_point(|&due| due <= batch) - known.partition_point(|&due| due < batch);
        usual.map_or(0, |own| self.rows(own)) + owed as u32
    }

    /// Whether every step that is due by a batch is known.
    fn is_known(&self, batch: u64) -> bool {
        self.owed.get(self.steps as usize).is_none_or(|&due| due > batch)
    }

    /// The first batch with a row for a step that is due by batch `due`, such that enough rows stay free for all that are due
    /// earlier.
    fn choose(&self, due: u64) -> u64 {
        let mut chosen = None;
        let (mut free_so_far, mut due_so_far, mut counted) = (0u64, 0u64, self.oldest);
        let last_owed = self.owed.last().copied().unwrap_or(0);
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
            while counted <= batch {
                due_so_far += u64::from(self.unplaced(counted));
                counted += 1;
            }
            if free_so_far <= due_so_far {
                chosen = None;
            }
            // Later batches are untouched: each has as many rows as steps that can become due with it.
            if let (None, Some(chosen)) = (taken, chosen)
                && batch >= last_owed
            {
                return chosen;
            }
            batch += 1;
        }
    }

    /// How many steps that are due by a batch have no row yet.
    fn unplaced(&self, batch: u64) -> u32 {
        self.due_by(batch) - self.placed.get((batch - self.oldest) as usize).copied().unwrap_or(0)
    }

    fn note_placed(&mut self, due: u64) {
        let index = (due - self.oldest) as usize;
        if self.placed.len() <= index {
            self.placed.resize(index + 1, 0);
        }
        self.placed[index] += 1;
        while let Some(&placed) = self.placed.front()
            && placed == self.due_by(self.oldest)
            && self.is_known(self.oldest)
        {
            self.placed.pop_front();
            self.oldest += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{EpochPlan, JobCursor, JobSpec, Ledger, Permutation, Shard};

    /// Runs an epoch: `ahead` batches may be in the making, and `pick` says which of the steps in hand gets ready next.
    fn run(
        steps: u64,
        batch_size: u32,
        lateness: u32,
        ahead: u64,
        pick: impl FnMut(&[u64]) -> usize,
    ) -> Vec<Vec<u64>> {
        let batches = steps.div_ceil(u64::from(batch_size));
        run_until(Assembly::new(batch_size, lateness, steps), batches, ahead, pick)
    }

    /// The same until so many batches have left; what is in those that have not is not told.
    fn run_until(
        mut assembly: Assembly,
        stop: u64,
        ahead: u64,
        mut pick: impl FnMut(&[u64]) -> usize,
    ) -> Vec<Vec<u64>> {
        let (steps, batch_size) = (assembly.steps, assembly.batch_size);
        let batches = steps.div_ceil(u64::from(batch_size));
        let mut filled: Vec<Vec<Option<u64>>> =
            (0..batches).map(|k| vec![None; assembly.rows(k) as usize]).collect();
        let (mut leased, mut in_hand, mut front) = (0, Vec::new(), 0);
        while front < stop {
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
        filled.truncate(stop as usize);
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

        /// The bound is the epoch's, however often it is resumed, and also where samples are drawn bit by bit.
        #[test]
        fn none_is_later_for_resumes(
            steps in 1u32..120, batch_size in 1u32..9, lateness in 0u32..6, ahead in 1u64..6,
            stops in prop::collection::vec(1u64..6, 0..8), drawn: bool,
            picks in prop::collection::vec(any::<prop::sample::Index>(), 64),
        ) {
            let batches = u64::from(steps.div_ceil(batch_size));
            let mut done = Ledger::new(steps);
            let mut served: Vec<Vec<u32>> = Vec::new();
            let mut turn = 0;
            for stop in stops.into_iter().chain([u64::MAX]) {
                let spec = JobSpec { batch_size, drop_last: false, shard: Shard::WHOLE };
                let plan = EpochPlan::new(Permutation::identity(steps), &spec, JobCursor::start_of(0)).unwrap();
                let plan = plan.without(done.clone());
                let assembly = Assembly::new(batch_size, lateness, if drawn { 0 } else { plan.steps() });
                let mut assembly = assembly.owing(&plan.owed());
                assembly.extend(plan.steps());
                let stop = stop.min(batches - served.len() as u64);
                let rest = run_until(assembly, stop, ahead, |in_hand| {
                    turn += 1;
                    // Mostly the youngest, so that the oldest are put off for as long as can be.
                    let pick = picks[turn % picks.len()];
                    if pick.index(3) == 0 { pick.index(in_hand.len()) } else { in_hand.len() - 1 }
                });
                for batch in rest {
                    let positions: Vec<u32> = batch.iter().map(|&step| plan.position(step)).collect();
                    for &position in &positions {
                        done.lease(position).unwrap();
                        done.serve(position).unwrap();
                    }
                    served.push(positions);
                }
            }
            prop_assert!(done.is_complete());
            for (index, batch) in served.iter().enumerate() {
                for position in batch {
                    prop_assert!(index as u32 <= position / batch_size + lateness, "{served:?}");
                }
            }
        }

        /// Another size of batches or another bound after a resume may make it impossible to keep; rows are given all the same.
        #[test]
        fn what_cannot_be_kept_is_served_as_soon_as_can_be(
            own in prop::collection::vec(-20i64..20, 0..60), batch_size in 1u32..9, lateness in 0u32..6, ahead in 1u64..6, more in 0u64..30,
            picks in prop::collection::vec(any::<prop::sample::Index>(), 100),
        ) {
            let mut own = own;
            own.sort_unstable();
            let own: Vec<i64> = (0i64..).zip(own).map(|(step, own)| own.min(step / i64::from(batch_size))).collect();
            let steps = own.len() as u64 + more;
            let batches = steps.div_ceil(u64::from(batch_size));
            let mut turn = 0;
            let assembly = Assembly::new(batch_size, lateness, steps).owing(&own);
            let served = run_until(assembly, batches, ahead, |in_hand| {
                turn += 1;
                picks[turn % picks.len()].index(in_hand.len())
            });
            let mut seen: Vec<u64> = served.concat();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..steps).collect::<Vec<_>>());
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
