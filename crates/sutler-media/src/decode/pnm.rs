//! Portable bit, grey and colour maps (`.pbm`, `.pgm`, `.ppm`), in plain text or binary.
//!
//! torchvision lists them by default, so a folder of them has to be served. Values are scaled to 255 from whatever
//! maximum the file names, as Pillow does; but grey of more than 8 bits is brought to 16 and then cut off at 255.

use super::rgb;
use super::{DecodeError, Format, Header};
use crate::image::Pixels;

/// What the header says.
struct Map {
    width: u32,
    height: u32,
    /// 1 for bits and grey, 3 for colour.
    channels: usize,
    text: bool,
    /// The value of white; `None` in a bit map, where 0 is white.
    maximum: Option<u32>,
    /// Where the values begin.
    data: usize,
}

/// Width and height.
pub(super) fn probe(bytes: &[u8]) -> Result<(u32, u32), DecodeError> {
    let map = read_header(bytes)?;
    Ok((map.width, map.height))
}

/// The next word of the header and where it ends; comments run from `#` to the end of their line.
fn word(bytes: &[u8], mut at: usize) -> Option<(&[u8], usize)> {
    loop {
        match bytes.get(at)? {
            b'#' => at += bytes[at..].iter().position(|byte| matches!(byte, b'\n' | b'\r'))?,
            byte if byte.is_ascii_whitespace() || *byte == 0x0b => at += 1,
            _ => break,
        }
    }
    let length =
        bytes[at..].iter().position(|byte| byte.is_ascii_whitespace() || matches!(byte, b'#' | 0x0b));
    let end = at + length.unwrap_or(bytes.len() - at);
    Some((&bytes[at..end], end))
}

fn number(bytes: &[u8], at: usize) -> Result<(u32, usize), DecodeError> {
    let (digits, end) = word(bytes, at).ok_or_else(|| DecodeError::truncated(Format::Pnm, bytes))?;
    std::str::from_utf8(digits)
        .ok()
        .filter(|text| text.len() <= 10)
        .and_then(|text| text.parse().ok())
        .map(|value| (value, end))
        .ok_or_else(|| DecodeError::corrupt(Format::Pnm, "a number was expected and something else is there"))
}

fn read_header(bytes: &[u8]) -> Result<Map, DecodeError> {
    let kind = bytes.get(1).copied().ok_or_else(|| DecodeError::truncated(Format::Pnm, bytes))?;
    let (width, at) = number(bytes, 2)?;
    let (height, at) = number(bytes, at)?;
    let bits = matches!(kind, b'1' | b'4');
    let (maximum, at) = if bits {
        (None, at)
    } else {
        let (maximum, at) = number(bytes, at)?;
        if maximum == 0 || maximum > 65_535 {
            return Err(DecodeError::corrupt(Format::Pnm, "its largest value is not from 1 to 65,535"));
        }
        (Some(maximum), at)
    };
    let channels = if matches!(kind, b'3' | b'6') { 3 } else { 1 };
    Ok(Map { width, height, channels, text: kind <= b'3', maximum, data: at + 1 })
}

/// Decodes the whole image.
pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    scratch: &mut Vec<u8>,
    out: &mut Pixels,
) -> Result<(), DecodeError> {
    let map = read_header(bytes)?;
    out.resize(header.width, header.height);
    let pixels = map.width as usize * map.height as usize;
    let truncated = || DecodeError::truncated(Format::Pnm, bytes);
    let data = bytes.get(map.data.min(bytes.len())..).unwrap_or_default();
    scratch.clear();
    match (map.maximum, map.text) {
        (None, false) => {
            let row_bytes = (map.width as usize).div_ceil(8);
            let rows = data.get(..row_bytes * map.height as usize).ok_or_else(truncated)?;
            for row in rows.chunks_exact(row_bytes) {
                let bit = |x: usize| row[x / 8] >> (7 - x % 8) & 1;
                scratch.extend((0..map.width as usize).map(|x| if bit(x) == 1 { 0 } else { 255 }));
            }
        }
        // Digits of a bit map need no spaces between them.
        (None, true) => {
            let digits = data.iter().filter(|byte| !byte.is_ascii_whitespace()).take(pixels);
            for digit in digits {
                match digit {
                    b'0' => scratch.push(255),
                    b'1' => scratch.push(0),
                    _ => return Err(DecodeError::corrupt(Format::Pnm, "a bit is neither 0 nor 1")),
                }
            }
        }
        (Some(maximum), text) => {
            let wanted = pixels * map.channels;
            let scale = |value: u32| scaled(value, maximum, map.channels);
            if text {
                let mut at = map.data;
                for _ in 0..wanted {
                    let (value, end) = number(bytes, at)?;
                    if value > maximum {
                        return Err(DecodeError::corrupt(Format::Pnm, "a value is larger than the largest"));
                    }
                    scratch.push(scale(value));
                    at = end;
                }
            } else if maximum < 256 {
                let values = data.get(..wanted).ok_or_else(truncated)?;
                scratch.extend(values.iter().map(|&value| scale(u32::from(value))));
            } else {
                let values = data.get(..2 * wanted).ok_or_else(truncated)?;
                let pairs = values.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
                scratch.extend(pairs.map(|value| scale(u32::from(value))));
            }
        }
    }
    if scratch.len() < pixels * map.channels {
        return Err(truncated());
    }
    if map.channels == 3 {
        out.data.copy_from_slice(&scratch[..pixels * 3]);
    } else {
        rgb::from_grey(scratch.iter().copied(), &mut out.data);
    }
    Ok(())
}

/// A value as 8 bits.
fn scaled(value: u32, maximum: u32, channels: usize) -> u8 {
    let full = if channels == 1 && maximum > 255 { 65_535 } else { 255 };
    // Round to nearest, halves to even, as Python does.
    let exact = f64::from(value) / f64::from(maximum) * f64::from(full);
    rgb::clipped((exact.round_ties_even() as u32).min(full) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Decoder, Limits, Request, probe};

    fn pixels(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
        let header = probe(bytes, &Limits::default())?;
        let mut out = Pixels::default();
        Decoder::new(Limits::default()).decode(bytes, &header, &Request::whole(&header), &mut out)?;
        Ok(out.data)
    }

    /// What Pillow 13 makes of the same bytes with `convert("RGB")`.
    #[test]
    fn every_kind_has_pillows_pixels() {
        assert_eq!(pixels(b"P6 1 1 255\n\x01\x02\x03").unwrap(), [1, 2, 3]);
        assert_eq!(pixels(b"P5\n# a comment\n2 1\n255\n\x00\xff").unwrap(), [0, 0, 0, 255, 255, 255]);
        assert_eq!(pixels(b"P3 1 1 15\n0 7 15").unwrap(), [0, 119, 255]);
        assert_eq!(pixels(b"P2 2 1 100\n50 100\n").unwrap(), [128, 128, 128, 255, 255, 255]);
        assert_eq!(pixels(b"P6 1 1 65535\n\x80\x00\xff\xff\x00\x00").unwrap(), [128, 255, 0]);
        assert_eq!(pixels(b"P5 2 1 65535\n\x00\x09\x80\x00").unwrap(), [9, 9, 9, 255, 255, 255]);
        assert_eq!(pixels(b"P1 3 1\n101").unwrap(), [0, 0, 0, 255, 255, 255, 0, 0, 0]);
        assert_eq!(pixels(b"P4 2 2\n\x40\x80").unwrap(), [255, 255, 255, 0, 0, 0, 0, 0, 0, 255, 255, 255]);
    }

    #[test]
    fn broken_ones_are_refused() {
        for (bytes, kind) in [
            (&b"P6 2 2 255\n\x01\x02"[..], "truncated"),
            (b"P6 2", "truncated"),
            (b"P2 2 1 100\n50", "truncated"),
            (b"P1 3 1\n10", "truncated"),
            (b"P6 2 x 255\n", "corrupt"),
            (b"P5 1 1 0\n\x00", "corrupt"),
            (b"P5 1 1 70000\n\x00\x00", "corrupt"),
            (b"P2 1 1 10\n11", "corrupt"),
            (b"P1 1 1\n7", "corrupt"),
            (b"P5 0 4 255\n", "corrupt"),
            (b"P6 65535 65535 255\n", "too_large"),
        ] {
            let error = pixels(bytes).unwrap_err();
            assert_eq!(error.kind(), kind, "{}: {error}", String::from_utf8_lossy(bytes));
        }
    }
}
