//! PNG, with the `png` crate and conversions of our own: the crate's scale 16-bit grey where Pillow cuts it off.

use std::io::{self, Cursor};

use png::{BitDepth, ColorType, DecodingError};

use super::{DecodeError, Format, Header, rgb};
use crate::image::Pixels;

/// The signature is followed by the header chunk: its length, its name, width and height.
pub(super) fn probe(bytes: &[u8]) -> Result<(u32, u32), DecodeError> {
    let Some(chunk) = bytes.get(8..26) else {
        return Err(DecodeError::truncated(Format::Png, bytes));
    };
    let number = |at: usize| u32::from_be_bytes([chunk[at], chunk[at + 1], chunk[at + 2], chunk[at + 3]]);
    if &chunk[4..8] != b"IHDR" {
        return Err(DecodeError::corrupt(Format::Png, "the first chunk is not the header"));
    }
    Ok((number(8), number(12)))
}

pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    scratch: &mut Vec<u8>,
    out: &mut Pixels,
) -> Result<(), DecodeError> {
    let failure = |error| failure(error, bytes);
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    // Colour profiles and texts are compressed as well, and nobody here reads them.
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(failure)?;
    let table = reader.info().palette.as_deref().map(|entries| rgb::palette(entries, 3, [0, 1, 2]));
    let length = reader.output_buffer_size().ok_or(DecodeError::TooLarge {
        width: header.width,
        height: header.height,
        pixels_max: usize::MAX as u64,
    })?;
    out.resize(header.width, header.height);
    let (colour, depth) = reader.output_color_type();
    if (colour, depth) == (ColorType::Rgb, BitDepth::Eight) && length == out.data.len() {
        reader.next_frame(&mut out.data).map_err(failure)?;
        return Ok(());
    }
    scratch.resize(length, 0);
    reader.next_frame(scratch).map_err(failure)?;
    let width = header.width as usize;
    let bits = depth as usize;
    match (colour, depth) {
        (ColorType::Grayscale, BitDepth::Sixteen) => {
            let values = scratch.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
            rgb::from_grey(values.map(rgb::clipped), &mut out.data);
        }
        (ColorType::Grayscale, _) => {
            let values = rgb::unpacked(scratch, bits, width).map(|value| rgb::spread(value, bits));
            rgb::from_grey(values, &mut out.data);
        }
        (ColorType::Indexed, _) => {
            let table = table.ok_or_else(|| DecodeError::corrupt(Format::Png, "it has no palette"))?;
            for (index, pixel) in rgb::unpacked(scratch, bits, width).zip(out.data.chunks_exact_mut(3)) {
                pixel.copy_from_slice(&table[usize::from(index)]);
            }
        }
        (ColorType::GrayscaleAlpha, BitDepth::Sixteen) => {
            rgb::from_grey(scratch.iter().step_by(4).copied(), &mut out.data);
        }
        (ColorType::GrayscaleAlpha, _) => {
            rgb::from_grey(scratch.iter().step_by(2).copied(), &mut out.data);
        }
        (ColorType::Rgb | ColorType::Rgba, _) => {
            let channels = colour.samples();
            let sample_bytes = bits / 8;
            for (sample, pixel) in
                scratch.chunks_exact(channels * sample_bytes).zip(out.data.chunks_exact_mut(3))
            {
                // Of 16 bits the high byte, which comes first.
                for (channel, value) in pixel.iter_mut().enumerate() {
                    *value = sample[channel * sample_bytes];
                }
            }
        }
    }
    Ok(())
}

fn failure(error: DecodingError, bytes: &[u8]) -> DecodeError {
    match error {
        DecodingError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            DecodeError::truncated(Format::Png, bytes)
        }
        error => DecodeError::corrupt(Format::Png, &error.to_string()),
    }
}
