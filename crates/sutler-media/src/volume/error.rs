//! Why a volume could not be read.
//!
//! The sentences carry no path: the caller knows which sample it asked for and says so in front.

use super::Format;

/// Why a volume could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// There is not one byte.
    #[error("the file is empty; it may be left over from an interrupted copy, copy it again")]
    Empty,
    /// The first bytes belong to no format that is read here.
    #[error(
        "the file starts with {first_bytes}, which no supported format does (npy, nii, nii.gz); convert it or leave it \
         out"
    )]
    Unrecognised {
        /// The first bytes in hexadecimal.
        first_bytes: String,
    },
    /// The bytes end too early.
    #[error("the file ends at byte {bytes}, and the {format} volume takes {needed}; copy it again")]
    Truncated {
        /// What the file is.
        format: Format,
        /// How long the file is, unpacked.
        bytes: u64,
        /// How long it should be.
        needed: u64,
    },
    /// The bytes contradict the format.
    #[error("the {format} header is corrupt: {reason}; replace the file")]
    Corrupt {
        /// What the file is.
        format: Format,
        /// What is wrong.
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
    /// More values than are allowed.
    #[error(
        "the volume has {values} values, and the limit is {values_max}; raise values_max if the size is real, or leave \
         the file out"
    )]
    TooLarge {
        /// What the header claims.
        values: u64,
        /// The limit that was set.
        values_max: u64,
    },
}

impl VolumeError {
    /// A short name for the kind of failure.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Unrecognised { .. } => "unrecognised",
            Self::Truncated { .. } => "truncated",
            Self::Corrupt { .. } => "corrupt",
            Self::Unsupported { .. } => "unsupported",
            Self::TooLarge { .. } => "too_large",
        }
    }
}
