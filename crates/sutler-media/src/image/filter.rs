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
    /// One row with its mirrored border.
    row: Vec<f32>,
    /// All rows blurred across, still float, with their mirrored border above and below.
    rows: Vec<f32>,
    /// One row blurred both ways.
    sums: Vec<f32>,
}

/// Weights below this are left out: all of them together move a level by less than single precision does anyway.
const WEIGHT_MIN: f64 = 1e-9;

/// The weights of a Gaussian of this deviation at `size` points around its middle, as far as they matter.
fn gaussian(size: u32, sigma: f64, weights: &mut Vec<f32>) {
    let middle = f64::from(size / 2);
    let height = |index: u32| (-0.5 * ((f64::from(index) - middle) / sigma).powi(2)).exp();
    let total: f64 = (0..size).map(height).sum();
    weights.clear();
    weights.extend(
        (0..size)
            .map(|index| height(index) / total)
            .filter(|weight| *weight >= WEIGHT_MIN)
            .map(|weight| weight as f32),
    );
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
    let row_values = source.width as usize * 3;
    if out.data.is_empty() {
        return;
    }
    gaussian(kernel[0], sigma, &mut scratch.across);
    gaussian(kernel[1], sigma, &mut scratch.down);
    let BlurScratch { across, down, row, rows, sums } = scratch;

    let (margin, padding) = (across.len() / 2, down.len() / 2);
    row.resize((source.width as usize + 2 * margin) * 3, 0.0);
    rows.resize(row_values * (source.height as usize + 2 * padding), 0.0);
    for (y, target) in
        rows[padding * row_values..].chunks_exact_mut(row_values).take(source.height as usize).enumerate()
    {
        let line = source.row(y as u32, 0, source.width);
        for (position, pixel) in (-(margin as i64)..).zip(row.as_chunks_mut::<3>().0) {
            let x = mirrored(position, source.width);
            *pixel = [line[x * 3], line[x * 3 + 1], line[x * 3 + 2]].map(f32::from);
        }
        add_weighted(row, 3, across, target);
    }
    let height = source.height as usize;
    for border in (0..padding).chain(padding + height..height + 2 * padding) {
        let from = (padding + mirrored(border as i64 - padding as i64, source.height)) * row_values;
        rows.copy_within(from..from + row_values, border * row_values);
    }
    sums.resize(row_values, 0.0);
    for (y, target) in out.data.chunks_exact_mut(row_values).enumerate() {
        add_weighted(&rows[y * row_values..], row_values, down, sums);
        round_to_levels(sums, target);
    }
}

fn mirrored(position: i64, length: u32) -> usize {
    source_index(position, length, PaddingMode::Reflect).unwrap_or(0) as usize
}

vectorised! {
    /// Adds up, for each sum, as many values as there are weights, `stride` apart.
    fn add_weighted(values: &[f32], stride: usize, weights: &[f32], sums: &mut [f32]) {
        const TOGETHER: usize = 32; // four registers of sums at a time
        let (blocks, rest) = sums.as_chunks_mut::<TOGETHER>();
        let done = blocks.len() * TOGETHER;
        for (block, sums) in blocks.iter_mut().enumerate() {
            let mut totals = [0.0_f32; TOGETHER];
            for (tap, weight) in weights.iter().enumerate() {
                let values = &values[block * TOGETHER + tap * stride..][..TOGETHER];
                for (total, value) in totals.iter_mut().zip(values) {
                    *total = value.mul_add(*weight, *total);
                }
            }
            *sums = totals;
        }
        for (index, sum) in rest.iter_mut().enumerate() {
            let taps = weights.iter().enumerate();
            *sum = taps.fold(0.0, |sum, (tap, weight)| values[done + index + tap * stride].mul_add(*weight, sum));
        }
    }
}

vectorised! {
    fn round_to_levels(sums: &[f32], levels: &mut [u8]) {
        for (level, sum) in levels.iter_mut().zip(sums) {
            // At 2^23 a float has no fraction left: adding it rounds half to even, and the lowest byte is the level.
            *level = (sum.clamp(0.0, 255.0) + 8_388_608.0).to_bits() as u8;
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
