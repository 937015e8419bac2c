//! Overwriting a rectangle, before or after the values have become floats.

use sutler_core::{SampleId, SampleRng};

use super::draw::Erasure;
use super::fuse::Patch;
use super::op::{EraseWith, Op};
use super::pipeline::Layout;
use super::simd::floats_mut;
use super::{Pixels, Size};

/// What a rectangle is overwritten with, value by value: channel by channel, row by row, left to right. That is also the
/// order in which noise is drawn.
struct Filling {
    values: [f64; 3],
    noise: Option<SampleRng>,
}

impl Filling {
    fn new(value: &EraseWith, noise_seed: u64) -> Self {
        match value {
            EraseWith::Values(values) => {
                let last = values.last().copied().unwrap_or(0.0);
                let values = std::array::from_fn(|channel| values.get(channel).copied().unwrap_or(last));
                Self { values, noise: None }
            }
            // A stream of its own: nothing else of the sample is drawn with this seed.
            EraseWith::Named(_) => {
                Self { values: [0.0; 3], noise: Some(SampleRng::new(noise_seed, 0, SampleId(0))) }
            }
        }
    }

    fn next(&mut self, channel: usize) -> f32 {
        let value = self.noise.as_mut().map_or(self.values[channel], SampleRng::normal);
        value as f32
    }
}

/// Overwrites in 8-bit pixels. Fractions are cut off and what does not fit wraps around, as a float assigned to a
/// torch tensor of bytes does.
pub(crate) fn erase_bytes(pixels: &mut Pixels, erasure: &Erasure, value: &EraseWith) {
    let mut filling = Filling::new(value, erasure.noise_seed);
    let rect = erasure.rect;
    for channel in 0..3 {
        for y in rect.y..rect.y + rect.height {
            for x in rect.x..rect.x + rect.width {
                let index = (y as usize * pixels.width as usize + x as usize) * 3 + channel;
                pixels.data[index] = filling.next(channel) as i64 as u8;
            }
        }
    }
}

/// Overwrites in the floats already written to `out`; what later operations change in a value or its place is done here.
pub(crate) fn erase_floats(
    out: &mut [u8],
    size: Size,
    layout: Layout,
    patch: &Patch,
    ops: &[Op],
) -> Option<()> {
    let Op::RandomErasing { value, .. } = &ops[patch.op] else { return Some(()) };
    let out = floats_mut(out)?;
    let mut filling = Filling::new(value, patch.erasure.noise_seed);
    let rect = patch.erasure.rect;
    let (width, plane) = (size.width as usize, size.width as usize * size.height as usize);
    for channel in 0..3 {
        for y in rect.y..rect.y + rect.height {
            let y = if patch.flips.vertical { size.height - 1 - y } else { y };
            for x in rect.x..rect.x + rect.width {
                let x = if patch.flips.horizontal { size.width - 1 - x } else { x };
                let position = y as usize * width + x as usize;
                let index = match layout {
                    Layout::Nchw => channel * plane + position,
                    Layout::Nhwc => position * 3 + channel,
                };
                out[index] = normalised_after(&ops[patch.op + 1..], channel, filling.next(channel));
            }
        }
    }
    Some(())
}

/// What the operations after an erasure make of a value.
fn normalised_after(ops: &[Op], channel: usize, value: f32) -> f32 {
    ops.iter().fold(value, |value, op| match op {
        Op::Normalize { mean, std } => (value - mean[channel] as f32) / std[channel] as f32,
        _ => value,
    })
}
