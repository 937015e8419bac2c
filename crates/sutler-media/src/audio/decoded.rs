//! The decoded form of a clip: what of its preparation is the same in every epoch, as bytes that can be kept.
//!
//! That is what all operations before the first random one make of it: the signal, or features where a spectrogram is among
//! them. It carries the name of these operations, since one cache may serve several pipelines.

use sutler_core::Fingerprint;

use super::pipeline::Pipeline;
use super::worker::{Features, Worker};
use crate::kept::{self, name_of};

/// What leads the values: the name of the operations, the rate, and how many channels, features and frames there are.
type Head = kept::Head<4>;

/// What is kept of the clips of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedForm {
    name: Fingerprint,
    prefix: usize,
}

impl DecodedForm {
    /// Cuts a pipeline where randomness begins; `mono` says whether channels are mixed to one before it.
    #[must_use]
    pub fn new(pipeline: &Pipeline, mono: bool) -> Self {
        let prefix = pipeline.static_prefix();
        Self { name: name_of([u8::from(mono)], &pipeline.ops()[..prefix]), prefix }
    }

    /// How many operations have been run on what is kept.
    #[must_use]
    pub fn prefix(&self) -> usize {
        self.prefix
    }
}

impl Worker {
    fn held(&self) -> (&[f32], [u32; 4]) {
        let Self { clip, features, .. } = self;
        match features {
            Some(Features { channels, count, frames, values }) => {
                (values, [clip.rate, *channels as u32, *count as u32, *frames as u32])
            }
            None => (&clip.values, [clip.rate, clip.channels as u32, 0, clip.frames() as u32]),
        }
    }

    /// How many bytes the decoded form has of what there is now.
    #[must_use]
    pub fn decoded_bytes(&self) -> usize {
        Head::BYTES + size_of_val(self.held().0)
    }

    /// Writes the decoded form of what there is now, over whatever `out` held.
    pub fn keep(&self, form: &DecodedForm, out: &mut Vec<u8>) {
        let (values, numbers) = self.held();
        out.clear();
        out.reserve(self.decoded_bytes());
        Head { name: form.name, numbers }.write(out);
        values.iter().for_each(|value| out.extend(value.to_le_bytes()));
    }

    /// Takes up a clip from its decoded form, with [`DecodedForm::prefix`] operations behind it. False where that was kept for other
    /// operations.
    pub fn recall(&mut self, form: &DecodedForm, data: &[u8]) -> bool {
        let Some(Head { name, numbers: [rate, channels, count, frames] }) = Head::read(data) else {
            return false;
        };
        let (values, _) = data[Head::BYTES..].as_chunks();
        let expected = channels as usize * count.max(1) as usize * frames as usize;
        if name != form.name || values.len() != expected {
            return false;
        }
        let values = values.iter().map(|bytes| f32::from_le_bytes(*bytes));
        self.begin();
        (self.clip.rate, self.clip.channels) = (rate, channels as usize);
        self.clip.values.clear();
        if count == 0 {
            self.clip.values.extend(values);
        } else {
            let mut room = std::mem::take(&mut self.spare);
            room.clear();
            room.extend(values);
            let (channels, count, frames) = (channels as usize, count as usize, frames as usize);
            self.features = Some(Features { channels, count, frames, values: room });
        }
        true
    }
}
