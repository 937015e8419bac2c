//! The memory that holds copies of samples: so many bytes and no more, one copy per sample and form.
//!
//! Think of a cloakroom with a numbered hook for every guest. Finding a coat takes one look at its hook. Coats are laid
//! out over as many pegs as they need ([`super::arena`]), so there is always room as long as pegs are free. A guest
//! who looks at a coat holds on to it; if it is to go meanwhile, it goes when the last hand lets go.
//!
//! **Readers.** Looking up is two reads of a table entry around one count on the entry's first block. No lock is
//! taken. The count keeps the entry's blocks from being used again until the [`Held`] is dropped.
//!
//! **Checksums.** Every block carries an XXH3 checksum over its bytes, its key, its place and the entry's length. It
//! is verified whenever bytes of the block are read, encoded or decoded, after they were copied out: at 4 KiB
//! the copy is still in the nearest cache, and checking adds a third to the time of copying, ten microseconds to a
//! photograph of 110 kB that takes two milliseconds to decode. What does not pass is never handed out.
//!
//! **The budget** covers everything: blocks, their notes, the table. What is not for use is the unused end of each
//! entry's last block ([`Memory::footprint`] says what an entry really takes), and for as long as readers hold removed
//! entries, those. Beyond that an entry always finds room while there is room.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use sutler_core::{Form, SampleId};

use super::arena::{Arena, BLOCK_BYTES, BLOCK_NOTES_BYTES, blocks_within, bytes_with_a_block};
use super::limit::memory_limit;
use super::size::size;
use crate::text::counted;

pub use super::arena::{Backing, Pieces};

/// What a memory is to be like.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// All the bytes it may take.
    pub budget_bytes: u64,
    /// How many samples the dataset has; ids are below this.
    pub samples: usize,
    /// The forms in which samples may be kept.
    pub forms: &'static [Form],
    /// Where the memory comes from.
    pub backing: Backing,
}

/// Why there is no such memory.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// More than there is.
    #[error(
        "The cache asks for {}, which is more than the {} that {of}. Ask for less, and leave room for the \
         batches and for the trainer itself.", size(*budget_bytes), size(*limit_bytes)
    )]
    TooLarge {
        /// The budget.
        budget_bytes: u64,
        /// What there is.
        limit_bytes: u64,
        /// Whose limit that is.
        of: &'static str,
    },
    /// Less than the bookkeeping takes.
    #[error(
        "A cache of {} has no room for samples: in a dataset of {} it takes {} to keep even one. Ask for more, or for no cache.",
        size(*budget_bytes), counted(*samples as u64, "sample"), size(*least_bytes)
    )]
    TooSmall {
        /// The budget.
        budget_bytes: u64,
        /// How many samples the dataset has.
        samples: usize,
        /// The smallest budget with room for any sample at all.
        least_bytes: u64,
    },
    /// The system said no.
    #[error("The {} of the cache could not be had: {source}. Ask for less, or free memory.", size(*budget_bytes))]
    System {
        /// The budget.
        budget_bytes: u64,
        /// What it said.
        source: std::io::Error,
    },
}

/// How a memory is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How many blocks it has.
    pub blocks: u32,
    /// How many entries its table has room for.
    pub slots: u64,
}

/// Why an entry was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Not enough blocks are free.
    Full,
    /// There is one already.
    Present,
    /// This memory does not keep that form or that sample, or the entry is longer than 4 GiB.
    Unfit,
}

/// What was kept is not what comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// Copies of samples, by sample and form.
pub struct Memory {
    arena: Arena,
    samples: usize,
    forms: &'static [Form],
    /// Entries and their bytes per form, for the figures; by the place of the form in `forms`.
    kept: Vec<Kept>,
}

#[derive(Default)]
struct Kept {
    entries: AtomicU64,
    bytes: AtomicU64,
}

impl Kept {
    fn add(&self, bytes: usize) {
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn subtract(&self, bytes: usize) {
        self.entries.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

impl Memory {
    /// Memory of `options.budget_bytes` in all. Pages are taken from the system when first written.
    ///
    /// # Errors
    /// When the budget is more than this process can ever have, or too small for the table, or the system refuses.
    pub fn new(options: &MemoryOptions) -> Result<Self, MemoryError> {
        let MemoryOptions { budget_bytes, samples, forms, backing } = *options;
        if let Some(limit) = memory_limit().filter(|limit| limit.bytes < budget_bytes) {
            return Err(MemoryError::TooLarge { budget_bytes, limit_bytes: limit.bytes, of: limit.of });
        }
        let slots = samples * forms.len();
        let blocks = usize::try_from(budget_bytes).map_or(0, |budget| blocks_within(budget, slots));
        if blocks == 0 {
            let least_bytes = bytes_with_a_block(slots);
            return Err(MemoryError::TooSmall { budget_bytes, samples, least_bytes });
        }
        let arena = Arena::new(blocks, slots, backing)
            .map_err(|source| MemoryError::System { budget_bytes, source })?;
        let kept = forms.iter().map(|_| Kept::default()).collect();
        Ok(Self { arena, samples, forms, kept })
    }

    /// The anonymous file behind a shared memory.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.arena.file()
    }

    /// What another process needs to know beside the [file](Self::file) to read from it with a [`Reader`](super::Reader).
    #[must_use]
    pub fn extent(&self) -> Extent {
        Extent { blocks: self.arena.blocks(), slots: self.arena.slots() as u64 }
    }

    /// The forms in which samples may be kept.
    #[must_use]
    pub fn forms(&self) -> &'static [Form] {
        self.forms
    }

    /// Whether there is a place for this sample in the table.
    #[must_use]
    pub fn knows(&self, sample: SampleId) -> bool {
        sample.index() < self.samples
    }

    /// What an entry of so many bytes takes of [`Memory::capacity_bytes`].
    #[must_use]
    pub fn footprint(bytes: usize) -> u64 {
        Arena::blocks_of(bytes) as u64 * (BLOCK_BYTES + BLOCK_NOTES_BYTES) as u64
    }

    /// Changes the budget, to no more than it was made with. What is kept beyond a smaller one stays until it is removed; its memory then goes
    /// back to the system.
    pub fn set_budget(&self, bytes: u64) {
        let slots = self.samples * self.forms.len();
        self.arena.set_limit(usize::try_from(bytes).map_or(0, |bytes| blocks_within(bytes, slots)));
    }

    /// How much all entries together may take, counted as [`Memory::footprint`] does: the budget less the table.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.arena.limit()) * (BLOCK_BYTES + BLOCK_NOTES_BYTES) as u64
    }

    /// How much is in use, removed entries that are still being read included.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        u64::from(self.arena.used_blocks()) * (BLOCK_BYTES + BLOCK_NOTES_BYTES) as u64
    }

    /// The size of the mapping: what the process can take at most.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.arena.bytes() as u64
    }

    /// How many entries of a form there are, and how many bytes they have.
    #[must_use]
    pub fn kept(&self, form: Form) -> (u64, u64) {
        self.place(form).map_or((0, 0), |place| {
            let kept = &self.kept[place];
            (kept.entries.load(Ordering::Relaxed), kept.bytes.load(Ordering::Relaxed))
        })
    }

    fn place(&self, form: Form) -> Option<usize> {
        self.forms.iter().position(|kept| *kept == form)
    }

    /// The place of the form, and the sample's slot in the table.
    fn slot(&self, sample: SampleId, form: Form) -> Option<(usize, usize)> {
        let place = self.place(form)?;
        self.knows(sample).then(|| (place, place * self.samples + sample.index()))
    }

    /// The copy of a sample in this form, if there is one.
    #[must_use]
    pub fn get(&self, sample: SampleId, form: Form) -> Option<Held<'_>> {
        let slot = &self.arena.table()[self.slot(sample, form)?.1];
        loop {
            let first = slot.load(Ordering::Acquire).checked_sub(1)?;
            self.arena.pin(first);
            let held = Held { memory: self, first, key: key(sample, form) };
            if slot.load(Ordering::Acquire) == first + 1 {
                return Some(held);
            }
            // It was removed between the two looks; letting go of it is harmless, whosever it is by now.
        }
    }

    /// Keeps a copy of `parts`, joined.
    ///
    /// # Errors
    /// When there is no room or it is there already. Nothing is evicted: that is for a policy to decide.
    pub fn put(&self, sample: SampleId, form: Form, parts: &[&[u8]]) -> Result<(), Refused> {
        let (place, slot) = self.slot(sample, form).ok_or(Refused::Unfit)?;
        let slot = &self.arena.table()[slot];
        if slot.load(Ordering::Acquire) != 0 {
            return Err(Refused::Present);
        }
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let length = u32::try_from(bytes).map_err(|_| Refused::Unfit)?;
        let mut chain = self.arena.take(length).ok_or(Refused::Full)?;
        chain.fill(key(sample, form), parts);
        // Counted before it can be found: whoever removes it at once must not count below zero.
        self.kept[place].add(bytes);
        // Release: whoever finds the entry finds its bytes.
        let published = slot.compare_exchange(0, chain.first() + 1, Ordering::AcqRel, Ordering::Relaxed);
        if published.is_err() {
            self.kept[place].subtract(bytes);
            return Err(Refused::Present);
        }
        chain.keep();
        Ok(())
    }

    /// Lets go of a copy; its memory is free when nobody reads it any more. False when there was none.
    pub fn remove(&self, sample: SampleId, form: Form) -> bool {
        let Some((place, slot)) = self.slot(sample, form) else { return false };
        let first = self.arena.table()[slot].swap(0, Ordering::AcqRel);
        let Some(first) = first.checked_sub(1) else { return false };
        self.kept[place].subtract(self.arena.length(first));
        self.arena.condemn(first);
        true
    }
}

pub(super) fn key(sample: SampleId, form: Form) -> u64 {
    (u64::from(sample.0) << 8 | form as u64).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// A copy that stays where it is until this is dropped, whatever is removed meanwhile.
pub struct Held<'a> {
    memory: &'a Memory,
    first: u32,
    key: u64,
}

impl Held<'_> {
    /// Where it begins: what a [`Reader`](super::Reader) in another process finds it by while this one holds it.
    #[must_use]
    pub fn first_block(&self) -> u32 {
        self.first
    }

    /// How many bytes it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.arena.length(self.first)
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies all of it over whatever `out` held.
    ///
    /// # Errors
    /// When it is not what was kept. What `out` then holds must not be used.
    pub fn read_into(&self, out: &mut Vec<u8>) -> Result<(), Corrupt> {
        let bytes = self.len();
        // What is already there is overwritten, so that nothing is zeroed twice.
        out.truncate(bytes);
        out.resize(bytes, 0);
        self.read(Pieces { start: 0, piece: bytes, stride: bytes, count: 1 }, out)
    }

    /// Copies parts of it, one after another; `out` must be as long as they are together.
    ///
    /// # Errors
    /// When a block that they lie in is not what was kept, or they do not lie inside. What `out` then holds must not
    /// be used.
    pub fn read(&self, pieces: Pieces, out: &mut [u8]) -> Result<(), Corrupt> {
        self.memory.arena.read(self.first, self.key, pieces, out).map_err(|_| Corrupt)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.memory.arena.unpin(self.first);
    }
}

#[cfg(test)]
impl Memory {
    /// Flips a bit of an entry, as bad memory would.
    pub(super) fn damage(&self, sample: SampleId, form: Form, offset: usize) {
        self.arena.damage(self.get(sample, form).expect("an entry to damage").first, offset);
    }
}
