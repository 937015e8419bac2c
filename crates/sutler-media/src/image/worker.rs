//! A thread's own decoder, resizer and buffers, and the loop over a plan's stages.

use super::convert::{write_bytes, write_floats};
use super::decoded::DecodedLayout;
use super::draw::{Drawn, Plan};
use super::erase::{erase_bytes, erase_floats};
use super::filter::{BlurScratch, blur, sharpness};
use super::fuse::{Resample, Stage};
use super::geometry::{crop, crop_padded, flip};
use super::op::{Interpolation, Op, PaddingMode};
use super::pipeline::{Layout, Pipeline, PipelineError};
use super::policy::{Choice, Kind};
use super::resample::{Area, Job, Resampler};
use super::warp::warp;
use super::{Pixels, Rect, colour};
use crate::decode::{DecodeError, Decoder, Header, Limits, Request};
use crate::kept::Rows;

/// Prepares samples, one after the other, without giving memory back in between.
pub struct Worker {
    decoder: Decoder,
    scratch: Scratch,
    /// Where `scratch.current` lies in the source, in pixels of the decoded scale; `None` when it holds no source.
    covered: Option<Rect>,
    /// How many source pixels a decoded pixel stands for in each direction.
    denominator: u32,
}

/// Decoded pixels that nothing has been done to yet, away from any worker.
pub struct DecodedPixels {
    pixels: Pixels,
    covered: Option<Rect>,
    denominator: u32,
}

/// The pixels being worked on, the room for the next version of them, and what the stages keep.
#[derive(Default)]
struct Scratch {
    current: Pixels,
    next: Pixels,
    resampler: Resampler,
    blur: BlurScratch,
}

impl Worker {
    /// A worker whose decoder keeps to `limits`.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { decoder: Decoder::new(limits), scratch: Scratch::default(), covered: None, denominator: 1 }
    }

    /// Decodes what the plan needs of the sample; returns the number of the decoder's warnings.
    ///
    /// # Errors
    /// When the bytes are not the image that `header` was read from, or are broken beyond use.
    pub fn decode(
        &mut self,
        _pipeline: &Pipeline,
        plan: &Plan,
        header: &Header,
        bytes: &[u8],
    ) -> Result<u32, DecodeError> {
        self.covered = None;
        let request = Request { region: plan.fused.region, scale: plan.fused.scale };
        let decoded = self.decoder.decode(bytes, header, &request, &mut self.scratch.current)?;
        let reduced = decoded.full != (header.width, header.height);
        self.denominator = if reduced { plan.fused.scale.denominator() } else { 1 };
        self.covered = Some(decoded.covered);
        Ok(decoded.warnings)
    }

    /// Takes pixels that are decoded already, as the plan was drawn for by [`Pipeline::draw_decoded`].
    ///
    /// # Errors
    /// When the plan was drawn for a larger image.
    pub fn load(&mut self, plan: &Plan, pixels: &Pixels) -> Result<(), PipelineError> {
        let region = plan.fused.region;
        if !Rect::whole(pixels.width, pixels.height).contains(&region) {
            return Err(PipelineError::NotDecoded);
        }
        crop(pixels, region, &mut self.scratch.current);
        self.denominator = 1;
        self.covered = Some(region);
        Ok(())
    }

    /// Decodes a whole picture and appends its pixels; false when the decoder has anything to say about it.
    pub(super) fn decode_picture(
        &mut self,
        request: &Request,
        header: &Header,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        self.covered = None;
        let pixels = &mut self.scratch.current;
        let Ok(decoded) = self.decoder.decode(bytes, header, request, pixels) else { return false };
        let complete = decoded.covered == Rect::whole(decoded.full.0, decoded.full.1)
            && decoded.full == request.scale.of_size(header.width, header.height);
        if complete && decoded.warnings == 0 {
            out.extend_from_slice(&pixels.data);
        }
        complete && decoded.warnings == 0
    }

    /// Takes the pixels that the plan needs from a decoded form, of which `read` copies rows, one after another, and says
    /// whether it could.
    ///
    /// # Errors
    /// When `read` could not, or the plan was drawn for something else.
    pub fn recall(
        &mut self,
        layout: &DecodedLayout,
        plan: &Plan,
        read: impl FnOnce(Rows, &mut [u8]) -> bool,
    ) -> Result<(), PipelineError> {
        self.covered = None;
        let (rows, region, denominator) = layout.wanted(plan).ok_or(PipelineError::NotDecoded)?;
        self.scratch.current.resize(region.width, region.height);
        if !read(rows, &mut self.scratch.current.data) {
            return Err(PipelineError::NotDecoded);
        }
        self.denominator = denominator;
        self.covered = Some(region);
        Ok(())
    }

    /// Gives away what was decoded.
    pub fn put_aside(&mut self) -> DecodedPixels {
        DecodedPixels {
            pixels: std::mem::take(&mut self.scratch.current),
            covered: self.covered.take(),
            denominator: self.denominator,
        }
    }

    /// Takes up what this worker or another one has decoded and put aside.
    pub fn take_up(&mut self, decoded: DecodedPixels) {
        let DecodedPixels { pixels, covered, denominator } = decoded;
        self.scratch.current = pixels;
        self.covered = covered;
        self.denominator = denominator;
    }

    /// Carries out the plan on the decoded pixels, which are used up by it, and writes the sample to `out`.
    ///
    /// # Errors
    /// When `out` has not exactly the room for the sample, or nothing was decoded for it.
    pub fn augment(
        &mut self,
        pipeline: &Pipeline,
        plan: &Plan,
        layout: Layout,
        out: &mut [u8],
    ) -> Result<(), PipelineError> {
        let values = plan.output.width as usize * plan.output.height as usize * 3;
        let needed = values * pipeline.output().dtype.size();
        if out.len() != needed {
            return Err(PipelineError::Room { needed, given: out.len() });
        }
        let covered = self.covered.take().ok_or(PipelineError::NotDecoded)?;
        let fused = &plan.fused;
        // The first to read the pixels finds them where they lie in the source, everybody after that at the origin.
        let mut stages = fused.stages.iter();
        let mut window = fused.window;
        match stages.next() {
            None => window = within(window, covered)?,
            Some(Stage::Resample(resample)) => {
                within(reduced(fused.region, self.denominator), covered)?;
                self.scratch.resample(&source_job(resample, covered, self.denominator));
            }
            Some(Stage::Crop(first)) => {
                self.scratch.run(&Stage::Crop(within(*first, covered)?), pipeline, plan)?
            }
            Some(first) => {
                self.scratch.run(&Stage::Crop(within(fused.region, covered)?), pipeline, plan)?;
                self.scratch.run(first, pipeline, plan)?;
            }
        }
        for stage in stages {
            self.scratch.run(stage, pipeline, plan)?;
        }
        let pixels = &self.scratch.current;
        match pipeline.normaliser() {
            None => write_bytes(pixels, window, fused.flips, layout, out),
            Some(normaliser) => {
                write_floats(pixels, window, fused.flips, layout, normaliser, out)
                    .ok_or(PipelineError::Alignment)?;
                for patch in &fused.patches {
                    erase_floats(out, plan.output, layout, patch, pipeline.ops())
                        .ok_or(PipelineError::Alignment)?;
                }
            }
        }
        Ok(())
    }
}

/// `rect` of the source, counted from the corner of the part that was decoded.
fn within(rect: Rect, covered: Rect) -> Result<Rect, PipelineError> {
    if !covered.contains(&rect) {
        return Err(PipelineError::NotDecoded);
    }
    Ok(Rect { x: rect.x - covered.x, y: rect.y - covered.y, ..rect })
}

/// A rectangle of the source in pixels of a reduced decode, rounded outwards.
fn reduced(rect: Rect, denominator: u32) -> Rect {
    let (x, y) = (rect.x / denominator, rect.y / denominator);
    let width = (rect.x + rect.width).div_ceil(denominator) - x;
    let height = (rect.y + rect.height).div_ceil(denominator) - y;
    Rect { x, y, width, height }
}

/// A resize whose window is counted in source pixels, on a decoded part of the source at a reduced scale. Its edges
/// repeat as they do after a crop, whatever was decoded beyond them.
fn source_job(resample: &Resample, covered: Rect, denominator: u32) -> Job {
    let Resample { from, to, keep, interpolation, antialias, flips } = *resample;
    let scaled = |length: u32| f64::from(length) / f64::from(denominator);
    let from = Area {
        x: scaled(from.x) - f64::from(covered.x),
        y: scaled(from.y) - f64::from(covered.y),
        width: scaled(from.width),
        height: scaled(from.height),
    };
    Job { from, to, keep, interpolation, antialias, flips }
}

impl Scratch {
    /// Makes the next version of the pixels the current one.
    fn advance(&mut self) {
        std::mem::swap(&mut self.current, &mut self.next);
    }

    fn resample(&mut self, job: &Job) {
        self.resampler.run(&self.current, job, &mut self.next);
        self.advance();
    }

    fn run(&mut self, stage: &Stage, pipeline: &Pipeline, plan: &Plan) -> Result<(), PipelineError> {
        match stage {
            Stage::Resample(resample) => {
                let covered = Rect::whole(self.current.width, self.current.height);
                self.resample(&source_job(resample, covered, 1));
            }
            Stage::Crop(window) => {
                if *window != Rect::whole(self.current.width, self.current.height) {
                    crop(&self.current, *window, &mut self.next);
                    self.advance();
                }
            }
            Stage::Flip(flips) => flip(&mut self.current, *flips),
            Stage::Apply(index) => self.apply(&pipeline.ops()[*index], &plan.drawn[*index], plan),
        }
        Ok(())
    }

    fn apply(&mut self, op: &Op, drawn: &Drawn, plan: &Plan) {
        match (op, drawn) {
            (Op::RandomCrop { fill, padding_mode, .. }, Drawn::Crop { padding, window }) => {
                crop_padded(&self.current, *padding, *window, *padding_mode, *fill, &mut self.next);
                self.advance();
            }
            (Op::CenterCrop { .. }, Drawn::Crop { padding, window }) => {
                crop_padded(&self.current, *padding, *window, PaddingMode::Constant, [0; 3], &mut self.next);
                self.advance();
            }
            (Op::Pad { padding, fill, padding_mode }, _) => {
                let [left, top, right, bottom] = *padding;
                let window =
                    Rect::whole(self.current.width + left + right, self.current.height + top + bottom);
                crop_padded(&self.current, *padding, window, *padding_mode, *fill, &mut self.next);
                self.advance();
            }
            (_, Drawn::Jitter { order, factors }) => colour::jitter(&mut self.current, *order, *factors),
            (Op::RandomGrayscale { .. }, _) => colour::greyscale(&mut self.current),
            (Op::GaussianBlur { kernel_size, .. }, Drawn::Blur { sigma }) => {
                blur(&self.current, *kernel_size, *sigma, &mut self.blur, &mut self.next);
                self.advance();
            }
            (
                Op::RandAugment { interpolation, fill, .. }
                | Op::TrivialAugmentWide { interpolation, fill, .. },
                Drawn::Choices { first, count },
            ) => {
                for choice in &plan.choices[*first..first + count] {
                    self.apply_choice(choice, *interpolation, *fill);
                }
            }
            (Op::RandomErasing { value, .. }, Drawn::Erase(Some(erasure))) => {
                erase_bytes(&mut self.current, erasure, value);
            }
            _ => {} // decided against
        }
    }

    fn apply_choice(&mut self, choice: &Choice, interpolation: Interpolation, fill: Option<[u8; 3]>) {
        let Choice { kind, magnitude } = *choice;
        match kind {
            Kind::Identity => {}
            Kind::Brightness => colour::brightness(&mut self.current, 1.0 + magnitude),
            Kind::Color => colour::saturation(&mut self.current, 1.0 + magnitude),
            Kind::Contrast => colour::contrast(&mut self.current, 1.0 + magnitude),
            Kind::Posterize => colour::posterize(&mut self.current, magnitude as u32),
            Kind::Solarize => colour::solarize(&mut self.current, 255.0 * magnitude),
            Kind::AutoContrast => colour::autocontrast(&mut self.current),
            Kind::Equalize => colour::equalize(&mut self.current),
            Kind::Sharpness => {
                sharpness(&self.current, 1.0 + magnitude, &mut self.next);
                self.advance();
            }
            Kind::ShearX | Kind::ShearY | Kind::TranslateX | Kind::TranslateY | Kind::Rotate => {
                warp(&self.current, kind, magnitude, interpolation, fill, &mut self.next);
                self.advance();
            }
        }
    }
}
