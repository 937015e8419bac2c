//! Batch memory: one mapping cut into equal slots, and the only unsafe code of this crate.
//!
//! A slot is in one of three hands. *Free*: in the arena's list. *Being filled*: several workers write to it at once,
//! each to a row that nobody else was given. *Delivered*: the consumer, and whoever holds a tensor over it, may read
//! and write it; no worker has it any more. It is free again when the last of them lets go. When a consumer hoards
//! batches and no slot is free, a batch gets a mapping of its own, so that hoarding costs memory but never blocks.
//!
//! The mapping is private and anonymous: nothing has a name, and the kernel takes everything back, however the
//! process ends. After a `fork` the child has its own copy and must not touch the list's lock, whose owner may be
//! a thread that exists only in the parent; so in the child slots are not given back, just forgotten.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Rows begin at multiples of this: a cache line, and enough for every vector instruction.
pub(crate) const ALIGNMENT: usize = 64;

/// Batch memory that could not be had.
#[derive(Debug, thiserror::Error)]
#[error(
    "{bytes} bytes of batch memory could not be had ({source}); lower batch_size or prefetch_factor, or free memory"
)]
pub struct ArenaError {
    /// How much was asked for.
    pub bytes: usize,
    /// What the system said.
    pub source: std::io::Error,
}

pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a Mapping is plain memory without thread affinity; who may touch which part of it is decided by
// BatchMemory, whose accessors hand out disjoint rows or need exclusive access.
unsafe impl Send for Mapping {}
// SAFETY: as above; the struct itself has no interior mutability.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A view of an anonymous file that another process writes to.
    pub(crate) fn of_file(file: impl AsFd, bytes: usize) -> Result<Self, ArenaError> {
        // SAFETY: a new mapping at an address the kernel chooses overlaps nothing; the file is sealed by convention
        // against shrinking (workers only ever grow theirs), so pages inside it stay there.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes.max(1),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        }
        .map_err(|errno| ArenaError { bytes, source: errno.into() })?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| ArenaError {
            bytes,
            source: std::io::Error::other("the mapping is at address 0"),
        })?;
        Ok(Self { start, bytes: bytes.max(1) })
    }

    /// A copy of a part that the other process has finished writing; `None` when it is outside the mapping.
    pub(crate) fn copy_out(&self, offset: usize, bytes: usize) -> Option<Vec<u8>> {
        let end = offset.checked_add(bytes)?;
        if end > self.bytes {
            return None;
        }
        let mut copy = Vec::with_capacity(bytes);
        // SAFETY: the range is inside the mapping, the vector has room for it, and the two do not overlap. The other
        // process does not write to the range until it gets its next task.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), copy.as_mut_ptr(), bytes);
            copy.set_len(bytes);
        }
        Some(copy)
    }

    fn new(bytes: usize) -> Result<Self, ArenaError> {
        let bytes = bytes.max(1);
        // SAFETY: a new private anonymous mapping at an address the kernel chooses overlaps nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|errno| ArenaError { bytes, source: errno.into() })?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| ArenaError {
            bytes,
            source: std::io::Error::other("the mapping is at address 0"),
        })?;
        // Huge pages make the first touch of a large arena several times cheaper; a kernel without them says no,
        // and that is fine.
        // SAFETY: the range is the mapping just made, and the advice changes no contents.
        let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        Ok(Self { start, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`, and nothing refers to it: slots keep the arena alive, and
        // exported arrays keep their slot alive.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// The memory of a job's batches.
pub struct Arena {
    mapping: Mapping,
    slot_bytes: usize,
    /// Slots nobody uses. Held for a push or a pop, never while working.
    free: Mutex<Vec<usize>>,
    /// The anonymous file behind the mapping, where worker processes write to it too.
    file: Option<OwnedFd>,
    owner: u32,
}

impl Arena {
    /// Room for `slots` batches of `slot_bytes` each. Pages are taken from the system when first written.
    ///
    /// # Errors
    /// When the address space cannot be had.
    pub fn new(slot_bytes: usize, slots: usize) -> Result<Arc<Self>, ArenaError> {
        let slot_bytes = slot_bytes.max(1).next_multiple_of(4096);
        let bytes = slot_bytes.checked_mul(slots.max(1)).ok_or_else(|| ArenaError {
            bytes: usize::MAX,
            source: std::io::Error::other("more bytes than the address space has"),
        })?;
        Ok(Arc::new(Self {
            mapping: Mapping::new(bytes)?,
            slot_bytes,
            free: Mutex::new((0..slots.max(1)).rev().collect()),
            file: None,
            owner: std::process::id(),
        }))
    }

    /// The same in an anonymous file, which can be handed to worker processes.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn shared(slot_bytes: usize, slots: usize) -> Result<Arc<Self>, ArenaError> {
        let slot_bytes = slot_bytes.max(1).next_multiple_of(4096);
        let bytes = slot_bytes.checked_mul(slots.max(1)).ok_or_else(|| ArenaError {
            bytes: usize::MAX,
            source: std::io::Error::other("more bytes than the address space has"),
        })?;
        let refused = |errno: rustix::io::Errno| ArenaError { bytes, source: errno.into() };
        let file = rustix::fs::memfd_create("sutler-batches", MemfdFlags::CLOEXEC).map_err(refused)?;
        rustix::fs::ftruncate(&file, bytes as u64).map_err(refused)?;
        Ok(Arc::new(Self {
            mapping: Mapping::of_file(&file, bytes)?,
            slot_bytes,
            free: Mutex::new((0..slots.max(1)).rev().collect()),
            file: Some(file),
            owner: std::process::id(),
        }))
    }

    /// The anonymous file behind a shared arena.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// A free slot for a batch of `bytes`, if there is one.
    pub(crate) fn take_slot(self: &Arc<Self>, bytes: usize) -> Option<BatchMemory> {
        if bytes > self.slot_bytes {
            return None;
        }
        let slot = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(BatchMemory { arena: Arc::clone(self), place: Place::Slot(slot) })
    }

    /// Address and length of the whole arena, to be registered with a device once.
    #[must_use]
    pub fn range(&self) -> (usize, usize) {
        (self.mapping.start.as_ptr() as usize, self.mapping.bytes)
    }

    /// Memory for a batch of `bytes`: a free slot, or a mapping of its own when there is none or the batch is too large
    /// for one (a batch sampler may grow its batches).
    ///
    /// # Errors
    /// When no slot will do and the system gives no memory.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Result<BatchMemory, ArenaError> {
        match self.take_slot(bytes) {
            Some(memory) => Ok(memory),
            None => {
                let place = Place::Spilled(Mapping::new(bytes.max(self.slot_bytes))?);
                Ok(BatchMemory { arena: Arc::clone(self), place })
            }
        }
    }
}

enum Place {
    Slot(usize),
    Spilled(Mapping),
}

/// One batch's memory; dropping it gives the slot back.
pub struct BatchMemory {
    arena: Arc<Arena>,
    place: Place,
}

impl BatchMemory {
    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.place {
            Place::Slot(_) => self.arena.slot_bytes,
            Place::Spilled(mapping) => mapping.bytes,
        }
    }

    /// Whether there are none; never, as a slot is at least a page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether the memory is a slot of the arena (and so registered with the device where the arena is).
    #[must_use]
    pub fn in_arena(&self) -> bool {
        matches!(self.place, Place::Slot(_))
    }

    /// Where the slot begins in its arena; `None` for memory outside of it.
    #[must_use]
    pub fn offset(&self) -> Option<usize> {
        match self.place {
            Place::Slot(slot) => Some(slot * self.arena.slot_bytes),
            Place::Spilled(_) => None,
        }
    }

    /// Where the memory begins.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        match &self.place {
            // SAFETY: the slot's number is below the number of slots, so the offset stays inside the mapping.
            Place::Slot(slot) => unsafe {
                self.arena.mapping.start.as_ptr().add(slot * self.arena.slot_bytes)
            },
            Place::Spilled(mapping) => mapping.start.as_ptr(),
        }
    }

    /// A part of the memory, to be written by one worker while others write to other parts.
    ///
    /// # Safety
    /// No other reference to any byte of the range may exist while the returned one does. The engine keeps this by
    /// giving every row out once (the ledger refuses a second lease) and delivering a batch only after all are done.
    ///
    /// # Panics
    /// When the range is outside the memory.
    #[allow(clippy::mut_from_ref)] // the caller promises what the borrow checker cannot see
    pub(crate) unsafe fn part(&self, offset: usize, bytes: usize) -> &mut [u8] {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.len()), "a row outside its batch");
        // SAFETY: in range by the assertion, unaliased by the caller's promise, initialised as the kernel zeroes pages.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().add(offset), bytes) }
    }

    /// The whole memory, for the one who has it alone.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.len();
        // SAFETY: `&mut self` means that nobody else has this memory, neither a worker nor a reader.
        unsafe { self.part(0, bytes) }
    }

    /// The whole memory, to be read.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: outside this crate a BatchMemory is only reached through a delivered Batch, to which no worker
        // writes any more.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }
}

impl Drop for BatchMemory {
    fn drop(&mut self) {
        if let Place::Slot(slot) = self.place
            && self.arena.owner == std::process::id()
        {
            self.arena.free.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_back_and_hoarding_spills() {
        let arena = Arena::new(10_000, 2).unwrap();
        let first = arena.take(1000).unwrap();
        let second = arena.take(1000).unwrap();
        assert!(first.in_arena() && second.in_arena());
        assert_ne!(first.as_ptr(), second.as_ptr());
        let spilled = arena.take(1000).unwrap();
        assert!(!spilled.in_arena());
        let address = first.as_ptr();
        drop(first);
        assert_eq!(arena.take(1000).unwrap().as_ptr(), address);
        drop(spilled);
    }

    #[test]
    fn a_batch_larger_than_a_slot_gets_what_it_needs() {
        let arena = Arena::new(4096, 2).unwrap();
        let mut large = arena.take(1_000_000).unwrap();
        assert!(!large.in_arena());
        assert!(large.len() >= 1_000_000);
        large.bytes_mut()[999_999] = 1;
        assert!(arena.take(4096).unwrap().in_arena());
    }

    #[test]
    fn memory_outlives_the_arena_handle() {
        let arena = Arena::new(4096, 1).unwrap();
        let mut memory = arena.take(1000).unwrap();
        drop(arena);
        memory.bytes_mut().fill(7);
        assert!(memory.bytes().iter().all(|&byte| byte == 7));
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert!(Arena::new(usize::MAX / 2, 8).is_err());
        let error = Arena::new(1 << 60, 1).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("lower batch_size"), "{error}");
    }
}
