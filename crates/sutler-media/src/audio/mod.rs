//! Sound: samples over time, the operations on them and the pipeline that runs them.
//!
//! A clip is prepared in four steps, as an image is: [`decode`](Worker::decode) the file, having drawn every random
//! decision ([`Pipeline::draw`]), [`transform`](Worker::transform) it, and [`write`](Worker::write) it where the batch wants it. How long the
//! result is depends on the clip, so whoever has the batch asks between the last two.

mod decode;
mod decoded;
mod error;
mod format;
mod mel;
mod ogg;
mod op;
mod pipeline;
mod resample;
mod silence;
mod spectrum;
mod wav;
mod worker;

pub use decode::{Header, Limits, header_from_start, probe};
pub use decoded::DecodedForm;
pub use error::AudioError;
pub use format::{Format, sniff};
pub use op::{Kernel, MelNorm, MelScale, Normalization, Op, PadMode};
pub use pipeline::{Pipeline, PipelineError, Plan};
pub use worker::{Shape, Unfinished, Worker};

/// Decoded sound, one channel after the other. The buffer is kept and reused between samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clip {
    /// Samples per second.
    pub rate: u32,
    /// How many channels there are.
    pub channels: usize,
    /// `channels * frames` values; 1 is full scale.
    pub values: Vec<f32>,
}

impl Clip {
    /// How many values each channel has.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.values.len().checked_div(self.channels).unwrap_or(0)
    }

    /// The values of each channel.
    pub(crate) fn planes(&self) -> impl Iterator<Item = &[f32]> {
        // An empty clip has no planes to cut.
        self.values.chunks(self.frames().max(1))
    }

    /// The mean of all channels as the only one.
    pub(crate) fn mix(&mut self) {
        if self.channels < 2 {
            return;
        }
        let (frames, share) = (self.frames(), 1.0 / self.channels as f32);
        let (first, others) = self.values.split_at_mut(frames);
        for other in others.chunks_exact(frames.max(1)) {
            for (value, &addend) in first.iter_mut().zip(other) {
                *value += addend;
            }
        }
        first.iter_mut().for_each(|value| *value *= share);
        self.values.truncate(frames);
        self.channels = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_mixed_to_their_mean() {
        let mut clip = Clip { rate: 8000, channels: 2, values: vec![1.0, 0.5, 0.0, -0.5] };
        clip.mix();
        assert_eq!((clip.channels, clip.values), (1, vec![0.5, 0.0]));
        let mut empty = Clip { rate: 8000, channels: 2, values: Vec::new() };
        empty.mix();
        assert_eq!((empty.channels, empty.frames()), (1, 0));
    }
}
