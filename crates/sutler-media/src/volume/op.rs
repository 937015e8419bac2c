//! The operations of a pipeline on volumes, as data.
//!
//! Names and defaults are those of MLPerf's 3D-UNet.

use serde::{Deserialize, Serialize};

/// What the values of an image are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageType {
    /// Floats of 32 bits.
    Float32,
}

/// What labels are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LabelType {
    /// Bytes.
    Uint8,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)] // what the fields mean is said where users write them
pub enum Op {
    /// Cut a block out: over a labelled part with the chance `oversampling`, else anywhere.
    RandBalancedCrop { patch_size: [u32; 3], oversampling: f64 },
    /// Turn each of the axes around with the chance `p`.
    RandFlip { axes: Vec<u8>, p: f64 },
    /// Say what values are to be.
    Cast { image: ImageType, label: LabelType },
    /// Multiply all values by 1 + a random number around 1.
    RandomBrightness { factor: f64, p: f64 },
    /// Add normal noise of a random deviation.
    GaussianNoise { mean: f64, std: f64, p: f64 },
    /// Bring values to another distance from each other.
    Resample { spacing: [f64; 3] },
    /// Cut values off at both ends, and bring them to a mean and a deviation.
    ClipNormalize { min: f64, max: f64, mean: f64, std: f64 },
}

impl Op {
    /// Its name as users write it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::RandBalancedCrop { .. } => "RandBalancedCrop",
            Self::RandFlip { .. } => "RandFlip",
            Self::Cast { .. } => "Cast",
            Self::RandomBrightness { .. } => "RandomBrightness",
            Self::GaussianNoise { .. } => "GaussianNoise",
            Self::Resample { .. } => "Resample",
            Self::ClipNormalize { .. } => "ClipNormalize",
        }
    }

    /// Whether two runs over one volume may differ.
    #[must_use]
    pub fn is_random(&self) -> bool {
        match self {
            Self::RandBalancedCrop { .. }
            | Self::RandFlip { .. }
            | Self::RandomBrightness { .. }
            | Self::GaussianNoise { .. } => true,
            Self::Cast { .. } | Self::Resample { .. } | Self::ClipNormalize { .. } => false,
        }
    }

    /// Whether it looks at each value of the image for itself, so that cutting a block out before or after it is the same to the bit. Noise
    /// is not: which number is added to a value depends on how many come before it.
    pub(super) fn is_pointwise(&self) -> bool {
        matches!(self, Self::Cast { .. } | Self::RandomBrightness { .. } | Self::ClipNormalize { .. })
    }

    /// Whether labels come out the same each time.
    pub(super) fn keeps_labels(&self) -> bool {
        !matches!(self, Self::RandBalancedCrop { .. } | Self::RandFlip { .. })
    }
}
