//! How many batches are prepared ahead, and when they are too few.
//!
//! A slow sample can be begun as early as its batch is prepared ahead. Where it takes longer than the trainer does for
//! as many batches, its batch is waited for, however many workers have nothing to do meanwhile: more batches ahead
//! would have given them something, and the sample an earlier start. So that is when the number grows, and the only
//! time: the trainer waits, and a worker finds nothing to begin because all batches that may be in the making are.
//!
//! It does not shrink again while batches stay as large as they are: what was too few once would be too few at the next
//! such sample. What it costs is bounded twice, by [`FACTOR`] and by [`EXTRA_BYTES`].

/// How many times as many batches as in the beginning are prepared ahead at most.
const FACTOR: usize = 4;

/// How many bytes the batches beyond those of the beginning take at most.
const EXTRA_BYTES: u64 = 512 << 20;

/// By which part of themselves the batches ahead become more at a time: few steps to where they are enough, and not far
/// beyond.
const STEP: usize = 4;

/// How many batches are prepared ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    start: usize,
    now: usize,
    grows: bool,
    /// The bytes of the largest batch that was delivered.
    largest: u64,
    /// Whether a batch was delivered since it grew last.
    settled: bool,
}

impl Depth {
    /// So many batches, at least one, and never more.
    #[must_use]
    pub fn fixed(batches: usize) -> Self {
        let start = batches.max(1);
        Self { start, now: start, grows: false, largest: 0, settled: false }
    }

    /// So many batches, at least one, and more where they are too few.
    #[must_use]
    pub fn growing(batches: usize) -> Self {
        Self { grows: true, ..Self::fixed(batches) }
    }

    /// How many batches there may ever be if each has so many bytes. What takes no memory that is known of might take
    /// any amount of it, so there are no more of those than in the beginning.
    #[must_use]
    pub fn most(&self, batch_bytes: u64) -> usize {
        let affordable = EXTRA_BYTES.checked_div(batch_bytes).unwrap_or(0);
        let extra = usize::try_from(affordable).unwrap_or(usize::MAX);
        let extra = if self.grows { extra.min(self.start.saturating_mul(FACTOR - 1)) } else { 0 };
        self.start.saturating_add(extra)
    }

    /// How many batches may be in the making now, or wait to be taken.
    #[must_use]
    pub fn batches(&self) -> usize {
        // Batches may have become larger since it grew.
        self.now.min(self.most(self.largest))
    }

    /// A batch of so many bytes was delivered.
    pub fn deliver(&mut self, bytes: u64) {
        self.largest = self.largest.max(bytes);
        self.settled = true;
    }

    /// The trainer waits while a worker has nothing to begin, as all batches that may be in the making are. True when
    /// there may be more from now on: not where it has grown since the latest batch was delivered, since that may have
    /// been enough.
    pub fn grow(&mut self) -> bool {
        let batches = self.batches();
        let more = batches.saturating_add((batches / STEP).max(1)).min(self.most(self.largest));
        if !self.settled || more <= batches {
            return false;
        }
        self.now = more;
        self.settled = false;
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What happens to a job: a batch of some size is delivered, or it is waited for with the row full.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Delivered(u64),
        Waited,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let size = prop_oneof![Just(0u64), 1u64..10_000, 1u64 << 20..1 << 30, any::<u64>()];
        let event = prop_oneof![size.prop_map(Event::Delivered), Just(Event::Waited)];
        prop::collection::vec(event, 0..60)
    }

    proptest! {
        /// Whatever happens: never fewer than in the beginning, never more than both bounds allow, and more only when
        /// somebody waited, once for each batch that was delivered.
        #[test]
        fn it_stays_within_its_bounds_and_grows_once_for_a_batch(
            start in prop_oneof![0usize..40, any::<usize>()], grows: bool, events in events(),
        ) {
            let mut depth = if grows { Depth::growing(start) } else { Depth::fixed(start) };
            let start = start.max(1);
            let (mut largest, mut delivered, mut grown) = (0, 0, 0);
            for event in events {
                let before = depth.batches();
                match event {
                    Event::Delivered(bytes) => {
                        depth.deliver(bytes);
                        largest = largest.max(bytes);
                        delivered += 1;
                        prop_assert!(depth.batches() <= before || largest == bytes, "nobody has waited");
                    }
                    Event::Waited => {
                        let more = depth.grow();
                        prop_assert_eq!(more, depth.batches() > before);
                        grown += u32::from(more);
                    }
                }
                let now = depth.batches();
                prop_assert!(now >= start && now <= start.saturating_mul(FACTOR));
                prop_assert!((now - start) as u128 * u128::from(largest) <= u128::from(EXTRA_BYTES));
                prop_assert!(grown <= delivered && (grows || now == start));
                prop_assert!(now <= depth.most(largest), "more than memory was kept for");
            }
        }
    }

    #[test]
    fn it_comes_to_its_bound_in_a_few_steps() {
        let mut depth = Depth::growing(32);
        assert!(!depth.grow(), "nothing was delivered");
        let mut steps = vec![depth.batches()];
        for _ in 0..9 {
            depth.deliver(1000);
            depth.grow();
            assert!(!depth.grow(), "once for each batch");
            steps.push(depth.batches());
        }
        assert_eq!(steps, [32, 40, 50, 62, 77, 96, 120, 128, 128, 128]);
    }

    #[test]
    fn large_batches_are_not_many() {
        let mut depth = Depth::growing(8);
        assert_eq!((depth.most(100 << 20), depth.most(1 << 30), depth.most(0)), (13, 8, 8));
        (0..20).for_each(|_| {
            depth.deliver(10 << 20);
            depth.grow();
        });
        assert_eq!(depth.batches(), 32);
        depth.deliver(100 << 20);
        assert_eq!(depth.batches(), 13, "later ones are larger");
    }
}
