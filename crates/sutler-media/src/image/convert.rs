//! The last step: from 8-bit pixels to the batch, in its layout and type, through the mirrors that are left.

use super::geometry::Flips;
use super::pipeline::Layout;
use super::simd::{floats_mut, split_scaled, vectorised};
use super::{Pixels, Rect};

/// How levels become floats: `(level * scale - mean) / deviation`, each step rounded as torch rounds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Normaliser {
    pub scale: f32,
    pub mean: [f32; 3],
    pub deviation: [f32; 3],
    /// Whether blue comes out first; mean and deviation are in the order of what comes out.
    pub reversed: bool,
}

impl Normaliser {
    fn value(&self, level: u8, channel: usize) -> f32 {
        (f32::from(level) * self.scale - self.mean[channel]) / self.deviation[channel]
    }

    /// What is in the order of red, green and blue in the order of what comes out, and the other way round.
    fn ordered<T>(&self, mut three: [T; 3]) -> [T; 3] {
        if self.reversed {
            three.reverse();
        }
        three
    }
}

/// Writes `window` of `source` as bytes. `out` has exactly the room.
pub(crate) fn write_bytes(source: &Pixels, window: Rect, flips: Flips, layout: Layout, out: &mut [u8]) {
    let (width, plane) = (window.width as usize, window.width as usize * window.height as usize);
    if plane == 0 {
        return;
    }
    match layout {
        Layout::Nhwc => {
            for (row, target) in out.chunks_exact_mut(width * 3).enumerate() {
                let line = line(source, window, flips, row);
                if flips.horizontal {
                    let mirrored = line.as_chunks::<3>().0.iter().rev();
                    for (pixel, from) in target.as_chunks_mut::<3>().0.iter_mut().zip(mirrored) {
                        *pixel = *from;
                    }
                } else {
                    target.copy_from_slice(line);
                }
            }
        }
        Layout::Nchw => {
            let (red, rest) = out.split_at_mut(plane);
            let (green, blue) = rest.split_at_mut(plane);
            for row in 0..window.height as usize {
                let line = line(source, window, flips, row);
                let span = row * width..(row + 1) * width;
                split_bytes(
                    line,
                    flips.horizontal,
                    &mut red[span.clone()],
                    &mut green[span.clone()],
                    &mut blue[span],
                );
            }
        }
    }
}

/// Writes `window` of `source` as floats; `None` when `out` does not begin on a float.
pub(crate) fn write_floats(
    source: &Pixels,
    window: Rect,
    flips: Flips,
    layout: Layout,
    normaliser: &Normaliser,
    out: &mut [u8],
) -> Option<()> {
    let out = floats_mut(out)?;
    let (width, plane) = (window.width as usize, window.width as usize * window.height as usize);
    if plane == 0 {
        return Some(());
    }
    match layout {
        Layout::Nhwc => {
            for (row, target) in out.chunks_exact_mut(width * 3).enumerate() {
                scale_row(line(source, window, flips, row), flips.horizontal, normaliser, target);
            }
        }
        Layout::Nchw => {
            // The first and the last plane change places where blue comes first.
            let (red, rest) = out.split_at_mut(plane);
            let (green, blue) = rest.split_at_mut(plane);
            for row in 0..window.height as usize {
                let span = row * width..(row + 1) * width;
                let targets =
                    normaliser.ordered([&mut red[span.clone()], &mut green[span.clone()], &mut blue[span]]);
                let line = line(source, window, flips, row);
                let (mean, deviation) =
                    (normaliser.ordered(normaliser.mean), normaliser.ordered(normaliser.deviation));
                split_scaled(line, flips.horizontal, normaliser.scale, &mean, &deviation, targets);
            }
        }
    }
    Some(())
}

fn line(source: &Pixels, window: Rect, flips: Flips, row: usize) -> &[u8] {
    let row = row as u32;
    let row = if flips.vertical { window.height - 1 - row } else { row };
    source.row(window.y + row, window.x, window.width)
}

vectorised! {
    fn split_bytes(line: &[u8], mirrored: bool, red: &mut [u8], green: &mut [u8], blue: &mut [u8]) {
        let (pixels, _) = line.as_chunks::<3>();
        let targets = red.iter_mut().zip(green).zip(blue);
        let assign = |(((red, green), blue), pixel): (((&mut u8, &mut u8), &mut u8), &[u8; 3])| {
            (*red, *green, *blue) = (pixel[0], pixel[1], pixel[2]);
        };
        if mirrored {
            targets.zip(pixels.iter().rev()).for_each(assign);
        } else {
            targets.zip(pixels).for_each(assign);
        }
    }
}

vectorised! {
    fn scale_row(line: &[u8], mirrored: bool, normaliser: &Normaliser, target: &mut [f32]) {
        let (pixels, _) = line.as_chunks::<3>();
        let (targets, _) = target.as_chunks_mut::<3>();
        let assign = |(target, pixel): (&mut [f32; 3], &[u8; 3])| {
            let levels = normaliser.ordered(*pixel);
            for channel in 0..3 {
                target[channel] = normaliser.value(levels[channel], channel);
            }
        };
        if mirrored {
            targets.iter_mut().zip(pixels.iter().rev()).for_each(assign);
        } else {
            targets.iter_mut().zip(pixels).for_each(assign);
        }
    }
}
