//! Photo-like JPEGs for demonstrations and tests, where there are no photographs at hand.
//!
//! What makes a photograph slow to decode is its texture. The pictures here are sums of smooth noise at octaves from the
//! size of the picture down to a few pixels, fainter as they get finer, with grain where they are bright, so that the
//! size per pixel (about 0.5 bytes) and the time to decode come out near those of ImageNet.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use sutler_core::{SampleRng, Stream};

/// What to make.
#[derive(Clone, Copy, Debug)]
pub struct PhotoSet {
    /// How many pictures.
    pub count: u32,
    /// In how many class folders.
    pub classes: u32,
    /// Decides every picture.
    pub seed: u64,
    /// The length of the longer side of a typical picture; ImageNet's is 500.
    pub longer_side: u32,
}

impl Default for PhotoSet {
    fn default() -> Self {
        Self { count: 600, classes: 10, seed: 0, longer_side: 500 }
    }
}

/// Why pictures could not be made.
#[derive(Debug)]
pub struct PhotoError {
    path: PathBuf,
    reason: String,
}

impl std::fmt::Display for PhotoError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} could not be written: {}. Check the disk and the permissions.",
            self.path.display(),
            self.reason
        )
    }
}

impl std::error::Error for PhotoError {}

impl PhotoSet {
    /// Writes the pictures below `root`, one folder per class, on all usable cores; `written` is called after each.
    ///
    /// # Errors
    /// When a folder or file cannot be written.
    pub fn write(&self, root: &Path, written: &(dyn Fn() + Sync)) -> Result<(), PhotoError> {
        let classes = self.classes.max(1);
        let digits = (classes - 1).to_string().len();
        let folder = |class: u32| root.join(format!("class_{class:0digits$}"));
        for class in 0..classes {
            let path = folder(class);
            std::fs::create_dir_all(&path).map_err(|error| PhotoError { path, reason: error.to_string() })?;
        }
        let next = AtomicU32::new(0);
        let failed = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..sutler_engine::usable_cores() {
                scope.spawn(|| {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        if index >= self.count {
                            return;
                        }
                        let class = (u64::from(index) * u64::from(classes) / u64::from(self.count)) as u32;
                        let path = folder(class).join(format!("photo_{index:06}.jpg"));
                        if let Err(error) = self.write_one(index, &path) {
                            next.store(self.count, Ordering::Relaxed);
                            *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
                            return;
                        }
                        written();
                    }
                });
            }
        });
        failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn write_one(&self, index: u32, path: &Path) -> Result<(), PhotoError> {
        let mut rng = SampleRng::with_stream(self.seed, Stream::User, 0, index);
        let (width, height) = self.draw_size(&mut rng);
        let pixels = paint(&mut rng, usize::from(width), usize::from(height));
        // Four in five photographs are stored with halved colour resolution.
        let sampling = if rng.chance(0.8) { SamplingFactor::F_2_2 } else { SamplingFactor::F_1_1 };
        let quality = 82 + rng.below(12) as u8;
        let mut bytes = Vec::with_capacity(128 << 10);
        let mut encoder = Encoder::new(&mut bytes, quality);
        encoder.set_sampling_factor(sampling);
        encoder
            .encode(&pixels, width, height, ColorType::Rgb)
            .map_err(|error| error.to_string())
            .and_then(|()| std::fs::write(path, &bytes).map_err(|error| error.to_string()))
            .map_err(|reason| PhotoError { path: path.to_owned(), reason })
    }

    /// ImageNet's mix of sizes: mostly landscape 500 × 375, some portrait and square, a tail of much larger ones.
    fn draw_size(&self, rng: &mut SampleRng) -> (u16, u16) {
        let longer = f64::from(self.longer_side)
            * match rng.below(20) {
                0 => rng.uniform(2.0, 4.0),
                1..=4 => rng.uniform(0.5, 1.0),
                _ => 1.0,
            };
        let shorter = longer * if rng.chance(0.15) { 1.0 } else { rng.uniform(0.66, 0.77) };
        let sides = [longer, shorter].map(|side| side.round().clamp(8.0, 8192.0) as u16);
        if rng.chance(0.25) { (sides[1], sides[0]) } else { (sides[0], sides[1]) }
    }
}

/// Interleaved RGB of fractal noise: brightness with fine texture, colour without.
fn paint(rng: &mut SampleRng, width: usize, height: usize) -> Vec<u8> {
    let brightness = fractal(rng, width, height, 1.5);
    let [blue, red] = [0, 1].map(|_| fractal(rng, width, height, 24.0));
    let base = rng.uniform(90.0, 160.0) as f32;
    let coarseness = rng.uniform(60.0, 260.0) as f32;
    let mut pixels = Vec::with_capacity(width * height * 3);
    for ((&y, &b), &r) in brightness.iter().zip(&blue).zip(&red) {
        // Texture gathers where the picture is bright, and leaves other places smooth, as foliage and sky do.
        let texture =
            coarseness * (0.4 + y).clamp(0.05, 0.8) * (rng.next_u32() as f32 / u32::MAX as f32 - 0.5);
        let (y, b, r) = (base + 150.0 * y + texture, 70.0 * b, 70.0 * r);
        for value in [y + 1.402 * r, y - 0.344 * b - 0.714 * r, y + 1.772 * b] {
            pixels.push(value.clamp(0.0, 255.0) as u8);
        }
    }
    pixels
}

/// A sum of noise fields whose cells halve from the size of the picture down to `finest` pixels, each finer one fainter.
fn fractal(rng: &mut SampleRng, width: usize, height: usize, finest: f32) -> Vec<f32> {
    /// How much fainter each octave is; natural images fall with about 1/f, which is one half.
    const FADE: f32 = 0.7;
    let mut sum = vec![0.0f32; width * height];
    let mut cell = width.max(height) as f32;
    let mut amplitude = 0.5;
    while cell >= finest {
        add_noise(rng, &mut sum, width, cell, amplitude);
        cell /= 2.0;
        amplitude *= FADE;
    }
    sum
}

/// Adds random values on a grid of `cell` pixels, linear in between.
fn add_noise(rng: &mut SampleRng, sum: &mut [f32], width: usize, cell: f32, amplitude: f32) {
    let height = sum.len() / width;
    let columns = (width as f32 / cell) as usize + 2;
    let rows = (height as f32 / cell) as usize + 2;
    let grid: Vec<f32> =
        (0..rows * columns).map(|_| amplitude * (rng.next_u32() as f32 / u32::MAX as f32 - 0.5)).collect();
    let mut line = vec![0.0f32; columns];
    for (y, row) in sum.chunks_exact_mut(width).enumerate() {
        let position = y as f32 / cell;
        let (above, share) = (position as usize, position.fract());
        let (upper, lower) = (&grid[above * columns..], &grid[(above + 1) * columns..]);
        for (value, (a, b)) in line.iter_mut().zip(upper.iter().zip(lower)) {
            *value = a + (b - a) * share;
        }
        for (x, value) in row.iter_mut().enumerate() {
            let position = x as f32 / cell;
            let left = position as usize;
            *value += line[left] + (line[left + 1] - line[left]) * position.fract();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn photos_are_reproducible_and_about_as_large_as_photographs() {
        let set = PhotoSet { count: 8, classes: 3, ..PhotoSet::default() };
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        set.write(first.path(), &|| ()).unwrap();
        set.write(second.path(), &|| ()).unwrap();
        let mut files = 0;
        for class in ["class_0", "class_1", "class_2"] {
            for entry in std::fs::read_dir(first.path().join(class)).unwrap() {
                let path = entry.unwrap().path();
                let bytes = std::fs::read(&path).unwrap();
                let twin = second.path().join(class).join(path.file_name().unwrap());
                assert_eq!(bytes, std::fs::read(twin).unwrap());
                let header = sutler_media::probe(&bytes, &sutler_media::Limits::default()).unwrap();
                let density = bytes.len() as f64 / f64::from(header.width * header.height);
                assert!((0.15..1.6).contains(&density), "{density} bytes per pixel in {}", path.display());
                files += 1;
            }
        }
        assert_eq!(files, 8);
    }
}
