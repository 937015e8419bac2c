//! The checked list of operations, and the random decisions made for one clip.

use sutler_core::SampleRng;

use super::op::{Kernel, Op};
use crate::range::within;

/// Sample rates that exist, with room to spare.
pub(super) const RATE_MAX: u32 = 1_536_000;
/// The longest transform: four seconds at 16 kHz.
const FFT_MAX: u32 = 1 << 16;
const MELS_MAX: u32 = 4096;
const STACK_MAX: u32 = 1024;
/// Speeds beyond these make noise of speech.
const SPEED_RANGE: [f64; 2] = [0.1, 10.0];

/// Why a pipeline cannot be built or run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PipelineError {
    /// The description is not one of operations.
    #[error("The transforms cannot be read: {reason}.")]
    Description {
        /// What the parser says.
        reason: String,
    },
    /// An operation that cannot be run as written, or not on this sample.
    #[error("Transform {number} ({op}) cannot be used: {reason}.", number = index + 1)]
    Refused {
        /// Its place, from 0.
        index: usize,
        /// Its name.
        op: &'static str,
        /// Why, and what to do instead.
        reason: String,
    },
    /// The room for the result has another size than the result.
    #[error("The sample takes {needed} bytes, but the room given to it has {given}; size it by its shape.")]
    Room {
        /// What the result takes.
        needed: usize,
        /// What was given.
        given: usize,
    },
}

/// A checked list of operations.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    ops: Vec<Op>,
}

/// What was decided for one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Drawn {
    /// There was nothing to decide.
    Nothing,
    /// How fast it is played; 1 leaves it alone.
    Speed(f64),
    /// Where its noise or its masks come from: how many there are is known only when the clip is as long as it will be.
    Seed(u64),
}

/// The decisions for one clip; kept and refilled from sample to sample.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(super) drawn: Vec<Drawn>,
}

impl Plan {
    /// How many times as long as it was the clip will be, by the speeds that were drawn for it.
    #[must_use]
    pub fn stretch(&self) -> f64 {
        self.drawn.iter().fold(1.0, |stretch, drawn| match drawn {
            Drawn::Speed(speed) => stretch / speed,
            _ => stretch,
        })
    }
}

impl Pipeline {
    /// Checks the operations.
    ///
    /// # Errors
    /// When one of them cannot be run as written, or not in this place.
    pub fn new(ops: Vec<Op>) -> Result<Self, PipelineError> {
        let mut features = false;
        let mut logarithmic = false;
        for (index, op) in ops.iter().enumerate() {
            let refuse = |reason: String| PipelineError::Refused { index, op: op.name(), reason };
            check_values(op).map_err(refuse)?;
            match op {
                Op::LogMel { .. } if logarithmic => {
                    return Err(refuse("the values are logarithms already; leave one LogMel out".to_owned()));
                }
                Op::LogMel { .. } | Op::SpecAugment { .. } | Op::FrameStack { .. } if !features => {
                    let reason = "it works on a spectrogram; put MelSpectrogram or LogMel before it";
                    return Err(refuse(reason.to_owned()));
                }
                Op::LogMel { .. } => logarithmic = true,
                Op::SpecAugment { .. } | Op::FrameStack { .. } => {}
                _ if features => {
                    return Err(refuse("it works on the signal; put it before the spectrogram".to_owned()));
                }
                Op::MelSpectrogram { .. } => features = true,
                _ => {}
            }
        }
        Ok(Self { ops })
    }

    /// Reads the operations from their JSON form, a list.
    ///
    /// # Errors
    /// When the text is not such a list, or as for [`Pipeline::new`].
    pub fn from_json(text: &str) -> Result<Self, PipelineError> {
        let ops = serde_json::from_str(text)
            .map_err(|error| PipelineError::Description { reason: error.to_string() })?;
        Self::new(ops)
    }

    /// The operations in order.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// How many leading operations draw no random number.
    #[must_use]
    pub fn static_prefix(&self) -> usize {
        self.ops.iter().take_while(|op| !op.is_random()).count()
    }

    /// Makes every random decision for a clip, before anything of it is decoded.
    pub fn draw(&self, rng: &mut SampleRng, plan: &mut Plan) {
        plan.drawn.clear();
        plan.drawn.extend(self.ops.iter().map(|op| match op {
            Op::SpeedPerturb { min_rate, max_rate, factors, p } => {
                // All are drawn whatever becomes of them, so that one does not change what others get.
                let applied = rng.chance(*p);
                let speed = match factors {
                    Some(factors) => factors[rng.below(factors.len() as u32) as usize],
                    None => rng.uniform(*min_rate, *max_rate),
                };
                Drawn::Speed(if applied { speed } else { 1.0 })
            }
            Op::Dither { .. } | Op::SpecAugment { .. } => Drawn::Seed(rng.next_u64()),
            _ => Drawn::Nothing,
        }));
    }
}

/// Why the parameters make no sense, and what would.
fn check_values(op: &Op) -> Result<(), String> {
    let whole =
        |name: &str, value: u32, range: [u32; 2]| within(name, f64::from(value), range.map(f64::from));
    match op {
        Op::Resample { orig_freq, new_freq, resampling_method, lowpass_filter_width, rolloff, beta } => {
            whole("new_freq", *new_freq, [1, RATE_MAX])?;
            whole("orig_freq", orig_freq.unwrap_or(1), [1, RATE_MAX])?;
            whole("lowpass_filter_width", *lowpass_filter_width, [1, 1024])?;
            within("rolloff", *rolloff, [f64::MIN_POSITIVE, 1.0])?;
            within("beta", beta.unwrap_or(0.0), [0.0, 100.0])?;
            if beta.is_some() && *resampling_method == Kernel::SincInterpHann {
                return Err(
                    "beta shapes Kaiser's window; pass resampling_method='sinc_interp_kaiser' with it".into(),
                );
            }
        }
        Op::SpeedPerturb { min_rate, max_rate, factors, p } => {
            within("p", *p, [0.0, 1.0])?;
            within("min_rate", *min_rate, SPEED_RANGE)?;
            within("max_rate", *max_rate, [*min_rate, SPEED_RANGE[1]])?;
            if factors.as_ref().is_some_and(Vec::is_empty) {
                return Err("factors is empty; name at least one".into());
            }
            for factor in factors.iter().flatten() {
                within("a factor", *factor, SPEED_RANGE)?;
            }
        }
        Op::TrimSilence { top_db, frame_length, hop_length } => {
            within("top_db", *top_db, [f64::MIN_POSITIVE, 1000.0])?;
            whole("frame_length", *frame_length, [1, 1 << 24])?;
            whole("hop_length", *hop_length, [1, 1 << 24])?;
        }
        Op::Dither { amount } => within("amount", *amount, [0.0, 1.0])?,
        Op::PreEmphasis { coeff } => within("coeff", *coeff, [-1.0, 1.0])?,
        Op::MelSpectrogram {
            sample_rate,
            n_fft,
            win_length,
            hop_length,
            f_min,
            f_max,
            n_mels,
            power,
            ..
        } => {
            whole("sample_rate", sample_rate.unwrap_or(1), [1, RATE_MAX])?;
            whole("n_fft", *n_fft, [2, FFT_MAX])?;
            whole("win_length", *win_length, [1, *n_fft])?;
            whole("hop_length", *hop_length, [1, FFT_MAX])?;
            whole("n_mels", *n_mels, [1, MELS_MAX])?;
            within("f_min", *f_min, [0.0, f64::from(RATE_MAX)])?;
            if let Some(f_max) = f_max {
                within("f_max", *f_max, [*f_min, f64::from(RATE_MAX)])?;
                if f_max <= f_min {
                    return Err(format!("f_max={f_max} should be above f_min={f_min}"));
                }
            }
            within("power", *power, [f64::MIN_POSITIVE, 8.0])?;
        }
        Op::LogMel { offset, epsilon, .. } => {
            within("offset", *offset, [0.0, 1.0])?;
            within("epsilon", *epsilon, [0.0, 1.0])?;
        }
        Op::SpecAugment { freq_masks, min_freq, max_freq, time_masks, min_time, max_time, value } => {
            whole("freq_masks", *freq_masks, [0, 1024])?;
            whole("time_masks", *time_masks, [0, 1024])?;
            whole("max_freq", *max_freq, [*min_freq, u32::MAX])?;
            within("min_time", *min_time, [0.0, 1e9])?;
            within("max_time", *max_time, [*min_time, 1e9])?;
            within("value", *value, [-1e30, 1e30])?;
        }
        Op::FrameStack { stack, subsample } => {
            whole("stack", *stack, [1, STACK_MAX])?;
            whole("subsample", *subsample, [1, STACK_MAX])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sutler_core::SampleId;

    use super::*;

    #[test]
    fn operations_have_their_place() {
        let build = |text: &str| Pipeline::from_json(text).map_err(|error| error.to_string());
        let mel = r#"{"op":"mel_spectrogram","sample_rate":null,"n_fft":512,"win_length":320,"hop_length":160,"f_min":0,
            "f_max":null,"n_mels":80,"power":2,"normalized":false,"center":true,"pad_mode":"reflect","norm":"slaney",
            "mel_scale":"slaney","periodic":false}"#;
        let log = r#"{"op":"log_mel","offset":1e-20,"normalize":"per_feature","epsilon":1e-5}"#;
        let emphasis = r#"{"op":"pre_emphasis","coeff":0.97}"#;
        assert!(build(&format!("[{emphasis},{mel},{log}]")).is_ok());
        assert!(build(&format!("[{log}]")).unwrap_err().contains("put MelSpectrogram"));
        assert!(build(&format!("[{mel},{emphasis}]")).unwrap_err().contains("before the spectrogram"));
        assert!(build(&format!("[{mel},{log},{log}]")).unwrap_err().contains("Transform 3 (LogMel)"));
        assert!(build(r#"[{"op":"resize"}]"#).unwrap_err().contains("cannot be read"));
        assert!(build(r#"[{"op":"pre_emphasis","coeff":7}]"#).unwrap_err().contains("from -1 to 1"));
        let silence = r#"{"op":"trim_silence","top_db":0,"frame_length":2048,"hop_length":512}"#;
        assert!(
            build(&format!("[{silence}]")).unwrap_err().contains("top_db=0 should be above 0 and at most")
        );
    }

    #[test]
    fn the_same_sample_gets_the_same_speed_and_others_another() {
        let op = Op::SpeedPerturb { min_rate: 0.85, max_rate: 1.15, factors: None, p: 1.0 };
        let pipeline = Pipeline::new(vec![op]).unwrap();
        let speed = |sample| {
            let mut plan = Plan::default();
            pipeline.draw(&mut SampleRng::new(1, 2, SampleId(sample)), &mut plan);
            plan.drawn[0]
        };
        assert_eq!(speed(3), speed(3));
        assert_ne!(speed(3), speed(4));
        assert!(matches!(speed(3), Drawn::Speed(speed) if (0.85..1.15).contains(&speed)));
    }
}
