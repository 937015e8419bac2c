//! From bytes to pixels.
//!
//! [`probe`] reads a header without decoding anything, [`Decoder::decode`] decodes the region that was asked for, or a
//! little more. Pixels come out as 8-bit RGB, the same as Pillow's `Image.open(file).convert("RGB")`: alpha is dropped, 16-bit
//! grey is cut off at 255, 16-bit colour keeps its high byte, orientation tags and colour profiles are not applied.
//!
//! What Pillow reads and this refuses, with an error that says so: JPEG of more than a hundred scans, GIF without any
//! palette, and of TIFF: JPEG, WebP and Zstandard compression, YCbCr, white-is-zero beyond 8 bits, palettes
//! with alpha, and a chain of pages that bites its tail.

mod bmp;
mod error;
mod format;
mod gif;
mod jpeg;
mod png;
mod pnm;
mod rgb;
mod tiff;
mod webp;

pub use error::DecodeError;
pub use format::{Format, sniff};

use crate::image::{Pixels, Rect, Size};

/// What is refused before any memory is set aside for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most pixels an image may have.
    pub pixels_max: u64,
    /// The most bytes a file may have.
    pub bytes_max: u64,
}

impl Default for Limits {
    /// 178,956,970 pixels, where Pillow refuses an image as a decompression bomb (half a gigabyte of RGB), and 1 GiB.
    fn default() -> Self {
        Self { pixels_max: 178_956_970, bytes_max: 1 << 30 }
    }
}

impl Limits {
    fn check_size(&self, width: u32, height: u32) -> Result<(), DecodeError> {
        if u64::from(width) * u64::from(height) > self.pixels_max {
            return Err(DecodeError::TooLarge { width, height, pixels_max: self.pixels_max });
        }
        Ok(())
    }
}

/// What the first bytes of a file say about the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What kind of file it is.
    pub format: Format,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    jpeg: Option<jpeg::Layout>,
}

impl Header {
    /// Width and height.
    #[must_use]
    pub fn size(&self) -> Size {
        Size { width: self.width, height: self.height }
    }

    /// Whether the decoder can scale this image while decoding it.
    #[must_use]
    pub fn can_scale(&self, scale: Scale) -> bool {
        scale == Scale::Full || self.jpeg.is_some_and(|layout| !layout.lossless)
    }

    /// Whether decoding a region costs less than decoding the whole.
    #[must_use]
    pub fn can_crop(&self) -> bool {
        self.jpeg.is_some_and(|layout| !layout.lossless)
    }

    /// Whether this is a progressive JPEG, which costs about three times a sequential one and gains nothing by
    /// cropping.
    #[must_use]
    pub fn is_progressive(&self) -> bool {
        self.jpeg.is_some_and(|layout| layout.progressive)
    }
}

/// Reads the size and kind of an image and refuses it when it breaks a limit.
pub fn probe(bytes: &[u8], limits: &Limits) -> Result<Header, DecodeError> {
    if bytes.is_empty() {
        return Err(DecodeError::Empty);
    }
    if bytes.len() as u64 > limits.bytes_max {
        return Err(DecodeError::TooLong { bytes: bytes.len() as u64, bytes_max: limits.bytes_max });
    }
    let format = sniff(bytes).ok_or_else(|| unrecognised(bytes))?;
    let mut layout = None;
    let (width, height) = match format {
        Format::Jpeg => {
            let (width, height, jpeg) = jpeg::probe(bytes)?;
            layout = Some(jpeg);
            (width, height)
        }
        Format::Png => png::probe(bytes)?,
        Format::WebP => webp::probe(bytes)?,
        Format::Bmp => bmp::probe(bytes)?,
        Format::Gif => gif::probe(bytes)?,
        Format::Tiff => tiff::probe(bytes)?,
        Format::Pnm => pnm::probe(bytes)?,
    };
    if width == 0 || height == 0 {
        return Err(DecodeError::corrupt(format, "the header gives no width or no height"));
    }
    limits.check_size(width, height)?;
    Ok(Header { format, width, height, jpeg: layout })
}

fn unrecognised(bytes: &[u8]) -> DecodeError {
    let first_bytes: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    DecodeError::Unrecognised { first_bytes: first_bytes.join(" ") }
}

/// How much smaller the decoder makes the image on the way.
///
/// These are the fractions whose inverse DCT is faster than the full one; 3/4 or 5/8 would be slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Scale {
    /// As it is.
    #[default]
    Full,
    /// 1/2 of each side.
    Half,
    /// 1/4 of each side.
    Quarter,
    /// 1/8 of each side.
    Eighth,
}

impl Scale {
    /// What each side is divided by.
    #[must_use]
    pub fn denominator(self) -> u32 {
        match self {
            Self::Full => 1,
            Self::Half => 2,
            Self::Quarter => 4,
            Self::Eighth => 8,
        }
    }

    /// The size an image of this size is scaled to; a part of a pixel counts as one.
    #[must_use]
    pub fn of_size(self, width: u32, height: u32) -> (u32, u32) {
        (width.div_ceil(self.denominator()), height.div_ceil(self.denominator()))
    }
}

/// What is wanted of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The part that is needed, in pixels of the image at its full size.
    pub region: Rect,
    /// How much smaller it may come out.
    pub scale: Scale,
}

impl Request {
    /// The whole image at its full size.
    #[must_use]
    pub fn whole(header: &Header) -> Self {
        Self { region: Rect::whole(header.width, header.height), scale: Scale::Full }
    }

    /// The region in pixels of the scaled image, rounded outwards.
    #[must_use]
    pub fn scaled_region(&self, header: &Header) -> Rect {
        self.scaled_within(Size { width: header.width, height: header.height })
    }

    /// The same for an image of this size.
    pub(crate) fn scaled_within(&self, image: Size) -> Rect {
        let denominator = self.scale.denominator();
        let (full_width, full_height) = self.scale.of_size(image.width, image.height);
        let (x, y) = (self.region.x / denominator, self.region.y / denominator);
        let right = (self.region.x + self.region.width).div_ceil(denominator).min(full_width);
        let bottom = (self.region.y + self.region.height).div_ceil(denominator).min(full_height);
        Rect { x, y, width: right - x, height: bottom - y }
    }

    fn check(&self, header: &Header) -> Result<(), DecodeError> {
        let Rect { x, y, width, height } = self.region;
        let inside = |start: u32, length: u32, size: u32| {
            length > 0 && u64::from(start) + u64::from(length) <= u64::from(size)
        };
        if inside(x, width, header.width) && inside(y, height, header.height) {
            Ok(())
        } else {
            Err(DecodeError::Region { region: self.region, width: header.width, height: header.height })
        }
    }
}

/// What a decode has left in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// What the output holds, in pixels of the scaled image. It contains the region asked for, rounded outwards, and
    /// often a few columns more; the region is exact, the columns beside it need not be.
    pub covered: Rect,
    /// The width and height of the whole scaled image.
    pub full: (u32, u32),
    /// How often the decoder had to guess because the data was damaged; the pixels are then Pillow's guess too.
    pub warnings: u32,
}

/// Decodes one image after another. It owns libjpeg's state and all scratch memory; each thread has its own.
pub struct Decoder {
    limits: Limits,
    jpeg: jpeg::JpegDecoder,
    /// Samples on their way to RGB; formats that write RGB themselves leave it alone.
    scratch: Vec<u8>,
}

impl Decoder {
    /// A decoder that keeps to these limits.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, jpeg: jpeg::JpegDecoder::new(), scratch: Vec::new() }
    }

    /// The limits this decoder keeps to.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Decodes what `request` asks for into `out`. `header` is what [`probe`] made of the same bytes.
    ///
    /// A scale other than [`Scale::Full`] is only taken where [`Header::can_scale`] says so; elsewhere the image comes
    /// out at its full size, and [`Decoded::full`] says which it was.
    pub fn decode(
        &mut self,
        bytes: &[u8],
        header: &Header,
        request: &Request,
        out: &mut Pixels,
    ) -> Result<Decoded, DecodeError> {
        self.limits.check_size(header.width, header.height)?;
        request.check(header)?;
        let scale = if header.can_scale(request.scale) { request.scale } else { Scale::Full };
        let request = Request { scale, ..*request };
        let scratch = &mut self.scratch;
        match header.format {
            Format::Jpeg => return self.jpeg.decode(bytes, header, &request, out),
            Format::Png => png::decode(bytes, header, scratch, out)?,
            Format::WebP => webp::decode(bytes, header, out)?,
            Format::Bmp => bmp::decode(bytes, header, scratch, out)?,
            Format::Gif => gif::decode(bytes, header, scratch, out)?,
            Format::Tiff => tiff::decode(bytes, header, scratch, out)?,
            Format::Pnm => pnm::decode(bytes, header, scratch, out)?,
        }
        let (width, height) = (header.width, header.height);
        Ok(Decoded { covered: Rect::whole(width, height), full: (width, height), warnings: 0 })
    }

    /// What the decoder had to guess first, after a decode with [`Decoded::warnings`].
    #[must_use]
    pub fn warning_text(&self) -> String {
        self.jpeg.warning_text()
    }
}
