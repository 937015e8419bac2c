//! What a pipeline may be made of. Everything a user can get wrong is refused here, before the first sample.

use super::op::{EraseWith, Interpolation, Op, OutputType, ResizeTo};
use super::pipeline::PipelineError;

/// The longest side: more than any format we read can have, and far from overflowing a byte count.
const SIDE_MAX: u32 = 65_535;

/// torchvision's name of an operation.
pub(crate) fn name(op: &Op) -> &'static str {
    match op {
        Op::Resize { .. } => "Resize",
        Op::CenterCrop { .. } => "CenterCrop",
        Op::RandomCrop { .. } => "RandomCrop",
        Op::RandomResizedCrop { .. } => "RandomResizedCrop",
        Op::RandomHorizontalFlip { .. } => "RandomHorizontalFlip",
        Op::RandomVerticalFlip { .. } => "RandomVerticalFlip",
        Op::Pad { .. } => "Pad",
        Op::ColorJitter { .. } => "ColorJitter",
        Op::RandomGrayscale { .. } => "RandomGrayscale",
        Op::GaussianBlur { .. } => "GaussianBlur",
        Op::RandAugment { .. } => "RandAugment",
        Op::TrivialAugmentWide { .. } => "TrivialAugmentWide",
        Op::RandomErasing { .. } => "RandomErasing",
        Op::ToDtype { .. } => "ToDtype",
        Op::ToBgr255 {} => "ToBGR255",
        Op::Normalize { .. } => "Normalize",
    }
}

/// Checks operation `index`; `float_since` names the earlier operation that turned the values into floats, if any.
pub(crate) fn check(index: usize, op: &Op, float_since: Option<&'static str>) -> Result<(), PipelineError> {
    let refused = |reason: String| PipelineError::Refused { index, op: name(op), reason };
    if let Some(since) = float_since {
        check_on_floats(op, since).map_err(refused)?;
    }
    check_parameters(op).map_err(refused)
}

fn check_on_floats(op: &Op, since: &str) -> Result<(), String> {
    match op {
        Op::Normalize { .. }
        | Op::ToDtype { dtype: OutputType::Float32, .. }
        | Op::RandomErasing { .. }
        | Op::RandomHorizontalFlip { .. }
        | Op::RandomVerticalFlip { .. } => Ok(()),
        Op::ToDtype { dtype: OutputType::Uint8, .. } => Err(format!(
            "it follows {since}, which makes floats, and floats are not turned back into bytes; drop one of the two"
        )),
        Op::ToBgr255 {} => Err(format!(
            "it says what the values are made of, and {since} before it has said so already; drop one of the two"
        )),
        _ => Err(format!(
            "it works on 8-bit values but follows {since}, which makes floats; move it before {since}"
        )),
    }
}

fn check_parameters(op: &Op) -> Result<(), String> {
    match op {
        Op::Resize { size, max_size, interpolation, antialias } => {
            match (size, max_size) {
                (ResizeTo::Exact(pair), None) => check_size(*pair)?,
                (ResizeTo::Exact([height, width]), Some(limit)) => {
                    return Err(format!(
                        "max_size={limit} only makes sense with one length for the shorter side, but size is [{height}, {width}]; drop max_size"
                    ));
                }
                (ResizeTo::Shorter(length), limit) => {
                    check_side("size", *length)?;
                    if let Some(limit) = limit
                        && limit <= length
                    {
                        return Err(format!("max_size={limit} must be greater than size={length}"));
                    }
                }
            }
            check_interpolation(*interpolation, *antialias)
        }
        Op::CenterCrop { size } => check_size(*size),
        Op::RandomCrop { size, padding, .. } => {
            check_size(*size)?;
            padding.map_or(Ok(()), check_padding)
        }
        Op::RandomResizedCrop { size, scale, ratio, interpolation, antialias } => {
            check_size(*size)?;
            check_range("scale", *scale, 0.0, f64::MAX)?;
            check_ratio(*ratio)?;
            check_interpolation(*interpolation, *antialias)
        }
        Op::RandomHorizontalFlip { p } | Op::RandomVerticalFlip { p } | Op::RandomGrayscale { p } => {
            check_chance(*p)
        }
        Op::Pad { padding, .. } => check_padding(*padding),
        Op::ColorJitter { brightness, contrast, saturation, hue } => {
            for (name, range) in
                [("brightness", brightness), ("contrast", contrast), ("saturation", saturation)]
            {
                range.map_or(Ok(()), |range| check_range(name, range, 0.0, f64::MAX))?;
            }
            hue.map_or(Ok(()), |range| check_range("hue", range, -0.5, 0.5))
        }
        Op::GaussianBlur { kernel_size, sigma } => {
            if let Some(length) = kernel_size.iter().find(|length| *length % 2 == 0 || **length > SIDE_MAX) {
                return Err(format!(
                    "kernel_size must be made of odd numbers up to {SIDE_MAX}, but one is {length}"
                ));
            }
            check_range("sigma", *sigma, f64::MIN_POSITIVE, f64::MAX)
        }
        Op::RandAugment { magnitude, num_magnitude_bins, interpolation, .. } => {
            check_bins(*num_magnitude_bins)?;
            if magnitude >= num_magnitude_bins {
                return Err(format!(
                    "magnitude={magnitude} must be smaller than num_magnitude_bins={num_magnitude_bins}"
                ));
            }
            check_warp(*interpolation)
        }
        Op::TrivialAugmentWide { num_magnitude_bins, interpolation, .. } => {
            check_bins(*num_magnitude_bins)?;
            check_warp(*interpolation)
        }
        Op::RandomErasing { p, scale, ratio, value } => {
            check_chance(*p)?;
            check_range("scale", *scale, 0.0, 1.0)?;
            check_ratio(*ratio)?;
            match value {
                EraseWith::Values(values) if !matches!(values.len(), 1 | 3) => Err(format!(
                    "value must be one number, three numbers or \"random\", but has {} numbers",
                    values.len()
                )),
                EraseWith::Values(values) if values.iter().any(|value| !value.is_finite()) => {
                    Err(format!("value must be made of finite numbers, but is {values:?}"))
                }
                _ => Ok(()),
            }
        }
        Op::ToDtype { .. } | Op::ToBgr255 {} => Ok(()),
        Op::Normalize { mean, std } => {
            if mean.iter().chain(std).any(|value| !value.is_finite()) {
                return Err(format!("mean and std must be finite, but are {mean:?} and {std:?}"));
            }
            if std.iter().any(|value| *value as f32 == 0.0) {
                return Err(format!("std must not be zero, but is {std:?}"));
            }
            Ok(())
        }
    }
}

fn check_side(name: &str, length: u32) -> Result<(), String> {
    if (1..=SIDE_MAX).contains(&length) {
        return Ok(());
    }
    Err(format!("{name} must be between 1 and {SIDE_MAX}, but is {length}"))
}

fn check_size([height, width]: [u32; 2]) -> Result<(), String> {
    check_side("the height in size", height)?;
    check_side("the width in size", width)
}

fn check_padding(padding: [u32; 4]) -> Result<(), String> {
    match padding.iter().find(|length| **length > SIDE_MAX) {
        Some(length) => {
            Err(format!("padding must be at most {SIDE_MAX} on each side, but one side is {length}"))
        }
        None => Ok(()),
    }
}

fn check_chance(p: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&p) {
        return Ok(());
    }
    Err(format!("p must be a probability between 0 and 1, but is {p}"))
}

fn check_range(name: &str, [low, high]: [f64; 2], least: f64, most: f64) -> Result<(), String> {
    if least <= low && low <= high && high <= most {
        return Ok(());
    }
    let bounds = match (least, most) {
        (0.0, f64::MAX) => "not negative".to_owned(),
        (_, f64::MAX) => "positive".to_owned(),
        _ => format!("between {least} and {most}"),
    };
    Err(format!("{name} must go from low to high and be {bounds}, but is [{low}, {high}]"))
}

fn check_ratio(ratio: [f64; 2]) -> Result<(), String> {
    check_range("ratio", ratio, f64::MIN_POSITIVE, f64::MAX)
}

fn check_bins(bins: u32) -> Result<(), String> {
    if (2..=SIDE_MAX).contains(&bins) {
        return Ok(());
    }
    Err(format!("num_magnitude_bins must be between 2 and {SIDE_MAX}, but is {bins}"))
}

fn check_interpolation(interpolation: Interpolation, antialias: bool) -> Result<(), String> {
    if interpolation == Interpolation::Lanczos && !antialias {
        return Err(
            "lanczos is only defined with antialias=True; pass antialias=True or another interpolation"
                .to_owned(),
        );
    }
    Ok(())
}

fn check_warp(interpolation: Interpolation) -> Result<(), String> {
    if matches!(interpolation, Interpolation::Nearest | Interpolation::Bilinear) {
        return Ok(());
    }
    Err("turning and shearing is only defined with nearest or bilinear interpolation; pass one of these"
        .to_owned())
}
