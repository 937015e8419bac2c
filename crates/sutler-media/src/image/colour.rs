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

/// The level without its fraction, for values from 0 up to (not including) 256. At 2^23 a float has no fraction left and
/// its lowest byte is the level; unlike a cast this needs no care for values that are not there.
#[inline(always)]
fn whole_level(value: f32) -> u8 {
    (value.floor() + 8_388_608.0).to_bits() as u8
}

/// The luma of a pixel, fraction included.
#[inline(always)]
fn luma([red, green, blue]: [f32; 3]) -> f32 {
    blue.mul_add(0.114, green.mul_add(0.587, red * 0.2989))
}

/// Pixels handled at a time: taken apart into planes, so that the arithmetic in between runs on whole registers.
const PIXELS: usize = 32;

#[inline(always)]
fn planes(pixels: &[[u8; 3]]) -> [[f32; PIXELS]; 3] {
    let mut planes = [[0.0; PIXELS]; 3];
    for (index, pixel) in pixels.iter().enumerate() {
        for (plane, level) in planes.iter_mut().zip(pixel) {
            plane[index] = f32::from(*level);
        }
    }
    planes
}

/// What becomes of a pixel. A trait and no closure, because only a method can be told to be compiled into its caller, and
/// only there may it use the registers that the caller was compiled for.
trait Change {
    fn of(&self, pixel: [f32; 3]) -> [f32; 3];
}

/// Replaces every pixel by what `change` makes of its levels, fractions cut off.
#[inline(always)]
fn change_pixels(pixels: &mut Pixels, change: &impl Change) {
    for block in pixels.data.as_chunks_mut::<3>().0.chunks_mut(PIXELS) {
        let [red, green, blue] = planes(block);
        let mut levels = [[0; PIXELS]; 3];
        for index in 0..PIXELS {
            let changed = change.of([red[index], green[index], blue[index]]);
            for channel in 0..3 {
                levels[channel][index] = whole_level(changed[channel]);
            }
        }
        for (index, pixel) in block.iter_mut().enumerate() {
            *pixel = [levels[0][index], levels[1][index], levels[2][index]];
        }
    }
}

vectorised! {
    /// Replaces every level by `level * factor + offset * weight`.
    fn change_levels(data: &mut [u8], factor: f32, offset: f32, weight: f32) {
        for level in data {
            *level = whole_level(offset.mul_add(weight, f32::from(*level) * factor).clamp(0.0, 255.0));
        }
    }
}

/// Multiplies every level.
pub(crate) fn brightness(pixels: &mut Pixels, factor: f64) {
    change_levels(&mut pixels.data, factor as f32, 0.0, 0.0);
}

/// Moves every level away from the mean luma, or towards it.
pub(crate) fn contrast(pixels: &mut Pixels, factor: f64) {
    let mut sum = 0;
    add_lumas(pixels, &mut sum);
    let mean = (sum as f64 / (pixels.data.len() / 3).max(1) as f64) as f32;
    change_levels(&mut pixels.data, factor as f32, mean, (1.0 - factor) as f32);
}

vectorised! {
    /// Adds up the whole levels of the lumas: integers, so that the order of the pixels does not matter.
    fn add_lumas(pixels: &Pixels, sum: &mut u64) {
        for block in pixels.data.as_chunks::<3>().0.chunks(PIXELS) {
            let [red, green, blue] = planes(block);
            let levels: i32 = (0..PIXELS).map(|index| i32::from(whole_level(luma([red[index], green[index], blue[index]])))).sum();
            *sum += levels as u64;
        }
    }
}

vectorised! {
    /// Moves every pixel away from its own luma, or towards it.
    pub(crate) fn saturation(pixels: &mut Pixels, factor: f64) {
        change_pixels(pixels, &Saturate { factor: factor as f32, rest: (1.0 - factor) as f32 });
    }
}

struct Saturate {
    factor: f32,
    rest: f32,
}

impl Change for Saturate {
    #[inline(always)]
    fn of(&self, pixel: [f32; 3]) -> [f32; 3] {
        let grey = luma(pixel).floor();
        let [red, green, blue] = pixel;
        [
            grey.mul_add(self.rest, red * self.factor).clamp(0.0, 255.0),
            grey.mul_add(self.rest, green * self.factor).clamp(0.0, 255.0),
            grey.mul_add(self.rest, blue * self.factor).clamp(0.0, 255.0),
        ]
    }
}

vectorised! {
    /// Replaces every pixel by its luma.
    pub(crate) fn greyscale(pixels: &mut Pixels) {
        change_pixels(pixels, &Grey);
    }
}

struct Grey;

impl Change for Grey {
    #[inline(always)]
    fn of(&self, pixel: [f32; 3]) -> [f32; 3] {
        [luma(pixel); 3]
    }
}

vectorised! {
    /// Turns the colour circle by `turn` of a full turn.
    pub(crate) fn hue(pixels: &mut Pixels, turn: f64) {
        change_pixels(pixels, &Turn(turn as f32));
    }
}

struct Turn(f32);

impl Change for Turn {
    /// Through hue, saturation and value, and back. Written without branches, so that eight pixels go at a time.
    #[inline(always)]
    fn of(&self, [red, green, blue]: [f32; 3]) -> [f32; 3] {
        const UNIT: f32 = 1.0 / 255.0;
        let (red, green, blue) = (red * UNIT, green * UNIT, blue * UNIT);
        let value = red.max(green).max(blue);
        let lowest = red.min(green).min(blue);
        let range = value - lowest;
        let grey = range == 0.0;
        let saturation = range / if grey { 1.0 } else { value };
        let divisor = if grey { 1.0 } else { range };
        let (from_red, from_green, from_blue) =
            ((value - red) / divisor, (value - green) / divisor, (value - blue) / divisor);
        let by_green = from_red + 2.0 - from_blue;
        let by_blue = from_green + 4.0 - from_red;
        let sector = if value == green { by_green } else { by_blue };
        let sector = if value == red { from_blue - from_green } else { sector };
        let hue = sector * (1.0 / 6.0) + 1.0;
        let hue = hue - hue.trunc() + self.0;
        let hue = (hue - hue.floor()) * 6.0;
        let whole = hue.floor();
        let slope = saturation * (hue - whole);
        let low = limited((1.0 - saturation) * value);
        let falling = limited((1.0 - slope) * value);
        let rising = limited((slope + (1.0 - saturation)) * value);
        // A hue that rounding has brought to a full turn is back at the first sector.
        [
            by_sector(whole, [value, falling, low, low, rising, value]),
            by_sector(whole, [rising, value, value, falling, low, low]),
            by_sector(whole, [low, low, rising, value, value, falling]),
        ]
    }
}

#[inline(always)]
fn limited(value: f32) -> f32 {
    value.clamp(0.0, 1.0)
}

#[inline(always)]
fn by_sector(sector: f32, [first, second, third, fourth, fifth, sixth]: [f32; 6]) -> f32 {
    let chosen = if sector == 1.0 { second } else { first };
    let chosen = if sector == 2.0 { third } else { chosen };
    let chosen = if sector == 3.0 { fourth } else { chosen };
    let chosen = if sector == 4.0 { fifth } else { chosen };
    let chosen = if sector == 5.0 { sixth } else { chosen };
    chosen * 255.999
}

/// Keeps the highest `bits` of every level.
pub(crate) fn posterize(pixels: &mut Pixels, bits: u32) {
    let mask = (0xFF00_u32 >> bits.min(8)) as u8;
    pixels.data.iter_mut().for_each(|value| *value &= mask);
}

/// Inverts the levels from `threshold` on.
pub(crate) fn solarize(pixels: &mut Pixels, threshold: f64) {
    // Levels are whole, so the threshold may be too, once it is in the single precision that torch compares in.
    let first = (threshold as f32).ceil().clamp(0.0, 256.0) as u16;
    for level in &mut pixels.data {
        *level = if u16::from(*level) >= first { !*level } else { *level };
    }
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
