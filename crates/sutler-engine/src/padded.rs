//! Samples of different lengths as one block: each is followed by padding up to the length of the longest.
//!
//! How long the longest is shows when the last sample of a batch is prepared, so every sample has a buffer of its own until
//! then, and the worker that finished the last one puts them together: the consumer finds the block ready. Blocks and buffers go from
//! batch to batch, as fresh memory from the system would cost more than filling it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::OwnSample;

/// What follows samples that are shorter than the longest of their batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Padding {
    /// The value of it.
    pub value: f32,
}

/// Memory between batches.
#[derive(Debug)]
pub(crate) struct Spares {
    padding: Padding,
    /// Taken and brought back once for each sample and batch, by workers and by the consumer.
    kept: Mutex<Kept>,
    blocks_max: usize,
    buffers_max: usize,
}

#[derive(Debug, Default)]
struct Kept {
    blocks: Vec<Vec<f32>>,
    buffers: Vec<Vec<u8>>,
}

impl Spares {
    /// For a job that has so many batches of so many samples at a time.
    pub fn new(padding: Padding, batches: usize, batch_size: usize) -> Arc<Self> {
        let buffers_max = batches.saturating_mul(batch_size);
        Arc::new(Self { padding, kept: Mutex::default(), blocks_max: batches, buffers_max })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer for a sample.
    pub fn sample(&self) -> OwnSample {
        OwnSample { data: self.kept().buffers.pop().unwrap_or_default(), ..OwnSample::default() }
    }

    /// A sample's buffer is not needed any more.
    pub fn give_back(&self, sample: OwnSample) {
        let mut kept = self.kept();
        if kept.buffers.len() < self.buffers_max {
            kept.buffers.push(sample.data);
        }
    }

    /// Room for so many values, of any content: the smallest that is large enough, or else the largest.
    fn block(&self, values: usize) -> Vec<f32> {
        let mut kept = self.kept();
        let best = (0..kept.blocks.len()).min_by_key(|&index| {
            let capacity = kept.blocks[index].capacity();
            if capacity >= values { (false, capacity) } else { (true, usize::MAX - capacity) }
        });
        let mut block = best.map(|index| kept.blocks.swap_remove(index)).unwrap_or_default();
        drop(kept);
        block.resize(values, 0.0);
        block
    }

    /// The block of these samples; `None` where they differ in more than their last axis.
    pub fn pad<'a>(self: &Arc<Self>, samples: impl Iterator<Item = &'a OwnSample> + Clone) -> Option<Padded> {
        let first = samples.clone().next()?;
        let [outer, inner, _] = first.shape;
        if samples.clone().any(|sample| sample.shape[..2] != first.shape[..2]) {
            return None;
        }
        let longest = samples.clone().map(|sample| sample.shape[2]).max()? as usize;
        let rows = outer.max(1) as usize * inner.max(1) as usize;
        let lengths: Vec<i64> = samples.clone().map(|sample| i64::from(sample.shape[2])).collect();
        let mut values = self.block(lengths.len().checked_mul(rows)?.checked_mul(longest)?);
        if longest > 0 {
            let lines = values.chunks_exact_mut(longest);
            let data = samples.flat_map(|sample| {
                let bytes = sample.shape[2] as usize * size_of::<f32>();
                (0..rows).map(move |row| &sample.data[row * bytes..(row + 1) * bytes])
            });
            for (line, data) in lines.zip(data) {
                let (written, rest) = line.split_at_mut(data.len() / size_of::<f32>());
                for (value, bytes) in written.iter_mut().zip(data.chunks_exact(size_of::<f32>())) {
                    *value = f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
                rest.fill(self.padding.value);
            }
        }
        let sides = [lengths.len(), outer as usize, inner as usize];
        // An axis that samples do not have is 0.
        let shape = [sides[0]].into_iter().chain(sides[1..].iter().copied().filter(|&side| side > 0));
        Some(Padded { shape: shape.chain([longest]).collect(), lengths, values, spares: Arc::clone(self) })
    }
}

/// The samples of a batch in one block.
#[derive(Debug)]
pub struct Padded {
    shape: Vec<usize>,
    lengths: Vec<i64>,
    values: Vec<f32>,
    spares: Arc<Spares>,
}

impl Padded {
    /// Samples, their own axes, and the length of the longest.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// How long each sample is.
    #[must_use]
    pub fn lengths(&self) -> &[i64] {
        &self.lengths
    }

    /// All values.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }
}

impl Drop for Padded {
    fn drop(&mut self) {
        let mut kept = self.spares.kept();
        if kept.blocks.len() < self.spares.blocks_max {
            kept.blocks.push(std::mem::take(&mut self.values));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(shape: [u32; 3], first: f32) -> OwnSample {
        let count = shape.iter().map(|&side| side.max(1)).product::<u32>() * u32::from(shape[2] > 0);
        let data = (0..count).flat_map(|value| (first + value as f32).to_ne_bytes()).collect();
        OwnSample { shape, data }
    }

    #[test]
    fn every_row_is_padded_to_the_longest() {
        let spares = Spares::new(Padding { value: -1.0 }, 2, 4);
        let padded = spares.pad([sample([0, 2, 1], 1.0), sample([0, 2, 3], 10.0)].iter()).unwrap();
        assert_eq!((padded.shape(), padded.lengths()), (&[2, 2, 3][..], &[1, 3][..]));
        assert_eq!(padded.values(), [1.0, -1.0, -1.0, 2.0, -1.0, -1.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0]);
    }

    #[test]
    fn samples_without_a_length_are_all_padding() {
        let spares = Spares::new(Padding { value: 0.5 }, 2, 4);
        let padded = spares.pad([sample([0, 0, 0], 1.0), sample([0, 0, 2], 7.0)].iter()).unwrap();
        assert_eq!(padded.values(), [0.5, 0.5, 7.0, 8.0]);
        let nothing = spares.pad([sample([0, 0, 0], 1.0)].iter()).unwrap();
        assert_eq!((nothing.shape(), nothing.values()), (&[1, 0][..], &[][..]));
    }

    #[test]
    fn samples_of_other_axes_are_not_put_together() {
        let spares = Spares::new(Padding { value: 0.0 }, 2, 4);
        assert!(spares.pad([sample([0, 1, 2], 0.0), sample([0, 2, 2], 0.0)].iter()).is_none());
    }

    #[test]
    fn memory_is_used_again() {
        let spares = Spares::new(Padding { value: 0.0 }, 2, 4);
        let large = spares.pad([sample([0, 0, 100], 0.0)].iter()).unwrap();
        let address = large.values().as_ptr();
        drop(large);
        let small = spares.pad([sample([0, 0, 10], 0.0)].iter()).unwrap();
        assert_eq!(small.values().as_ptr(), address);
        let mut buffer = spares.sample();
        buffer.data.reserve(1000);
        let address = buffer.data.as_ptr();
        spares.give_back(buffer);
        assert_eq!(spares.sample().data.as_ptr(), address);
    }
}
