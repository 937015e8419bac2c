//! Which source pixels make a new pixel, and by how much each counts.
//!
//! One line (a row or a column) at a time; an image is resized along both. Two families. The averaging filters
//! (`antialias`, the default) grow with the reduction, and are cut off and evened out at the border. The
//! interpolating ones look at one, two or four neighbours however far apart the new pixels lie, repeat the border
//! pixel, and use a sharper cubic. Positions, cuts and rounding are those of torch's 8-bit resize, so the
//! results are too: weights of 16 bits with as many binary places as the largest of them leaves.

use std::f64::consts::PI;

use super::op::Interpolation;

/// How far a filter reaches, in pixels of the coarser of the two grids.
pub(crate) fn support(interpolation: Interpolation) -> f64 {
    match interpolation {
        Interpolation::Nearest | Interpolation::Box => 0.5,
        Interpolation::Bilinear | Interpolation::Hamming => 1.0,
        Interpolation::Bicubic => 2.0,
        Interpolation::Lanczos => 3.0,
    }
}

/// One direction of a resize. Positions count pixels of the buffer that is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    /// Where the part begins that becomes `to` pixels; before the buffer when only the kept pixels' piece was decoded.
    pub from: f64,
    /// How long it is.
    pub length: f64,
    pub to: u32,
    /// Of the new pixels, those to compute.
    pub keep: u32,
    pub count: u32,
    /// Whether the line is to be computed as if it ran the other way: for mirrors that come first but are done last.
    pub mirrored: bool,
}

impl Line {
    /// Whether the new pixels are the old ones.
    pub fn is_copy(&self) -> bool {
        self.length == f64::from(self.to) && self.from.fract() == 0.0
    }
}

/// The taps of all new pixels of a line, padded to [`BLOCK`].
#[derive(Debug, Default)]
pub(crate) struct Weights {
    /// Binary places of the weights.
    pub precision: u32,
    /// Weights per new pixel, a multiple of [`BLOCK`]; those past the last tap are zero.
    pub stride: usize,
    /// For each new pixel the first source pixel.
    pub starts: Vec<u32>,
    /// For each new pixel the number of source pixels.
    pub counts: Vec<u32>,
    pub values: Vec<i16>,
    exact: Vec<f64>,
}

/// Taps are handled four at a time: four RGB pixels fit a 16-byte register.
pub(crate) const BLOCK: usize = 4;

impl Weights {
    /// The taps of new pixel `index`, counted from the first kept one.
    pub fn taps(&self, index: usize) -> &[i16] {
        &self.values[index * self.stride..][..self.counts[index] as usize]
    }

    /// The source pixels that are used at all: the first and the one after the last.
    pub fn reach(&self) -> (u32, u32) {
        let ends = self.starts.iter().zip(&self.counts).map(|(start, count)| start + count);
        (self.starts.iter().copied().min().unwrap_or(0), ends.max().unwrap_or(0))
    }

    /// Computes the taps of a line, keeping memory.
    pub fn fill(&mut self, line: &Line, interpolation: Interpolation, antialias: bool) {
        let averaging = antialias || matches!(interpolation, Interpolation::Box | Interpolation::Hamming);
        let step = line.length / f64::from(line.to);
        let widening = if averaging { step.max(1.0) } else { 1.0 };
        let reach = support(interpolation) * widening;
        let taps_max = if averaging { reach.ceil() as usize * 2 + 1 } else { 4 };
        self.stride = taps_max.next_multiple_of(BLOCK);
        self.starts.clear();
        self.counts.clear();
        self.exact.clear();
        let mut taps = Taps { weights: std::mem::take(&mut self.exact), stride: self.stride };
        let mut largest = 0.0_f64;
        for index in 0..line.to {
            let kept = (line.keep..line.keep + line.count).contains(&index);
            let seen = f64::from(if line.mirrored { line.to - 1 - index } else { index });
            let (start, count) = if averaging {
                taps.average(line, seen, step, interpolation)
            } else {
                taps.interpolate(line, seen, step, interpolation)
            };
            let newest = taps.newest();
            largest = newest.iter().fold(largest, |largest, weight| largest.max(*weight));
            if kept {
                self.starts.push(start);
                self.counts.push(count);
            } else {
                // Computed all the same: the places of the weights must not depend on which pixels are kept.
                taps.drop_newest();
            }
        }
        self.exact = taps.weights;
        self.precision = places(largest);
        let unit = f64::from(1 << self.precision);
        self.values.clear();
        self.values.extend(self.exact.iter().map(|weight| (weight * unit).round() as i16));
    }
}

/// As many binary places as leave the largest weight inside 16 bits.
fn places(largest: f64) -> u32 {
    (1..=22).take_while(|places| (0.5 + largest * f64::from(1 << places)) < 32_768.0).last().unwrap_or(1)
}

/// The weights of one new pixel after the other.
struct Taps {
    weights: Vec<f64>,
    stride: usize,
}

impl Taps {
    fn newest(&self) -> &[f64] {
        &self.weights[self.weights.len() - self.stride..]
    }

    fn drop_newest(&mut self) {
        self.weights.truncate(self.weights.len() - self.stride);
    }

    /// Room for the next new pixel, all zero.
    fn next(&mut self) -> &mut [f64] {
        let end = self.weights.len();
        self.weights.resize(end + self.stride, 0.0);
        &mut self.weights[end..]
    }

    /// Returns the first source pixel and how many count.
    fn average(&mut self, line: &Line, index: f64, step: f64, interpolation: Interpolation) -> (u32, u32) {
        let widening = step.max(1.0);
        let reach = support(interpolation) * widening;
        // Pixels are counted from the one the line begins in. Where it begins between two of them, which only a reduced
        // decode does, the rest of the offset goes into the centre; elsewhere the numbers are torch's to the last bit.
        let begin = line.from.floor();
        let before = line.from - begin;
        let pixels = (line.length + before).ceil();
        let after = pixels - (line.length + before);
        let centre = step * (index + 0.5) + if line.mirrored { after } else { before };
        let start = (centre - reach + 0.5).trunc().clamp(0.0, pixels - 1.0);
        let end = (centre + reach + 0.5).trunc().clamp(start + 1.0, pixels);
        let count = ((end - start) as usize).min(self.stride);
        let weights = self.next();
        for (tap, weight) in weights[..count].iter_mut().enumerate() {
            *weight = filter(interpolation, (tap as f64 + start - centre + 0.5) * (1.0 / widening));
        }
        let total: f64 = weights.iter().sum();
        if total != 0.0 {
            weights.iter_mut().for_each(|weight| *weight /= total);
        }
        self.place(line, begin, pixels, start, count)
    }

    fn interpolate(
        &mut self,
        line: &Line,
        index: f64,
        step: f64,
        interpolation: Interpolation,
    ) -> (u32, u32) {
        let position = step * (index + 0.5) - 0.5;
        let base = position.floor();
        let between = position - base;
        let (shares, back) = match interpolation {
            Interpolation::Bilinear => ([1.0 - between, between, 0.0, 0.0], 0.0),
            _ => ([1.0 + between, between, 1.0 - between, 2.0 - between].map(sharp_cubic), 1.0),
        };
        let clamped = |position: f64| position.clamp(0.0, line.length - 1.0);
        let start = clamped(base - back);
        let weights = self.next();
        let mut count = 1_usize;
        for (tap, share) in shares.into_iter().enumerate() {
            if share != 0.0 {
                let place = (clamped(base - back + tap as f64) - start) as usize;
                weights[place] += share;
                count = count.max(place + 1);
            }
        }
        self.place(line, line.from, line.length, start, count)
    }

    /// Where the newest taps lie in the buffer, turned round when the line is. `start` counts from the line's own beginning.
    fn place(&mut self, line: &Line, begin: f64, pixels: f64, start: f64, count: usize) -> (u32, u32) {
        if !line.mirrored {
            return ((begin + start) as u32, count as u32);
        }
        let newest = self.weights.len() - self.stride;
        self.weights[newest..newest + count].reverse();
        ((begin + pixels - start - count as f64) as u32, count as u32)
    }
}

/// The height of an averaging filter at a distance from its middle.
fn filter(interpolation: Interpolation, distance: f64) -> f64 {
    let x = distance.abs();
    match interpolation {
        Interpolation::Nearest | Interpolation::Box => f64::from(distance > -0.5 && distance <= 0.5),
        Interpolation::Bilinear => (1.0 - x).max(0.0),
        Interpolation::Hamming if x == 0.0 => 1.0,
        Interpolation::Hamming if x >= 1.0 => 0.0,
        Interpolation::Hamming => {
            let x = x * PI;
            x.sin() / x * (0.54 + 0.46 * x.cos())
        }
        Interpolation::Bicubic => cubic(x, -0.5),
        Interpolation::Lanczos if (-3.0..3.0).contains(&distance) => sinc(x) * sinc(x / 3.0),
        Interpolation::Lanczos => 0.0,
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) }
}

/// Keys' cubic at a non-negative distance.
fn cubic(x: f64, a: f64) -> f64 {
    if x < 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * a
    } else {
        0.0
    }
}

/// The cubic that torch interpolates with when it does not average.
fn sharp_cubic(x: f64) -> f64 {
    cubic(x, -0.75)
}
