//! Why a sound file could not be decoded.
//!
//! The sentences name the reason and, where there is one, the remedy. They carry no path: the caller knows which sample
//! it asked for and says so in front.

use super::Format;

/// Why a sound file could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AudioError {
    /// There is not one byte.
    #[error("the file is empty; it may be left over from an interrupted copy, copy it again")]
    Empty,
    /// The first bytes belong to no format that is decoded here.
    #[error(
        "the file starts with {first_bytes}, which no supported format does (wav, flac, mp3, ogg); convert it or leave \
         it out"
    )]
    Unrecognised {
        /// The first bytes in hexadecimal.
        first_bytes: String,
    },
    /// The bytes end too early.
    #[error(
        "the file ends at byte {bytes} before the {format} sound is complete{}; copy it again",
        if *format == Format::Flac { ", or its last frame is damaged or has other bytes than a tag behind it" } else { "" }
    )]
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
    #[error("this kind of {format} is not supported: {what}; convert it to PCM WAV or FLAC, or leave it out")]
    Unsupported {
        /// What the file is.
        format: Format,
        /// The variant.
        what: String,
    },
    /// A value that is no number, or an infinite one.
    #[error(
        "the {format} sound has a value that is {value}, which would spread to whatever is made of it; write the file again, \
         or leave it out"
    )]
    NotFinite {
        /// What the file is.
        format: Format,
        /// What is there.
        value: String,
    },
    /// More values than are allowed.
    #[error(
        "the sound has {values} values or more in all channels, and the limit is {values_max}; raise values_max if the \
         length is real, or leave the file out"
    )]
    TooLong {
        /// What the header claims, or what has been decoded so far.
        values: u64,
        /// The limit that was set.
        values_max: u64,
    },
}

impl AudioError {
    pub(super) fn truncated(format: Format, bytes: &[u8]) -> Self {
        Self::Truncated { format, bytes: bytes.len() as u64 }
    }

    pub(super) fn corrupt(format: Format, reason: impl Into<String>) -> Self {
        Self::Corrupt { format, reason: reason.into() }
    }

    pub(super) fn unsupported(format: Format, what: impl Into<String>) -> Self {
        Self::Unsupported { format, what: what.into() }
    }

    pub(super) fn unrecognised(bytes: &[u8]) -> Self {
        let first_bytes: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self::Unrecognised { first_bytes: first_bytes.join(" ") }
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
            Self::NotFinite { .. } => "not_finite",
            Self::TooLong { .. } => "too_large",
        }
    }
}
