//! JPEG: a header reader of our own and libjpeg-turbo for the pixels.
//!
//! Huffman decoding is about three quarters of the work and cannot jump ahead, so what a crop saves is: the inverse DCT,
//! upsampling and colour conversion outside of it, and everything below its last row. Rows above cost their Huffman
//! codes only.
//!
//! Fancy upsampling blends a chroma sample with its neighbours. At a cut edge libjpeg repeats the outermost sample
//! instead, so the columns decoded reach a little beyond those asked for; then the pixels asked for are the same, bit by
//! bit, as in a full decode. Vertically libjpeg keeps the context itself.

use super::{DecodeError, Decoded, Format, Header, Request, rgb};
use crate::ffi::jpeg::{self as ffi, Failure, Jpeg};
use crate::image::{Pixels, Rect};

/// A progressive file of any sane encoder has about ten scans; one of our own making with every bit plane of every
/// band apart has below a hundred. A thousand scans over a large image would take minutes.
const SCANS_MAX: u32 = 100;

/// How far from the end the end-of-image marker is looked for. Cameras and web servers append padding and small
/// trailers; past this a file is decoded to its last row to find out whether it is whole.
const TRAILER_BYTES_MAX: usize = 4096;

/// What the markers up to the first scan say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// 1: grey, 3: colour, 4: CMYK or YCCK.
    pub components: u8,
    /// The largest horizontal sampling factor.
    pub horizontal: u8,
    /// The largest vertical sampling factor.
    pub vertical: u8,
    /// Whether each scan refines the whole image.
    pub progressive: bool,
    /// Whether the entropy coding is arithmetic rather than Huffman.
    pub arithmetic: bool,
    /// Whether there is no DCT, hence neither scaling nor cropping.
    pub lossless: bool,
    /// Where the first scan's data starts.
    scan_start: usize,
}

/// Reads the markers up to the first scan.
pub(super) fn probe(bytes: &[u8]) -> Result<(u32, u32, Layout), DecodeError> {
    let truncated = || DecodeError::truncated(Format::Jpeg, bytes);
    let mut frame = None;
    let mut at = 2; // behind the start-of-image marker, which `sniff` has seen
    loop {
        // Between segments anything that is not a marker is skipped, as libjpeg does; a marker may be preceded by any
        // number of fill bytes.
        at += bytes.get(at..).and_then(|rest| rest.iter().position(|&b| b == 0xff)).ok_or_else(truncated)?;
        at += bytes[at..].iter().position(|&b| b != 0xff).ok_or_else(truncated)?;
        let marker = bytes[at];
        at += 1;
        match marker {
            0x00 | 0x01 | 0xd0..=0xd8 => continue, // a stuffed byte or a marker that stands alone
            0xd9 => return Err(corrupt("the image ends before it has begun")),
            _ => {}
        }
        let length = match bytes.get(at..at + 2) {
            Some(&[high, low]) => usize::from(u16::from_be_bytes([high, low])),
            _ => return Err(truncated()),
        };
        // A length that does not even count itself is taken for an empty segment, as by libjpeg.
        let length = length.max(2);
        let segment = bytes.get(at + 2..at + length).ok_or_else(truncated)?;
        at += length;
        match marker {
            0xc4 | 0xc8 | 0xcc => {} // Huffman tables, reserved, arithmetic conditioning
            0xc0..=0xcf => {
                if frame.is_some() {
                    return Err(corrupt("it has two frame headers"));
                }
                frame = Some(read_frame(marker, segment)?);
            }
            0xda => {
                let Some((width, height, layout)) = frame else {
                    return Err(corrupt("a scan comes before the frame header"));
                };
                return Ok((width, height, Layout { scan_start: at, ..layout }));
            }
            _ => {}
        }
    }
}

fn read_frame(marker: u8, segment: &[u8]) -> Result<(u32, u32, Layout), DecodeError> {
    let &[precision, h1, h0, w1, w0, components, ref samplings @ ..] = segment else {
        return Err(corrupt("the frame header is too short"));
    };
    let what = match marker {
        0xc5..=0xc7 | 0xcd..=0xcf => Some("a hierarchical frame".to_owned()),
        0xcb => Some("a lossless frame with arithmetic coding".to_owned()),
        _ if precision != 8 => Some(format!("samples of {precision} bits")),
        _ if !matches!(components, 1 | 3 | 4) => Some(format!("{components} components")),
        _ => None,
    };
    if let Some(what) = what {
        return Err(DecodeError::unsupported(Format::Jpeg, what));
    }
    let height = u32::from(u16::from_be_bytes([h1, h0]));
    let width = u32::from(u16::from_be_bytes([w1, w0]));
    if width == 0 || height == 0 {
        return Err(corrupt("the frame header gives no width or no height"));
    }
    let mut layout = Layout {
        components,
        horizontal: 1,
        vertical: 1,
        progressive: matches!(marker, 0xc2 | 0xca),
        arithmetic: matches!(marker, 0xc9 | 0xca),
        lossless: marker == 0xc3,
        scan_start: 0,
    };
    if samplings.len() < usize::from(components) * 3 {
        return Err(corrupt("the frame header is too short for its components"));
    }
    for sampling in samplings.chunks_exact(3).take(usize::from(components)) {
        let (horizontal, vertical) = (sampling[1] >> 4, sampling[1] & 15);
        if !(1..=4).contains(&horizontal) || !(1..=4).contains(&vertical) {
            return Err(corrupt("a sampling factor is not between 1 and 4"));
        }
        layout.horizontal = layout.horizontal.max(horizontal);
        layout.vertical = layout.vertical.max(vertical);
    }
    Ok((width, height, layout))
}

fn corrupt(reason: &str) -> DecodeError {
    DecodeError::corrupt(Format::Jpeg, reason)
}

/// libjpeg and the memory it needs beside the output.
pub(super) struct JpegDecoder {
    codec: Jpeg,
    /// CMYK rows on their way to RGB; only such files fill it.
    cmyk: Vec<u8>,
}

impl JpegDecoder {
    pub(super) fn new() -> Self {
        Self { codec: Jpeg::new(), cmyk: Vec::new() }
    }

    pub(super) fn decode(
        &mut self,
        bytes: &[u8],
        header: &Header,
        request: &Request,
        out: &mut Pixels,
    ) -> Result<Decoded, DecodeError> {
        let Some(layout) = &header.jpeg else {
            return Err(corrupt("its header was not read from a JPEG"));
        };
        let wanted = request.scaled_region(header);
        let full = request.scale.of_size(header.width, header.height);
        let columns = with_upsampling_margin(&wanted, full.0, layout);
        let (first, rows) = if layout.lossless { (0, full.1) } else { (wanted.y, wanted.height) };
        let failure = |failure| match failure {
            Failure::Truncated => DecodeError::truncated(Format::Jpeg, bytes),
            Failure::Corrupt(reason) => corrupt(&reason),
            Failure::TooManyScans => DecodeError::Unsupported {
                format: Format::Jpeg,
                what: format!("more than {SCANS_MAX} progressive scans"),
            },
        };
        let ffi_request = ffi::Request {
            x: columns.0,
            width: columns.1,
            denominator: request.scale.denominator(),
            croppable: u32::from(!layout.lossless),
            scans_max: SCANS_MAX,
            bmi2: ffi::bmi2(),
        };
        let (shape, image) = self.codec.begin(bytes, &ffi_request).map_err(failure)?;
        if (shape.full_width, shape.full_height) != full {
            return Err(corrupt("it has two frame headers that differ"));
        }
        out.resize(shape.width, rows);
        // Stopping early would let a file that ends below the crop pass, until another crop finds out.
        let to_the_end = !ends_properly(bytes, layout.scan_start);
        if shape.channels == 4 {
            self.cmyk.resize(shape.width as usize * rows as usize * 4, 0);
            image.read(first, rows, to_the_end, &mut self.cmyk).map_err(failure)?;
            inverted_cmyk_to_rgb(&self.cmyk, &mut out.data);
        } else {
            image.read(first, rows, to_the_end, &mut out.data).map_err(failure)?;
        }
        let covered = Rect { x: shape.x, y: first, width: shape.width, height: rows };
        Ok(Decoded { covered, full, warnings: self.codec.warnings() })
    }

    /// What libjpeg had to guess first in the image decoded last.
    pub(super) fn warning_text(&self) -> String {
        self.codec.warning_text()
    }
}

/// The columns to decode: one chroma sample more on either side than wanted, where there is one.
fn with_upsampling_margin(wanted: &Rect, full_width: u32, layout: &Layout) -> (u32, u32) {
    let margin = if layout.horizontal > 1 { u32::from(layout.horizontal) } else { 0 };
    let left = wanted.x.saturating_sub(margin);
    let right = (wanted.x + wanted.width + margin).min(full_width);
    (left, right - left)
}

/// Whether the end-of-image marker stands near the end, behind the start of the first scan.
fn ends_properly(bytes: &[u8], scan_start: usize) -> bool {
    let from = bytes.len().saturating_sub(TRAILER_BYTES_MAX).max(scan_start).min(bytes.len());
    bytes[from..].windows(2).rev().any(|pair| pair == [0xff, 0xd9])
}

/// Adobe's files hold inverted ink, and Pillow takes every file to be Adobe's.
fn inverted_cmyk_to_rgb(cmyk: &[u8], out: &mut [u8]) {
    for (ink, pixel) in cmyk.chunks_exact(4).zip(out.chunks_exact_mut(3)) {
        pixel.copy_from_slice(&rgb::from_cmyk([!ink[0], !ink[1], !ink[2], !ink[3]]));
    }
}
