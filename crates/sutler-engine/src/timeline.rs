//! The latest batches and samples one by one, for pictures of what happened when.
//!
//! Sums say how much was lost, not where: whether every batch was a little late, or one in a hundred very much. So the
//! latest entries are kept, in memory that is bounded. Writing one down costs about 20 ns a sample, so nobody has to ask
//! for it beforehand.

use std::collections::VecDeque;
use std::time::Instant;

use serde::Serialize;

/// Batches that are kept: at 10 a second, the last minute and a half.
const BATCHES_KEPT: usize = 1024;

/// Samples that are kept: 16 batches of 256, in about 300 KiB.
const SAMPLES_KEPT: usize = 4096;

/// What a consumer's request for a batch came to. Times are seconds since [`Timeline::origin`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct BatchEntry {
    /// The batch's number in its epoch.
    pub batch: u64,
    /// How many samples it has.
    pub samples: usize,
    /// When it was asked for.
    pub requested: f64,
    /// When its last sample was finished.
    pub ready: f64,
    /// When the consumer had it.
    pub answered: f64,
    /// How much of the wait was for bytes.
    pub fetch: f64,
    /// For decoding and transforms.
    pub prep: f64,
    /// For the finished batch to change hands.
    pub transport: f64,
    /// How long the consumer had worked with the batch before; 0 for the first of an epoch.
    pub trainer: f64,
    /// How many finished batches there were when this one was asked for.
    pub ready_batches: usize,
}

/// When a sample was worked at, in seconds as above.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SampleEntry {
    /// Which sample.
    pub sample: u32,
    /// The batch it went into.
    pub batch: u64,
    /// Who worked at it.
    pub worker: usize,
    /// When that began.
    pub begun: f64,
    /// How long getting its bytes took.
    pub fetch: f64,
    /// How long decoding took.
    pub decode: f64,
    /// How long the rest took.
    pub augment: f64,
    /// When it was finished and, where several were handed over at a time, all of them.
    pub finished: f64,
    /// Whether it made room for others in between, so that its stages did not follow each other.
    pub put_aside: bool,
}

/// The latest entries, the oldest first.
#[derive(Clone, Debug, Serialize)]
pub struct Timeline {
    /// Where its times begin.
    #[serde(skip)]
    pub origin: Instant,
    batches: VecDeque<BatchEntry>,
    samples: VecDeque<SampleEntry>,
}

impl Timeline {
    /// One that begins now.
    #[must_use]
    pub fn starting_now() -> Self {
        Self { origin: Instant::now(), batches: VecDeque::new(), samples: VecDeque::new() }
    }

    /// A moment in seconds.
    #[must_use]
    pub fn at(&self, moment: Instant) -> f64 {
        moment.saturating_duration_since(self.origin).as_secs_f64()
    }

    /// Adds a batch.
    pub fn add_batch(&mut self, entry: BatchEntry) {
        push(&mut self.batches, entry, BATCHES_KEPT);
    }

    /// Adds a sample.
    pub fn add_sample(&mut self, entry: SampleEntry) {
        push(&mut self.samples, entry, SAMPLES_KEPT);
    }

    /// The batch that was added last, to be completed.
    pub fn last_batch(&mut self) -> Option<&mut BatchEntry> {
        self.batches.back_mut()
    }

    /// The batches that are kept.
    pub fn batches(&self) -> impl ExactSizeIterator<Item = &BatchEntry> {
        self.batches.iter()
    }

    /// The samples that are kept.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = &SampleEntry> {
        self.samples.iter()
    }
}

fn push<T>(ring: &mut VecDeque<T>, entry: T, kept: usize) {
    if ring.len() == kept {
        ring.pop_front();
    }
    ring.push_back(entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_stay_and_memory_is_bounded() {
        let mut timeline = Timeline::starting_now();
        for batch in 0..3000 {
            timeline.add_batch(BatchEntry { batch, ..BatchEntry::default() });
        }
        let kept: Vec<u64> = timeline.batches().map(|entry| entry.batch).collect();
        assert_eq!(kept, (3000 - BATCHES_KEPT as u64..3000).collect::<Vec<_>>());
        assert!(timeline.batches.capacity() <= 2 * BATCHES_KEPT);
    }
}
