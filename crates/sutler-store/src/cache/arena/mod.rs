//! Blocks of equal size in one mapping, and the only unsafe code of this crate.
//!
//! An entry is a *chain* of blocks, wherever in the mapping they are free. So there is nothing to fragment: as long as
//! enough blocks are free, an entry of any size fits, and what is lost is the unused end of its last block. The price is
//! that an entry is not one slice; readers copy it out, which they want anyway: the copy is what they verify, and nobody
//! can change it afterwards.
//!
//! All bookkeeping that a reader needs lies in the mapping itself, as numbers of blocks and not as addresses, so that
//! another process which has the same mapping can follow it.

mod region;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use region::Region;
use twox_hash::XxHash3_64;

pub use region::Backing;

/// Bytes per block. On average half a block of an entry stays empty: 2 % of a photograph of 110 kB. Reading and verifying
/// ran at three quarters of the speed of a plain copy (10 of 13 GB/s); with blocks of 1 KiB at less than half of it, with
/// 16 KiB at nearly all of it, but those would lose 7 %.
pub(super) const BLOCK_BYTES: usize = 4096;

/// What is written down about a block: its state, its successor, its entry's length, its checksum.
pub(super) const BLOCK_NOTES_BYTES: usize = 4 + 4 + 4 + 8;

/// No block.
pub(super) const NONE: u32 = u32::MAX;

/// The entry is to be freed by whoever lets go of it last.
const CONDEMNED: u32 = 1 << 31;

/// Blocks, and a table of where chains begin.
pub(super) struct Arena {
    region: Region,
    blocks: u32,
    slots: usize,
    /// Offsets of the tables in the region; blocks begin at `data`.
    states: usize,
    nexts: usize,
    lengths: usize,
    checks: usize,
    data: usize,
    /// Blocks nobody uses. Held while a chain is taken or put back, never while bytes are copied; readers take it only
    /// when they are the last to let go of an entry that was removed under them.
    free: Mutex<Free>,
}

struct Free {
    /// The first of the blocks that were used before; each names the next.
    first: u32,
    /// How many of those there are.
    count: u32,
    /// Blocks from here on were never used, and cost no memory yet.
    fresh: u32,
    /// How many may be in use. Where more were used once, the memory of those that are free is with the system.
    limit: u32,
}

impl Free {
    fn in_use(&self) -> u32 {
        self.fresh - self.count
    }

    /// Whether blocks that nobody uses may cost more memory than there is for all.
    fn gives_back(&self) -> bool {
        self.fresh > self.limit
    }
}

/// How many blocks fit into a budget beside a table of so many slots.
pub(super) fn blocks_within(bytes: usize, slots: usize) -> u32 {
    // The blocks begin at the next multiple of their size behind the tables.
    let rest = bytes.saturating_sub(slots * 4).saturating_sub(BLOCK_BYTES);
    u32::try_from(rest / (BLOCK_BYTES + BLOCK_NOTES_BYTES)).unwrap_or(NONE - 1).min(NONE - 1)
}

/// The smallest budget with a block beside a table of so many slots.
pub(super) fn bytes_with_a_block(slots: usize) -> u64 {
    slots as u64 * 4 + (2 * BLOCK_BYTES + BLOCK_NOTES_BYTES) as u64
}

/// Why a chain does not hold what was put there.
pub(super) struct Broken;

impl Arena {
    pub fn new(blocks: u32, slots: usize, backing: Backing) -> std::io::Result<Self> {
        Self::laid_out(blocks, slots, |bytes| Region::new(bytes, backing))
    }

    /// Another process's arena, to read what that process holds for us: nothing can be taken, written or let go of.
    pub fn open(file: OwnedFd, blocks: u32, slots: usize) -> std::io::Result<Self> {
        Self::laid_out(blocks, slots, |bytes| Region::open(file, bytes))
    }

    fn laid_out(
        blocks: u32,
        slots: usize,
        region: impl FnOnce(usize) -> std::io::Result<Region>,
    ) -> std::io::Result<Self> {
        let count = blocks as usize;
        let checks = 0;
        let states = checks + count * 8;
        let nexts = states + count * 4;
        let lengths = nexts + count * 4;
        let table = lengths + count * 4;
        let data = (table + slots * 4).next_multiple_of(BLOCK_BYTES);
        let region = region(data + count * BLOCK_BYTES)?;
        let free = Mutex::new(Free { first: NONE, count: 0, fresh: 0, limit: blocks });
        Ok(Self { region, blocks, slots, states, nexts, lengths, checks, data, free })
    }

    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.region.file()
    }

    /// The size of the whole mapping.
    pub fn bytes(&self) -> usize {
        self.region.bytes()
    }

    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// How many entries the table has room for.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// How many blocks an entry takes.
    pub fn blocks_of(bytes: usize) -> usize {
        bytes.div_ceil(BLOCK_BYTES).max(1)
    }

    fn states(&self) -> &[AtomicU32] {
        self.region.numbers(self.states, self.blocks as usize)
    }

    fn nexts(&self) -> &[AtomicU32] {
        self.region.numbers(self.nexts, self.blocks as usize)
    }

    fn lengths(&self) -> &[AtomicU32] {
        self.region.numbers(self.lengths, self.blocks as usize)
    }

    fn checks(&self) -> &[AtomicU64] {
        self.region.long_numbers(self.checks, self.blocks as usize)
    }

    /// Where chains begin, by slot: the number of the first block plus one, so that fresh memory says "none".
    pub fn table(&self) -> &[AtomicU32] {
        self.region.numbers(self.lengths + self.blocks as usize * 4, self.slots)
    }

    /// Blocks that are in use.
    pub fn used_blocks(&self) -> u32 {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).in_use()
    }

    /// How many blocks may be in use.
    pub fn limit(&self) -> u32 {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).limit
    }

    /// Allows so many blocks to be in use, at most as many as there are, and gives the memory of free ones back to the system where it would
    /// be more than that. What is in use beyond the limit stays until it is put back.
    pub fn set_limit(&self, blocks: u32) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.limit = blocks.min(self.blocks);
        if free.gives_back() {
            let nexts = self.nexts();
            let mut block = free.first;
            for _ in 0..free.count {
                self.give_back(block);
                block = nexts[block as usize].load(Ordering::Relaxed);
            }
        }
    }

    /// Gives the memory of a block that nobody uses back to the system. It reads as zeros from then on.
    fn give_back(&self, block: u32) {
        // SAFETY: the block is on the list of free ones, or on its way there, so nobody reads or writes it.
        #[allow(unsafe_code)]
        unsafe {
            self.region.give_back(self.at(block), BLOCK_BYTES);
        }
    }

    /// Takes a chain for an entry of `bytes` bytes, if there are enough blocks.
    pub fn take(&self, bytes: u32) -> Option<Chain<'_>> {
        let wanted = Self::blocks_of(bytes as usize) as u32;
        let nexts = self.nexts();
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.limit.saturating_sub(free.in_use()) < wanted {
            return None;
        }
        let used_before = wanted.min(free.count);
        let mut first = NONE;
        let mut last = NONE;
        if used_before > 0 {
            first = free.first;
            last = first;
            for _ in 1..used_before {
                last = nexts[last as usize].load(Ordering::Relaxed);
            }
            free.first = nexts[last as usize].load(Ordering::Relaxed);
            free.count -= used_before;
        }
        let fresh = free.fresh;
        free.fresh += wanted - used_before;
        drop(free);
        for block in fresh..fresh + (wanted - used_before) {
            if last == NONE {
                first = block;
            } else {
                nexts[last as usize].store(block, Ordering::Relaxed);
            }
            last = block;
        }
        nexts[last as usize].store(NONE, Ordering::Relaxed);
        self.lengths()[first as usize].store(bytes, Ordering::Relaxed);
        Some(Chain { arena: self, first })
    }

    /// Puts a chain back. Its blocks must be in nobody's hands.
    fn put_back(&self, first: u32) {
        let nexts = self.nexts();
        let count = Self::blocks_of(self.length(first)) as u32;
        let mut last = first;
        for _ in 1..count {
            last = nexts[last as usize].load(Ordering::Relaxed);
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.gives_back() {
            let mut block = first;
            for _ in 0..count {
                self.give_back(block);
                block = nexts[block as usize].load(Ordering::Relaxed);
            }
        }
        nexts[last as usize].store(free.first, Ordering::Relaxed);
        free.first = first;
        free.count += count;
    }

    /// The bytes of the entry that begins with this block.
    pub fn length(&self, first: u32) -> usize {
        self.lengths()[first as usize].load(Ordering::Relaxed) as usize
    }

    /// Keeps an entry from being freed. Whether it is still the one that was meant, the caller must look up again
    /// afterwards: the block's state outlives the entry, so counting on a block that is free or another's does no harm.
    pub fn pin(&self, first: u32) {
        // Acquire: if the entry was condemned before, the look that follows sees it gone from the table.
        self.states()[first as usize].fetch_add(1, Ordering::AcqRel);
    }

    /// Lets go of an entry, and frees it when it was condemned and nobody else holds it.
    pub fn unpin(&self, first: u32) {
        let before = self.states()[first as usize].fetch_sub(1, Ordering::AcqRel);
        if before == (CONDEMNED | 1) {
            self.free_condemned(first);
        }
    }

    /// Frees an entry that was taken out of the table, now or when the last reader lets go of it.
    pub fn condemn(&self, first: u32) {
        let before = self.states()[first as usize].fetch_or(CONDEMNED, Ordering::AcqRel);
        if before == 0 {
            self.free_condemned(first);
        }
    }

    fn free_condemned(&self, first: u32) {
        // A reader that came too late may count up and down again in between; the one who clears the mark frees.
        let cleared =
            self.states()[first as usize].compare_exchange(CONDEMNED, 0, Ordering::AcqRel, Ordering::Relaxed);
        if cleared.is_ok() {
            self.put_back(first);
        }
    }

    fn at(&self, block: u32) -> usize {
        self.data + block as usize * BLOCK_BYTES
    }

    /// Copies pieces of a pinned entry to `out`, one after another, and verifies every block on the way. Piece `k` has
    /// `piece` bytes and begins at `start + k * stride`.
    pub fn read(&self, first: u32, key: u64, pieces: Pieces, out: &mut [u8]) -> Result<(), Broken> {
        let length = self.length(first);
        let Pieces { start, piece, stride, count } = pieces;
        if count == 0 || piece == 0 {
            return Ok(());
        }
        let end = start + (count - 1) * stride + piece;
        if end > length || stride < piece || out.len() != piece * count {
            return Err(Broken);
        }
        let mut part = [0; BLOCK_BYTES];
        let mut block = first;
        for ordinal in 0..end.div_ceil(BLOCK_BYTES) {
            if block >= self.blocks {
                return Err(Broken);
            }
            let from = ordinal * BLOCK_BYTES;
            let to = (from + BLOCK_BYTES).min(length);
            let next = self.nexts()[block as usize].load(Ordering::Relaxed);
            if to > start {
                // A block that is wanted whole goes straight to its place; of others, what is wanted is picked.
                let wanted_whole = from >= start && to <= end && (count == 1 || piece == stride);
                let whole = wanted_whole.then(|| from - start..to - start);
                let bytes = match &whole {
                    Some(range) => &mut out[range.clone()],
                    None => &mut part[..to - from],
                };
                // SAFETY: the entry is pinned, so no writer has its blocks; `bytes` is our own.
                #[allow(unsafe_code)]
                unsafe {
                    self.region.copy_out(self.at(block), bytes);
                }
                let check = self.checks()[block as usize].load(Ordering::Relaxed);
                if check != checksum(bytes, key, length, ordinal) {
                    return Err(Broken);
                }
                if whole.is_none() {
                    pick(&part[..to - from], from, pieces, out);
                }
            }
            block = next;
        }
        Ok(())
    }
}

/// Equal pieces at equal distances: one piece for a whole entry, a row each for a part of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Where the first begins in the entry.
    pub start: usize,
    /// Bytes per piece.
    pub piece: usize,
    /// From the beginning of one to the beginning of the next.
    pub stride: usize,
    /// How many there are.
    pub count: usize,
}

/// Copies what the pieces want of a block that begins at `from` in its entry.
fn pick(block: &[u8], from: usize, pieces: Pieces, out: &mut [u8]) {
    let Pieces { start, piece, stride, count } = pieces;
    let to = from + block.len();
    let mut index = from.saturating_sub(start + piece - 1).div_ceil(stride);
    while index < count && start + index * stride < to {
        let begin = (start + index * stride).max(from);
        let end = (start + index * stride + piece).min(to);
        let target = index * piece + (begin - (start + index * stride));
        out[target..target + (end - begin)].copy_from_slice(&block[begin - from..end - from]);
        index += 1;
    }
}

/// A block's checksum knows whose it is and which of its blocks, so that a good block in a wrong place is a bad one.
fn checksum(bytes: &[u8], key: u64, length: usize, ordinal: usize) -> u64 {
    let place = key ^ ((length as u64) << 32 | ordinal as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    XxHash3_64::oneshot(bytes) ^ place
}

/// A chain that was taken and has no entry yet; dropping it puts it back.
pub(super) struct Chain<'a> {
    arena: &'a Arena,
    first: u32,
}

impl Chain<'_> {
    /// The number of its first block.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Fills the chain with the parts, one after another, which must be as long as it together.
    pub fn fill(&mut self, key: u64, parts: &[&[u8]]) {
        let arena = self.arena;
        let length = arena.length(self.first);
        assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), length, "an entry of another length");
        let mut joined = Joined { parts, index: 0, offset: 0 };
        let mut scratch = [0; BLOCK_BYTES];
        let mut block = self.first;
        for ordinal in 0..Arena::blocks_of(length) {
            let bytes = BLOCK_BYTES.min(length - ordinal * BLOCK_BYTES);
            let piece = joined.take(bytes, &mut scratch);
            arena.checks()[block as usize].store(checksum(piece, key, length, ordinal), Ordering::Relaxed);
            // SAFETY: the chain is ours alone until it is in the table.
            #[allow(unsafe_code)]
            unsafe {
                arena.region.copy_in(arena.at(block), piece);
            }
            block = arena.nexts()[block as usize].load(Ordering::Relaxed);
        }
    }

    /// Leaves the blocks to whoever the table names next.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        self.arena.put_back(self.first);
    }
}

/// Several slices read as one.
struct Joined<'a> {
    parts: &'a [&'a [u8]],
    index: usize,
    offset: usize,
}

impl<'a> Joined<'a> {
    /// The next bytes, from one part where it has enough of them.
    fn take<'b>(&mut self, bytes: usize, scratch: &'b mut [u8; BLOCK_BYTES]) -> &'b [u8]
    where
        'a: 'b,
    {
        while self.index < self.parts.len() && self.offset == self.parts[self.index].len() {
            self.index += 1;
            self.offset = 0;
        }
        if bytes == 0 {
            return &[];
        }
        let parts = self.parts;
        if parts[self.index].len() - self.offset >= bytes {
            self.offset += bytes;
            return &parts[self.index][self.offset - bytes..self.offset];
        }
        let mut filled = 0;
        while filled < bytes {
            let rest = &self.parts[self.index][self.offset..];
            let some = rest.len().min(bytes - filled);
            scratch[filled..filled + some].copy_from_slice(&rest[..some]);
            filled += some;
            self.offset += some;
            if self.offset == self.parts[self.index].len() && filled < bytes {
                self.index += 1;
                self.offset = 0;
            }
        }
        &scratch[..bytes]
    }
}

#[cfg(test)]
impl Arena {
    /// Flips a bit of an entry, as bad memory would.
    pub fn damage(&self, first: u32, offset: usize) {
        let mut block = first;
        for _ in 0..offset / BLOCK_BYTES {
            block = self.nexts()[block as usize].load(Ordering::Relaxed);
        }
        let mut byte = [0];
        let at = self.at(block) + offset % BLOCK_BYTES;
        // SAFETY: tests call this while nobody reads or writes the entry.
        #[allow(unsafe_code)]
        unsafe {
            self.region.copy_out(at, &mut byte);
            self.region.copy_in(at, &[byte[0] ^ 4]);
        }
    }
}
