//! Why an image could not be decoded.
//!
//! The sentences name the reason and, where there is one, the remedy. They carry no path: the caller knows which sample
//! it asked for and says so in front.

use super::Format;
use crate::image::Rect;

/// Why an image could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// There is not one byte.
    #[error("the file is empty; it may be left over from an interrupted copy, copy it again")]
    Empty,
    /// The first bytes belong to no format that is decoded here.
    #[error(
        "the file starts with {first_bytes}, which no supported format does (jpeg, png, webp, bmp, gif, tiff, \
         pbm, pgm, ppm); convert it or leave it out"
    )]
    Unrecognised {
        /// The first bytes in hexadecimal.
        first_bytes: String,
    },
    /// The bytes end too early.
    #[error("the file ends at byte {bytes} before the {format} image is complete; copy it again")]
    Truncated {
        /// What the file is.
        format: Format,
        /// How long the file is.
        bytes: u64,
    },
    /// The bytes contradict the format.
    #[error("the {format} data is corrupt: {reason}; replace the file")]
    Corrupt {
        /// What the file is.
        format: Format,
        /// What is wrong, in the words of the decoder.
        reason: String,
    },
    /// The format is known, this variant of it is not.
    #[error("this kind of {format} is not supported: {what}; convert the file or leave it out")]
    Unsupported {
        /// What the file is.
        format: Format,
        /// The variant.
        what: String,
    },
    /// The header promises more pixels than are allowed.
    #[error(
        "the image claims to be {width} x {height} pixels, {pixels} in all, and the limit is {pixels_max}; \
         raise pixels_max if the size is real, or leave the file out",
        pixels = u64::from(*width) * u64::from(*height)
    )]
    TooLarge {
        /// The width the header claims.
        width: u32,
        /// The height the header claims.
        height: u32,
        /// The limit that was set.
        pixels_max: u64,
    },
    /// The file itself is longer than is allowed.
    #[error("the file has {bytes} bytes and the limit is {bytes_max}; raise bytes_max or leave the file out")]
    TooLong {
        /// How long the file is.
        bytes: u64,
        /// The limit that was set.
        bytes_max: u64,
    },
    /// The caller asked for pixels that the image does not have.
    #[error(
        "the region of {} x {} pixels at ({}, {}) is empty or reaches outside the image of {width} x {height} \
         pixels; ask for a region inside it",
        region.width, region.height, region.x, region.y
    )]
    Region {
        /// What was asked for.
        region: Rect,
        /// The width of the image.
        width: u32,
        /// The height of the image.
        height: u32,
    },
}

impl DecodeError {
    pub(super) fn truncated(format: Format, bytes: &[u8]) -> Self {
        Self::Truncated { format, bytes: bytes.len() as u64 }
    }

    pub(super) fn corrupt(format: Format, reason: &str) -> Self {
        Self::Corrupt { format, reason: reason.to_owned() }
    }

    pub(super) fn unsupported(format: Format, what: String) -> Self {
        Self::Unsupported { format, what }
    }

    /// One word for counters and policies.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Unrecognised { .. } => "unrecognised",
            Self::Truncated { .. } => "truncated",
            Self::Corrupt { .. } => "corrupt",
            Self::Unsupported { .. } => "unsupported",
            Self::TooLarge { .. } => "too_large",
            Self::TooLong { .. } => "too_long",
            Self::Region { .. } => "region",
        }
    }
}
