//! Every random decision of a sample, made before a pixel is touched.
//!
//! A decision needs the size of the image it is about and nothing else, so the header is enough: sizes are followed
//! through the operations in order while the numbers are drawn. What is decoded, fused or reordered afterwards
//! cannot change what was drawn.

use sutler_core::SampleRng;

use super::fuse::{Fused, Source, Stage, fuse};
use super::geometry::{centred, padded, resized};
use super::op::{EraseWith, Op};
use super::pipeline::{Pipeline, PipelineError};
use super::policy::{Choice, KINDS, Policy};
use super::{Rect, Size};

/// How often a random rectangle is tried before torchvision, and so we, give up.
const TRIES: usize = 10;

/// What was decided for one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Drawn {
    /// There was nothing to decide.
    Nothing,
    /// The new size.
    Resize(Size),
    /// A border of `[left, top, right, bottom]`, then a window of the bordered image.
    Crop { padding: [u32; 4], window: Rect },
    /// A window, then its new size.
    ResizedCrop { window: Rect, to: Size },
    /// Whether it happens.
    Applied(bool),
    /// In which order which factors are used; brightness, contrast, saturation and hue are 0 to 3.
    Jitter { order: [u8; 4], factors: [Option<f64>; 4] },
    /// The deviation of the blur.
    Blur { sigma: f64 },
    /// A range of [`Plan::choices`].
    Choices { first: usize, count: usize },
    /// The rectangle to overwrite and the seed of its noise.
    Erase(Option<Erasure>),
}

/// A rectangle to overwrite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Erasure {
    pub rect: Rect,
    pub noise_seed: u64,
}

/// The decisions for one sample and what follows from them; kept and refilled from sample to sample.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(crate) drawn: Vec<Drawn>,
    pub(crate) choices: Vec<Choice>,
    pub(crate) fused: Fused,
    pub(crate) output: Size,
}

impl Plan {
    /// The `[height, width]` of what comes out.
    #[must_use]
    pub fn output_size(&self) -> [u32; 2] {
        [self.output.height, self.output.width]
    }
}

/// How much there is to do to a picture, as far as it can be counted before it is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// The share of the file that a decoder has to go through: from the top down to the last row that is needed.
    pub file_share: f64,
    /// How many pixels are decoded and made by all passes over them.
    pub pixels: f64,
}

impl Plan {
    /// What it takes to carry the plan out on a picture of this size, with the pipeline that it was drawn for. A file is decoded in
    /// part where the decoder can do that, and else as a whole.
    #[must_use]
    pub fn effort(&self, pipeline: &Pipeline, source: Size, in_part: bool) -> Effort {
        let Fused { region, scale, stages, .. } = &self.fused;
        let (rows, decoded) = if in_part {
            let reduced = f64::from(scale.denominator());
            (region.y.saturating_add(region.height), area(region.size()) / (reduced * reduced))
        } else {
            (source.height, area(source))
        };
        let (mut at, mut pixels) = (decoded, decoded);
        for stage in stages {
            let passes = match stage {
                Stage::Resample(resample) => {
                    at = area(resample.keep.size());
                    1.0
                }
                Stage::Crop(window) => {
                    at = area(window.size()).min(at);
                    1.0
                }
                Stage::Flip(_) => 1.0,
                Stage::Apply(index) => self.passes(&pipeline.ops()[*index], *index),
            };
            pixels += at * passes;
        }
        let file_share = f64::from(rows.min(source.height)) / f64::from(source.height.max(1));
        Effort { file_share, pixels: pixels + area(self.output) }
    }

    /// How often an operation goes over all pixels, by what was drawn for it.
    fn passes(&self, op: &Op, index: usize) -> f64 {
        match (op, self.drawn.get(index)) {
            (_, Some(Drawn::Jitter { factors, .. })) => factors.iter().flatten().count() as f64,
            (_, Some(Drawn::Choices { count, .. })) => *count as f64,
            // Once along the rows and once along the columns, each time with as many values as the kernel has.
            (Op::GaussianBlur { kernel_size, .. }, _) => {
                kernel_size.iter().map(|&side| f64::from(side)).sum()
            }
            _ => 1.0,
        }
    }
}

fn area(size: Size) -> f64 {
    f64::from(size.width) * f64::from(size.height)
}

/// Draws for an image of which `source` says size and abilities, and works out how to run the result.
pub(crate) fn draw(
    pipeline: &Pipeline,
    source: &Source,
    rng: &mut SampleRng,
    plan: &mut Plan,
) -> Result<(), PipelineError> {
    plan.drawn.clear();
    plan.choices.clear();
    let mut size = source.size;
    for (index, op) in pipeline.ops().iter().enumerate() {
        let drawn = draw_one(index, op, size, rng, &mut plan.choices)?;
        size = size_after(index, op, &drawn, size)?;
        plan.drawn.push(drawn);
    }
    plan.output = size;
    fuse(pipeline, source, &plan.drawn, &mut plan.fused);
    Ok(())
}

fn draw_one(
    index: usize,
    op: &Op,
    size: Size,
    rng: &mut SampleRng,
    choices: &mut Vec<Choice>,
) -> Result<Drawn, PipelineError> {
    Ok(match op {
        Op::Resize { size: to, max_size, .. } => Drawn::Resize(resized(*to, *max_size, size)),
        Op::CenterCrop { size: crop } => {
            let (padding, window) = centred(Size::from_height_width(*crop), size);
            Drawn::Crop { padding, window }
        }
        Op::RandomCrop { size: crop, padding, pad_if_needed, .. } => {
            let crop = Size::from_height_width(*crop);
            draw_crop(index, crop, padding.unwrap_or_default(), *pad_if_needed, size, rng)?
        }
        Op::RandomResizedCrop { size: to, scale, ratio, .. } => {
            let window = draw_resized_crop(*scale, *ratio, size, rng);
            Drawn::ResizedCrop { window, to: Size::from_height_width(*to) }
        }
        Op::RandomHorizontalFlip { p } | Op::RandomVerticalFlip { p } | Op::RandomGrayscale { p } => {
            Drawn::Applied(rng.chance(*p))
        }
        Op::ColorJitter { brightness, contrast, saturation, hue } => {
            let mut order = [0, 1, 2, 3];
            rng.shuffle(&mut order);
            let factors = [brightness, contrast, saturation, hue]
                .map(|range| range.map(|[low, high]| rng.uniform(low, high)));
            Drawn::Jitter { order, factors }
        }
        Op::GaussianBlur { sigma: [low, high], .. } => Drawn::Blur { sigma: rng.uniform(*low, *high) },
        Op::RandAugment { num_ops, magnitude, num_magnitude_bins, .. } => {
            let first = choices.len();
            for _ in 0..*num_ops {
                choices.push(choose(Policy::RandAugment, *num_magnitude_bins, size, rng, |_| *magnitude));
            }
            Drawn::Choices { first, count: *num_ops as usize }
        }
        Op::TrivialAugmentWide { num_magnitude_bins: bins, .. } => {
            let first = choices.len();
            choices.push(choose(Policy::TrivialWide, *bins, size, rng, |rng| rng.below(*bins)));
            Drawn::Choices { first, count: 1 }
        }
        Op::RandomErasing { p, scale, ratio, value } => {
            let noisy = matches!(value, EraseWith::Named(_));
            let applied = rng.chance(*p);
            Drawn::Erase(if applied { draw_erasure(*scale, *ratio, noisy, size, rng) } else { None })
        }
        Op::Pad { .. } | Op::ToDtype { .. } | Op::ToBgr255 {} | Op::Normalize { .. } => Drawn::Nothing,
    })
}

fn size_after(index: usize, op: &Op, drawn: &Drawn, size: Size) -> Result<Size, PipelineError> {
    Ok(match (op, drawn) {
        (_, Drawn::Resize(to) | Drawn::ResizedCrop { to, .. }) => *to,
        (_, Drawn::Crop { window, .. }) => window.size(),
        (Op::Pad { padding, .. }, _) => {
            padded(size, *padding).ok_or(PipelineError::BorderTooWide { index, padding: *padding })?
        }
        _ => size,
    })
}

fn draw_crop(
    index: usize,
    crop: Size,
    padding: [u32; 4],
    pad_if_needed: bool,
    image: Size,
    rng: &mut SampleRng,
) -> Result<Drawn, PipelineError> {
    let mut padding = padding;
    let too_wide = PipelineError::BorderTooWide { index, padding };
    let mut room = padded(image, padding).ok_or(too_wide.clone())?;
    if pad_if_needed {
        // The missing length is added on both sides, so that every position of the image in the window can come up.
        let [left, top, right, bottom] = &mut padding;
        for (before, after, have, want) in
            [(left, right, room.width, crop.width), (top, bottom, room.height, crop.height)]
        {
            let missing = want.saturating_sub(have);
            *before = before.checked_add(missing).ok_or(too_wide.clone())?;
            *after = after.checked_add(missing).ok_or(too_wide.clone())?;
        }
        room = padded(image, padding).ok_or(too_wide)?;
    }
    if room.width < crop.width || room.height < crop.height {
        return Err(PipelineError::CropTooLarge { index, crop, image: room });
    }
    let mut position =
        |room: u32, crop: u32| if room > crop { rng.below((room - crop).saturating_add(1)) } else { 0 };
    let y = position(room.height, crop.height);
    let x = position(room.width, crop.width);
    Ok(Drawn::Crop { padding, window: Rect { x, y, width: crop.width, height: crop.height } })
}

/// The sides of a rectangle of random area and random ratio: the ratio is even in its logarithm, so that 1:2 and
/// 2:1 are equally likely.
fn draw_sides(scale: [f64; 2], ratio: [f64; 2], image: Size, rng: &mut SampleRng) -> (f64, f64) {
    let area = f64::from(image.width) * f64::from(image.height) * rng.uniform(scale[0], scale[1]);
    let ratio = rng.uniform(ratio[0].ln(), ratio[1].ln()).exp();
    ((area * ratio).sqrt().round_ties_even(), (area / ratio).sqrt().round_ties_even())
}

fn draw_resized_crop(scale: [f64; 2], ratio: [f64; 2], image: Size, rng: &mut SampleRng) -> Rect {
    let (image_width, image_height) = (f64::from(image.width), f64::from(image.height));
    for _ in 0..TRIES {
        let (width, height) = draw_sides(scale, ratio, image, rng);
        if width > 0.0 && width <= image_width && height > 0.0 && height <= image_height {
            let (width, height) = (width as u32, height as u32);
            let y = rng.below((image.height - height).saturating_add(1));
            let x = rng.below((image.width - width).saturating_add(1));
            return Rect { x, y, width, height };
        }
    }
    let (narrowest, widest) = (ratio[0].min(ratio[1]), ratio[0].max(ratio[1]));
    let (mut width, mut height) = (image.width, image.height);
    if image_width / image_height < narrowest {
        height = ((image_width / narrowest).round_ties_even() as u32).clamp(1, image.height);
    } else if image_width / image_height > widest {
        width = ((image_height * widest).round_ties_even() as u32).clamp(1, image.width);
    }
    Rect { x: (image.width - width) / 2, y: (image.height - height) / 2, width, height }
}

fn draw_erasure(
    scale: [f64; 2],
    ratio: [f64; 2],
    noisy: bool,
    image: Size,
    rng: &mut SampleRng,
) -> Option<Erasure> {
    for _ in 0..TRIES {
        // torchvision's ratio is height to width here, and width to height in a crop.
        let (height, width) = draw_sides(scale, ratio, image, rng);
        if height < f64::from(image.height) && width < f64::from(image.width) {
            let noise_seed = if noisy { rng.next_u64() } else { 0 };
            let (width, height) = (width as u32, height as u32);
            let y = rng.below((image.height - height).saturating_add(1));
            let x = rng.below((image.width - width).saturating_add(1));
            return Some(Erasure { rect: Rect { x, y, width, height }, noise_seed });
        }
    }
    None
}

fn choose(
    policy: Policy,
    bins: u32,
    image: Size,
    rng: &mut SampleRng,
    bin: impl Fn(&mut SampleRng) -> u32,
) -> Choice {
    let kind = KINDS[rng.below(KINDS.len() as u32) as usize];
    if !kind.has_magnitude() {
        return Choice { kind, magnitude: 0.0 };
    }
    let index = bin(rng);
    let magnitude = kind.magnitude(policy, index, bins, image);
    let negative = kind.is_signed() && rng.chance(0.5);
    Choice { kind, magnitude: if negative { -magnitude } else { magnitude } }
}
