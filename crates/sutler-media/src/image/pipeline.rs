//! The pipeline that runs the operations.
//!
//! A [`Pipeline`] is checked once and shared by all threads. For each sample a thread draws a [`Plan`] from it and
//! has its [`Worker`] carry the plan out.

use sutler_core::SampleRng;

use super::convert::Normaliser;
use super::draw::draw;
use super::fuse::Source;
use super::geometry::{padded, resized};
use super::op::{Op, OutputType, ResizeTo};
use super::validate::{check, name};
use super::{Size, draw as drawing};
use crate::decode::{Header, Scale};

pub use super::worker::{DecodedPixels, Worker};
pub use drawing::{Effort, Plan};

/// The type of the values that come out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    /// Bytes.
    U8,
    /// 32-bit floats.
    F32,
}

impl DType {
    /// Bytes per value.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F32 => 4,
        }
    }
}

/// The order of the values that come out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One plane per channel.
    Nchw,
    /// The channels of a pixel side by side.
    Nhwc,
}

/// What comes out of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputSpec {
    /// The type of a value.
    pub dtype: DType,
    /// `[height, width]` when it is the same for every sample.
    pub size: Option<[u32; 2]>,
}

/// How a pipeline may be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineOptions {
    /// Whether a JPEG may be decoded at a half, a quarter or an eighth where the result is still at least as large as
    /// what a following resize makes of it. Cheaper, and not the same bits.
    pub dct_scaling: bool,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        Self { dct_scaling: true }
    }
}

/// Why a pipeline cannot be built or run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PipelineError {
    /// The description is not one of operations.
    #[error("The transforms cannot be read: {reason}.")]
    Description {
        /// What the parser says.
        reason: String,
    },
    /// An operation that cannot be run as written.
    #[error("Transform {number} ({op}) cannot be used: {reason}.", number = index + 1)]
    Refused {
        /// Its place, from 0.
        index: usize,
        /// Its name.
        op: &'static str,
        /// Why, and what to do instead.
        reason: String,
    },
    /// A crop larger than the image.
    #[error(
        "Transform {number} (RandomCrop) asks for {crop_height}x{crop_width} pixels of an image of {image_height}x{image_width}; \
         resize the image first or pass pad_if_needed=True.",
        number = index + 1, crop_height = crop.height, crop_width = crop.width,
        image_height = image.height, image_width = image.width
    )]
    CropTooLarge {
        /// The place of the operation, from 0.
        index: usize,
        /// What it asks for.
        crop: Size,
        /// What there is, padding included.
        image: Size,
    },
    /// A border that leads to an image nobody can hold.
    #[error("Transform {number} adds a border of {padding:?} pixels to an image that is too large for it; use a narrower border.", number = index + 1)]
    BorderTooWide {
        /// The place of the operation, from 0.
        index: usize,
        /// Left, top, right, bottom.
        padding: [u32; 4],
    },
    /// The room for the result has another size than the result.
    #[error(
        "The sample takes {needed} bytes, but the room given to it has {given}; size it by Plan::output_size."
    )]
    Room {
        /// What the plan says.
        needed: usize,
        /// What was given.
        given: usize,
    },
    /// The room for floats does not begin at a multiple of four.
    #[error("The room for a sample of floats must begin at an address that is a multiple of 4.")]
    Alignment,
    /// There are no pixels to work on, or those of another plan.
    #[error("There are no decoded pixels for this plan; call Worker::decode with the same plan first.")]
    NotDecoded,
}

/// A checked list of operations.
#[derive(Clone, Debug)]
pub struct Pipeline {
    ops: Vec<Op>,
    options: PipelineOptions,
    /// The index of the operation that makes floats, or the number of operations.
    float_from: usize,
    normaliser: Option<Normaliser>,
    size: Option<[u32; 2]>,
}

impl Pipeline {
    /// Checks the operations.
    ///
    /// # Errors
    /// When one of them cannot be run as written, or not in this place.
    pub fn new(ops: Vec<Op>, options: PipelineOptions) -> Result<Self, PipelineError> {
        let float_from = ops.iter().position(makes_floats).unwrap_or(ops.len());
        for (index, op) in ops.iter().enumerate() {
            check(index, op, (index > float_from).then(|| name(&ops[float_from])))?;
        }
        let normaliser = (float_from < ops.len()).then(|| normaliser(&ops[float_from..]));
        let size = output_size(&ops)?;
        Ok(Self { ops, options, float_from, normaliser, size })
    }

    /// Reads the operations from their JSON form, a list.
    ///
    /// # Errors
    /// When the text is not such a list, or as for [`Pipeline::new`].
    pub fn from_json(text: &str, options: PipelineOptions) -> Result<Self, PipelineError> {
        let ops = serde_json::from_str(text)
            .map_err(|error| PipelineError::Description { reason: error.to_string() })?;
        Self::new(ops, options)
    }

    /// The operations in order.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The options it was built with.
    #[must_use]
    pub fn options(&self) -> PipelineOptions {
        self.options
    }

    /// What comes out.
    #[must_use]
    pub fn output(&self) -> OutputSpec {
        let dtype = if self.normaliser.is_some() { DType::F32 } else { DType::U8 };
        OutputSpec { dtype, size: self.size }
    }

    /// How many operations at the start draw nothing: their result is the same in every epoch.
    #[must_use]
    pub fn static_prefix(&self) -> usize {
        let draws_nothing = |op: &&Op| {
            matches!(
                op,
                Op::Resize { .. }
                    | Op::CenterCrop { .. }
                    | Op::Pad { .. }
                    | Op::ToDtype { .. }
                    | Op::ToBgr255 {}
                    | Op::Normalize { .. }
            )
        };
        self.ops.iter().take_while(draws_nothing).count()
    }

    /// Two pipelines that do the work of this one when the second takes the 8-bit pixels of the first. The cut is made at
    /// operation `at`, or earlier where the pixels are not 8-bit any more. What the second draws for a
    /// sample is what this one draws, as long as the first draws nothing.
    #[must_use]
    pub fn split(&self, at: usize) -> (Self, Self) {
        let at = at.min(self.float_from);
        let part = |ops: &[Op]| {
            Self::new(ops.to_vec(), self.options)
                .expect("a part of a checked pipeline that ends before the floats")
        };
        (part(&self.ops[..at]), part(&self.ops[at..]))
    }

    /// Makes every random decision for a sample, from what its header says and its own random numbers.
    ///
    /// # Errors
    /// When an operation does not fit the image, as a crop that is larger than it.
    pub fn draw(&self, header: &Header, rng: &mut SampleRng, plan: &mut Plan) -> Result<(), PipelineError> {
        self.foresee(header.size(), header.can_scale(Scale::Eighth), rng, plan)
    }

    /// As [`Pipeline::draw`], for a file that nobody has opened: of this size, and one that the decoder can shrink on the way or not.
    ///
    /// # Errors
    /// As [`Pipeline::draw`].
    pub fn foresee(
        &self,
        size: Size,
        scalable: bool,
        rng: &mut SampleRng,
        plan: &mut Plan,
    ) -> Result<(), PipelineError> {
        let coarsest = if scalable { Scale::Eighth } else { Scale::Full };
        draw(self, &Source { size, coarsest }, rng, plan)
    }

    /// As [`Pipeline::draw`], for pixels that are decoded already; see [`Worker::load`].
    ///
    /// # Errors
    /// As [`Pipeline::draw`].
    pub fn draw_decoded(
        &self,
        size: Size,
        rng: &mut SampleRng,
        plan: &mut Plan,
    ) -> Result<(), PipelineError> {
        draw(self, &Source { size, coarsest: Scale::Full }, rng, plan)
    }

    pub(crate) fn normaliser(&self) -> Option<&Normaliser> {
        self.normaliser.as_ref()
    }

    /// Whether the values are floats when operation `index` gets them.
    pub(crate) fn is_float_at(&self, index: usize) -> bool {
        index > self.float_from
    }
}

fn makes_floats(op: &Op) -> bool {
    matches!(op, Op::Normalize { .. } | Op::ToBgr255 {} | Op::ToDtype { dtype: OutputType::Float32, .. })
}

/// All changes of value from the first that makes floats on, as one.
fn normaliser(ops: &[Op]) -> Normaliser {
    let scaled = !matches!(ops.first(), Some(Op::ToDtype { scale: false, .. } | Op::ToBgr255 {}));
    let reversed = matches!(ops.first(), Some(Op::ToBgr255 {}));
    let mut mean = [0.0; 3];
    let mut deviation = [1.0; 3];
    for op in ops {
        if let Op::Normalize { mean: next_mean, std } = op {
            for channel in 0..3 {
                // ((x - m) / d - n) / s = (x - (m + n d)) / (d s)
                mean[channel] += next_mean[channel] * deviation[channel];
                deviation[channel] *= std[channel];
            }
        }
    }
    Normaliser {
        scale: if scaled { 1.0 / 255.0 } else { 1.0 },
        mean: mean.map(|value: f64| value as f32),
        deviation: deviation.map(|value: f64| value as f32),
        reversed,
    }
}

/// The `[height, width]` that comes out whatever goes in, if there is one.
fn output_size(ops: &[Op]) -> Result<Option<[u32; 2]>, PipelineError> {
    let mut known: Option<Size> = None;
    for (index, op) in ops.iter().enumerate() {
        known = match op {
            Op::Resize { size: to @ ResizeTo::Exact(_), .. } => Some(resized(*to, None, Size::default())),
            Op::Resize { size, max_size, .. } => known.map(|from| resized(*size, *max_size, from)),
            Op::CenterCrop { size } | Op::RandomCrop { size, .. } | Op::RandomResizedCrop { size, .. } => {
                Some(Size::from_height_width(*size))
            }
            Op::Pad { padding, .. } => match known {
                Some(from) => Some(
                    padded(from, *padding)
                        .ok_or(PipelineError::BorderTooWide { index, padding: *padding })?,
                ),
                None => None,
            },
            _ => known,
        };
    }
    Ok(known.map(|size| [size.height, size.width]))
}
