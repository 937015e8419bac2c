//! TIFF, with the `tiff` crate: the first page.
//!
//! Not decoded: JPEG inside TIFF (the crate's JPEG decoder differs from libjpeg by a few levels), YCbCr, Lab, and numbers
//! of 64 bits.

use std::io::{self, Cursor};
use std::ops::Range;

use ::tiff::decoder::{Decoder, DecodingResult, Limits};
use ::tiff::tags::Tag;
use ::tiff::{ColorType, TiffError};

use super::{DecodeError, Format, Header, rgb};
use crate::image::Pixels;

/// Of the kinds of fourth sample this one says that colours were multiplied by it.
const ASSOCIATED_ALPHA: u16 = 1;
const WHITE_IS_ZERO: u16 = 0;
const BLACK_IS_ZERO: u16 = 1;
const PALETTE: u16 = 3;
const PHOTOMETRIC_INTERPRETATION: u16 = 262;

/// Width and height of the first page.
pub(super) fn probe(bytes: &[u8]) -> Result<(u32, u32), DecodeError> {
    let mut decoder = Decoder::new(Cursor::new(bytes)).map_err(|error| failure(error, bytes))?;
    decoder.dimensions().map_err(|error| failure(error, bytes))
}

pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    scratch: &mut Vec<u8>,
    out: &mut Pixels,
) -> Result<(), DecodeError> {
    let failure = |error| failure(error, bytes);
    let mut decoder = Decoder::new(Cursor::new(bytes)).map_err(failure)?;
    let photometric = decoder.get_tag_unsigned(Tag::PhotometricInterpretation).map_err(failure)?;
    if photometric != PALETTE {
        return decode_as(bytes, header, photometric, None, out);
    }
    // The crate reads grey but no palettes, and both are stored alike; so it gets a copy that says grey.
    let bits: u16 = decoder.get_tag_unsigned(Tag::BitsPerSample).map_err(failure)?;
    let table = colour_map(&decoder.get_tag_u16_vec(Tag::ColorMap).map_err(failure)?, bits);
    let at = find_photometric(bytes)
        .ok_or_else(|| DecodeError::corrupt(Format::Tiff, "its directory cannot be found a second time"))?;
    scratch.clear();
    scratch.extend_from_slice(bytes);
    scratch[at.clone()].copy_from_slice(&if bytes[0] == b'I' {
        BLACK_IS_ZERO.to_le_bytes()
    } else {
        BLACK_IS_ZERO.to_be_bytes()
    });
    decode_as(scratch, header, BLACK_IS_ZERO, Some(&table), out)
}

/// Decodes the first page; with a table its grey values are indices.
fn decode_as(
    bytes: &[u8],
    header: &Header,
    photometric: u16,
    table: Option<&rgb::Palette>,
    out: &mut Pixels,
) -> Result<(), DecodeError> {
    let failure = |error| failure(error, bytes);
    let pixels = header.width as usize * header.height as usize;
    let mut limits = Limits::default();
    // The pixels have passed our own limit; a sample is at most 4 bytes and a pixel at most 6 samples.
    limits.decoding_buffer_size = pixels.saturating_mul(24);
    let mut decoder = Decoder::new(Cursor::new(bytes)).map_err(failure)?.with_limits(limits);
    let colour = decoder.colortype().map_err(failure)?;
    let extra: Option<Vec<u16>> = decoder.find_tag_unsigned_vec(Tag::ExtraSamples).map_err(failure)?;
    let multiplied = extra.is_some_and(|kinds| kinds.first() == Some(&ASSOCIATED_ALPHA));
    let mut samples = DecodingResult::U8(Vec::new());
    let layout = decoder.read_image_to_buffer(&mut samples).map_err(failure)?;
    out.resize(header.width, header.height);
    match (colour, table) {
        (ColorType::Gray(bits), Some(table)) => match samples {
            DecodingResult::U8(packed) if is_packed(bits) => {
                let indices = rgb::unpacked(&packed, usize::from(bits), header.width as usize);
                for (index, pixel) in indices.zip(out.data.chunks_exact_mut(3)) {
                    pixel.copy_from_slice(&table[usize::from(index)]);
                }
                Ok(())
            }
            _ => Err(unsupported(format!("a palette with indices of {bits} bits"))),
        },
        (_, Some(_)) => Err(unsupported("a palette with more than indices".to_owned())),
        (ColorType::Gray(bits), None) if bits < 8 && !is_packed(bits) => {
            Err(unsupported(format!("{bits} bits of grey")))
        }
        (ColorType::Gray(bits), None) => {
            grey(&samples, usize::from(bits), photometric, header.width as usize, &mut out.data)
        }
        _ => colours(samples, colour, layout.planes, multiplied, &mut out.data),
    }
}

/// Whether a byte holds a whole number of samples of so many bits. The crate reads others, too, and Pillow does not.
fn is_packed(bits: u8) -> bool {
    matches!(bits, 1 | 2 | 4 | 8)
}

/// Grey comes in kinds of numbers that colours do not.
fn grey(
    samples: &DecodingResult,
    bits: usize,
    photometric: u16,
    width: usize,
    out: &mut [u8],
) -> Result<(), DecodeError> {
    match samples {
        // Where white is zero the crate has turned the values around already.
        DecodingResult::U8(packed) => {
            let values = rgb::unpacked(packed, bits, width);
            rgb::from_grey(values.map(|value| rgb::spread(value, bits)), out);
        }
        _ if photometric == WHITE_IS_ZERO => {
            return Err(unsupported(format!("{bits} bits of grey where white is zero")));
        }
        DecodingResult::U16(values) => {
            rgb::from_grey(values.iter().map(|&value| rgb::clipped(value)), out);
        }
        DecodingResult::I16(values) => {
            rgb::from_grey(values.iter().map(|&value| value.clamp(0, 255) as u8), out);
        }
        DecodingResult::I32(values) => {
            rgb::from_grey(values.iter().map(|&value| value.clamp(0, 255) as u8), out);
        }
        DecodingResult::U32(values) => {
            rgb::from_grey(values.iter().map(|&value| value.min(255) as u8), out);
        }
        // The cast cuts the fraction off, stops at 0 and 255 and makes a 0 of what is not a number.
        DecodingResult::F32(values) => rgb::from_grey(values.iter().map(|&value| value as u8), out),
        _ => return Err(unsupported(format!("{bits} bits of grey in this kind of number"))),
    }
    Ok(())
}

/// All that is not grey becomes bytes first: of 16 bits the high one.
fn colours(
    samples: DecodingResult,
    colour: ColorType,
    planes: usize,
    multiplied: bool,
    out: &mut [u8],
) -> Result<(), DecodeError> {
    let values: Vec<u8> = match samples {
        DecodingResult::U8(values) => values,
        DecodingResult::U16(values) => values.iter().map(|value| (value >> 8) as u8).collect(),
        _ => return Err(unsupported(format!("{colour:?} in this kind of number"))),
    };
    let values = if planes > 1 { interleaved(&values, planes) } else { values };
    let channels = usize::from(colour.num_samples());
    match colour {
        // Grey with something beside it, which is dropped.
        ColorType::GrayA(8) | ColorType::Multiband { bit_depth: 8, num_samples: 2 } if !multiplied => {
            rgb::from_grey(values.iter().step_by(channels).copied(), out);
        }
        ColorType::RGBA(8 | 16) if multiplied => {
            for (sample, pixel) in values.chunks_exact(channels).zip(out.chunks_exact_mut(3)) {
                for (value, &stored) in pixel.iter_mut().zip(sample) {
                    *value = rgb::unmultiplied(stored, sample[3]);
                }
            }
        }
        ColorType::RGB(8 | 16) | ColorType::RGBA(8 | 16) => rgb::from_leading(&values, channels, out),
        ColorType::CMYK(8 | 16) => {
            for (ink, pixel) in values.chunks_exact(channels).zip(out.chunks_exact_mut(3)) {
                pixel.copy_from_slice(&rgb::from_cmyk([ink[0], ink[1], ink[2], ink[3]]));
            }
        }
        other => return Err(unsupported(format!("{other:?}"))),
    }
    Ok(())
}

/// Where in the file the first directory says how samples become colours.
fn find_photometric(bytes: &[u8]) -> Option<Range<usize>> {
    let little = bytes.first()? == &b'I';
    let number = |at: usize, length: usize| -> Option<usize> {
        let digits = bytes.get(at..at.checked_add(length)?)?;
        let fold = |number: usize, &digit: &u8| number << 8 | usize::from(digit);
        Some(if little { digits.iter().rev().fold(0, fold) } else { digits.iter().fold(0, fold) })
    };
    // BigTIFF has wider numbers everywhere: the offset, the count, and in each entry the count and the value.
    let big = number(2, 2)? == 43;
    let (offset_at, wide, count_bytes, entry_bytes) = if big { (8, 8, 8, 20) } else { (4, 4, 2, 12) };
    let directory = number(offset_at, wide)?;
    let count = number(directory, count_bytes)?;
    for entry in
        (0..count).map_while(|i| directory.checked_add(count_bytes)?.checked_add(i.checked_mul(entry_bytes)?))
    {
        if number(entry, 2)? == usize::from(PHOTOMETRIC_INTERPRETATION) {
            let value = entry + 4 + wide;
            return Some(value..value + 2);
        }
    }
    None
}

/// TIFF keeps all reds, then all greens, then all blues, in 16 bits; the high byte counts.
fn colour_map(entries: &[u16], bits: u16) -> rgb::Palette {
    let count = 1usize << bits.min(8);
    std::array::from_fn(|index| {
        std::array::from_fn(|channel| {
            let inside = index < count;
            entries.get(channel * count + index).filter(|_| inside).map_or(0, |value| (value >> 8) as u8)
        })
    })
}

/// From one plane per channel to one pixel after the other.
fn interleaved(planar: &[u8], planes: usize) -> Vec<u8> {
    let plane_bytes = planar.len() / planes;
    (0..plane_bytes * planes).map(|i| planar[i % planes * plane_bytes + i / planes]).collect()
}

fn unsupported(what: String) -> DecodeError {
    DecodeError::unsupported(Format::Tiff, what)
}

fn failure(error: TiffError, bytes: &[u8]) -> DecodeError {
    match error {
        TiffError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            DecodeError::truncated(Format::Tiff, bytes)
        }
        TiffError::UnsupportedError(what) => unsupported(what.to_string()),
        error => DecodeError::corrupt(Format::Tiff, &error.to_string()),
    }
}
