//! One bit per sample or position.

/// A fixed number of bits, all clear at first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bits(pub(crate) Vec<u64>);

impl Bits {
    pub(crate) fn new(len: u32) -> Self {
        Self(vec![0; (len as usize).div_ceil(64)])
    }

    pub(crate) fn get(&self, index: u32) -> bool {
        self.0[index as usize / 64] >> (index % 64) & 1 == 1
    }

    pub(crate) fn set(&mut self, index: u32, value: bool) {
        let bit = 1u64 << (index % 64);
        let word = &mut self.0[index as usize / 64];
        if value { *word |= bit } else { *word &= !bit }
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}
