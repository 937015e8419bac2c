//! Changes of colour, as torchvision makes them on 8-bit tensors: single precision, one rounding where torch has
//! a fused multiply-add, and fractions cut off at the end.

use super::Pixels;
use super::simd::vectorised;

/// A new level for every level, per channel.
type Table = [[u8; 256]; 3];

fn table(value: impl Fn(usize, u8) -> u8) -> Table {
    std::array::from_fn(|channel| std::array::from_fn(|level| value(channel, level as u8)))
}

fn look_up(pixels: &mut Pixels, table: &Table) {
    for pixel in pixels.data.as_chunks_mut::<3>().0 {
        for (value, levels) in pixel.iter_mut().zip(table) {
            *value = levels[usize::from(*value)];
        }
    }
}

fn cut(value: f32) -> u8 {
    value.clamp(0.0, 255.0) as u8
}

/// The luma of a pixel, fraction included.
#[inline(always)]
fn luma(pixel: &[u8; 3]) -> f32 {
    let [red, green, blue] = pixel.map(f32::from);
    blue.mul_add(0.114, green.mul_add(0.587, red * 0.2989))
}

/// Multiplies every level.
pub(crate) fn brightness(pixels: &mut Pixels, factor: f64) {
    let factor = factor as f32;
    look_up(pixels, &table(|_, level| cut(f32::from(level) * factor)));
}

/// Moves every level away from the mean luma, or towards it.
pub(crate) fn contrast(pixels: &mut Pixels, factor: f64) {
    let mut sum = 0;
    add_lumas(&pixels.data, &mut sum);
    let count = pixels.data.len() / 3;
    let mean = (sum as f64 / count.max(1) as f64) as f32;
    let (factor, rest) = (factor as f32, (1.0 - factor) as f32);
    look_up(pixels, &table(|_, level| cut(mean.mul_add(rest, f32::from(level) * factor))));
}

vectorised! {
    /// Adds the whole levels of the lumas: integers, so that the order of the pixels does not matter.
    fn add_lumas(data: &[u8], sum: &mut u64) {
        // 64 pixels of up to 255 fit 32 bits, which is the width that the vector units like.
        for block in data.chunks(64 * 3) {
            let levels: u32 = block.as_chunks::<3>().0.iter().map(|pixel| luma(pixel) as i32 as u32).sum();
            *sum += u64::from(levels);
        }
    }
}

vectorised! {
    /// Moves every pixel away from its own luma, or towards it.
    pub(crate) fn saturation(pixels: &mut Pixels, factor: f64) {
        let (factor, rest) = (factor as f32, (1.0 - factor) as f32);
        for pixel in pixels.data.as_chunks_mut::<3>().0 {
            let grey = luma(pixel).floor();
            for value in pixel {
                *value = grey.mul_add(rest, f32::from(*value) * factor).clamp(0.0, 255.0) as i32 as u8;
            }
        }
    }
}

vectorised! {
    /// Replaces every pixel by its luma.
    pub(crate) fn greyscale(pixels: &mut Pixels) {
        for pixel in pixels.data.as_chunks_mut::<3>().0 {
            *pixel = [luma(pixel) as i32 as u8; 3];
        }
    }
}

vectorised! {
    /// Turns the colour circle by `turn` of a full turn.
    pub(crate) fn hue(pixels: &mut Pixels, turn: f64) {
        let turn = turn as f32;
        for pixel in pixels.data.as_chunks_mut::<3>().0 {
            *pixel = turned(*pixel, turn);
        }
    }
}

/// Through hue, saturation and value, and back. Written without branches, so that eight pixels go at a time.
#[inline(always)]
fn turned(pixel: [u8; 3], turn: f32) -> [u8; 3] {
    let [red, green, blue] = pixel.map(|level| f32::from(level) * (1.0 / 255.0));
    let value = red.max(green).max(blue);
    let lowest = red.min(green).min(blue);
    let range = value - lowest;
    let grey = range == 0.0;
    let saturation = range / if grey { 1.0 } else { value };
    let divisor = if grey { 1.0 } else { range };
    let [from_red, from_green, from_blue] = [red, green, blue].map(|channel| (value - channel) / divisor);
    let sector = if value == red {
        from_blue - from_green
    } else if value == green {
        from_red + 2.0 - from_blue
    } else {
        from_green + 4.0 - from_red
    };
    let hue = sector * (1.0 / 6.0) + 1.0;
    let hue = hue - hue.trunc() + turn;
    let hue = (hue - hue.floor()) * 6.0;
    let whole = hue.floor();
    let fraction = hue - whole;
    let sector = if whole >= 6.0 { 0.0 } else { whole };

    let slope = saturation * fraction;
    let low = ((1.0 - saturation) * value).clamp(0.0, 1.0);
    let falling = ((1.0 - slope) * value).clamp(0.0, 1.0);
    let rising = ((slope + (1.0 - saturation)) * value).clamp(0.0, 1.0);
    let pick = |by_sector: [f32; 6]| {
        let mut chosen = by_sector[0];
        for (index, candidate) in by_sector.into_iter().enumerate().skip(1) {
            chosen = if sector == index as f32 { candidate } else { chosen };
        }
        (chosen * 255.999) as i32 as u8
    };
    [
        pick([value, falling, low, low, rising, value]),
        pick([rising, value, value, falling, low, low]),
        pick([low, low, rising, value, value, falling]),
    ]
}

/// Keeps the highest `bits` of every level.
pub(crate) fn posterize(pixels: &mut Pixels, bits: u32) {
    let mask = (0xFF00_u32 >> bits.min(8)) as u8;
    pixels.data.iter_mut().for_each(|value| *value &= mask);
}

/// Inverts the levels from `threshold` on.
pub(crate) fn solarize(pixels: &mut Pixels, threshold: f64) {
    let threshold = threshold as f32;
    look_up(pixels, &table(|_, level| if f32::from(level) >= threshold { !level } else { level }));
}

/// Stretches each channel to the full range.
pub(crate) fn autocontrast(pixels: &mut Pixels) {
    let mut darkest = [u8::MAX; 3];
    let mut brightest = [0; 3];
    for pixel in pixels.data.as_chunks::<3>().0 {
        for channel in 0..3 {
            darkest[channel] = darkest[channel].min(pixel[channel]);
            brightest[channel] = brightest[channel].max(pixel[channel]);
        }
    }
    let stretched = table(|channel, level| {
        let (low, high) = (f32::from(darkest[channel]), f32::from(brightest[channel]));
        if low >= high {
            return level;
        }
        cut((f32::from(level) - low) / ((high - low) * (1.0 / 255.0)))
    });
    look_up(pixels, &stretched);
}

/// Evens out the histogram of each channel, the way Pillow does.
pub(crate) fn equalize(pixels: &mut Pixels) {
    let mut counts = [[0_u32; 256]; 3];
    for pixel in pixels.data.as_chunks::<3>().0 {
        for (levels, value) in counts.iter_mut().zip(pixel) {
            levels[usize::from(*value)] += 1;
        }
    }
    let total = (pixels.data.len() / 3) as u32;
    let mut equalized = table(|_, level| level);
    for (levels, counts) in equalized.iter_mut().zip(&counts) {
        let last = counts.iter().rev().find(|count| **count > 0).copied().unwrap_or(0);
        let step = (total - last) / 255;
        if step == 0 {
            continue; // too few different pixels to tell levels apart
        }
        let mut below = 0;
        for (level, count) in levels.iter_mut().zip(counts) {
            *level = ((below + step / 2) / step).min(255) as u8;
            below += count;
        }
    }
    look_up(pixels, &equalized);
}

/// Brightness, contrast, saturation and hue, numbered 0 to 3 as [`ColorJitter`](super::op::Op::ColorJitter) lists them, in the given order.
pub(crate) fn jitter(pixels: &mut Pixels, order: [u8; 4], factors: [Option<f64>; 4]) {
    const CHANGES: [fn(&mut Pixels, f64); 4] = [brightness, contrast, saturation, hue];
    for index in order.map(usize::from) {
        if let Some(factor) = factors[index] {
            CHANGES[index](pixels, factor);
        }
    }
}
