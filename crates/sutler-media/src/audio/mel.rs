//! Mel filters: triangles over the bins of a spectrum, as torchaudio and librosa make them.

use super::op::{MelNorm, MelScale};
use super::resample::dot;

/// One triangle, without the zeros on both sides.
struct Triangle {
    first: usize,
    weights: Vec<f32>,
}

/// A bank of them.
pub(super) struct MelBank {
    triangles: Vec<Triangle>,
}

/// What a bank is made from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MelShape {
    pub rate: u32,
    /// Bins of the spectrum, from 0 to half the rate.
    pub bins: usize,
    pub mels: usize,
    pub f_min: f64,
    pub f_max: Option<f64>,
    pub norm: Option<MelNorm>,
    pub scale: MelScale,
}

/// Slaney's scale: 200 Hz are 3 mels up to 1 kHz, and each further 27 mels are a factor of 6.4.
const LINEAR_STEP: f64 = 200.0 / 3.0;
const LOG_FROM: f64 = 1000.0;

fn log_step() -> f64 {
    6.4f64.ln() / 27.0
}

fn to_mel(frequency: f64, scale: MelScale) -> f64 {
    match scale {
        MelScale::Htk => 2595.0 * (1.0 + frequency / 700.0).log10(),
        MelScale::Slaney if frequency >= LOG_FROM => {
            LOG_FROM / LINEAR_STEP + (frequency / LOG_FROM).ln() / log_step()
        }
        MelScale::Slaney => frequency / LINEAR_STEP,
    }
}

fn from_mel(mel: f64, scale: MelScale) -> f64 {
    match scale {
        MelScale::Htk => 700.0 * (10f64.powf(mel / 2595.0) - 1.0),
        MelScale::Slaney if mel >= LOG_FROM / LINEAR_STEP => {
            LOG_FROM * (log_step() * (mel - LOG_FROM / LINEAR_STEP)).exp()
        }
        MelScale::Slaney => LINEAR_STEP * mel,
    }
}

impl MelBank {
    pub fn new(shape: &MelShape) -> Self {
        // torchaudio halves odd rates to whole numbers.
        let top = f64::from(shape.rate / 2);
        let (low, high) = (to_mel(shape.f_min, shape.scale), to_mel(shape.f_max.unwrap_or(top), shape.scale));
        let corner =
            |index: usize| from_mel(low + (high - low) * index as f64 / (shape.mels + 1) as f64, shape.scale);
        let frequency = |bin: usize| top * bin as f64 / (shape.bins - 1) as f64;
        let triangle = |index: usize| {
            let (left, peak, right) = (corner(index), corner(index + 1), corner(index + 2));
            let area = match shape.norm {
                Some(MelNorm::Slaney) => 2.0 / (right - left),
                None => 1.0,
            };
            let weight = |bin: usize| {
                let (up, down) =
                    ((frequency(bin) - left) / (peak - left), (right - frequency(bin)) / (right - peak));
                (up.min(down).max(0.0) * area) as f32
            };
            let first = (0..shape.bins).find(|&bin| weight(bin) > 0.0).unwrap_or(0);
            let weights = (first..shape.bins).map(weight).take_while(|&weight| weight > 0.0).collect();
            Triangle { first, weights }
        };
        Self { triangles: (0..shape.mels).map(triangle).collect() }
    }

    /// The energy in each triangle, added to the end of `out`.
    pub fn apply(&self, spectrum: &[f32], out: &mut Vec<f32>) {
        out.extend(self.triangles.iter().map(|triangle| {
            dot(&spectrum[triangle.first..triangle.first + triangle.weights.len()], &triangle.weights)
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_scales_invert() {
        for scale in [MelScale::Htk, MelScale::Slaney] {
            for frequency in [0.0, 100.0, 999.0, 1000.0, 4321.0, 20_000.0] {
                let there_and_back = from_mel(to_mel(frequency, scale), scale);
                assert!((there_and_back - frequency).abs() < 1e-6, "{scale:?} {frequency}");
            }
        }
        assert!((to_mel(1000.0, MelScale::Slaney) - 15.0).abs() < 1e-12);
        assert!((to_mel(1000.0, MelScale::Htk) - 999.985_5).abs() < 1e-3);
    }

    #[test]
    fn a_triangle_without_a_bin_is_empty() {
        let shape = MelShape {
            rate: 8000,
            bins: 17,
            mels: 64,
            f_min: 0.0,
            f_max: None,
            norm: None,
            scale: MelScale::Htk,
        };
        let mut out = Vec::new();
        MelBank::new(&shape).apply(&[1.0; 17], &mut out);
        assert_eq!(out.len(), 64);
        assert!(out.contains(&0.0) && out.iter().any(|&value| value > 0.0));
    }
}
