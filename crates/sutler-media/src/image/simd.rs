//! The one place where the processor's vector units are asked for by name.
//!
//! Most loops only need a compiler that may use them: one marked with [`vectorised!`] is compiled twice, for any processor
//! of the target and for those with AVX2 and fused multiply-add, and the choice is made at run time. Both compute the same
//! numbers, as `mul_add` rounds once everywhere. Three loops are beyond what a compiler finds; they are written out for
//! AVX2 here, next to their plain twins, and the tests hold them to the same results.

use super::weights::Weights;

/// Defines a function whose body is compiled for AVX2 and FMA too, and picks at run time.
macro_rules! vectorised {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        #[allow(unsafe_code)] // the one block below, whose reason stands beside it
        $visibility fn $name($($argument: $type),*) {
            #[inline(always)]
            fn plain($($argument: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn wide($($argument: $type),*) {
                    plain($($argument),*);
                }
                if $crate::image::simd::has_avx2() {
                    // SAFETY: the processor has just been found to have what `wide` is compiled for.
                    unsafe { wide($($argument),*) };
                    return;
                }
            }
            plain($($argument),*);
        }
    };
}
pub(crate) use vectorised;

/// Whether the processor has what the wide loops are compiled for.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
}

/// The floats that `bytes` has room for, or `None` when it does not begin and end on a float.
#[allow(unsafe_code)] // the one block below, whose reason stands beside it
pub(crate) fn floats_mut(bytes: &mut [u8]) -> Option<&mut [f32]> {
    // SAFETY: every bit pattern is a float, and a float has no padding, so both views of the bytes are sound.
    let (before, floats, after) = unsafe { bytes.align_to_mut::<f32>() };
    (before.is_empty() && after.is_empty()).then_some(floats)
}

/// The bytes of some floats.
#[cfg(test)]
#[allow(unsafe_code)] // the one block below, whose reason stands beside it
pub(crate) fn bytes_mut(floats: &mut [f32]) -> &mut [u8] {
    // SAFETY: as above, and bytes have no alignment to keep, so nothing is left over before or after.
    let (_, bytes, _) = unsafe { floats.align_to_mut::<u8>() };
    bytes
}

/// Resizes one row of RGB pixels across. `line` begins with the row and may go on after it.
pub(crate) fn convolve_row(line: &[u8], weights: &Weights, target: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        return avx2::convolve_row(line, weights, target);
    }
    plain::convolve_row(line, weights, 0, target);
}

/// Resizes columns down: adds up `taps` rows that lie `row_bytes` apart, of which `lines` begins with the first.
pub(crate) fn convolve_columns(
    lines: &[u8],
    row_bytes: usize,
    taps: &[i16],
    precision: u32,
    target: &mut [u8],
) {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() && target.len() >= avx2::COLUMNS {
        return avx2::convolve_columns(lines, row_bytes, taps, precision, target);
    }
    plain::convolve_columns(lines, row_bytes, taps, precision, target);
}

/// Spreads RGB pixels over three planes as `(level * scale - mean) / deviation`, from right to left when `mirrored`.
pub(crate) fn split_scaled(
    line: &[u8],
    mirrored: bool,
    scale: f32,
    mean: &[f32; 3],
    deviation: &[f32; 3],
    planes: [&mut [f32]; 3],
) {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        return avx2::split_scaled(line, mirrored, scale, mean, deviation, planes);
    }
    plain::split_scaled(line, mirrored, scale, mean, deviation, planes, 0);
}

/// The loops as they are meant.
mod plain {
    use super::Weights;

    fn rounded(sum: i32, precision: u32) -> u8 {
        ((sum + (1 << (precision - 1))) >> precision).clamp(0, 255) as u8
    }

    /// From new pixel `first` on.
    pub fn convolve_row(line: &[u8], weights: &Weights, first: usize, target: &mut [u8]) {
        for (index, pixel) in target.as_chunks_mut::<3>().0.iter_mut().enumerate().skip(first) {
            let start = weights.starts[index] as usize * 3;
            let mut sums = [0_i32; 3];
            for (weight, from) in weights.taps(index).iter().zip(line[start..].as_chunks::<3>().0) {
                for (sum, level) in sums.iter_mut().zip(from) {
                    *sum += i32::from(*weight) * i32::from(*level);
                }
            }
            *pixel = sums.map(|sum| rounded(sum, weights.precision));
        }
    }

    pub fn convolve_columns(lines: &[u8], row_bytes: usize, taps: &[i16], precision: u32, target: &mut [u8]) {
        for (column, value) in target.iter_mut().enumerate() {
            let levels = (0..taps.len()).map(|tap| i32::from(lines[tap * row_bytes + column]));
            *value =
                rounded(levels.zip(taps).map(|(level, weight)| level * i32::from(*weight)).sum(), precision);
        }
    }

    /// From pixel `first` of the target on.
    pub fn split_scaled(
        line: &[u8],
        mirrored: bool,
        scale: f32,
        mean: &[f32; 3],
        deviation: &[f32; 3],
        planes: [&mut [f32]; 3],
        first: usize,
    ) {
        let (pixels, _) = line.as_chunks::<3>();
        for (channel, plane) in planes.into_iter().enumerate() {
            for (index, value) in plane.iter_mut().enumerate().skip(first) {
                let pixel = pixels[if mirrored { pixels.len() - 1 - index } else { index }];
                *value = (f32::from(pixel[channel]) * scale - mean[channel]) / deviation[channel];
            }
        }
    }
}

/// The same loops with AVX2. Every load and store goes through a slice that was cut to the register's width, so a wrong
/// index panics and never reads or writes astray.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // loads and stores of whole registers, each through a slice of that length
mod avx2 {
    use std::arch::x86_64::*;

    use super::super::weights::BLOCK;
    use super::{Weights, plain};

    /// Bytes that the columns loop takes at a time.
    pub const COLUMNS: usize = 16;
    /// Pixels that the splitting loop takes at a time.
    const PIXELS: usize = 8;

    #[target_feature(enable = "avx2")]
    fn load16(bytes: &[u8]) -> __m128i {
        let bytes: &[u8; 16] = bytes[..16].try_into().expect("16 bytes");
        // SAFETY: sixteen bytes are there to be read, and the load asks for no alignment.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    pub fn convolve_row(line: &[u8], weights: &Weights, target: &mut [u8]) {
        // A block of taps reads sixteen bytes from its first pixel on. Near the end of the image there are fewer; those
        // new pixels, the last of the last row, are left to the plain loop. Starts only grow, so the cut is easy to find.
        let block_bytes = (weights.stride - BLOCK) * 3 + 16;
        let safe = weights.starts.partition_point(|start| *start as usize * 3 + block_bytes <= line.len());
        // SAFETY: the caller found AVX2.
        unsafe { convolve_pixels(line, weights, safe, target) };
        plain::convolve_row(line, weights, safe, target);
    }

    #[target_feature(enable = "avx2")]
    fn convolve_pixels(line: &[u8], weights: &Weights, count: usize, target: &mut [u8]) {
        // Lower half: red, green and blue of the first two pixels as pairs of 16-bit numbers; upper half: of the other two.
        let pairs = _mm256_setr_epi8(
            0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, //
            6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1,
        );
        // The weights that go with them: the first two in the lower half, the other two in the upper.
        let repeat = _mm256_setr_epi8(
            0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, //
            4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7,
        );
        let half = _mm_set1_epi32(1 << (weights.precision - 1));
        let places = _mm_cvtsi32_si128(weights.precision as i32);
        let taps = weights.values.chunks_exact(weights.stride);
        for ((start, taps), pixel) in
            weights.starts.iter().zip(taps).zip(target.as_chunks_mut::<3>().0).take(count)
        {
            let from = &line[*start as usize * 3..];
            let mut sums = _mm256_setzero_si256();
            for (block, taps) in taps.as_chunks::<BLOCK>().0.iter().enumerate() {
                let levels = _mm256_shuffle_epi8(
                    _mm256_broadcastsi128_si256(load16(&from[block * 3 * BLOCK..])),
                    pairs,
                );
                let packed =
                    taps.iter().rev().fold(0_u64, |packed, weight| packed << 16 | u64::from(*weight as u16));
                let factors = _mm256_shuffle_epi8(_mm256_set1_epi64x(packed as i64), repeat);
                sums = _mm256_add_epi32(sums, _mm256_madd_epi16(levels, factors));
            }
            let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
            let levels = _mm_sra_epi32(_mm_add_epi32(sums, half), places);
            let levels = _mm_packs_epi32(levels, levels);
            let levels = _mm_cvtsi128_si32(_mm_packus_epi16(levels, levels)).to_le_bytes();
            *pixel = [levels[0], levels[1], levels[2]];
        }
    }

    pub fn convolve_columns(lines: &[u8], row_bytes: usize, taps: &[i16], precision: u32, target: &mut [u8]) {
        let last = target.len() - COLUMNS;
        // The last step overlaps the one before it, so that it too is a whole register wide.
        for column in (0..last).step_by(COLUMNS).chain([last]) {
            // SAFETY: the caller found AVX2.
            unsafe {
                convolve_sixteen(
                    &lines[column..],
                    row_bytes,
                    taps,
                    precision,
                    &mut target[column..column + COLUMNS],
                );
            }
        }
    }

    #[target_feature(enable = "avx2")]
    fn convolve_sixteen(lines: &[u8], row_bytes: usize, taps: &[i16], precision: u32, target: &mut [u8]) {
        let half = _mm256_set1_epi32(1 << (precision - 1));
        let (mut low, mut high) = (half, half);
        for (pair, taps) in taps.chunks(2).enumerate() {
            let first = _mm256_cvtepu8_epi16(load16(&lines[pair * 2 * row_bytes..]));
            let (second, weight) = match taps.get(1) {
                Some(weight) => (_mm256_cvtepu8_epi16(load16(&lines[(pair * 2 + 1) * row_bytes..])), *weight),
                None => (_mm256_setzero_si256(), 0),
            };
            let weights = _mm256_set1_epi32(i32::from(taps[0]) & 0xFFFF | i32::from(weight) << 16);
            low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(first, second), weights));
            high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(first, second), weights));
        }
        let places = _mm_cvtsi32_si128(precision as i32);
        let levels = _mm256_packs_epi32(_mm256_sra_epi32(low, places), _mm256_sra_epi32(high, places));
        let bytes = _mm_packus_epi16(_mm256_castsi256_si128(levels), _mm256_extracti128_si256::<1>(levels));
        let target: &mut [u8; COLUMNS] = target.try_into().expect("sixteen columns");
        // SAFETY: sixteen bytes are there to be written, and the store asks for no alignment.
        unsafe { _mm_storeu_si128(target.as_mut_ptr().cast(), bytes) };
    }

    pub fn split_scaled(
        line: &[u8],
        mirrored: bool,
        scale: f32,
        mean: &[f32; 3],
        deviation: &[f32; 3],
        planes: [&mut [f32]; 3],
    ) {
        let [red, green, blue] = planes;
        let whole = red.len() / PIXELS * PIXELS;
        // SAFETY: the caller found AVX2.
        unsafe { split_pixels(line, mirrored, scale, mean, deviation, [&mut *red, &mut *green, &mut *blue]) };
        plain::split_scaled(line, mirrored, scale, mean, deviation, [red, green, blue], whole);
    }

    #[target_feature(enable = "avx2")]
    fn split_pixels(
        line: &[u8],
        mirrored: bool,
        scale: f32,
        mean: &[f32; 3],
        deviation: &[f32; 3],
        planes: [&mut [f32]; 3],
    ) {
        // Of two halves of 12 bytes each, the level of one channel into each of eight 32-bit lanes. The upper half is
        // loaded from byte 8 on, so that it ends with the last pixel; its first level is then at 4.
        let pick = |channel: i8| {
            let (low, high) = (channel, channel + 4);
            let upwards = [low, low + 3, low + 6, low + 9, high, high + 3, high + 6, high + 9];
            let lanes = if mirrored {
                let [a, b, c, d, e, f, g, h] = upwards;
                [h, g, f, e, d, c, b, a]
            } else {
                upwards
            };
            // A byte and three zeros per lane: a set highest bit in the mask gives zero.
            _mm256_or_si256(
                _mm256_setr_epi32(
                    lanes[0].into(),
                    lanes[1].into(),
                    lanes[2].into(),
                    lanes[3].into(),
                    lanes[4].into(),
                    lanes[5].into(),
                    lanes[6].into(),
                    lanes[7].into(),
                ),
                _mm256_set1_epi32(0x8080_8000_u32 as i32),
            )
        };
        let masks = [pick(0), pick(1), pick(2)];
        let scale = _mm256_set1_ps(scale);
        let mean = mean.map(|value| _mm256_set1_ps(value));
        let deviation = deviation.map(|value| _mm256_set1_ps(value));
        let [red, green, blue] = planes;
        let count = red.len();
        let targets = red
            .chunks_exact_mut(PIXELS)
            .zip(green.chunks_exact_mut(PIXELS))
            .zip(blue.chunks_exact_mut(PIXELS));
        for (step, ((red, green), blue)) in targets.enumerate() {
            let first = step * PIXELS;
            let first = if mirrored { count - first - PIXELS } else { first };
            let pixels = &line[first * 3..(first + PIXELS) * 3];
            let (mut low, mut high) = (load16(pixels), load16(&pixels[8..]));
            if mirrored {
                std::mem::swap(&mut low, &mut high);
            }
            let levels = _mm256_set_m128i(high, low);
            for (channel, target) in [red, green, blue].into_iter().enumerate() {
                let level = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(levels, masks[channel]));
                let value = _mm256_sub_ps(_mm256_mul_ps(level, scale), mean[channel]);
                let target: &mut [f32; PIXELS] = target.try_into().expect("eight pixels");
                // SAFETY: eight floats are there to be written, and the store asks for no alignment.
                unsafe { _mm256_storeu_ps(target.as_mut_ptr(), _mm256_div_ps(value, deviation[channel])) };
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::super::op::Interpolation;
    use super::super::weights::Line;
    use super::*;

    fn noise(length: usize) -> Vec<u8> {
        let mut rng = sutler_core::SampleRng::new(3, 0, sutler_core::SampleId(length as u32));
        (0..length).map(|_| rng.next_u32() as u8).collect()
    }

    #[test]
    fn wide_rows_are_the_plain_ones() {
        for (width, to) in [(1, 5), (7, 3), (31, 30), (64, 9), (100, 7), (40, 90)] {
            for interpolation in [Interpolation::Bilinear, Interpolation::Bicubic, Interpolation::Lanczos] {
                let line =
                    Line { from: 0.0, length: f64::from(width), to, keep: 0, count: to, mirrored: false };
                let mut weights = Weights::default();
                weights.fill(&line, interpolation, true);
                for rows in [1, 2] {
                    let pixels = noise(width as usize * 3 * rows);
                    let (mut wide, mut plain) = (vec![0; to as usize * 3], vec![0; to as usize * 3]);
                    convolve_row(&pixels, &weights, &mut wide);
                    plain::convolve_row(&pixels, &weights, 0, &mut plain);
                    assert_eq!(wide, plain, "{width} to {to} {interpolation:?}");
                }
            }
        }
    }

    #[test]
    fn wide_columns_are_the_plain_ones() {
        for (width, taps) in
            [(16, vec![16_384]), (33, vec![-900, 9_000, 8_284]), (100, vec![2_000, 7_000, 6_000, 1_384])]
        {
            let pixels = noise(width * taps.len());
            let (mut wide, mut plain) = (vec![0; width], vec![0; width]);
            convolve_columns(&pixels, width, &taps, 14, &mut wide);
            plain::convolve_columns(&pixels, width, &taps, 14, &mut plain);
            assert_eq!(wide, plain, "{width} wide, {} taps", taps.len());
        }
    }

    #[test]
    fn wide_planes_are_the_plain_ones() {
        let (mean, deviation) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
        for width in [1, 7, 8, 9, 31, 224] {
            for mirrored in [false, true] {
                let pixels = noise(width * 3);
                let mut wide = vec![0.0; width * 3];
                let mut plain = wide.clone();
                let planes = |values: &mut [f32], run: &dyn Fn([&mut [f32]; 3])| {
                    let (red, rest) = values.split_at_mut(width);
                    let (green, blue) = rest.split_at_mut(width);
                    run([red, green, blue]);
                };
                planes(&mut wide, &|planes| {
                    split_scaled(&pixels, mirrored, 1.0 / 255.0, &mean, &deviation, planes)
                });
                planes(&mut plain, &|planes| {
                    plain::split_scaled(&pixels, mirrored, 1.0 / 255.0, &mean, &deviation, planes, 0);
                });
                assert_eq!(wide, plain, "{width} wide, mirrored: {mirrored}");
            }
        }
    }
}
