//! Mel spectrograms: windows of a signal, their spectra, and the mel filters over them.

use std::sync::Arc;

use realfft::num_complex::Complex32;
use realfft::{RealFftPlanner, RealToComplex};

use super::mel::{MelBank, MelShape};
use super::op::{Op, PadMode};

/// A mel spectrogram's settings, tables and scratch memory, for one sample rate.
pub(super) struct Spectrogram {
    op: Op,
    rate: u32,
    hop: usize,
    /// How the signal goes on beyond its ends, where frames are centred on its values.
    centred: Option<PadMode>,
    power: f64,
    window: Vec<f32>,
    transform: Arc<dyn RealToComplex<f32>>,
    bank: MelBank,
    mels: usize,
    padded: Vec<f32>,
    windowed: Vec<f32>,
    spectrum: Vec<Complex32>,
    energies: Vec<f32>,
    scratch: Vec<Complex32>,
}

/// A signal that no frame fits into.
pub(super) struct TooShort {
    /// How many values it must have at least.
    pub least: usize,
}

impl Spectrogram {
    /// Tables for a signal of this rate; `None` when the operation is another one.
    pub fn new(op: &Op, rate: u32) -> Option<Self> {
        let Op::MelSpectrogram {
            n_fft,
            win_length,
            hop_length,
            f_min,
            f_max,
            n_mels,
            power,
            normalized,
            center,
            pad_mode,
            norm,
            mel_scale,
            periodic,
            ..
        } = *op
        else {
            return None;
        };
        let (n_fft, win_length) = (n_fft as usize, win_length as usize);
        let mut window = hann(win_length, periodic);
        if normalized {
            let energy: f32 = window.iter().map(|value| value * value).sum();
            window.iter_mut().for_each(|value| *value /= energy.sqrt());
        }
        // A window that is shorter than the transform lies in its middle.
        let before = (n_fft - win_length) / 2;
        let mut padded_window = vec![0.0; n_fft];
        padded_window[before..before + win_length].copy_from_slice(&window);
        let transform = RealFftPlanner::new().plan_fft_forward(n_fft);
        let shape = MelShape {
            rate,
            bins: n_fft / 2 + 1,
            mels: n_mels as usize,
            f_min,
            f_max,
            norm,
            scale: mel_scale,
        };
        Some(Self {
            op: op.clone(),
            rate,
            hop: hop_length as usize,
            centred: center.then_some(pad_mode),
            power,
            window: padded_window,
            bank: MelBank::new(&shape),
            mels: shape.mels,
            padded: Vec::new(),
            windowed: transform.make_input_vec(),
            spectrum: transform.make_output_vec(),
            energies: Vec::with_capacity(shape.bins),
            scratch: transform.make_scratch_vec(),
            transform,
        })
    }

    /// Whether these are the tables for it.
    pub fn is_for(&self, op: &Op, rate: u32) -> bool {
        self.rate == rate && self.op == *op
    }

    /// Whether frames reach beyond the ends of the signal, so that there is something to be padded.
    pub fn is_centred(&self) -> bool {
        self.centred.is_some()
    }

    pub fn mels(&self) -> usize {
        self.mels
    }

    /// Adds the frames of a signal to the end of `out`, the mels of a frame side by side, and tells how many they are.
    pub fn run(&mut self, signal: &[f32], out: &mut Vec<f32>) -> Result<usize, TooShort> {
        let size = self.window.len();
        let signal = match self.centred {
            None => signal,
            Some(mode) => {
                pad(signal, size / 2, mode, &mut self.padded)?;
                &self.padded
            }
        };
        let Some(room) = signal.len().checked_sub(size) else {
            return Err(TooShort { least: size });
        };
        let count = 1 + room / self.hop;
        out.reserve(count * self.mels);
        for frame in 0..count {
            let values = &signal[frame * self.hop..][..size];
            for (out, (value, weight)) in self.windowed.iter_mut().zip(values.iter().zip(&self.window)) {
                *out = value * weight;
            }
            let done = self.transform.process_with_scratch(
                &mut self.windowed,
                &mut self.spectrum,
                &mut self.scratch,
            );
            if let Err(error) = done {
                unreachable!("the buffers were made by the transform itself: {error}");
            }
            let power = self.power;
            self.energies.clear();
            if power == 2.0 {
                self.energies.extend(self.spectrum.iter().map(Complex32::norm_sqr));
            } else {
                self.energies.extend(self.spectrum.iter().map(|bin| bin.norm().powf(power as f32)));
            }
            self.bank.apply(&self.energies, out);
        }
        Ok(count)
    }
}

/// A raised cosine; a periodic one ends one value before it would repeat.
fn hann(length: usize, periodic: bool) -> Vec<f32> {
    let period = if periodic { length } else { length.saturating_sub(1) }.max(1) as f64;
    let at = |index: usize| 0.5 - 0.5 * (std::f64::consts::TAU * index as f64 / period).cos();
    if length == 1 { vec![1.0] } else { (0..length).map(|index| at(index) as f32).collect() }
}

fn pad(signal: &[f32], count: usize, mode: PadMode, out: &mut Vec<f32>) -> Result<(), TooShort> {
    out.clear();
    match mode {
        PadMode::Constant => {
            out.resize(count, 0.0);
            out.extend_from_slice(signal);
            out.resize(out.len() + count, 0.0);
        }
        PadMode::Reflect => {
            if signal.len() <= count {
                return Err(TooShort { least: count + 1 });
            }
            out.extend(signal[1..=count].iter().rev());
            out.extend_from_slice(signal);
            out.extend(signal[signal.len() - 1 - count..signal.len() - 1].iter().rev());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_torchs() {
        assert_eq!(hann(4, true), [0.0, 0.5, 1.0, 0.5]);
        assert_eq!(hann(5, false), [0.0, 0.5, 1.0, 0.5, 0.0]);
        assert_eq!(hann(1, false), [1.0]);
    }

    #[test]
    fn a_mirror_does_not_repeat_the_end() {
        let mut out = Vec::new();
        assert!(pad(&[1.0, 2.0, 3.0], 2, PadMode::Reflect, &mut out).is_ok());
        assert_eq!(out, [3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0]);
        assert!(pad(&[1.0, 2.0], 2, PadMode::Reflect, &mut out).is_err_and(|short| short.least == 3));
        assert!(pad(&[1.0], 2, PadMode::Constant, &mut out).is_ok());
        assert_eq!(out, [0.0, 0.0, 1.0, 0.0, 0.0]);
    }
}
