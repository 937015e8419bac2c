//! Another distance between values: how volumes of different scanners are made alike before training.

/// What a value between others is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// Weighed by distance along each axis: for images.
    Linear,
    /// The nearest one: for labels.
    Nearest,
}

/// The shape of a volume when its values, `spacing` apart, are to be `wanted` apart.
#[must_use]
pub fn resampled_shape(shape: [usize; 3], spacing: [f32; 3], wanted: [f32; 3]) -> [usize; 3] {
    // As torch's interpolation with a scale factor: rounded down.
    [0, 1, 2].map(|axis| {
        let length = shape[axis] as f64 * f64::from(spacing[axis]) / f64::from(wanted[axis]);
        (length.floor() as usize).max(1)
    })
}

/// Brings a volume to another shape, as `torch.nn.functional.interpolate` does with `align_corners=True` for linear and as it
/// does for nearest.
///
/// # Panics
/// When there are not as many values as the shape has places.
#[must_use]
pub fn resample(
    values: &[f32],
    shape: [usize; 3],
    to: [usize; 3],
    scale: [f64; 3],
    interpolation: Interpolation,
) -> Vec<f32> {
    assert_eq!(values.len(), shape.iter().product::<usize>(), "a value for each place");
    let mut current = values.to_vec();
    let mut sides = shape;
    for axis in (0..3).rev() {
        let places = places(sides[axis], to[axis], scale[axis], interpolation);
        current = along(&current, sides, axis, &places);
        sides[axis] = to[axis];
    }
    current
}

/// Between which two values of an axis each new one is, and how far from the first.
fn places(from: usize, to: usize, scale: f64, interpolation: Interpolation) -> Vec<(usize, usize, f32)> {
    let last = from - 1;
    (0..to)
        .map(|index| match interpolation {
            Interpolation::Nearest => {
                let at = ((index as f64 / scale).floor() as usize).min(last);
                (at, at, 0.0)
            }
            Interpolation::Linear => {
                let step = if to > 1 { last as f64 / (to - 1) as f64 } else { 0.0 };
                let at = index as f64 * step;
                let low = (at.floor() as usize).min(last);
                (low, (low + 1).min(last), (at - low as f64) as f32)
            }
        })
        .collect()
}

fn along(values: &[f32], shape: [usize; 3], axis: usize, places: &[(usize, usize, f32)]) -> Vec<f32> {
    let inner: usize = shape[axis + 1..].iter().product();
    let block = shape[axis] * inner;
    let mut out = Vec::with_capacity(values.len() / shape[axis] * places.len());
    for values in values.chunks_exact(block) {
        for &(low, high, share) in places {
            let (low, high) = (&values[low * inner..][..inner], &values[high * inner..][..inner]);
            out.extend(low.iter().zip(high).map(|(&a, &b)| a + (b - a) * share));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corners_stay_and_what_is_between_is_weighed() {
        let values: Vec<f32> = (0..8).map(|value| value as f32).collect();
        let found = resample(&values, [2, 2, 2], [3, 2, 2], [1.5, 1.0, 1.0], Interpolation::Linear);
        assert_eq!(found, [0.0, 1.0, 2.0, 3.0, 2.0, 3.0, 4.0, 5.0, 4.0, 5.0, 6.0, 7.0]);
        let found = resample(&values, [2, 2, 2], [2, 2, 4], [1.0, 1.0, 2.0], Interpolation::Nearest);
        assert_eq!(found[..8], [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
        assert_eq!(resample(&values, [2, 2, 2], [2, 2, 2], [1.0; 3], Interpolation::Linear), values);
    }

    #[test]
    fn shapes_follow_from_distances() {
        assert_eq!(resampled_shape([100, 512, 512], [3.0, 0.78, 0.78], [1.6, 1.2, 1.2]), [187, 332, 332]);
        assert_eq!(resampled_shape([1, 1, 1], [0.1; 3], [1.0; 3]), [1, 1, 1]);
    }
}
