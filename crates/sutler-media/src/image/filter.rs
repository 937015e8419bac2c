//! Filters that look at a pixel's neighbours.

use super::Pixels;
use super::geometry::source_index;
use super::op::PaddingMode;
use super::simd::vectorised;

/// Room that a blur needs, kept between images.
#[derive(Default)]
pub(crate) struct BlurScratch {
    across: Vec<f32>,
    down: Vec<f32>,
    /// Blurred along x, still float, one row of `width * 3` after the other.
    rows: Vec<f32>,
    /// One row with its reflected border.
    bordered: Vec<f32>,
    /// One row of sums.
    sums: Vec<f32>,
}

/// The weights of a Gaussian of this deviation at `size` points around its middle; they add up to 1.
fn gaussian(size: u32, sigma: f64, weights: &mut Vec<f32>) {
    let middle = f64::from(size / 2);
    let weight = |index: u32| (-0.5 * ((f64::from(index) - middle) / sigma).powi(2)).exp();
    let total: f64 = (0..size).map(weight).sum();
    weights.clear();
    weights.extend((0..size).map(|index| (weight(index) / total) as f32));
}

/// Blurs `source` into `out`; the image is mirrored at its border. `kernel` is `[x, y]`.
pub(crate) fn blur(
    source: &Pixels,
    kernel: [u32; 2],
    sigma: f64,
    scratch: &mut BlurScratch,
    out: &mut Pixels,
) {
    out.resize(source.width, source.height);
    let (width, height) = (source.width, source.height);
    let row_values = width as usize * 3;
    if row_values == 0 || height == 0 {
        return;
    }
    gaussian(kernel[0], sigma, &mut scratch.across);
    gaussian(kernel[1], sigma, &mut scratch.down);
    let BlurScratch { across, down, rows, bordered, sums } = scratch;

    let margin = i64::from(kernel[0] / 2);
    rows.resize(row_values * height as usize, 0.0);
    bordered.resize((width as usize + 2 * margin as usize) * 3, 0.0);
    for (y, target) in rows.chunks_exact_mut(row_values).enumerate() {
        let line = source.row(y as u32, 0, width);
        for (position, pixel) in (-margin..).zip(bordered.as_chunks_mut::<3>().0) {
            let x = source_index(position, width, PaddingMode::Reflect).unwrap_or(0) as usize;
            *pixel = [line[x * 3], line[x * 3 + 1], line[x * 3 + 2]].map(f32::from);
        }
        target.fill(0.0);
        for (tap, weight) in across.iter().enumerate() {
            add_weighted(&bordered[tap * 3..tap * 3 + row_values], *weight, target);
        }
    }

    let margin = i64::from(kernel[1] / 2);
    sums.resize(row_values, 0.0);
    for (y, target) in out.data.chunks_exact_mut(row_values).enumerate() {
        sums.fill(0.0);
        for (position, weight) in (y as i64 - margin..).zip(down.iter()) {
            let y = source_index(position, height, PaddingMode::Reflect).unwrap_or(0) as usize;
            add_weighted(&rows[y * row_values..(y + 1) * row_values], *weight, sums);
        }
        round_to_levels(sums, target);
    }
}

vectorised! {
    fn add_weighted(values: &[f32], weight: f32, sums: &mut [f32]) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = value.mul_add(weight, *sum);
        }
    }
}

vectorised! {
    fn round_to_levels(sums: &[f32], levels: &mut [u8]) {
        for (level, sum) in levels.iter_mut().zip(sums) {
            *level = sum.round_ties_even().clamp(0.0, 255.0) as i32 as u8;
        }
    }
}

/// Sharpens (`factor` above 1) or softens `source` into `out`; the outermost pixels stay as they are.
pub(crate) fn sharpness(source: &Pixels, factor: f64, out: &mut Pixels) {
    out.resize(source.width, source.height);
    out.data.copy_from_slice(&source.data);
    let row_values = source.width as usize * 3;
    if source.width <= 2 || source.height <= 2 {
        return;
    }
    let rows = source.data.windows(row_values * 3).step_by(row_values);
    let targets = out.data[row_values..].chunks_exact_mut(row_values);
    for (above_to_below, target) in rows.zip(targets) {
        sharpen_row(above_to_below, (1.0 - factor) as f32, &mut target[3..row_values - 3]);
    }
}

vectorised! {
    /// `rows` holds the row above, the row itself and the row below; `target` the row without its first and last pixel.
    fn sharpen_row(rows: &[u8], softness: f32, target: &mut [u8]) {
        let row_values = rows.len() / 3;
        let count = target.len();
        let at = |row: usize, pixel: usize| &rows[row * row_values + pixel * 3..][..count];
        let neighbours = [at(0, 0), at(0, 1), at(0, 2), at(1, 0), at(1, 2), at(2, 0), at(2, 1), at(2, 2)];
        let middle = at(1, 1);
        for index in 0..count {
            let own = u32::from(middle[index]);
            let sum = neighbours.iter().map(|row| u32::from(row[index])).sum::<u32>() + 5 * own;
            // A thirteenth is never half a level, so rounding with integers is rounding.
            let soft = ((2 * sum + 13) / 26) as f32;
            let own = own as f32;
            target[index] = (soft - own).mul_add(softness, own).clamp(0.0, 255.0) as i32 as u8;
        }
    }
}
