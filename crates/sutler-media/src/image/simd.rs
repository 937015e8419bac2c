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

/// Resizes rows of RGB pixels across. `lines` begins with the first row and may go on after the last; rows lie
/// `row_bytes` apart in it and `target_bytes` apart, one after the other, in `target`.
pub(crate) fn convolve_rows(
    lines: &[u8],
    row_bytes: usize,
    weights: &Weights,
    target_bytes: usize,
    target: &mut [u8],
) {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        return avx2::convolve_rows(lines, row_bytes, weights, target_bytes, target);
    }
    for (row, target) in target.chunks_exact_mut(target_bytes).enumerate() {
        plain::convolve_row(&lines[row * row_bytes..], weights, 0, target);
    }
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
        for (pixel, index) in target.as_chunks_mut::<3>().0[first..].iter_mut().zip(first..) {
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
            for (value, index) in plane[first..].iter_mut().zip(first..) {
                let pixel = pixels[if mirrored { pixels.len() - 1 - index } else { index }];
                *value = (f32::from(pixel[channel]) * scale - mean[channel]) / deviation[channel];
            }
        }
    }
}

/// The same loops with AVX2. Loads and stores go through slices that were cut to the register's width, so a wrong index
/// panics and never reads or writes astray; the one loop that cannot afford it checks its furthest index beforehand.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)] // loads and stores of whole registers, each with its reason
mod avx2 {
    use std::arch::x86_64::*;

    use super::super::weights::BLOCK;
    use super::{Weights, plain};

    /// Bytes that the columns loop takes at a time.
    pub const COLUMNS: usize = 32;
    /// Rows that share each load of weights.
    const ROWS: usize = 4;
    /// Pixels that the splitting loop takes at a time.
    const PIXELS: usize = 8;

    #[target_feature(enable = "avx2")]
    fn load16(bytes: &[u8]) -> __m128i {
        let bytes: &[u8; 16] = bytes[..16].try_into().expect("16 bytes");
        // SAFETY: sixteen bytes are there to be read, and the load asks for no alignment.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    pub fn convolve_rows(
        lines: &[u8],
        row_bytes: usize,
        weights: &Weights,
        target_bytes: usize,
        target: &mut [u8],
    ) {
        let mut groups = target.chunks_exact_mut(target_bytes * ROWS);
        let mut row = 0;
        for group in &mut groups {
            let (first, second) = group.split_at_mut(target_bytes * 2);
            let (a, b) = first.split_at_mut(target_bytes);
            let (c, d) = second.split_at_mut(target_bytes);
            let line = |index: usize| &lines[(row + index) * row_bytes..];
            convolve_together([line(0), line(1), line(2), line(3)], weights, [a, b, c, d]);
            row += ROWS;
        }
        for target in groups.into_remainder().chunks_exact_mut(target_bytes) {
            convolve_together([&lines[row * row_bytes..]], weights, [target]);
            row += 1;
        }
    }

    fn convolve_together<const N: usize>(lines: [&[u8]; N], weights: &Weights, mut targets: [&mut [u8]; N]) {
        // A block of taps reads sixteen bytes from its first pixel on. Near the end of the image there are fewer; those
        // new pixels, the last of the last row, are left to the plain loop. Starts only grow, so the cut is easy to find.
        let reach = (weights.stride - BLOCK) * 3 + 16;
        let shortest = lines.iter().map(|line| line.len()).min().unwrap_or(0);
        let safe = weights.starts.partition_point(|start| *start as usize * 3 + reach <= shortest);
        // SAFETY: the caller found AVX2; of the first `safe` new pixels none reads past the shortest line.
        unsafe { convolve_pixels(&lines, weights, safe, &mut targets) };
        for (line, target) in lines.into_iter().zip(targets) {
            plain::convolve_row(line, weights, safe, target);
        }
    }

    /// # Safety
    /// For each of the first `count` starts, `stride` pixels from it on and four bytes more must lie in every line.
    #[target_feature(enable = "avx2")]
    unsafe fn convolve_pixels<const N: usize>(
        lines: &[&[u8]; N],
        weights: &Weights,
        count: usize,
        targets: &mut [&mut [u8]; N],
    ) {
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
        let half = _mm256_setr_epi32(
            1 << (weights.precision - 1),
            1 << (weights.precision - 1),
            1 << (weights.precision - 1),
            0,
            0,
            0,
            0,
            0,
        );
        let places = _mm_cvtsi32_si128(weights.precision as i32);
        let taps = weights.values.chunks_exact(weights.stride);
        for (index, (start, taps)) in weights.starts[..count].iter().zip(taps).enumerate() {
            let start = *start as usize * 3;
            let mut sums = [half; N];
            for (block, taps) in taps.as_chunks::<BLOCK>().0.iter().enumerate() {
                // SAFETY: four weights are eight bytes.
                let taps = unsafe { _mm_loadl_epi64(taps.as_ptr().cast()) };
                let factors = _mm256_shuffle_epi8(_mm256_broadcastq_epi64(taps), repeat);
                for (sum, line) in sums.iter_mut().zip(lines) {
                    // SAFETY: the caller promises that these sixteen bytes lie in the line.
                    let levels =
                        unsafe { _mm_loadu_si128(line.as_ptr().add(start + block * 3 * BLOCK).cast()) };
                    let levels = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(levels), pairs);
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(levels, factors));
                }
            }
            for (sum, target) in sums.into_iter().zip(targets.iter_mut()) {
                let sum = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
                let levels = _mm_sra_epi32(sum, places);
                let levels = _mm_packs_epi32(levels, levels);
                let levels = _mm_cvtsi128_si32(_mm_packus_epi16(levels, levels)).to_le_bytes();
                // Four bytes are one store. The fourth is the next pixel's, which is written after this one.
                match target.get_mut(index * 3..index * 3 + 4) {
                    Some(four) => four.copy_from_slice(&levels),
                    None => target[index * 3..index * 3 + 3].copy_from_slice(&levels[..3]),
                }
            }
        }
    }

    pub fn convolve_columns(lines: &[u8], row_bytes: usize, taps: &[i16], precision: u32, target: &mut [u8]) {
        // SAFETY: the caller found AVX2.
        unsafe { convolve_all_columns(lines, row_bytes, taps, precision, target) }
    }

    #[target_feature(enable = "avx2")]
    fn convolve_all_columns(lines: &[u8], row_bytes: usize, taps: &[i16], precision: u32, target: &mut [u8]) {
        let last = target.len() - COLUMNS;
        let half = _mm256_set1_epi32(1 << (precision - 1));
        let places = _mm_cvtsi32_si128(precision as i32);
        // The last step overlaps the one before it, so that it too is whole registers wide.
        for column in (0..last).step_by(COLUMNS).chain([last]) {
            let mut sums = [half; 4];
            for (pair, taps) in taps.chunks(2).enumerate() {
                let upper = &lines[pair * 2 * row_bytes + column..][..COLUMNS];
                // An odd tap at the end is paired with itself and a weight of nothing.
                let (lower, weight) = match taps.get(1) {
                    Some(weight) => (&lines[(pair * 2 + 1) * row_bytes + column..][..COLUMNS], *weight),
                    None => (upper, 0),
                };
                let factors = _mm256_set1_epi32(i32::from(taps[0]) & 0xFFFF | i32::from(weight) << 16);
                for half in 0..2 {
                    let upper = _mm256_cvtepu8_epi16(load16(&upper[half * 16..]));
                    let lower = _mm256_cvtepu8_epi16(load16(&lower[half * 16..]));
                    let (low, high) =
                        (_mm256_unpacklo_epi16(upper, lower), _mm256_unpackhi_epi16(upper, lower));
                    sums[half * 2] = _mm256_add_epi32(sums[half * 2], _mm256_madd_epi16(low, factors));
                    sums[half * 2 + 1] =
                        _mm256_add_epi32(sums[half * 2 + 1], _mm256_madd_epi16(high, factors));
                }
            }
            let [a, b, c, d] = sums.map(|sum| _mm256_sra_epi32(sum, places));
            // Packing goes by halves of a register, as unpacking did, so only the quarters end up out of order.
            let bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes);
            let target: &mut [u8; COLUMNS] =
                (&mut target[column..column + COLUMNS]).try_into().expect("all columns of a step");
            // SAFETY: thirty-two bytes are there to be written, and the store asks for no alignment.
            unsafe { _mm256_storeu_si256(target.as_mut_ptr().cast(), bytes) };
        }
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
                for rows in [1, 4, 7] {
                    let (row_bytes, target_bytes) = (width as usize * 3, to as usize * 3);
                    let pixels = noise(row_bytes * rows);
                    let (mut wide, mut plain) = (vec![0; target_bytes * rows], vec![0; target_bytes * rows]);
                    convolve_rows(&pixels, row_bytes, &weights, target_bytes, &mut wide);
                    for (row, target) in plain.chunks_exact_mut(target_bytes).enumerate() {
                        plain::convolve_row(&pixels[row * row_bytes..], &weights, 0, target);
                    }
                    assert_eq!(wide, plain, "{rows} rows of {width} to {to} {interpolation:?}");
                }
            }
        }
    }

    #[test]
    fn wide_columns_are_the_plain_ones() {
        for (width, taps) in
            [(32, vec![16_384]), (33, vec![-900, 9_000, 8_284]), (100, vec![2_000, 7_000, 6_000, 1_384])]
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
