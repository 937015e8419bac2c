//! An image and its labels in memory, and what is done to them.

use sutler_core::{SampleId, SampleRng};

use super::{Block, Interpolation, noise, resample, resampled_shape};

/// An image and its labels. The buffers are kept and reused between samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Volume {
    /// The values of all channels, one after the other.
    pub image: Vec<f32>,
    /// A label for each place.
    pub label: Vec<u8>,
    /// How many channels there are.
    pub channels: usize,
    /// The three axes, the last the fastest.
    pub shape: [usize; 3],
    /// The distance of values along each axis, as the file says.
    pub spacing: [f32; 3],
}

impl Volume {
    /// How many places there are.
    #[must_use]
    pub fn places(&self) -> usize {
        self.shape.iter().product()
    }

    /// Takes room for a block of a volume, of any content.
    pub fn reset(&mut self, channels: usize, shape: [usize; 3], spacing: [f32; 3]) {
        (self.channels, self.shape, self.spacing) = (channels, shape, spacing);
        self.image.resize(channels * self.places(), 0.0);
        self.label.resize(self.places(), 0);
    }

    /// The bytes that the image takes, and the labels.
    #[must_use]
    pub fn bytes(&self) -> (usize, usize) {
        (size_of_val(&self.image[..]), self.label.len())
    }

    /// Writes both, which must be as long as [`bytes`](Self::bytes) says; what is longer or shorter is written as far as both go.
    pub fn write(&self, image: &mut [u8], label: &mut [u8]) {
        for (room, value) in image.as_chunks_mut().0.iter_mut().zip(&self.image) {
            *room = value.to_ne_bytes();
        }
        for (room, value) in label.iter_mut().zip(&self.label) {
            *room = *value;
        }
    }

    /// Keeps a block alone.
    pub(super) fn crop(&mut self, block: &Block) {
        let places = self.places();
        let mut image = Vec::with_capacity(self.channels * block.values());
        for channel in self.image.chunks_exact(places) {
            copy_block(channel, self.shape, block, &mut image);
        }
        let mut label = Vec::with_capacity(block.values());
        copy_block(&self.label, self.shape, block, &mut label);
        (self.image, self.label, self.shape) = (image, label, block.sides());
    }

    /// Turns these axes around.
    pub(super) fn flip(&mut self, axes: [bool; 3]) {
        let places = self.places();
        for channel in self.image.chunks_exact_mut(places) {
            flip(channel, self.shape, axes);
        }
        flip(&mut self.label, self.shape, axes);
    }

    /// Adds normal noise.
    pub(super) fn add_noise(&mut self, mean: f64, std: f64, seed: u64) {
        let mut rng = SampleRng::new(seed, 0, SampleId(0));
        noise::add(&mut self.image, mean as f32, std as f32, &mut rng);
    }

    /// Cuts values off at both ends, and brings them to a mean and a deviation.
    pub fn clip_normalize(&mut self, min: f64, max: f64, mean: f64, std: f64) {
        let [min, max, mean, std] = [min, max, mean, std].map(|value| value as f32);
        self.image.iter_mut().for_each(|value| *value = (value.clamp(min, max) - mean) / std);
    }

    /// Brings values to another distance.
    ///
    /// # Errors
    /// When the file does not say the present one, as the clause that says so.
    pub fn resample(&mut self, wanted: [f64; 3]) -> Result<(), String> {
        if self.spacing.iter().any(|distance| !distance.is_finite() || *distance <= 0.0) {
            return Err(format!(
                "the header says that values are {:?} apart, which are no distances; correct the file's pixdim",
                self.spacing
            ));
        }
        let to = resampled_shape(self.shape, self.spacing, wanted);
        let values = to.iter().try_fold(self.channels, |product, side| product.checked_mul(*side));
        if values.is_none_or(|values| values > VALUES_MAX) {
            return Err(format!("the result would have {to:?} values; pass larger distances"));
        }
        if self.spacing.map(f64::from) != wanted {
            let places = self.places();
            let channels = self.image.chunks_exact(places);
            self.image = channels
                .flat_map(|channel| resample(channel, self.shape, to, Interpolation::Linear))
                .collect();
            self.label = resample(&self.label, self.shape, to, Interpolation::Nearest);
            (self.shape, self.spacing) = (to, wanted.map(|distance| distance as f32));
        }
        Ok(())
    }

    /// Repeats the outermost values until no axis is shorter than `least`, half of them in front; of an odd number one more behind.
    pub fn pad_edges(&mut self, least: [usize; 3]) {
        let to = [0, 1, 2].map(|axis| self.shape[axis].max(least[axis]));
        let places = self.places();
        let channels = self.image.chunks_exact(places);
        self.image = channels.flat_map(|channel| pad(channel, self.shape, to)).collect();
        self.label = pad(&self.label, self.shape, to);
        self.shape = to;
    }
}

/// What a resampled volume may have: as many values as a file by default.
const VALUES_MAX: usize = 1 << 30;

fn copy_block<T: Copy>(values: &[T], shape: [usize; 3], block: &Block, out: &mut Vec<T>) {
    for plane in block.start[0]..block.end[0] {
        for row in block.start[1]..block.end[1] {
            let at = (plane * shape[1] + row) * shape[2];
            out.extend_from_slice(&values[at + block.start[2]..at + block.end[2]]);
        }
    }
}

fn flip<T>(values: &mut [T], [planes, rows, row]: [usize; 3], axes: [bool; 3]) {
    if axes[2] {
        values.chunks_exact_mut(row).for_each(<[T]>::reverse);
    }
    if axes[1] {
        values.chunks_exact_mut(rows * row).for_each(|plane| swap_ends(plane, rows, row));
    }
    if axes[0] {
        swap_ends(values, planes, rows * row);
    }
}

/// Turns the order of `count` pieces around, leaving each as it is.
fn swap_ends<T>(values: &mut [T], count: usize, piece: usize) {
    for index in 0..count / 2 {
        let (front, back) = values.split_at_mut((count - 1 - index) * piece);
        front[index * piece..(index + 1) * piece].swap_with_slice(&mut back[..piece]);
    }
}

fn pad<T: Copy>(values: &[T], shape: [usize; 3], to: [usize; 3]) -> Vec<T> {
    let source = |axis: usize, index: usize| {
        let front = (to[axis] - shape[axis]) / 2;
        index.saturating_sub(front).min(shape[axis] - 1)
    };
    let mut out = Vec::with_capacity(to.iter().product());
    for plane in 0..to[0] {
        for row in 0..to[1] {
            let at = (source(0, plane) * shape[1] + source(1, row)) * shape[2];
            out.extend((0..to[2]).map(|index| values[at + source(2, index)]));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(shape: [usize; 3]) -> Volume {
        let places = shape.iter().product::<usize>();
        Volume {
            image: (0..2 * places).map(|value| value as f32).collect(),
            label: (0..places).map(|value| value as u8).collect(),
            channels: 2,
            shape,
            spacing: [1.0; 3],
        }
    }

    #[test]
    fn flips_turn_the_axes_that_are_named() {
        let whole = volume([2, 2, 3]);
        let flipped = |axes| {
            let mut volume = whole.clone();
            volume.flip(axes);
            assert_eq!(
                volume.image[12..],
                volume.image[..12].iter().map(|value| value + 12.0).collect::<Vec<_>>()
            );
            assert_eq!(
                volume.image[..12],
                volume.label.iter().map(|value| f32::from(*value)).collect::<Vec<_>>()
            );
            volume.label
        };
        assert_eq!(flipped([false, false, true]), [2, 1, 0, 5, 4, 3, 8, 7, 6, 11, 10, 9]);
        assert_eq!(flipped([false, true, false]), [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8]);
        assert_eq!(flipped([true, false, false]), [6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5]);
        assert_eq!(flipped([true; 3]), whole.label.iter().rev().copied().collect::<Vec<_>>());
    }

    #[test]
    fn padding_repeats_the_edges_on_both_sides() {
        let mut volume = volume([1, 2, 2]);
        volume.pad_edges([2, 2, 5]);
        assert_eq!(volume.shape, [2, 2, 5]);
        assert_eq!(volume.label, [0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3]);
        let before = volume.clone();
        volume.pad_edges([1, 1, 1]);
        assert_eq!(volume, before);
    }

    #[test]
    fn noise_has_the_mean_and_the_deviation_that_were_asked_for() {
        let mut volume = Volume { image: vec![5.0; 200_001], ..volume([1, 1, 1]) };
        volume.add_noise(1.0, 0.5, 3);
        let count = volume.image.len() as f64;
        let mean = volume.image.iter().map(|&value| f64::from(value)).sum::<f64>() / count;
        let deviation =
            (volume.image.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum::<f64>() / count).sqrt();
        assert!((mean - 6.0).abs() < 0.01 && (deviation - 0.5).abs() < 0.005, "{mean} {deviation}");
        // Within one deviation are 68.3 % of a normal distribution.
        let near = volume.image.iter().filter(|&&value| (value - 6.0).abs() < 0.5).count() as f64 / count;
        assert!((near - 0.6827).abs() < 0.005, "{near}");
    }

    #[test]
    fn a_header_without_distances_cannot_be_resampled() {
        for wrong in [0.0, f32::NAN, f32::INFINITY] {
            let mut volume = Volume { spacing: [1.0, wrong, 1.0], ..volume([2, 2, 2]) };
            assert!(volume.resample([1.0; 3]).unwrap_err().contains("pixdim"));
        }
        let mut huge = Volume { spacing: [900.0; 3], ..volume([2, 2, 2]) };
        assert!(huge.resample([0.001; 3]).unwrap_err().contains("larger distances"));
    }

    #[test]
    fn both_are_written_as_bytes() {
        let volume = volume([1, 1, 2]);
        let (image, label) = volume.bytes();
        let (mut image, mut label) = (vec![0; image], vec![0; label]);
        volume.write(&mut image, &mut label);
        assert_eq!(image, [0f32, 1.0, 2.0, 3.0].map(f32::to_ne_bytes).concat());
        assert_eq!(label, [0, 1]);
    }
}
