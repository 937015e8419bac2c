//! The operations of an image pipeline, as data.
//!
//! This is the one description that the Python transforms, the command line and the fingerprint share; its JSON form
//! is what `sutler.transforms` sends. Names, parameters and meanings are torchvision v2's. Sizes are `[height, width]`,
//! paddings `[left, top, right, bottom]`, ranges `[low, high]`.

use serde::{Deserialize, Serialize};

/// How pixels between pixels are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    /// The nearest pixel.
    Nearest,
    /// A triangle filter.
    Bilinear,
    /// Keys' cubic with a = -0.5, as Pillow's.
    Bicubic,
    /// Lanczos with three lobes.
    Lanczos,
    /// Area average.
    Box,
    /// Pillow's Hamming filter.
    Hamming,
}

/// What padding is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PaddingMode {
    /// The fill colour.
    Constant,
    /// The border pixel again and again.
    Edge,
    /// Mirrored, border pixel not repeated.
    Reflect,
    /// Mirrored, border pixel repeated.
    Symmetric,
}

/// The target of a resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ResizeTo {
    /// The shorter side gets this length, the ratio stays.
    Shorter(u32),
    /// Exactly `[height, width]`.
    Exact([u32; 2]),
}

/// What [`Op::RandomErasing`] leaves behind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EraseWith {
    /// One value, or one per channel.
    Values(Vec<f64>),
    /// `"random"`: normal noise.
    Named(EraseNoise),
}

/// The one named filling of [`EraseWith`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EraseNoise {
    /// Each value from N(0, 1).
    Random,
}

/// The type of the values that come out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputType {
    /// 0 to 255.
    Uint8,
    /// 0 to 1 when scaled.
    Float32,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)] // the fields are torchvision's parameters under torchvision's names
pub enum Op {
    /// Scale the whole image.
    Resize { size: ResizeTo, max_size: Option<u32>, interpolation: Interpolation, antialias: bool },
    /// Cut the middle out; pads with zeros where the image is smaller.
    CenterCrop { size: [u32; 2] },
    /// Cut a random window out.
    RandomCrop {
        size: [u32; 2],
        padding: Option<[u32; 4]>,
        pad_if_needed: bool,
        fill: [u8; 3],
        padding_mode: PaddingMode,
    },
    /// Cut a random area of random aspect out and scale it.
    RandomResizedCrop {
        size: [u32; 2],
        scale: [f64; 2],
        ratio: [f64; 2],
        interpolation: Interpolation,
        antialias: bool,
    },
    /// Mirror left and right.
    RandomHorizontalFlip { p: f64 },
    /// Mirror top and bottom.
    RandomVerticalFlip { p: f64 },
    /// Add a border.
    Pad { padding: [u32; 4], fill: [u8; 3], padding_mode: PaddingMode },
    /// Change brightness, contrast, saturation and hue in random order by random factors.
    ColorJitter {
        brightness: Option<[f64; 2]>,
        contrast: Option<[f64; 2]>,
        saturation: Option<[f64; 2]>,
        hue: Option<[f64; 2]>,
    },
    /// Drop the colour.
    RandomGrayscale { p: f64 },
    /// Blur; `kernel_size` is `[x, y]` as in torchvision.
    GaussianBlur { kernel_size: [u32; 2], sigma: [f64; 2] },
    /// `num_ops` random operations of one magnitude.
    RandAugment {
        num_ops: u32,
        magnitude: u32,
        num_magnitude_bins: u32,
        interpolation: Interpolation,
        fill: Option<[u8; 3]>,
    },
    /// One random operation of random magnitude.
    TrivialAugmentWide { num_magnitude_bins: u32, interpolation: Interpolation, fill: Option<[u8; 3]> },
    /// Overwrite a random rectangle.
    RandomErasing { p: f64, scale: [f64; 2], ratio: [f64; 2], value: EraseWith },
    /// Change the type; `scale` maps 0..255 to 0..1.
    ToDtype { dtype: OutputType, scale: bool },
    /// Floats from 0 to 255 with the channels in the order blue, green, red: what networks take that were first trained with Caffe.
    ToBgr255 {},
    /// Subtract the mean and divide by the deviation, both on the scale and in the order that the values have; 8-bit input
    /// is brought to 0..1 first.
    Normalize { mean: [f64; 3], std: [f64; 3] },
}
