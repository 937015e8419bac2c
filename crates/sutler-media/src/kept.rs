//! What the decoded forms of pictures, clips and volumes have in common: what leads their bytes, and rows among these.

use std::fmt::Debug;

use sutler_core::{Fingerprint, FingerprintBuilder};

/// Names the operations that a decoded form has behind it, and the setting they were run with: one cache may serve several
/// pipelines, and what others have made of a sample is of no use.
pub(crate) fn name_of(setting: impl AsRef<[u8]>, operations: &[impl Debug]) -> Fingerprint {
    let mut name = FingerprintBuilder::default();
    name.add(setting);
    for operation in operations {
        name.add(format!("{operation:?}"));
    }
    name.finish()
}

/// What leads the bytes of a decoded form.
pub(crate) struct Head<const NUMBERS: usize> {
    /// Of the operations behind it, as [`name_of`] gives it.
    pub name: Fingerprint,
    /// What says how the rest is laid out.
    pub numbers: [u32; NUMBERS],
}

impl<const NUMBERS: usize> Head<NUMBERS> {
    /// How many bytes it takes.
    pub const BYTES: usize = size_of::<Fingerprint>() + NUMBERS * size_of::<u32>();

    /// Appends it to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.name.0.to_le_bytes());
        self.numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
    }

    /// Reads it back from the first of these bytes; `None` when there are too few.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (name, rest) = bytes.split_first_chunk()?;
        let (numbers, _) = rest.as_chunks();
        let numbers = numbers.first_chunk::<NUMBERS>()?.map(u32::from_le_bytes);
        Some(Self { name: Fingerprint(u128::from_le_bytes(*name)), numbers })
    }
}

/// Rows of a picture, or of one plane of a volume, in the decoded form: where they are among its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Where the first begins.
    pub start: usize,
    /// Bytes per row.
    pub bytes: usize,
    /// From the beginning of one to the beginning of the next.
    pub stride: usize,
    /// How many there are.
    pub count: usize,
}
