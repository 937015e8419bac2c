//! The decoded form of a volume: what of its preparation is the same in every epoch, as bytes that can be kept.
//!
//! That is what all operations before the first random one make of image and labels. A crop that is done at reading takes just its
//! block from there, as it does from the file.

use sutler_core::Fingerprint;

use super::op::Op;
use super::pipeline::Pipeline;
use super::{Block, Volume, resampled_shape};
use crate::kept::{self, Rows, name_of};

/// What leads the values: the name of the operations, the number of channels, the shape and the distances.
type Head = kept::Head<7>;

const HEAD_BYTES: usize = Head::BYTES;

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

impl DecodedForm {
    /// Cuts a pipeline where randomness begins.
    #[must_use]
    pub fn new(pipeline: &Pipeline) -> Self {
        let prefix = pipeline.static_prefix();
        Self { name: name_of("", &pipeline.ops()[..prefix]), prefix }
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
        layout.head(self.name).write(out);
        out.resize(layout.bytes(), 0);
        let (image, labels) = out[HEAD_BYTES..].split_at_mut(image);
        volume.write(image, labels);
    }

    /// Reads a layout back from the first bytes of a decoded form; `None` when that was kept for other operations.
    #[must_use]
    pub fn layout(&self, head: &[u8; HEAD_BYTES]) -> Option<DecodedLayout> {
        let Head { name, numbers: [channels, depth, height, width, spacing @ ..] } = Head::read(head)?;
        (name == self.name).then(|| DecodedLayout {
            channels: channels as usize,
            shape: [depth, height, width].map(|side| side as usize),
            spacing: spacing.map(f32::from_bits),
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

    fn head(&self, name: Fingerprint) -> Head {
        // A side or a number of channels that needs more has no file that could hold it.
        let [depth, height, width] = self.shape.map(|side| side as u32);
        let [x, y, z] = self.spacing.map(f32::to_bits);
        Head { name, numbers: [self.channels as u32, depth, height, width, x, y, z] }
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
