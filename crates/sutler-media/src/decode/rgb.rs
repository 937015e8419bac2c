//! Samples of every kind to 8-bit RGB, each the way Pillow's `convert("RGB")` does it.

/// A colour table. Pillow fills what a file leaves out with black.
pub(super) type Palette = [[u8; 3]; 256];

/// A table of the colours in `entries`, which are `stride` bytes apart; `order` says which byte is which of R, G, B.
pub(super) fn palette(entries: &[u8], stride: usize, order: [usize; 3]) -> Palette {
    let mut table = [[0; 3]; 256];
    for (colour, entry) in table.iter_mut().zip(entries.chunks_exact(stride)) {
        *colour = order.map(|channel| entry[channel]);
    }
    table
}

/// The table that leaves grey values as they are.
pub(super) fn grey_palette() -> Palette {
    std::array::from_fn(|value| [value as u8; 3])
}

/// Looks every index up.
pub(super) fn from_indices(indices: &[u8], table: &Palette, out: &mut [u8]) {
    for (&index, pixel) in indices.iter().zip(out.chunks_exact_mut(3)) {
        pixel.copy_from_slice(&table[usize::from(index)]);
    }
}

/// The same value three times.
pub(super) fn from_grey(values: impl Iterator<Item = u8>, out: &mut [u8]) {
    for (value, pixel) in values.zip(out.chunks_exact_mut(3)) {
        pixel.fill(value);
    }
}

/// The first three of `channels` samples; what follows them is alpha or padding, and Pillow drops both.
pub(super) fn from_leading(samples: &[u8], channels: usize, out: &mut [u8]) {
    for (sample, pixel) in samples.chunks_exact(channels).zip(out.chunks_exact_mut(3)) {
        pixel.copy_from_slice(&sample[..3]);
    }
}

/// Grey of more than 8 bits. Pillow cuts it off at 255 instead of scaling it down.
pub(super) fn clipped(value: u16) -> u8 {
    value.min(255) as u8
}

/// Ink to light.
pub(super) fn from_cmyk([cyan, magenta, yellow, black]: [u8; 4]) -> [u8; 3] {
    let left = 255 - u32::from(black);
    [cyan, magenta, yellow].map(|ink| {
        let product = u32::from(ink) * left + 128;
        let taken = (product + (product >> 8)) >> 8; // product / 255, rounded
        left.saturating_sub(taken) as u8
    })
}

/// Takes a colour that was multiplied by its alpha apart again.
pub(super) fn unmultiplied(value: u8, alpha: u8) -> u8 {
    match alpha {
        0 => 0,
        255 => value,
        _ => (u32::from(value) * 255 / u32::from(alpha)).min(255) as u8,
    }
}

/// Samples of 1, 2, 4 or 8 bits, packed from the highest bit down, each row starting on a byte of its own.
pub(super) fn unpacked(packed: &[u8], depth: usize, width: usize) -> impl Iterator<Item = u8> + '_ {
    let row_bytes = (width * depth).div_ceil(8).max(1);
    let mask = ((1u16 << depth) - 1) as u8;
    packed.chunks_exact(row_bytes).flat_map(move |row| {
        (0..width).map(move |x| {
            let bit = x * depth;
            row[bit / 8] >> (8 - depth - bit % 8) & mask
        })
    })
}

/// Spreads a grey value of `depth` bits, 8 at most, over 0 to 255.
pub(super) fn spread(value: u8, depth: usize) -> u8 {
    value * (255 / ((1u16 << depth) - 1)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_unpacked_from_the_highest_bit_and_rows_start_on_a_byte() {
        let bits: Vec<u8> = unpacked(&[0b1010_0000, 0b0110_0000], 1, 3).collect();
        assert_eq!(bits, [1, 0, 1, 0, 1, 1]);
        let nibbles: Vec<u8> = unpacked(&[0x12, 0x30, 0x45, 0x60], 4, 3).collect();
        assert_eq!(nibbles, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn small_depths_reach_white() {
        for depth in [1, 2, 4, 8] {
            assert_eq!(spread(((1u16 << depth) - 1) as u8, depth), 255);
        }
    }
}
