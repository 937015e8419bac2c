//! Changing the number of pixels.
//!
//! Two families. The averaging filters (`antialias`, Pillow's and torchvision's default) grow with the reduction and run
//! on `fast_image_resize`. The interpolating ones look at one, two or four neighbours however far apart the new
//! pixels lie, replicate the border and use Keys' cubic with a = -0.75; that is what torch does without `antialias`,
//! and the loops below do it.

use fast_image_resize::images::{CroppedImage, Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

use super::op::Interpolation;
use super::pipeline::PipelineError;
use super::{Pixels, Rect, Size};

/// How far a filter reaches, in pixels of the coarser of the two grids.
pub(crate) fn support(interpolation: Interpolation) -> f64 {
    match interpolation {
        Interpolation::Nearest | Interpolation::Box => 0.5,
        Interpolation::Bilinear | Interpolation::Hamming => 1.0,
        Interpolation::Bicubic => 2.0,
        Interpolation::Lanczos => 3.0,
    }
}

/// A rectangle whose edges need not fall between pixels; a window of a reduced decode seldom does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Area {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

/// What to compute from which pixels of a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// The area that becomes `to`; may begin before the buffer does when only a part of it was decoded.
    pub from: Area,
    /// The pixels that may be looked at.
    pub readable: Rect,
    /// The size that all of `from` has afterwards.
    pub to: Size,
    /// The part of it to compute.
    pub keep: Rect,
    pub interpolation: Interpolation,
    pub antialias: bool,
}

/// Neighbours and their weights for one row or column of the result.
#[derive(Clone, Copy, Debug, Default)]
struct Taps {
    index: [u32; 4],
    weight: [i32; 4],
}

/// Resizes, keeping its tables and buffers between images.
#[derive(Default)]
pub(crate) struct Resampler {
    averaging: Resizer,
    columns: Vec<Taps>,
    rows: Vec<Taps>,
    narrowed: Pixels,
}

impl Resampler {
    /// Computes `job` from `source` into `out`.
    pub fn run(&mut self, source: &Pixels, job: &Job, out: &mut Pixels) -> Result<(), PipelineError> {
        out.resize(job.keep.width, job.keep.height);
        let filter = match job.interpolation {
            Interpolation::Bilinear if job.antialias => FilterType::Bilinear,
            Interpolation::Bicubic if job.antialias => FilterType::CatmullRom,
            Interpolation::Lanczos => FilterType::Lanczos3,
            Interpolation::Box => FilterType::Box,
            Interpolation::Hamming => FilterType::Hamming,
            Interpolation::Nearest => {
                nearest(source, job, out);
                return Ok(());
            }
            Interpolation::Bilinear | Interpolation::Bicubic => {
                self.interpolate(source, job, out);
                return Ok(());
            }
        };
        let image =
            ImageRef::new(source.width, source.height, &source.data, PixelType::U8x3).map_err(refused)?;
        let Rect { x, y, width, height } = job.readable;
        let readable = CroppedImage::new(&image, x, y, width, height).map_err(refused)?;
        let (left, width) =
            kept(job.from.x - f64::from(x), job.from.width, job.to.width, job.keep.x, job.keep.width, width);
        let (top, height) = kept(
            job.from.y - f64::from(y),
            job.from.height,
            job.to.height,
            job.keep.y,
            job.keep.height,
            height,
        );
        let options =
            ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter)).crop(left, top, width, height);
        let mut target =
            Image::from_slice_u8(out.width, out.height, &mut out.data, PixelType::U8x3).map_err(refused)?;
        self.averaging.resize(&readable, &mut target, &options).map_err(refused)
    }

    fn interpolate(&mut self, source: &Pixels, job: &Job, out: &mut Pixels) {
        let Job { from, readable, to, keep, interpolation, .. } = *job;
        let across =
            Line { from: from.x, length: from.width, to: to.width, first: readable.x, count: readable.width };
        let down = Line {
            from: from.y,
            length: from.height,
            to: to.height,
            first: readable.y,
            count: readable.height,
        };
        let columns_precision = fill_taps(&mut self.columns, across, keep.x, keep.width, interpolation);
        let rows_precision = fill_taps(&mut self.rows, down, keep.y, keep.height, interpolation);
        // Across first and rounded to whole levels in between, as torch does for 8-bit images.
        self.narrowed.resize(keep.width, readable.height);
        let narrow_bytes = keep.width as usize * 3;
        for (row, target) in self.narrowed.data.chunks_exact_mut(narrow_bytes).enumerate() {
            let line = source.row(readable.y + row as u32, 0, source.width);
            for (pixel, taps) in target.as_chunks_mut::<3>().0.iter_mut().zip(&self.columns) {
                for (channel, value) in pixel.iter_mut().enumerate() {
                    let level = |tap: usize| i32::from(line[taps.index[tap] as usize * 3 + channel]);
                    let sum: i32 = (0..4).map(|tap| level(tap) * taps.weight[tap]).sum();
                    *value = rounded(sum, columns_precision);
                }
            }
        }
        for (target, taps) in out.data.chunks_exact_mut(narrow_bytes).zip(&self.rows) {
            let lines = taps.index.map(|y| self.narrowed.row(y - readable.y, 0, keep.width));
            for (byte, value) in target.iter_mut().enumerate() {
                let sum: i32 = (0..4).map(|tap| i32::from(lines[tap][byte]) * taps.weight[tap]).sum();
                *value = rounded(sum, rows_precision);
            }
        }
    }
}

/// The library checks what the plan has made sure of; if the two ever disagree, the sample fails and not the process.
fn refused(error: impl std::fmt::Display) -> PipelineError {
    PipelineError::Resize { reason: error.to_string().trim_end_matches('.').to_owned() }
}

/// The start and length, in readable pixels, of the part of a line that the kept pixels stand for.
///
/// The clamps only take off what rounding added: the library refuses an area that ends 1e-13 outside its image.
fn kept(from: f64, length: f64, to: u32, keep: u32, count: u32, readable: u32) -> (f64, f64) {
    let step = length / f64::from(to);
    let start = (from + f64::from(keep) * step).max(0.0);
    (start, (f64::from(count) * step).min(f64::from(readable) - start))
}

fn rounded(sum: i32, precision: u32) -> u8 {
    ((sum + (1 << (precision - 1))) >> precision).clamp(0, 255) as u8
}

/// One direction of an interpolation: `length` pixels from position `from` become `to`; of the buffer, `count`
/// pixels from `first` on may be read.
#[derive(Clone, Copy)]
struct Line {
    from: f64,
    length: f64,
    to: u32,
    first: u32,
    count: u32,
}

impl Line {
    /// The buffer index of a position counted from the start of the line, at the border when it lies outside.
    fn clamped(&self, position: f64) -> u32 {
        let inside = position.clamp(0.0, self.length - 1.0);
        let first = f64::from(self.first);
        (self.from + inside).clamp(first, first + f64::from(self.count) - 1.0) as u32
    }
}

/// Fills the neighbours and weights of `count` results from `start` on; returns the binary places of the weights.
fn fill_taps(taps: &mut Vec<Taps>, line: Line, start: u32, count: u32, interpolation: Interpolation) -> u32 {
    let step = (line.length as f32) / (line.to as f32);
    let weights_at = |result: u32| {
        let position = step.mul_add(result as f32 + 0.5, -0.5);
        let (position, base) = if interpolation == Interpolation::Bilinear {
            let position = position.max(0.0);
            (position, position.floor())
        } else {
            (position, position.floor())
        };
        let between = f64::from((position - base).clamp(0.0, 1.0));
        let weights = match interpolation {
            Interpolation::Bilinear => [0.0, 1.0 - between, between, 0.0],
            _ => [cubic(between + 1.0), cubic(between), cubic(1.0 - between), cubic(2.0 - between)],
        };
        (f64::from(base), weights)
    };
    let largest = (start..start + count).flat_map(|result| weights_at(result).1).fold(0.0, f64::max);
    // As many places as let the largest weight fit 16 bits, which is how torch stores them.
    let precision =
        (1..22).take_while(|places| 0.5 + largest * f64::from(1 << places) < 32_768.0).last().unwrap_or(1);
    taps.clear();
    taps.extend((start..start + count).map(|result| {
        let (base, weights) = weights_at(result);
        let mut taps = Taps::default();
        for (tap, weight) in weights.into_iter().enumerate() {
            taps.index[tap] = line.clamped(base + tap as f64 - 1.0);
            taps.weight[tap] = (weight * f64::from(1 << precision)).round() as i32;
        }
        taps
    }));
    precision
}

/// Keys' cubic with a = -0.75 at a non-negative distance below 2.
fn cubic(distance: f64) -> f64 {
    const A: f64 = -0.75;
    if distance < 1.0 {
        ((A + 2.0) * distance - (A + 3.0)) * distance * distance + 1.0
    } else {
        ((A * distance - 5.0 * A) * distance + 8.0 * A) * distance - 4.0 * A
    }
}

/// The pixel left of and above each new pixel's corner: torch's `nearest`, in the same single precision.
fn nearest(source: &Pixels, job: &Job, out: &mut Pixels) {
    let pick = |result: u32, length: f64, to: u32| {
        let step = length as f32 / to as f32;
        f64::from((result as f32 * step).floor()).min(length - 1.0)
    };
    let row_bytes = job.keep.width as usize * 3;
    for (row, target) in out.data.chunks_exact_mut(row_bytes).enumerate() {
        let y = job.from.y + pick(job.keep.y + row as u32, job.from.height, job.to.height);
        let line = source.row(y as u32, 0, source.width);
        for (column, pixel) in target.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            let x = job.from.x + pick(job.keep.x + column as u32, job.from.width, job.to.width);
            pixel.copy_from_slice(&line[x as usize * 3..][..3]);
        }
    }
}
