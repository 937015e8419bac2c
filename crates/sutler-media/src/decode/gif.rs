//! GIF, with the `gif` crate: the first frame on its screen.

use std::io;

use ::gif::{ColorOutput, DecodeOptions, DecodingError};

use super::{DecodeError, Format, Header, rgb};
use crate::image::Pixels;

/// The size of the screen, enlarged, as Pillow does it, by a first frame that sticks out.
pub(super) fn probe(bytes: &[u8]) -> Result<(u32, u32), DecodeError> {
    let truncated = || DecodeError::truncated(Format::Gif, bytes);
    let screen = bytes.get(6..13).ok_or_else(truncated)?;
    let number = |pair: &[u8]| u32::from(u16::from_le_bytes([pair[0], pair[1]]));
    let (width, height, flags) = (number(&screen[0..2]), number(&screen[2..4]), screen[4]);
    let mut at = 13 + if flags & 0x80 != 0 { 6 << (flags & 7) } else { 0 };
    loop {
        match *bytes.get(at).ok_or_else(truncated)? {
            // An extension: a label, then blocks that each begin with their length, up to an empty one.
            0x21 => {
                at += 2;
                loop {
                    let length = usize::from(*bytes.get(at).ok_or_else(truncated)?);
                    at += 1 + length;
                    if length == 0 {
                        break;
                    }
                }
            }
            0x2c => {
                let frame = bytes.get(at + 1..at + 9).ok_or_else(truncated)?;
                let right = number(&frame[0..2]) + number(&frame[4..6]);
                let bottom = number(&frame[2..4]) + number(&frame[6..8]);
                return Ok((width.max(right), height.max(bottom)));
            }
            0x3b => return Err(DecodeError::corrupt(Format::Gif, "it has no frame")),
            _ => at += 1, // stray bytes between blocks
        }
    }
}

pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    scratch: &mut Vec<u8>,
    out: &mut Pixels,
) -> Result<(), DecodeError> {
    let failure = |error| failure(error, bytes);
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    options.allow_unknown_blocks(true);
    let mut decoder = options.read_info(bytes).map_err(failure)?;
    let Some(frame) = decoder.next_frame_info().map_err(failure)?.cloned() else {
        return Err(DecodeError::corrupt(Format::Gif, "it has no frame"));
    };
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let (width, height) = (usize::from(frame.width), usize::from(frame.height));
    scratch.resize(width * height, 0);
    decoder.read_into_buffer(scratch).map_err(failure)?;
    let table = match frame.palette.as_deref().or(decoder.global_palette()) {
        Some(entries) => rgb::palette(entries, 3, [0, 1, 2]),
        None => rgb::grey_palette(),
    };
    out.resize(header.width, header.height);
    let stride = header.width as usize * 3;
    if (width, height) != (header.width as usize, header.height as usize) {
        // What the frame leaves open has the transparent colour, or the first one.
        let background = table[usize::from(frame.transparent.unwrap_or(0))];
        out.data.chunks_exact_mut(3).for_each(|pixel| pixel.copy_from_slice(&background));
    }
    if width == 0 {
        return Ok(());
    }
    for (row, indices) in scratch.chunks_exact(width).enumerate() {
        let start = (top + row) * stride + left * 3;
        let Some(pixels) = out.data.get_mut(start..start + width * 3) else {
            return Err(DecodeError::corrupt(Format::Gif, "two descriptions of the first frame differ"));
        };
        rgb::from_indices(indices, &table, pixels);
    }
    Ok(())
}

fn failure(error: DecodingError, bytes: &[u8]) -> DecodeError {
    match error {
        DecodingError::UnexpectedEof => DecodeError::truncated(Format::Gif, bytes),
        DecodingError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            DecodeError::truncated(Format::Gif, bytes)
        }
        error => DecodeError::corrupt(Format::Gif, &error.to_string()),
    }
}
