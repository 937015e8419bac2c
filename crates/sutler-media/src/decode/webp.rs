//! WebP, with libwebp for the pixels and a container reader of our own, which finds the first frame of an animation.

use super::{DecodeError, Format, Header};
use crate::ffi::webp::{self as ffi, Failure};
use crate::image::{Pixels, Rect};

/// Where the picture is: the canvas, and the part of it that the first frame covers.
struct Picture<'a> {
    canvas: (u32, u32),
    frame: Rect,
    /// What libwebp gets: the whole file, or the chunks of one frame.
    data: &'a [u8],
}

/// The size of the canvas.
pub(super) fn probe(bytes: &[u8]) -> Result<(u32, u32), DecodeError> {
    Ok(find(bytes)?.canvas)
}

fn find(bytes: &[u8]) -> Result<Picture<'_>, DecodeError> {
    let truncated = || DecodeError::truncated(Format::WebP, bytes);
    let number = |at: usize| -> Result<u32, DecodeError> {
        let three = bytes.get(at..at + 3).ok_or_else(truncated)?;
        Ok(u32::from_le_bytes([three[0], three[1], three[2], 0]))
    };
    const ANIMATION: u8 = 2;
    let extended = bytes.get(12..16) == Some(b"VP8X");
    let animated = extended && bytes.get(20).ok_or_else(truncated)? & ANIMATION != 0;
    if !animated {
        // An extended header gives the canvas even where the picture is missing, so that a claim can be refused first.
        let canvas = if extended {
            (number(24)? + 1, number(27)? + 1)
        } else {
            ffi::size(bytes).map_err(|failure| error(failure, bytes))?
        };
        return Ok(Picture { canvas, frame: Rect::whole(canvas.0, canvas.1), data: bytes });
    }
    let canvas = (number(24)? + 1, number(27)? + 1);
    let mut at = 12;
    loop {
        let head = bytes.get(at..at + 8).ok_or_else(truncated)?;
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let body = at + 8;
        if &head[..4] == b"ANMF" {
            let frame = Rect {
                x: number(body)? * 2,
                y: number(body + 3)? * 2,
                width: number(body + 6)? + 1,
                height: number(body + 9)? + 1,
            };
            if frame.x + frame.width > canvas.0 || frame.y + frame.height > canvas.1 {
                return Err(DecodeError::corrupt(Format::WebP, "the first frame reaches outside the canvas"));
            }
            let end = body.saturating_add(length).min(bytes.len());
            let data = bytes.get(body + 16..end).ok_or_else(truncated)?;
            return Ok(Picture { canvas, frame, data });
        }
        // Chunks are padded to an even length.
        at = body.saturating_add(length).saturating_add(length & 1);
    }
}

pub(super) fn decode(bytes: &[u8], header: &Header, out: &mut Pixels) -> Result<(), DecodeError> {
    let picture = find(bytes)?;
    let frame = picture.frame;
    if ffi::size(picture.data).map_err(|failure| error(failure, bytes))? != (frame.width, frame.height) {
        return Err(DecodeError::corrupt(Format::WebP, "two of its headers give different sizes"));
    }
    out.resize(header.width, header.height);
    let stride = header.width as usize * 3;
    if frame != Rect::whole(header.width, header.height) {
        out.data.fill(0); // what the frame leaves open is transparent, that is black without its alpha
    }
    let start = frame.y as usize * stride + frame.x as usize * 3;
    ffi::decode(picture.data, stride, &mut out.data[start..]).map_err(|failure| error(failure, bytes))
}

fn error(failure: Failure, bytes: &[u8]) -> DecodeError {
    match failure {
        Failure::Truncated => DecodeError::truncated(Format::WebP, bytes),
        Failure::Corrupt => DecodeError::corrupt(Format::WebP, "libwebp cannot read its bits"),
        Failure::Unsupported => {
            DecodeError::unsupported(Format::WebP, "a feature that libwebp does not know".to_owned())
        }
        Failure::OutOfMemory => {
            DecodeError::corrupt(Format::WebP, "libwebp cannot get the memory it asks for")
        }
    }
}
