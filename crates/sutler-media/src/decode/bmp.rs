//! Windows bitmaps, read by hand: the format is small, and Pillow's view of its odd corners is what has to be met.

use super::rgb::{self, Palette};
use super::{DecodeError, Format, Header};
use crate::image::Pixels;

/// How the pixels are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Coding {
    Plain,
    Runs8,
    Runs4,
}

/// What the two headers say.
struct Bitmap {
    width: u32,
    height: u32,
    top_down: bool,
    bits: usize,
    coding: Coding,
    /// Where R, G and B are in a pixel of 24 or 32 bits, or how many bits green has in one of 16.
    masks: Masks,
    /// Where the colour table starts, its number of entries and their length.
    table: (usize, usize, usize),
    /// Where the pixels start.
    data: usize,
}

#[derive(Clone, Copy)]
enum Masks {
    Bytes([usize; 3]),
    Bits { green: u32 },
}

/// Width and height.
pub(super) fn probe(bytes: &[u8]) -> Result<(u32, u32), DecodeError> {
    let bitmap = read_headers(bytes)?;
    Ok((bitmap.width, bitmap.height))
}

fn read_headers(bytes: &[u8]) -> Result<Bitmap, DecodeError> {
    let unsupported = |what: String| Err(DecodeError::unsupported(Format::Bmp, what));
    let part = |at: usize, length: usize| {
        bytes.get(at..at + length).ok_or_else(|| DecodeError::truncated(Format::Bmp, bytes))
    };
    let short = |at: usize| part(at, 2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]])));
    let long = |at: usize| part(at, 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));

    let header_bytes = long(14)?;
    let core = header_bytes == 12; // the oldest header, with short numbers
    if !matches!(header_bytes, 12 | 40 | 52 | 56 | 64 | 108 | 124) {
        return unsupported(format!("a header of {header_bytes} bytes"));
    }
    part(14, header_bytes as usize)?;
    let (width, height) = if core { (short(18)?, short(20)?) } else { (long(18)?, long(22)?) };
    // A negative height means that the first row is the top one; Pillow looks at the highest byte only.
    let top_down = height >> 24 == 0xff;
    let height = if top_down { height.wrapping_neg() } else { height };
    let bits = if core { short(24)? } else { short(28)? } as usize;
    let compression = if core { 0 } else { long(30)? };
    let colours = if core { 0 } else { long(46)? };

    let mut table_at = 14 + header_bytes as usize;
    let mut masks = if bits == 16 { Masks::Bits { green: 5 } } else { Masks::Bytes([2, 1, 0]) };
    let coding = match (compression, bits) {
        (0, 1 | 4 | 8 | 16 | 24 | 32) => Coding::Plain,
        (1, 8) => Coding::Runs8,
        (2, 4) => Coding::Runs4,
        (3, 16 | 24 | 32) => {
            let triple = [long(54)?, long(58)?, long(62)?];
            let alpha = if header_bytes >= 56 { long(66)? } else { 0 };
            masks = match masks_of(bits, triple, alpha) {
                Some(masks) => masks,
                None => return unsupported(format!("{bits} bits with the masks {triple:08x?} {alpha:08x}")),
            };
            if header_bytes == 40 {
                table_at += 12;
            }
            Coding::Plain
        }
        _ => return unsupported(format!("compression {compression} with {bits} bits")),
    };
    let entries = if colours == 0 { 1 << bits.min(8) } else { colours as usize };
    let entry_bytes = if core { 3 } else { 4 };
    if bits <= 8 && entries > 65536 {
        return unsupported(format!("a palette of {entries} colours"));
    }
    let table_bytes = if bits <= 8 { entries * entry_bytes } else { 0 };
    // Files that point at the colour table instead of the pixels exist, and so do files that point nowhere.
    let data = match long(10)? as usize {
        offset if offset == 14 + header_bytes as usize => offset + table_bytes,
        0 => table_at + table_bytes,
        offset => offset,
    };
    Ok(Bitmap { width, height, top_down, bits, coding, masks, table: (table_at, entries, entry_bytes), data })
}

/// The layouts that Pillow reads.
fn masks_of(bits: usize, rgb: [u32; 3], alpha: u32) -> Option<Masks> {
    match (bits, rgb) {
        (16, [0xf800, 0x7e0, 0x1f]) => Some(Masks::Bits { green: 6 }),
        (16, [0x7c00, 0x3e0, 0x1f]) => Some(Masks::Bits { green: 5 }),
        (24, [0xff_0000, 0xff00, 0xff]) => Some(Masks::Bytes([2, 1, 0])),
        (32, [0, 0, 0]) if alpha == 0 => Some(Masks::Bytes([2, 1, 0])),
        (32, _) => {
            let byte = |mask: u32| (0..4).find(|&byte| mask == 0xff << (8 * byte));
            Some(Masks::Bytes([byte(rgb[0])?, byte(rgb[1])?, byte(rgb[2])?]))
        }
        _ => None,
    }
}

pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    scratch: &mut Vec<u8>,
    out: &mut Pixels,
) -> Result<(), DecodeError> {
    let bitmap = read_headers(bytes)?;
    let truncated = || DecodeError::truncated(Format::Bmp, bytes);
    let data = bytes.get(bitmap.data..).ok_or_else(truncated)?;
    let (width, height) = (header.width as usize, header.height as usize);
    out.resize(header.width, header.height);
    let stride = width * 3;
    let row_at = |row: usize| if bitmap.top_down { row } else { height - 1 - row } * stride;

    if bitmap.coding != Coding::Plain {
        let table = read_table(bytes, &bitmap)?;
        expand_runs(data, bitmap.data, bitmap.coding, width, height, scratch).ok_or_else(truncated)?;
        for (row, indices) in scratch.chunks_exact(width).enumerate() {
            rgb::from_indices(indices, &table, &mut out.data[row_at(row)..][..stride]);
        }
        return Ok(());
    }

    let row_bytes = (width * bitmap.bits).div_ceil(32) * 4;
    // The last row may lack its padding.
    let needed = row_bytes * (height - 1) + (width * bitmap.bits).div_ceil(8);
    if data.len() < needed {
        return Err(truncated());
    }
    let table = if bitmap.bits <= 8 { read_table(bytes, &bitmap)? } else { rgb::grey_palette() };
    for (row, packed) in data.chunks(row_bytes).take(height).enumerate() {
        let pixels = &mut out.data[row_at(row)..][..stride];
        match (bitmap.bits, bitmap.masks) {
            (bits @ (1 | 4 | 8), _) => {
                let packed = &packed[..(width * bits).div_ceil(8)];
                for (index, pixel) in rgb::unpacked(packed, bits, width).zip(pixels.chunks_exact_mut(3)) {
                    pixel.copy_from_slice(&table[usize::from(index)]);
                }
            }
            (_, Masks::Bits { green }) => {
                for (pair, pixel) in packed.chunks_exact(2).zip(pixels.chunks_exact_mut(3)) {
                    pixel.copy_from_slice(&from_16_bits(u16::from_le_bytes([pair[0], pair[1]]), green));
                }
            }
            (bits, Masks::Bytes(order)) => {
                for (stored, pixel) in packed.chunks_exact(bits / 8).zip(pixels.chunks_exact_mut(3)) {
                    pixel.copy_from_slice(&order.map(|byte| stored[byte]));
                }
            }
        }
    }
    Ok(())
}

fn from_16_bits(value: u16, green_bits: u32) -> [u8; 3] {
    let spread = |shift: u32, bits: u32| {
        let top = (1u32 << bits) - 1;
        ((u32::from(value) >> shift & top) * 255 / top) as u8
    };
    [spread(5 + green_bits, 5), spread(5, green_bits), spread(0, 5)]
}

fn read_table(bytes: &[u8], bitmap: &Bitmap) -> Result<Palette, DecodeError> {
    let (at, entries, entry_bytes) = bitmap.table;
    let stored = bytes
        .get(at..)
        .map(|rest| &rest[..rest.len().min(entries * entry_bytes)])
        .ok_or_else(|| DecodeError::truncated(Format::Bmp, bytes))?;
    Ok(rgb::palette(stored, entry_bytes, [2, 1, 0]))
}

/// Expands run-length coding to one index a byte; nothing when the data ends before the last row does.
fn expand_runs(
    data: &[u8],
    data_at: usize,
    coding: Coding,
    width: usize,
    height: usize,
    out: &mut Vec<u8>,
) -> Option<()> {
    let total = width * height;
    out.clear();
    let mut at = 0;
    let mut take = |count: usize| {
        let part = data.get(at..at + count);
        at += count;
        part.map(|part| (part, at))
    };
    let nibble = |byte: u8, index: usize| if index.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
    while out.len() < total {
        let (pair, _) = take(2)?;
        match (usize::from(pair[0]), pair[1]) {
            (0, 0) => out.resize(out.len().next_multiple_of(width), 0),
            (0, 1) => break,
            (0, 2) => {
                let (step, _) = take(2)?;
                let skipped = usize::from(step[0]) + usize::from(step[1]) * width;
                out.resize((out.len() + skipped).min(total), 0);
            }
            (0, count) => {
                let count = usize::from(count).min(total - out.len());
                let length = if coding == Coding::Runs4 { count.div_ceil(2) } else { count };
                let (literal, end) = take(length)?;
                match coding {
                    Coding::Runs4 => out.extend((0..count).map(|i| nibble(literal[i / 2], i))),
                    _ => out.extend_from_slice(literal),
                }
                // What follows starts at an even place in the file.
                if !(data_at + end).is_multiple_of(2) && out.len() < total {
                    take(1)?;
                }
            }
            (count, value) => {
                // A run does not go on in the next row.
                let count = count.min(width - out.len() % width);
                match coding {
                    Coding::Runs4 => out.extend((0..count).map(|i| nibble(value, i))),
                    _ => out.resize(out.len() + count, value),
                }
            }
        }
    }
    (out.len() >= total).then_some(())
}
