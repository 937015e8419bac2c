//! Where pixels go: sizes, crops, borders and mirrors.

use super::op::{PaddingMode, ResizeTo};
use super::{Pixels, Rect, Size};

/// The mirrors an image is still to be seen through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Flips {
    pub horizontal: bool,
    pub vertical: bool,
}

impl Flips {
    pub const NONE: Self = Self { horizontal: false, vertical: false };

    /// What is left to mirror when `done` is done already.
    pub fn without(self, done: Self) -> Self {
        Self { horizontal: self.horizontal ^ done.horizontal, vertical: self.vertical ^ done.vertical }
    }

    /// Where `rect` of a mirrored image of this size lies in the image behind the mirror.
    pub fn apply(self, rect: Rect, size: Size) -> Rect {
        let mut mirrored = rect;
        if self.horizontal {
            mirrored.x = size.width - rect.x - rect.width;
        }
        if self.vertical {
            mirrored.y = size.height - rect.y - rect.height;
        }
        mirrored
    }
}

/// The size a resize leads to. The ratio is cut, not rounded, as torchvision does; no side gets shorter than a pixel.
pub(crate) fn resized(to: ResizeTo, longer_max: Option<u32>, from: Size) -> Size {
    let requested = match to {
        ResizeTo::Exact(pair) => return Size::from_height_width(pair),
        ResizeTo::Shorter(length) => length,
    };
    let (short, long) = (from.width.min(from.height).max(1), from.width.max(from.height));
    let ratio = |length: u32, numerator: u32, denominator: u32| {
        let scaled = u64::from(length) * u64::from(numerator) / u64::from(denominator.max(1));
        u32::try_from(scaled).unwrap_or(u32::MAX).max(1)
    };
    let (mut new_short, mut new_long) = (requested, ratio(requested, long, short));
    if let Some(limit) = longer_max
        && new_long > limit
    {
        (new_short, new_long) = (ratio(limit, new_short, new_long), limit);
    }
    if from.width <= from.height {
        Size { width: new_short, height: new_long }
    } else {
        Size { width: new_long, height: new_short }
    }
}

/// Half of an odd number rounds to the even neighbour, as Python's `round` does.
fn half_rounded_to_even(length: u32) -> u32 {
    let half = length / 2;
    if length % 2 == 1 && half % 2 == 1 { half + 1 } else { half }
}

/// The border (`[left, top, right, bottom]`) and then the window of a centred crop.
pub(crate) fn centred(crop: Size, image: Size) -> ([u32; 4], Rect) {
    let along = |crop: u32, image: u32| {
        let missing = crop.saturating_sub(image);
        let (before, after) = (missing / 2, missing.div_ceil(2));
        (before, after, half_rounded_to_even(image + missing - crop))
    };
    let (left, right, x) = along(crop.width, image.width);
    let (top, bottom, y) = along(crop.height, image.height);
    ([left, top, right, bottom], Rect { x, y, width: crop.width, height: crop.height })
}

/// The size of an image with a border, or `None` when it would not fit 32 bits.
pub(crate) fn padded(image: Size, [left, top, right, bottom]: [u32; 4]) -> Option<Size> {
    Some(Size {
        width: image.width.checked_add(left)?.checked_add(right)?,
        height: image.height.checked_add(top)?.checked_add(bottom)?,
    })
}

/// Which source index stands at `position` (which may lie outside `0..length`), or `None` for the fill colour.
///
/// Mirrors longer than the image bounce to and fro, so that no border is refused for being wide.
pub(crate) fn source_index(position: i64, length: u32, mode: PaddingMode) -> Option<u32> {
    let length = i64::from(length);
    if (0..length).contains(&position) {
        return Some(position as u32);
    }
    let index = match mode {
        PaddingMode::Constant => return None,
        PaddingMode::Edge => position.clamp(0, length - 1),
        PaddingMode::Reflect => {
            let period = (2 * (length - 1)).max(1);
            let folded = position.rem_euclid(period);
            if folded < length { folded } else { period - folded }
        }
        PaddingMode::Symmetric => {
            let folded = position.rem_euclid(2 * length);
            if folded < length { folded } else { 2 * length - 1 - folded }
        }
    };
    Some(index as u32)
}

/// Writes the `window` of `source` with a border of `[left, top, ..]` around it; only what the window shows is made.
pub(crate) fn crop_padded(
    source: &Pixels,
    [left, top, ..]: [u32; 4],
    window: Rect,
    mode: PaddingMode,
    fill: [u8; 3],
    out: &mut Pixels,
) {
    out.resize(window.width, window.height);
    let row_bytes = window.width as usize * 3;
    if row_bytes == 0 {
        return;
    }
    let first_x = i64::from(window.x) - i64::from(left);
    // The part of a row that is a plain copy, in window columns.
    let copy_start = (-first_x).clamp(0, i64::from(window.width));
    let copy_end = (i64::from(source.width) - first_x).clamp(copy_start, i64::from(window.width));
    for (row, target) in out.data.chunks_exact_mut(row_bytes).enumerate() {
        let y = i64::from(window.y) - i64::from(top) + row as i64;
        let Some(y) = source_index(y, source.height, mode) else {
            target.chunks_exact_mut(3).for_each(|pixel| pixel.copy_from_slice(&fill));
            continue;
        };
        let line = source.row(y, 0, source.width);
        if copy_end > copy_start {
            let from = (first_x + copy_start) as usize * 3;
            let length = (copy_end - copy_start) as usize * 3;
            target[copy_start as usize * 3..][..length].copy_from_slice(&line[from..from + length]);
        }
        for column in (0..copy_start).chain(copy_end..i64::from(window.width)) {
            let pixel = &mut target[column as usize * 3..][..3];
            match source_index(first_x + column, source.width, mode) {
                Some(x) => pixel.copy_from_slice(&line[x as usize * 3..][..3]),
                None => pixel.copy_from_slice(&fill),
            }
        }
    }
}

/// Copies a rectangle out.
pub(crate) fn crop(source: &Pixels, window: Rect, out: &mut Pixels) {
    out.resize(window.width, window.height);
    let row_bytes = window.width as usize * 3;
    if row_bytes == 0 {
        return;
    }
    for (row, target) in out.data.chunks_exact_mut(row_bytes).enumerate() {
        target.copy_from_slice(source.row(window.y + row as u32, window.x, window.width));
    }
}

/// Mirrors in place.
pub(crate) fn flip(pixels: &mut Pixels, flips: Flips) {
    let row_bytes = pixels.width as usize * 3;
    if row_bytes == 0 || pixels.height == 0 {
        return;
    }
    if flips.vertical {
        let rows = pixels.height as usize;
        let (upper, lower) = pixels.data.split_at_mut(rows / 2 * row_bytes);
        let lower = lower.chunks_exact_mut(row_bytes).rev();
        for (first, last) in upper.chunks_exact_mut(row_bytes).zip(lower) {
            first.swap_with_slice(last);
        }
    }
    if flips.horizontal {
        for row in pixels.data.chunks_exact_mut(row_bytes) {
            let (whole, _) = row.as_chunks_mut::<3>();
            whole.reverse();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(width: u32, height: u32) -> Size {
        Size { width, height }
    }

    #[test]
    fn the_ratio_is_cut_not_rounded() {
        assert_eq!(resized(ResizeTo::Shorter(256), None, size(500, 375)), size(341, 256));
        assert_eq!(resized(ResizeTo::Shorter(256), None, size(375, 500)), size(256, 341));
        assert_eq!(resized(ResizeTo::Shorter(256), Some(300), size(500, 375)), size(300, 225));
        assert_eq!(resized(ResizeTo::Exact([10, 20]), None, size(500, 375)), size(20, 10));
        assert_eq!(resized(ResizeTo::Shorter(4), Some(8), size(10_000, 1)), size(8, 1));
    }

    #[test]
    fn halves_go_to_the_even_side() {
        // Python: round(1.5) == 2, round(2.5) == 2, round(0.5) == 0.
        assert_eq!([1, 3, 5, 7, 4].map(half_rounded_to_even), [0, 2, 2, 4, 2]);
        assert_eq!(centred(size(224, 224), size(341, 256)).1, Rect { x: 58, y: 16, width: 224, height: 224 });
    }

    #[test]
    fn mirrors_bounce() {
        let line = |mode| (-4..7).map(|x| source_index(x, 3, mode).unwrap_or(9)).collect::<Vec<_>>();
        assert_eq!(line(PaddingMode::Constant), [9, 9, 9, 9, 0, 1, 2, 9, 9, 9, 9]);
        assert_eq!(line(PaddingMode::Edge), [0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2]);
        assert_eq!(line(PaddingMode::Reflect), [0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2]);
        assert_eq!(line(PaddingMode::Symmetric), [2, 2, 1, 0, 0, 1, 2, 2, 1, 0, 0]);
        assert_eq!(source_index(-5, 1, PaddingMode::Reflect), Some(0));
    }
}
