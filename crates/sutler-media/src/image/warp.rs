//! Shearing, shifting and turning: each pixel of the result is looked up where an affine map says it came from.

use super::Pixels;
use super::op::Interpolation;
use super::policy::Kind;
use super::simd::vectorised;

/// The map from a result position to its source position, both counted from the middle of the image:
/// `x' = [0] x + [1] y + [2]`, `y' = [3] x + [4] y + [5]`.
type Matrix = [f64; 6];

/// The inverse map of a turn by `angle` and shears by `shear` (degrees) around `centre`, then a shift.
fn inverse_matrix(centre: [f64; 2], angle: f64, shift: [f64; 2], shear: [f64; 2]) -> Matrix {
    let turn = angle.to_radians();
    let [shear_x, shear_y] = shear.map(f64::to_radians);
    // Forward: turn after shear in y after shear in x. Its determinant is 1, so the inverse only swaps entries.
    let a = (turn - shear_y).cos() / shear_y.cos();
    let c = (turn - shear_y).sin() / shear_y.cos();
    let b = -(a * shear_x.tan() + turn.sin());
    let d = turn.cos() - c * shear_x.tan();
    let [x, y] = [centre[0] + shift[0], centre[1] + shift[1]];
    [d, -b, centre[0] - d * x + b * y, -c, a, centre[1] + c * x - a * y]
}

/// Runs one of the geometric operations of the augmentation policies. What comes from outside gets `fill`, black by
/// default.
pub(crate) fn warp(
    source: &Pixels,
    kind: Kind,
    magnitude: f64,
    interpolation: Interpolation,
    fill: Option<[u8; 3]>,
    out: &mut Pixels,
) {
    let middle = [0.0, 0.0];
    let corner = [-0.5 * f64::from(source.width), -0.5 * f64::from(source.height)];
    let slant = magnitude.atan().to_degrees();
    let still = [0.0, 0.0];
    let matrix = match kind {
        Kind::ShearX => inverse_matrix(corner, 0.0, still, [slant, 0.0]),
        Kind::ShearY => inverse_matrix(corner, 0.0, still, [0.0, slant]),
        Kind::TranslateX => inverse_matrix(middle, 0.0, [magnitude.trunc(), 0.0], still),
        Kind::TranslateY => inverse_matrix(middle, 0.0, [0.0, magnitude.trunc()], still),
        _ => {
            let angle = magnitude.rem_euclid(360.0);
            if quarter_turns(source, angle, out) {
                return;
            }
            inverse_matrix(middle, -angle, still, still)
        }
    };
    out.resize(source.width, source.height);
    match interpolation {
        Interpolation::Nearest => warp_nearest(source, &matrix, fill.unwrap_or_default(), out),
        _ => warp_bilinear(source, &matrix, fill, out),
    }
}

/// Turns by whole quarters need no interpolation. Returns whether this was one.
fn quarter_turns(source: &Pixels, angle: f64, out: &mut Pixels) -> bool {
    let square = source.width == source.height;
    let last = source.width.saturating_sub(1) as usize;
    let turn: fn([usize; 3]) -> [usize; 2] = if angle == 0.0 {
        |[x, y, _]| [x, y]
    } else if angle == 90.0 && square {
        |[x, y, last]| [last - y, x]
    } else if angle == 270.0 && square {
        |[x, y, last]| [y, last - x]
    } else {
        return false;
    };
    out.resize(source.width, source.height);
    let width = source.width as usize;
    let (pixels, _) = source.data.as_chunks::<3>();
    for (index, target) in out.data.as_chunks_mut::<3>().0.iter_mut().enumerate() {
        let [x, y] = turn([index % width, index / width, last]);
        *target = pixels[y * width + x];
    }
    true
}

/// Source positions along a row, in the single-precision steps of torch's `affine_grid` and `grid_sample`: where a
/// position falls half way between two pixels, its rounding decides which one is taken.
struct Positions {
    matrix: [f32; 6],
    width: f32,
    height: f32,
}

impl Positions {
    fn new(matrix: &Matrix, source: &Pixels) -> Self {
        let (width, height) = (source.width as f32, source.height as f32);
        let halves = [0.5 * width, 0.5 * width, 0.5 * width, 0.5 * height, 0.5 * height, 0.5 * height];
        Self { matrix: std::array::from_fn(|index| matrix[index] as f32 / halves[index]), width, height }
    }

    #[inline(always)]
    fn at(&self, x: u32, y: u32) -> (f32, f32) {
        let from_middle = |index: u32, length: f32| index as f32 - (length - 1.0) * 0.5;
        let (x, y) = (from_middle(x, self.width), from_middle(y, self.height));
        let [xx, xy, x0, yx, yy, y0] = self.matrix;
        let relative_x = y.mul_add(xy, x * xx) + x0;
        let relative_y = y.mul_add(yy, x * yx) + y0;
        let to_pixels = |relative: f32, length: f32| ((relative + 1.0) * length - 1.0) / 2.0;
        (to_pixels(relative_x, self.width), to_pixels(relative_y, self.height))
    }
}

vectorised! {
    fn warp_nearest(source: &Pixels, matrix: &Matrix, fill: [u8; 3], out: &mut Pixels) {
        let positions = Positions::new(matrix, source);
        let (width, height) = (source.width, source.height);
        let (pixels, _) = source.data.as_chunks::<3>();
        let rows = out.data.chunks_exact_mut(width.max(1) as usize * 3);
        for (y, row) in (0..height).zip(rows) {
            for (x, target) in (0..width).zip(row.as_chunks_mut::<3>().0) {
                let (from_x, from_y) = positions.at(x, y);
                let (from_x, from_y) = (from_x.round_ties_even() as i64, from_y.round_ties_even() as i64);
                let inside = (0..i64::from(width)).contains(&from_x) && (0..i64::from(height)).contains(&from_y);
                *target = if inside { pixels[from_y as usize * width as usize + from_x as usize] } else { fill };
            }
        }
    }
}

vectorised! {
    fn warp_bilinear(source: &Pixels, matrix: &Matrix, fill: Option<[u8; 3]>, out: &mut Pixels) {
        let positions = Positions::new(matrix, source);
        let (width, height) = (source.width, source.height);
        let (pixels, _) = source.data.as_chunks::<3>();
        let rows = out.data.chunks_exact_mut(width.max(1) as usize * 3);
        for (y, row) in (0..height).zip(rows) {
            for (x, target) in (0..width).zip(row.as_chunks_mut::<3>().0) {
                let (from_x, from_y) = positions.at(x, y);
                let (left, top) = (from_x.floor(), from_y.floor());
                let (right_share, lower_share) = (from_x - left, from_y - top);
                let mut sums = [0.0; 3];
                let mut covered = 0.0;
                for (step_x, step_y, share) in [
                    (0, 0, (1.0 - right_share) * (1.0 - lower_share)),
                    (1, 0, right_share * (1.0 - lower_share)),
                    (0, 1, (1.0 - right_share) * lower_share),
                    (1, 1, right_share * lower_share),
                ] {
                    let (x, y) = (left as i64 + step_x, top as i64 + step_y);
                    if (0..i64::from(width)).contains(&x) && (0..i64::from(height)).contains(&y) {
                        covered += share;
                        let pixel = pixels[y as usize * width as usize + x as usize];
                        for (sum, level) in sums.iter_mut().zip(pixel) {
                            *sum += f32::from(level) * share;
                        }
                    }
                }
                for (channel, value) in target.iter_mut().enumerate() {
                    let mut level = sums[channel];
                    if let Some(fill) = fill {
                        // The sum already counts what lies outside as black; torchvision mixes it with the fill all the same.
                        let fill = f32::from(fill[channel]);
                        level = (level - fill) * covered + fill;
                    }
                    *value = level.round_ties_even().clamp(0.0, 255.0) as u8;
                }
            }
        }
    }
}
