//! What the ranks of a job have done together.
//!
//! Where batches are filled as samples get ready, each rank has done some of its own share and left gaps in it. So the
//! rest of the epoch is known only from the books of all ranks. Put together they are one book over the places of the
//! epoch's sequence, and what it has left can be dealt out over any number of ranks ([`EpochPlan::dealt_anew`]).

use crate::{EpochPlan, JobCursor, JobSpec, Ledger, LedgerError, Permutation, Shard};

/// The places of an epoch's sequence that a job has done: those in `before`, when the rest was last dealt out, and
/// those that its ranks have done since, each in positions of its own share.
///
/// # Errors
/// When a rank has done positions that its share does not have.
pub fn done_by_ranks(
    permutation: &Permutation,
    cursor: JobCursor,
    before: Option<&Ledger>,
    ranks: &[Ledger],
) -> Result<Ledger, LedgerError> {
    let len = permutation.len();
    let mut books = Vec::with_capacity(ranks.len() + 1);
    books.extend(before.map(Ledger::save));
    for (rank, done) in ranks.iter().enumerate() {
        let shard = Shard::new(rank as u32, ranks.len() as u32)
            .map_err(|_| LedgerError::Damaged("it is of a rank that the job does not have"))?;
        // Neither decides where a position lies, only how many there are: no rank had more than with these.
        let spec = JobSpec { batch_size: 1, drop_last: false, shard };
        let plan = match before {
            Some(before) => EpochPlan::dealt_anew(permutation.clone(), before, &spec, cursor),
            None => EpochPlan::new(permutation.clone(), &spec, cursor),
        }
        .map_err(|_| LedgerError::Damaged("its epoch cannot be planned"))?;
        if let Some(position) = done.done().find(|&position| u64::from(position) >= plan.positions()) {
            return Err(LedgerError::OutOfRange { position, len: plan.positions() as u32 });
        }
        let places = done.done().map(|position| plan.place(position) as u32);
        books.push(Ledger::with_served(len, places).save());
    }
    Ledger::union(&books)
}

/// The places of an epoch's sequence whose samples are in a book, for jobs that keep their books by sample.
#[must_use]
pub fn places_of(permutation: &Permutation, samples: &Ledger) -> Ledger {
    let is_done = |&place: &u32| samples.is_done(permutation.sample_at(place).0);
    Ledger::with_served(permutation.len(), (0..permutation.len()).filter(is_done))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::SampleId;

    const EPOCH: u32 = 3;

    fn plan(n: u32, rank: u32, world: u32, consumed: u64, before: Option<&Ledger>) -> EpochPlan {
        let spec = JobSpec { batch_size: 1, drop_last: false, shard: Shard::new(rank, world).unwrap() };
        let permutation = Permutation::shuffled(n, 5, EPOCH);
        let cursor = JobCursor { epoch: EPOCH, consumed };
        match before {
            Some(before) => EpochPlan::dealt_anew(permutation, before, &spec, cursor).unwrap(),
            None => EpochPlan::new(permutation, &spec, cursor).unwrap(),
        }
    }

    proptest! {
        /// Exactly once over a whole job that goes on with another number of ranks, again and again: each time every
        /// rank serves some of its share, in any order.
        #[test]
        fn the_rest_with_gaps_is_dealt_out_over_any_number_of_ranks(
            n in 1u32..120, consumed in 0u64..30,
            worlds in prop::collection::vec((1u32..7, any::<u64>()), 1..5), last in 1u32..7,
        ) {
            let permutation = Permutation::shuffled(n, 5, EPOCH);
            let consumed = consumed.min(u64::from(n) - 1);
            let cursor = JobCursor { epoch: EPOCH, consumed };
            let mut counts = vec![0u32; n as usize];
            for place in 0..consumed as u32 {
                counts[permutation.sample_at(place).index()] += 1;
            }
            let mut before: Option<Ledger> = None;
            let mut padding_max = 0;
            for (world, choice) in worlds {
                padding_max += world - 1;
                let ranks: Vec<Ledger> = (0..world).map(|rank| {
                    let plan = plan(n, rank, world, consumed, before.as_ref());
                    let share = plan.positions() as u32;
                    // As many on every rank, and never the last: then the epoch would be over.
                    let steps = (choice % u64::from(share)) as u32;
                    let order = Permutation::shuffled(share, choice, rank);
                    let done: Vec<u32> = (0..steps).map(|step| order.sample_at(step).0).collect();
                    for &position in &done {
                        counts[plan.sample(u64::from(position)).index()] += 1;
                    }
                    Ledger::with_served(share, done)
                }).collect();
                let done = done_by_ranks(&permutation, cursor, before.as_ref(), &ranks).unwrap();
                for place in consumed as u32..n {
                    let served = counts[permutation.sample_at(place).index()] > 0;
                    prop_assert_eq!(done.is_done(place), served);
                }
                before = Some(done);
            }
            let shares: Vec<u64> = (0..last).map(|rank| plan(n, rank, last, consumed, before.as_ref()).positions()).collect();
            prop_assert!(shares.windows(2).all(|pair| pair[0] == pair[1]), "ranks differ: {:?}", shares);
            for rank in 0..last {
                let plan = plan(n, rank, last, consumed, before.as_ref());
                for step in 0..plan.steps() {
                    counts[plan.sample(step).index()] += 1;
                }
            }
            prop_assert!(counts.iter().all(|&count| count >= 1));
            prop_assert!(counts.iter().sum::<u32>() - n < padding_max + last);
        }

        /// A book by samples says the same as one by places.
        #[test]
        fn samples_have_places(done in prop::collection::vec(any::<bool>(), 1..80)) {
            let n = done.len() as u32;
            let permutation = Permutation::shuffled(n, 9, 0);
            let samples = Ledger::with_served(n, (0..n).filter(|&sample| done[sample as usize]));
            let places = places_of(&permutation, &samples);
            for place in 0..n {
                let SampleId(sample) = permutation.sample_at(place);
                prop_assert_eq!(places.is_done(place), done[sample as usize]);
            }
        }
    }

    #[test]
    fn a_book_that_is_longer_than_its_share_is_refused() {
        let permutation = Permutation::identity(10);
        let ranks = [Ledger::with_served(8, [7]), Ledger::new(5)];
        let refused = done_by_ranks(&permutation, JobCursor::start_of(0), None, &ranks);
        assert_eq!(refused, Err(LedgerError::OutOfRange { position: 7, len: 5 }));
    }
}
