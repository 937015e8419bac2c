//! The operations of an audio pipeline, as data.
//!
//! Names and parameters are torchaudio's where it has the operation, librosa's for trimming, and those of NVIDIA's speech
//! recognition for masking and stacking.

use serde::{Deserialize, Serialize};

/// The window of a resampling filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// A raised cosine.
    SincInterpHann,
    /// Kaiser's window.
    SincInterpKaiser,
}

/// How a signal goes on beyond its ends, where a spectrum is centred on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PadMode {
    /// Mirrored, the end value not repeated.
    Reflect,
    /// With zeros.
    Constant,
}

/// How mel filters are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MelNorm {
    /// To equal area.
    Slaney,
}

/// How frequencies become mels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MelScale {
    /// One formula for all frequencies.
    Htk,
    /// Linear up to 1 kHz, logarithmic from there.
    Slaney,
}

/// Over what features are brought to mean 0 and deviation 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Normalization {
    /// Each feature over all frames.
    PerFeature,
    /// All of them together.
    AllFeatures,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)] // the fields are the parameters of the libraries named above, under their names
pub enum Op {
    /// Change the sample rate.
    Resample {
        orig_freq: Option<u32>,
        new_freq: u32,
        resampling_method: Kernel,
        lowpass_filter_width: u32,
        rolloff: f64,
        beta: Option<f64>,
    },
    /// Play faster or slower, at another pitch: by one of `factors`, or by anything between the rates.
    SpeedPerturb { min_rate: f64, max_rate: f64, factors: Option<Vec<f64>>, p: f64 },
    /// Cut off quiet beginnings and ends.
    TrimSilence { top_db: f64, frame_length: u32, hop_length: u32 },
    /// Add a little normal noise.
    Dither { amount: f64 },
    /// Take a share of each value from the next.
    PreEmphasis { coeff: f64 },
    /// Power over time and mel frequency.
    MelSpectrogram {
        sample_rate: Option<u32>,
        n_fft: u32,
        win_length: u32,
        hop_length: u32,
        f_min: f64,
        f_max: Option<f64>,
        n_mels: u32,
        power: f64,
        normalized: bool,
        center: bool,
        pad_mode: PadMode,
        norm: Option<MelNorm>,
        mel_scale: MelScale,
        periodic: bool,
    },
    /// The logarithm of a mel spectrogram, and perhaps its normalisation.
    LogMel { offset: f64, normalize: Option<Normalization>, epsilon: f64 },
    /// Overwrite random bands of frequencies and spans of time. Times below 1 are shares of the length.
    SpecAugment {
        freq_masks: u32,
        min_freq: u32,
        max_freq: u32,
        time_masks: u32,
        min_time: f64,
        max_time: f64,
        value: f64,
    },
    /// Put neighbouring frames together, and keep every `subsample`-th.
    FrameStack { stack: u32, subsample: u32 },
}

impl Op {
    /// Its name as users write it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Resample { .. } => "Resample",
            Self::SpeedPerturb { .. } => "SpeedPerturb",
            Self::TrimSilence { .. } => "TrimSilence",
            Self::Dither { .. } => "Dither",
            Self::PreEmphasis { .. } => "PreEmphasis",
            Self::MelSpectrogram { .. } => "MelSpectrogram",
            Self::LogMel { .. } => "LogMel",
            Self::SpecAugment { .. } => "SpecAugment",
            Self::FrameStack { .. } => "FrameStack",
        }
    }

    /// Whether two runs over one clip may differ.
    #[must_use]
    pub fn is_random(&self) -> bool {
        matches!(self, Self::SpeedPerturb { .. } | Self::Dither { .. } | Self::SpecAugment { .. })
    }
}
