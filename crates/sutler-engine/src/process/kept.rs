//! What a cache has of the samples that worker processes are asked for, and what it takes from them.
//!
//! The cache is the trainer's, in memory that the workers have mapped to read. For every sample of an order we look the
//! copy up, hold it until the order is answered, and tell the worker where it begins; the worker copies and verifies it.
//! So a hit costs the trainer a look, and a worker may be killed at any moment: it holds nothing. A worker that had to
//! prepare a sample leaves what it prepared in its mailbox, and we put it into the cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sutler_core::{Form, SampleId};
use sutler_store::cache::{Cache, Held, Offer};

/// The mark of a sample that is not kept, and need not be left for us.
const NOT_KEPT: u32 = 0;

/// The mark of a sample whose prepared part the worker is to leave for us.
const WANTED: u32 = u32::MAX;

/// What a worker says of the prepared part of a sample.
pub enum Prepared {
    /// It comes from the cache.
    Recalled,
    /// It was made by the dataset, and is this, where we asked for it.
    Made(Option<Vec<u8>>),
}

/// The cache of a dataset's prepared samples.
pub struct Keeping {
    cache: Arc<Cache>,
    /// The fewest bytes that were refused for want of room.
    refused: AtomicUsize,
    /// The fewest bytes of all that were offered.
    smallest: AtomicUsize,
}

impl Keeping {
    pub fn new(cache: Arc<Cache>) -> Self {
        Self { cache, refused: AtomicUsize::new(usize::MAX), smallest: AtomicUsize::new(usize::MAX) }
    }

    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Looks up the samples of an order.
    pub fn look_up<'a>(&'a self, samples: &'a [SampleId]) -> Looked<'a> {
        let held = samples.iter().map(|&sample| self.cache.get(sample, Form::Decoded)).collect();
        Looked { keeping: self, samples, held, wants: self.may_take_more() }
    }

    /// Whether it is worth a worker's while to leave what it prepares. Once nobody leaves any more and the smallest of all
    /// samples found no room, none will.
    fn may_take_more(&self) -> bool {
        self.cache.evicts()
            || self.refused.load(Ordering::Relaxed) > self.smallest.load(Ordering::Relaxed)
            || self.smallest.load(Ordering::Relaxed) == usize::MAX
    }

    fn offer(&self, sample: SampleId, bytes: &[u8]) {
        self.smallest.fetch_min(bytes.len(), Ordering::Relaxed);
        if self.cache.get(sample, Form::Decoded).is_some() {
            return; // a sampler that draws with replacement may have sent it to two workers
        }
        match self.cache.reserve(sample, &Offer::decoded(bytes.len())) {
            Some(seat) => seat.commit(&[bytes]),
            None => {
                self.refused.fetch_min(bytes.len(), Ordering::Relaxed);
            }
        }
    }

    fn discard(&self, sample: SampleId) {
        self.cache.discard(sample, Form::Decoded);
        self.refused.store(usize::MAX, Ordering::Relaxed); // there is room again
    }
}

/// What the cache has of an order's samples, held until the worker is done with it.
pub struct Looked<'a> {
    keeping: &'a Keeping,
    samples: &'a [SampleId],
    held: Vec<Option<Held<'a>>>,
    wants: bool,
}

impl Looked<'_> {
    /// A number for each sample: where its copy begins, counted from 1, or one of the two other marks.
    pub fn marks(&self) -> impl Iterator<Item = u32> {
        self.held.iter().zip(self.samples).map(|(held, &sample)| match held {
            Some(held) => held.first_block() + 1,
            // Samples that are known by something else than an index have no place in the cache.
            None if self.wants && self.keeping.cache.memory().knows(sample) => WANTED,
            None => NOT_KEPT,
        })
    }

    /// A sample is done: lets go of its copy and keeps what is new. Returns the form the sample was found in.
    pub fn settle(&mut self, index: usize, prepared: &Prepared) -> Form {
        let (sample, held) = (self.samples[index], self.held[index].take());
        match prepared {
            Prepared::Recalled => Form::Decoded,
            Prepared::Made(bytes) => {
                // The worker was told of a copy and could not use it.
                if held.is_some() {
                    drop(held);
                    self.keeping.discard(sample);
                }
                if let Some(bytes) = bytes {
                    self.keeping.offer(sample, bytes);
                }
                Form::Storage
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sutler_core::Policy;
    use sutler_store::cache::{Backing, CacheOptions};

    use super::*;

    fn keeping(policy: Policy) -> Keeping {
        let options = CacheOptions {
            budget_bytes: 60_000,
            samples: 100,
            split: [0, 100],
            policy,
            seed: 0,
            backing: Backing::Shared,
        };
        Keeping::new(Arc::new(Cache::new(&options).unwrap()))
    }

    /// Has a sample prepared where it is not kept, as a worker would.
    fn serve(keeping: &Keeping, sample: u32) -> (u32, Form) {
        let samples = [SampleId(sample)];
        let mut looked = keeping.look_up(&samples);
        let mark = looked.marks().next().unwrap();
        let prepared = match mark {
            NOT_KEPT => Prepared::Made(None),
            WANTED => Prepared::Made(Some(vec![sample as u8; 4000])),
            _ => Prepared::Recalled,
        };
        (mark, looked.settle(0, &prepared))
    }

    #[test]
    fn a_full_cache_asks_for_no_more_unless_others_leave() {
        let pinned = keeping(Policy::Pinned);
        let marks: Vec<u32> = (0..100).map(|sample| serve(&pinned, sample).0).collect();
        let kept = pinned.cache().figures().decoded.entries as usize;
        assert!((10..15).contains(&kept), "{kept}");
        assert!(marks[..=kept].iter().all(|&mark| mark == WANTED));
        assert!(marks[kept + 1..].iter().all(|&mark| mark == NOT_KEPT));
        let hits = (0..100).filter(|&sample| serve(&pinned, sample).1 == Form::Decoded).count();
        assert_eq!(hits, kept);

        let lru = keeping(Policy::Lru);
        assert!((0..100).all(|sample| serve(&lru, sample).0 == WANTED));
    }

    #[test]
    fn a_copy_that_could_not_be_used_is_replaced() {
        let keeping = keeping(Policy::Pinned);
        serve(&keeping, 7);
        let samples = [SampleId(7)];
        let mut looked = keeping.look_up(&samples);
        let form = looked.settle(0, &Prepared::Made(Some(vec![1; 4000])));
        assert_eq!(form, Form::Storage);
        let figures = keeping.cache().figures();
        assert_eq!((figures.decoded.entries, figures.corrupt), (1, 1));
        assert_eq!(serve(&keeping, 7).1, Form::Decoded);
    }
}
