//! Whose turn it is to prepare a batch, where workers take turns.
//!
//! Most datasets do not care which worker is asked for a sample, and so whoever is free is. A dataset that has a state of
//! its own does: what a worker's copy has come to depends on what it was asked for. There batches go round, so that
//! every worker has the same ones in every run, and what its copy has come to after a batch follows from the order alone.

/// Workers that take batches in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rota {
    workers: usize,
    first: usize,
}

impl Rota {
    /// So many workers, of which this one has the first batch. Without any, as with one, all batches are the same worker's.
    #[must_use]
    pub fn new(workers: usize, first: usize) -> Self {
        let workers = workers.max(1);
        Self { workers, first: first % workers }
    }

    /// Who prepares a batch, counted from the first one that is prepared.
    #[must_use]
    pub fn worker(&self, batch: u64) -> usize {
        let round = usize::try_from(batch % self.workers as u64).expect("it is less than a usize");
        (self.first + round) % self.workers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn batches_go_round() {
        let rota = Rota::new(3, 1);
        assert_eq!((0..7).map(|batch| rota.worker(batch)).collect::<Vec<_>>(), [1, 2, 0, 1, 2, 0, 1]);
    }

    proptest! {
        #[test]
        fn whoever_goes_on_later_gives_each_worker_the_same_batches(
            workers in 1_usize..40, first in 0_usize..100, done in 0_u64..1_000_000, later in 0_u64..1_000_000,
        ) {
            let all = Rota::new(workers, first);
            let rest = Rota::new(workers, all.worker(done));
            prop_assert_eq!(all.worker(done + later), rest.worker(later));
        }

        #[test]
        fn each_worker_has_one_batch_of_every_round(workers in 1_usize..40, first in 0_usize..100, round in 0_u64..1000) {
            let rota = Rota::new(workers, first);
            let begin = round * workers as u64;
            let mut asked: Vec<usize> = (begin..begin + workers as u64).map(|batch| rota.worker(batch)).collect();
            asked.sort_unstable();
            prop_assert_eq!(asked, (0..workers).collect::<Vec<_>>());
        }
    }
}
