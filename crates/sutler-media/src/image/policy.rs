//! The operations that RandAugment and TrivialAugmentWide choose from, and how strong each is.
//!
//! Both choose evenly from the same fourteen operations. An operation's strength comes from a table of evenly spaced
//! magnitudes; the tables differ between the two policies only in where they end. The spacing is computed in single
//! precision, because that is where torchvision's tables come from and some magnitudes are cut to whole numbers.

use super::Size;

/// One of the operations to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
}

pub(crate) const KINDS: [Kind; 14] = [
    Kind::Identity,
    Kind::ShearX,
    Kind::ShearY,
    Kind::TranslateX,
    Kind::TranslateY,
    Kind::Rotate,
    Kind::Brightness,
    Kind::Color,
    Kind::Contrast,
    Kind::Sharpness,
    Kind::Posterize,
    Kind::Solarize,
    Kind::AutoContrast,
    Kind::Equalize,
];

/// Which table of magnitudes applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    RandAugment,
    TrivialWide,
}

/// An operation with its strength; the sign is already in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Choice {
    pub kind: Kind,
    pub magnitude: f64,
}

impl Kind {
    /// torchvision's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Identity => "Identity",
            Self::ShearX => "ShearX",
            Self::ShearY => "ShearY",
            Self::TranslateX => "TranslateX",
            Self::TranslateY => "TranslateY",
            Self::Rotate => "Rotate",
            Self::Brightness => "Brightness",
            Self::Color => "Color",
            Self::Contrast => "Contrast",
            Self::Sharpness => "Sharpness",
            Self::Posterize => "Posterize",
            Self::Solarize => "Solarize",
            Self::AutoContrast => "AutoContrast",
            Self::Equalize => "Equalize",
        }
    }

    /// Whether it has a strength at all.
    pub fn has_magnitude(self) -> bool {
        !matches!(self, Self::Identity | Self::AutoContrast | Self::Equalize)
    }

    /// Whether its strength goes both ways.
    pub fn is_signed(self) -> bool {
        self.has_magnitude() && !matches!(self, Self::Posterize | Self::Solarize)
    }

    /// Entry `index` of its table of `bins` magnitudes for an image of this size, before the sign.
    pub fn magnitude(self, policy: Policy, index: u32, bins: u32, image: Size) -> f64 {
        let wide = policy == Policy::TrivialWide;
        let end = |usual: f64, widest: f64| if wide { widest } else { usual };
        let to = |end: f64| f64::from(evenly_spaced(0.0, end as f32, index, bins));
        match self {
            Self::Identity | Self::AutoContrast | Self::Equalize => 0.0,
            Self::ShearX | Self::ShearY => to(end(0.3, 0.99)),
            Self::TranslateX => to(end(150.0 / 331.0 * f64::from(image.width), 32.0)),
            Self::TranslateY => to(end(150.0 / 331.0 * f64::from(image.height), 32.0)),
            Self::Rotate => to(end(30.0, 135.0)),
            Self::Brightness | Self::Color | Self::Contrast | Self::Sharpness => to(end(0.9, 0.99)),
            Self::Posterize => {
                let steps = ((f64::from(bins) - 1.0) / end(4.0, 6.0)) as f32;
                f64::from((8.0 - index as f32 / steps).round_ties_even())
            }
            Self::Solarize => f64::from(evenly_spaced(1.0, 0.0, index, bins)),
        }
    }
}

/// Entry `index` of `count` values from `start` to `end`, filled from both ends as torch fills them.
fn evenly_spaced(start: f32, end: f32, index: u32, count: u32) -> f32 {
    if count == 1 {
        return start;
    }
    let step = (end - start) / (count - 1) as f32;
    if index < count / 2 {
        step.mul_add(index as f32, start)
    } else {
        (-step).mul_add((count - 1 - index) as f32, end)
    }
}
