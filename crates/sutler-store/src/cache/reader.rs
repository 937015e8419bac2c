//! Reading the entries of a cache that another process has.
//!
//! The owner looks an entry up, holds it, and says where it begins; we copy it out of the mapping that both have and
//! verify it. So a process that is killed in the middle leaves nothing behind: it counted nothing and wrote nothing, and
//! what it was reading is let go of by the owner.

use std::os::fd::OwnedFd;

use sutler_core::{Form, SampleId};

use super::arena::{Arena, BLOCK_BYTES, Pieces};
use super::memory::{Corrupt, Extent, key};

/// A cache of another process, to be read from.
pub struct Reader {
    arena: Arena,
}

impl Reader {
    /// Maps the file behind a [shared](super::Backing::Shared) memory.
    ///
    /// # Errors
    /// When the file is shorter than its extent says, or the system refuses.
    pub fn open(file: OwnedFd, extent: Extent) -> std::io::Result<Self> {
        let slots = usize::try_from(extent.slots).map_err(|_| {
            std::io::Error::other("the memory has more entries than this machine can address")
        })?;
        Ok(Self { arena: Arena::open(file, extent.blocks, slots)? })
    }

    /// How many bytes the entry has that begins at this block, which its owner holds for us.
    ///
    /// # Errors
    /// When there can be no such entry.
    pub fn len(&self, first_block: u32) -> Result<usize, Corrupt> {
        if first_block >= self.arena.blocks() {
            return Err(Corrupt);
        }
        let bytes = self.arena.length(first_block);
        if bytes > self.arena.blocks() as usize * BLOCK_BYTES { Err(Corrupt) } else { Ok(bytes) }
    }

    /// Copies an entry, which its owner holds for us; `out` is as long as [`len`](Self::len) said.
    ///
    /// # Errors
    /// When it is not what was kept. What `out` then holds must not be used.
    pub fn read(
        &self,
        first_block: u32,
        sample: SampleId,
        form: Form,
        out: &mut [u8],
    ) -> Result<(), Corrupt> {
        let bytes = self.len(first_block)?;
        let whole = Pieces { start: 0, piece: bytes, stride: bytes, count: 1 };
        self.arena.read(first_block, key(sample, form), whole, out).map_err(|_| Corrupt)
    }
}
