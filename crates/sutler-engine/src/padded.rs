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
    /// The value of it, which says what all values are.
    pub fill: Fill,
    /// The length of the longest is rounded up to a multiple of this.
    pub multiple: usize,
}

/// A value to pad with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// For samples of floating-point numbers.
    Float(f32),
    /// For samples of whole numbers.
    Integer(i64),
}

impl Padding {
    /// For samples of floating-point numbers, to the length of the longest.
    #[must_use]
    pub fn floats(value: f32) -> Self {
        Self { fill: Fill::Float(value), multiple: 1 }
    }

    /// The length of a block whose longest sample is so long.
    fn length(self, longest: usize) -> usize {
        match self.multiple {
            0 | 1 => longest,
            multiple => longest.max(1).next_multiple_of(multiple),
        }
    }
}

/// The values of a block.
#[derive(Debug, PartialEq)]
pub enum Values {
    /// Floating-point numbers.
    Floats(Vec<f32>),
    /// Whole numbers.
    Integers(Vec<i64>),
}

impl Values {
    fn capacity(&self) -> usize {
        match self {
            Self::Floats(values) => values.capacity(),
            Self::Integers(values) => values.capacity(),
        }
    }

    /// Where they begin.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        match self {
            Self::Floats(values) => values.as_ptr().cast(),
            Self::Integers(values) => values.as_ptr().cast(),
        }
    }
}

/// What a sample's values are.
trait Value: Copy + Default {
    fn from_bytes(bytes: &[u8]) -> Self;
}

impl Value for f32 {
    fn from_bytes(bytes: &[u8]) -> Self {
        bytes.try_into().map_or(0.0, Self::from_ne_bytes)
    }
}

impl Value for i64 {
    fn from_bytes(bytes: &[u8]) -> Self {
        bytes.try_into().map_or(0, Self::from_ne_bytes)
    }
}

/// The rows of some samples, in lines of one length.
#[derive(Clone, Copy)]
struct Extent {
    /// How many rows each sample has.
    rows: usize,
    /// How many lines there are in all.
    lines: usize,
    length: usize,
}

/// Writes the rows of all samples into a block of any content.
fn write<'a, T: Value>(
    mut block: Vec<T>,
    samples: impl Iterator<Item = &'a OwnSample>,
    Extent { rows, lines, length }: Extent,
    fill: T,
) -> Vec<T> {
    block.resize(lines * length, T::default());
    if length > 0 {
        let data = samples.flat_map(|sample| {
            let bytes = sample.shape[2] as usize * size_of::<T>();
            (0..rows).map(move |row| &sample.data[row * bytes..(row + 1) * bytes])
        });
        for (line, data) in block.chunks_exact_mut(length).zip(data) {
            let (written, rest) = line.split_at_mut(data.len() / size_of::<T>());
            for (value, bytes) in written.iter_mut().zip(data.chunks_exact(size_of::<T>())) {
                *value = T::from_bytes(bytes);
            }
            rest.fill(fill);
        }
    }
    block
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
    blocks: Vec<Values>,
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

    /// A block that was used before, of any content: the smallest with room for so many values, or else the largest.
    fn block(&self, values: usize) -> Option<Values> {
        let mut kept = self.kept();
        let best = (0..kept.blocks.len()).min_by_key(|&index| {
            let capacity = kept.blocks[index].capacity();
            if capacity >= values { (false, capacity) } else { (true, usize::MAX - capacity) }
        });
        best.map(|index| kept.blocks.swap_remove(index))
    }

    /// The block of these samples; `None` where they differ in more than their last axis.
    pub fn pad<'a>(self: &Arc<Self>, samples: impl Iterator<Item = &'a OwnSample> + Clone) -> Option<Padded> {
        let first = samples.clone().next()?;
        let [outer, inner, _] = first.shape;
        if samples.clone().any(|sample| sample.shape[..2] != first.shape[..2]) {
            return None;
        }
        let length = self.padding.length(samples.clone().map(|sample| sample.shape[2]).max()? as usize);
        let rows = outer.max(1) as usize * inner.max(1) as usize;
        let lengths: Vec<i64> = samples.clone().map(|sample| i64::from(sample.shape[2])).collect();
        let lines = lengths.len().checked_mul(rows)?;
        let used = self.block(lines.checked_mul(length)?);
        let extent = Extent { rows, lines, length };
        let values = match (self.padding.fill, used) {
            (Fill::Float(fill), Some(Values::Floats(block))) => {
                Values::Floats(write(block, samples, extent, fill))
            }
            (Fill::Float(fill), _) => Values::Floats(write(Vec::new(), samples, extent, fill)),
            (Fill::Integer(fill), Some(Values::Integers(block))) => {
                Values::Integers(write(block, samples, extent, fill))
            }
            (Fill::Integer(fill), _) => Values::Integers(write(Vec::new(), samples, extent, fill)),
        };
        let sides = [lengths.len(), outer as usize, inner as usize];
        // An axis that samples do not have is 0.
        let shape = [sides[0]].into_iter().chain(sides[1..].iter().copied().filter(|&side| side > 0));
        Some(Padded { shape: shape.chain([length]).collect(), lengths, values, spares: Arc::clone(self) })
    }
}

/// The samples of a batch in one block.
#[derive(Debug)]
pub struct Padded {
    shape: Vec<usize>,
    lengths: Vec<i64>,
    values: Values,
    spares: Arc<Spares>,
}

impl Padded {
    /// Samples, their own axes, and the length of the longest, rounded up.
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
    pub fn values(&self) -> &Values {
        &self.values
    }
}

impl Drop for Padded {
    fn drop(&mut self) {
        let mut kept = self.spares.kept();
        if kept.blocks.len() < self.spares.blocks_max {
            kept.blocks.push(std::mem::replace(&mut self.values, Values::Floats(Vec::new())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(padded: &Padded) -> &[f32] {
        match padded.values() {
            Values::Floats(values) => values,
            Values::Integers(_) => panic!("whole numbers"),
        }
    }

    fn sample(shape: [u32; 3], first: f32) -> OwnSample {
        let count = shape.iter().map(|&side| side.max(1)).product::<u32>() * u32::from(shape[2] > 0);
        let data = (0..count).flat_map(|value| (first + value as f32).to_ne_bytes()).collect();
        OwnSample { shape, data }
    }

    #[test]
    fn every_row_is_padded_to_the_longest() {
        let spares = Spares::new(Padding::floats(-1.0), 2, 4);
        let padded = spares.pad([sample([0, 2, 1], 1.0), sample([0, 2, 3], 10.0)].iter()).unwrap();
        assert_eq!((padded.shape(), padded.lengths()), (&[2, 2, 3][..], &[1, 3][..]));
        assert_eq!(floats(&padded), [1.0, -1.0, -1.0, 2.0, -1.0, -1.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0]);
    }

    #[test]
    fn samples_without_a_length_are_all_padding() {
        let spares = Spares::new(Padding::floats(0.5), 2, 4);
        let padded = spares.pad([sample([0, 0, 0], 1.0), sample([0, 0, 2], 7.0)].iter()).unwrap();
        assert_eq!(floats(&padded), [0.5, 0.5, 7.0, 8.0]);
        let nothing = spares.pad([sample([0, 0, 0], 1.0)].iter()).unwrap();
        assert_eq!((nothing.shape(), floats(&nothing)), (&[1, 0][..], &[][..]));
    }

    #[test]
    fn whole_numbers_are_padded_to_a_multiple() {
        let spares = Spares::new(Padding { fill: Fill::Integer(-7), multiple: 4 }, 2, 4);
        let sample = |values: &[i64]| OwnSample {
            shape: [0, 0, values.len() as u32],
            data: values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        };
        for _ in 0..2 {
            let padded = spares.pad([sample(&[1, 2, 3, 4, i64::MAX]), sample(&[])].iter()).unwrap();
            assert_eq!((padded.shape(), padded.lengths()), (&[2, 8][..], &[5, 0][..]));
            let row = [1, 2, 3, 4, i64::MAX, -7, -7, -7];
            assert_eq!(*padded.values(), Values::Integers([row, [-7; 8]].concat()));
        }
        let empty = spares.pad([sample(&[])].iter()).unwrap();
        assert_eq!(*empty.values(), Values::Integers(vec![-7; 4]));
    }

    #[test]
    fn samples_of_other_axes_are_not_put_together() {
        let spares = Spares::new(Padding::floats(0.0), 2, 4);
        assert!(spares.pad([sample([0, 1, 2], 0.0), sample([0, 2, 2], 0.0)].iter()).is_none());
    }

    #[test]
    fn memory_is_used_again() {
        let spares = Spares::new(Padding::floats(0.0), 2, 4);
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
