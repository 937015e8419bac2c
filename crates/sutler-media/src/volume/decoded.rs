//! The decoded form of a volume: what of its preparation is the same in every epoch, as bytes that can be kept.
//!
//! That is what all operations before the first random one make of image and labels. A crop that is done at reading takes just its
//! block from there, as it does from the file.

use sutler_core::{Fingerprint, FingerprintBuilder};

use super::op::Op;
use super::pipeline::Pipeline;
use super::{Block, Volume, resampled_shape};

/// Bytes before the values: the name of the operations, the number of channels, the shape and the distances.
const HEAD_BYTES: usize = 16 + 4 * 7;

/// What is kept of the volumes of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedForm {
    name: Fingerprint,
    prefix: usize,
}

/// How a volume's decoded form is laid out: the image channel by channel, and the labels behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodedLayout {
    /// How many channels there are.
    pub channels: usize,
    /// The three axes, the last the fastest.
    pub shape: [usize; 3],
    /// The distance of values along each axis.
    pub spacing: [f32; 3],
}

/// Rows of one plane in the decoded form: where they are among its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Where the first begins.
    pub start: usize,
    /// Bytes per row.
    pub bytes: usize,
    /// From the beginning of one to the beginning of the next.
    pub stride: usize,
    /// How many there are.
    pub count: usize,
}

impl DecodedForm {
    /// Cuts a pipeline where randomness begins.
    #[must_use]
    pub fn new(pipeline: &Pipeline) -> Self {
        let prefix = pipeline.static_prefix();
        let mut name = FingerprintBuilder::default();
        for op in &pipeline.ops()[..prefix] {
            name.add(format!("{op:?}"));
        }
        Self { name: name.finish(), prefix }
    }

    /// How many operations have been run on what is kept.
    #[must_use]
    pub fn prefix(&self) -> usize {
        self.prefix
    }

    /// How a volume will be kept of which a file says this.
    #[must_use]
    pub fn foresee(&self, pipeline: &Pipeline, file: DecodedLayout) -> DecodedLayout {
        pipeline.ops()[..self.prefix].iter().fold(file, |layout, op| match op {
            Op::Resample { spacing } => DecodedLayout {
                shape: resampled_shape(layout.shape, layout.spacing, *spacing),
                spacing: spacing.map(|distance| distance as f32),
                ..layout
            },
            _ => layout,
        })
    }

    /// Writes the decoded form of a volume that has [`prefix`](Self::prefix) operations behind it, over whatever `out` held.
    pub fn make(&self, volume: &Volume, out: &mut Vec<u8>) {
        let layout = DecodedLayout::of(volume);
        let (image, _) = volume.bytes();
        out.clear();
        out.resize(layout.bytes(), 0);
        let (head, values) = out.split_at_mut(HEAD_BYTES);
        head.copy_from_slice(&layout.head(self.name));
        let (image, labels) = values.split_at_mut(image);
        volume.write(image, labels);
    }

    /// Reads a layout back from the first bytes of a decoded form; `None` when that was kept for other operations.
    #[must_use]
    pub fn layout(&self, head: &[u8; HEAD_BYTES]) -> Option<DecodedLayout> {
        let (name, numbers) = head.split_at(16);
        let word =
            |index: usize| numbers.as_chunks().0.get(index).map_or(0, |bytes| u32::from_le_bytes(*bytes));
        (name == self.name.0.to_le_bytes()).then(|| DecodedLayout {
            channels: word(0) as usize,
            shape: [1, 2, 3].map(|index| word(index) as usize),
            spacing: [4, 5, 6].map(|index| f32::from_bits(word(index))),
        })
    }
}

impl DecodedLayout {
    /// How many bytes lead the decoded form: enough to read its layout back.
    pub const HEAD_BYTES: usize = HEAD_BYTES;

    fn of(volume: &Volume) -> Self {
        Self { channels: volume.channels, shape: volume.shape, spacing: volume.spacing }
    }

    fn places(&self) -> usize {
        self.shape.iter().product()
    }

    /// How many bytes the decoded form has.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let places = self.shape.iter().try_fold(1usize, |product, &side| product.checked_mul(side));
        places
            .and_then(|places| places.checked_mul(self.channels.checked_mul(size_of::<f32>())? + 1))
            .and_then(|values| values.checked_add(HEAD_BYTES))
            .unwrap_or(usize::MAX)
    }

    fn head(&self, name: Fingerprint) -> [u8; HEAD_BYTES] {
        // A side or a number of channels that needs more has no file that could hold it.
        let words = [self.channels, self.shape[0], self.shape[1], self.shape[2]].map(|number| number as u32);
        let words = words.into_iter().chain(self.spacing.map(f32::to_bits));
        let mut head = [0; HEAD_BYTES];
        head[..16].copy_from_slice(&name.0.to_le_bytes());
        for (bytes, word) in head[16..].as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        head
    }

    /// The rows of a block in one of its planes, counted from the block's first: of a channel of the image.
    #[must_use]
    pub fn image_rows(&self, channel: usize, plane: usize, block: &Block) -> Rows {
        self.rows(HEAD_BYTES + channel * self.places() * size_of::<f32>(), plane, block, size_of::<f32>())
    }

    /// The same of the labels.
    #[must_use]
    pub fn label_rows(&self, plane: usize, block: &Block) -> Rows {
        self.rows(HEAD_BYTES + self.channels * self.places() * size_of::<f32>(), plane, block, 1)
    }

    fn rows(&self, begin: usize, plane: usize, block: &Block, value_bytes: usize) -> Rows {
        let [_, rows, row] = self.shape;
        let first = ((block.start[0] + plane) * rows + block.start[1]) * row + block.start[2];
        let [_, count, values] = block.sides();
        Rows {
            start: begin + first * value_bytes,
            bytes: values * value_bytes,
            stride: row * value_bytes,
            count,
        }
    }
}
