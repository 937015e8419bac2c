//! Changing the number of pixels: across, then down, with whole levels in between, as torch does it.

use super::geometry::Flips;
use super::op::Interpolation;
use super::simd::{convolve_columns, convolve_rows};
use super::weights::{Line, Weights};
use super::{Pixels, Rect, Size};

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
    /// The size that all of `from` has afterwards.
    pub to: Size,
    /// The part of it to compute.
    pub keep: Rect,
    pub interpolation: Interpolation,
    pub antialias: bool,
    /// The mirrors that `from` is to be seen through; the result is still as if there were none.
    pub flips: Flips,
}

/// Resizes, keeping its tables and buffers between images.
#[derive(Default)]
pub(crate) struct Resampler {
    across: Weights,
    down: Weights,
    narrowed: Pixels,
}

impl Resampler {
    /// Computes `job` from `source` into `out`.
    pub fn run(&mut self, source: &Pixels, job: &Job, out: &mut Pixels) {
        let Job { from, to, keep, interpolation, antialias, flips } = *job;
        out.resize(keep.width, keep.height);
        if interpolation == Interpolation::Nearest {
            return nearest(source, job, out);
        }
        let across = Line {
            from: from.x,
            length: from.width,
            to: to.width,
            keep: keep.x,
            count: keep.width,
            mirrored: flips.horizontal,
        };
        let down = Line {
            from: from.y,
            length: from.height,
            to: to.height,
            keep: keep.y,
            count: keep.height,
            mirrored: flips.vertical,
        };
        if down.is_copy() {
            self.across.fill(&across, interpolation, antialias);
            let top = (from.y + f64::from(keep.y)) as u32;
            return narrow(source, top, &self.across, out);
        }
        self.down.fill(&down, interpolation, antialias);
        if across.is_copy() {
            let left = (from.x + f64::from(keep.x)) as u32;
            return flatten(source, left, 0, &self.down, out);
        }
        self.across.fill(&across, interpolation, antialias);
        let (top, bottom) = self.down.reach();
        self.narrowed.resize(keep.width, bottom - top);
        narrow(source, top, &self.across, &mut self.narrowed);
        flatten(&self.narrowed, 0, top, &self.down, out);
    }
}

/// Resizes the rows from `top` on across.
fn narrow(source: &Pixels, top: u32, weights: &Weights, out: &mut Pixels) {
    let row_bytes = source.width as usize * 3;
    // All that follows the last row is passed too: reading a little past its end is then still reading the image.
    let lines = &source.data[top as usize * row_bytes..];
    convolve_rows(lines, row_bytes, weights, out.width as usize * 3, &mut out.data);
}

/// Resizes the columns from `left` on down. Row 0 of `source` is the row that the weights call `top`.
fn flatten(source: &Pixels, left: u32, top: u32, weights: &Weights, out: &mut Pixels) {
    let row_bytes = source.width as usize * 3;
    for (row, target) in out.data.chunks_exact_mut(out.width as usize * 3).enumerate() {
        let first = (weights.starts[row] - top) as usize * row_bytes + left as usize * 3;
        convolve_columns(&source.data[first..], row_bytes, weights.taps(row), weights.precision, target);
    }
}

/// The pixel left of and above each new pixel's corner: torch's `nearest`, in the same single precision.
fn nearest(source: &Pixels, job: &Job, out: &mut Pixels) {
    let pick = |result: u32, length: f64, to: u32, mirrored: bool| {
        let seen = if mirrored { to - 1 - result } else { result };
        let step = length as f32 / to as f32;
        let picked = f64::from((seen as f32 * step).floor()).min(length - 1.0);
        if mirrored { length - 1.0 - picked } else { picked }
    };
    let Job { from, to, keep, flips, .. } = job;
    for (row, target) in out.data.chunks_exact_mut(keep.width as usize * 3).enumerate() {
        let y = from.y + pick(keep.y + row as u32, from.height, to.height, flips.vertical);
        let line = source.row(y as u32, 0, source.width);
        for (column, pixel) in target.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            let x = from.x + pick(keep.x + column as u32, from.width, to.width, flips.horizontal);
            pixel.copy_from_slice(&line[x as usize * 3..][..3]);
        }
    }
}
