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
    /// What was packed does not come out again.
    #[error("the {format} file cannot be unpacked: {reason}; copy it again")]
    Damaged {
        /// What the file is.
        format: Format,
        /// What the decoder says.
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
    /// A value that is no number, or an infinite one.
    #[error(
        "a value is {value}, which would spread to whatever is made of it; write a number into the file, or leave it out"
    )]
    NotFinite {
        /// What is there.
        value: String,
    },
    /// A label that is none.
    #[error("a label is {value}, and labels are whole numbers from 0 to 255; write others into the file")]
    NoLabel {
        /// What is there.
        value: String,
    },
    /// Another number of channels than was announced.
    #[error(
        "the volume has {channels} channels where {expected} are expected; pass channels={channels} if all volumes have \
         as many, or leave the file out"
    )]
    Channels {
        /// What the header claims.
        channels: usize,
        /// What was announced.
        expected: usize,
    },
    /// Labels of several channels.
    #[error(
        "labels have one channel, and these have {channels}; write one number for each place, or leave the file out"
    )]
    LabelChannels {
        /// What the header claims.
        channels: usize,
    },
    /// Labels of another shape than their image.
    #[error(
        "the image has {} values and its labels {} have {}; make both of one shape, or leave them out",
        sides(*image), labels_path, sides(*labels)
    )]
    Mismatch {
        /// The image's shape.
        image: [usize; 3],
        /// Where the labels are.
        labels_path: String,
        /// Their shape.
        labels: [usize; 3],
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
            Self::Damaged { .. } => "damaged",
            Self::Unsupported { .. } => "unsupported",
            Self::NotFinite { .. } => "not_finite",
            Self::NoLabel { .. } => "label",
            Self::Channels { .. } | Self::LabelChannels { .. } => "channels",
            Self::Mismatch { .. } => "mismatch",
            Self::TooLarge { .. } => "too_large",
        }
    }
}

/// A shape as people write it.
pub(super) fn sides([first, second, third]: [usize; 3]) -> String {
    format!("{first} × {second} × {third}")
}
