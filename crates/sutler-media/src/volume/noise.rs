//! Normal noise, so much at a time that it does not hold up a volume: a crop of 128³ takes two million numbers.
//!
//! Box and Müller make two normal numbers of two even ones, with a logarithm, a sine and a cosine. Those of the standard library look at one
//! number at a time. Here they are a few products and sums without a branch, for a block of numbers at once, as processors like it;
//! what that loses against exact ones is less than a float can tell apart of the largest noise.

use sutler_core::SampleRng;

/// How many pairs are made at once: enough to be worth it, and little enough to stay in the processor's nearest memory.
const PAIRS: usize = 64;

/// Adds normal numbers of this mean and deviation.
pub(super) fn add(values: &mut [f32], mean: f32, std: f32, rng: &mut SampleRng) {
    for block in values.chunks_mut(2 * PAIRS) {
        let (mut radius, mut angle) = ([0; PAIRS], [0; PAIRS]);
        for (first, second) in radius.iter_mut().zip(&mut angle).take(block.len().div_ceil(2)) {
            // 24 bits of each: no more than a float can tell apart.
            (*first, *second) = (rng.next_u32() >> 8, rng.next_u32() >> 8);
        }
        let mut normal = [[0.0; 2]; PAIRS];
        for ((pair, &first), &second) in normal.iter_mut().zip(&radius).zip(&angle) {
            *pair = pair_of(first, second);
        }
        for (value, number) in block.iter_mut().zip(normal.as_flattened()) {
            *value += mean + std * number;
        }
    }
}

/// Two normal numbers, from 24 random bits for how far out they lie and 24 for the direction.
#[inline(always)]
fn pair_of(radius: u32, angle: u32) -> [f32; 2] {
    let even = 1.0 - radius as f32 * (1.0 / (1 << 24) as f32);
    let radius = (-2.0 * logarithm(even)).sqrt();
    let [cosine, sine] = direction(angle);
    [radius * cosine, radius * sine]
}

/// The natural logarithm of a number above 0 and up to 1.
#[inline(always)]
fn logarithm(x: f32) -> f32 {
    // x is 2^exponent · fraction, with a fraction around 1, where the series of its logarithm soon comes to an end.
    let bits = x.to_bits();
    let exponent = (bits >> 23) as i32 - 127;
    let fraction = f32::from_bits(bits & 0x007F_FFFF | 0x3F80_0000);
    let upper = fraction > std::f32::consts::SQRT_2;
    let fraction = if upper { 0.5 * fraction } else { fraction };
    let exponent = exponent + i32::from(upper);
    let ratio = (fraction - 1.0) / (fraction + 1.0);
    let square = ratio * ratio;
    let series =
        1.0 + square * (1.0 / 3.0 + square * (1.0 / 5.0 + square * (1.0 / 7.0 + square * (1.0 / 9.0))));
    exponent as f32 * std::f32::consts::LN_2 + 2.0 * ratio * series
}

/// Cosine and sine of a direction, in parts of 2^24 of a full turn.
#[inline(always)]
fn direction(part: u32) -> [f32; 2] {
    // The nearest quarter of a turn, and what is left: an eighth of a turn at most.
    let quarter = (part + (1 << 21)) >> 22;
    let left = (part as i32 - (quarter << 22) as i32) as f32 * (std::f32::consts::TAU / (1 << 24) as f32);
    let square = left * left;
    let sine = left
        * (1.0
            + square * (-1.0 / 6.0 + square * (1.0 / 120.0 + square * (-1.0 / 5040.0 + square / 362_880.0))));
    let cosine = 1.0 + square * (-0.5 + square * (1.0 / 24.0 + square * (-1.0 / 720.0 + square / 40_320.0)));
    let (across, along) = if quarter & 1 == 1 { (cosine, sine) } else { (sine, cosine) };
    let along = if (quarter + 1) & 2 == 2 { -along } else { along };
    let across = if quarter & 2 == 2 { -across } else { across };
    [along, across]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sutler_core::SampleId;

    use super::*;

    fn exact(radius: u32, angle: u32) -> [f64; 2] {
        let parts = f64::from(1 << 24);
        let radius = (-2.0 * (1.0 - f64::from(radius) / parts).ln()).sqrt();
        let (sine, cosine) = (std::f64::consts::TAU * f64::from(angle) / parts).sin_cos();
        [radius * cosine, radius * sine]
    }

    fn near(radius: u32, angle: u32) -> bool {
        let far = pair_of(radius, angle).map(f64::from).into_iter().zip(exact(radius, angle));
        far.map(|(found, expected)| (found - expected).abs()).all(|distance| distance < 3e-6)
    }

    proptest! {
        #[test]
        fn pairs_are_those_of_exact_functions(radius in 0u32..1 << 24, angle in 0u32..1 << 24) {
            prop_assert!(near(radius, angle), "{:?} for {:?}", pair_of(radius, angle), exact(radius, angle));
        }
    }

    #[test]
    fn they_are_so_at_every_corner_too() {
        let corners = (0..=8).flat_map(|eighth: u32| {
            let at = eighth << 21;
            [at.saturating_sub(1), at, at + 1]
        });
        for angle in corners.filter(|&angle| angle < 1 << 24) {
            for radius in [0, 1, 2, 1 << 12, 1 << 23, (1 << 24) - 2, (1 << 24) - 1] {
                assert!(near(radius, angle), "{radius} {angle}");
            }
        }
    }

    #[test]
    fn what_a_value_gets_does_not_depend_on_how_many_follow() {
        let mut rng = SampleRng::new(7, 0, SampleId(0));
        let mut many = vec![0.0; 1001];
        add(&mut many, 1.0, 0.5, &mut rng);
        for length in [1, 2, 127, 128, 129, 1000] {
            let mut few = vec![0.0; length];
            add(&mut few, 1.0, 0.5, &mut SampleRng::new(7, 0, SampleId(0)));
            assert_eq!(few, many[..length]);
        }
    }
}
