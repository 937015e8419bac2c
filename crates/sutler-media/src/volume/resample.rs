//! Another distance between values: how volumes of different scanners are made alike before training.

/// What a value between others is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// Weighed by distance along each axis: for images.
    Linear,
    /// The nearest one: for labels.
    Nearest,
}

/// A kind of value that can be weighed.
pub trait Weighed: Copy {
    /// The value so far from `self` to `other`, as a share.
    fn towards(self, other: Self, share: f32) -> Self;
}

impl Weighed for f32 {
    fn towards(self, other: Self, share: f32) -> Self {
        self * (1.0 - share) + other * share
    }
}

impl Weighed for u8 {
    /// Labels are no quantities: what is nearer is taken.
    fn towards(self, other: Self, share: f32) -> Self {
        if share < 0.5 { self } else { other }
    }
}

/// The shape of a volume when its values, `spacing` apart, are to be `wanted` apart.
#[must_use]
pub fn resampled_shape(shape: [usize; 3], spacing: [f32; 3], wanted: [f64; 3]) -> [usize; 3] {
    [0, 1, 2].map(|axis| {
        let length = f64::from(spacing[axis]) / wanted[axis] * shape[axis] as f64;
        (length as usize).max(1) // rounded down, as MLPerf does
    })
}

/// Brings a volume to another shape, as `torch.nn.functional.interpolate` does: linear with `align_corners=True`, nearest without.
///
/// # Panics
/// When there are not as many values as the shape has places.
#[must_use]
pub fn resample<T: Weighed>(
    values: &[T],
    shape: [usize; 3],
    to: [usize; 3],
    interpolation: Interpolation,
) -> Vec<T> {
    assert_eq!(values.len(), shape.iter().product::<usize>(), "a value for each place");
    let mut current = values.to_vec();
    let mut sides = shape;
    for axis in (0..3).rev().filter(|&axis| shape[axis] != to[axis]) {
        let places = places(sides[axis], to[axis], interpolation);
        current = along(&current, sides, axis, &places);
        sides[axis] = to[axis];
    }
    current
}

/// Between which two values of an axis each new one is, and how far from the first. In single precision, as torch has it: labels would differ
/// where a place falls on a border.
fn places(from: usize, to: usize, interpolation: Interpolation) -> Vec<(usize, usize, f32)> {
    let last = from - 1;
    (0..to)
        .map(|index| match interpolation {
            Interpolation::Nearest => {
                let at = ((index as f32 * (from as f32 / to as f32)) as usize).min(last);
                (at, at, 0.0)
            }
            Interpolation::Linear => {
                let step = if to > 1 { last as f32 / (to - 1) as f32 } else { 0.0 };
                let at = index as f32 * step;
                let low = (at as usize).min(last);
                (low, (low + 1).min(last), at - low as f32)
            }
        })
        .collect()
}

fn along<T: Weighed>(values: &[T], shape: [usize; 3], axis: usize, places: &[(usize, usize, f32)]) -> Vec<T> {
    let inner: usize = shape[axis + 1..].iter().product();
    let block = shape[axis] * inner;
    let mut out = Vec::with_capacity(values.len() / shape[axis] * places.len());
    for values in values.chunks_exact(block) {
        for &(low, high, share) in places {
            let (low, high) = (&values[low * inner..][..inner], &values[high * inner..][..inner]);
            out.extend(low.iter().zip(high).map(|(&a, &b)| a.towards(b, share)));
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
        let found = resample(&values, [2, 2, 2], [3, 2, 2], Interpolation::Linear);
        assert_eq!(found, [0.0, 1.0, 2.0, 3.0, 2.0, 3.0, 4.0, 5.0, 4.0, 5.0, 6.0, 7.0]);
        let found = resample(&values, [2, 2, 2], [1, 1, 1], Interpolation::Linear);
        assert_eq!(found, [0.0]);
        let labels: Vec<u8> = (0..8).collect();
        let found = resample(&labels, [2, 2, 2], [2, 2, 4], Interpolation::Nearest);
        assert_eq!(found[..8], [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!(resample(&values, [2, 2, 2], [2, 2, 2], Interpolation::Linear), values);
    }

    #[test]
    fn shapes_follow_from_distances() {
        assert_eq!(resampled_shape([100, 512, 512], [3.0, 0.78, 0.78], [1.6, 1.2, 1.2]), [187, 332, 332]);
        assert_eq!(resampled_shape([1, 1, 1], [0.1; 3], [1.0; 3]), [1, 1, 1]);
    }
}
