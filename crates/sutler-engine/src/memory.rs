//! Batch memory: one mapping cut into equal slots, and the only unsafe code of this crate.
//!
//! A slot is in one of three hands. *Free*: in the arena's list. *Being filled*: several workers write to it at once,
//! each to a row that nobody else was given. *Delivered*: the consumer, and whoever holds a tensor over it, may read
//! and write it; no worker has it any more. It is free again when the last of them lets go. When a consumer hoards
//! batches and no slot is free, a batch gets a mapping of its own, so that hoarding costs memory but never blocks.
//!
//! The mapping is anonymous, or of an anonymous file where other processes share it: nothing has a name, and the kernel
//! takes everything back, however the process ends. A process that only receives batches attaches to the file; its
//! slots go back to the process that made it. After a `fork` the child has its own copy and must not touch the list's
//! lock, whose owner may be a thread that exists only in the parent; so in the child slots are not given back, just
//! forgotten.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use sutler_core::Depth;

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
        Ok(Self { start, bytes: bytes.max(1) }.in_huge_pages())
    }

    /// The same of a file that has to be this large: touching a page beyond its end would end the process.
    fn of_whole_file(file: &OwnedFd, bytes: usize) -> Result<Self, ArenaError> {
        let there =
            rustix::fs::fstat(file).map_err(|errno| ArenaError { bytes, source: errno.into() })?.st_size;
        if u64::try_from(there).is_ok_and(|there| there >= bytes as u64) {
            return Self::of_file(file, bytes);
        }
        let source = std::io::Error::other(format!("its file has {there} bytes"));
        Err(ArenaError { bytes, source })
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
        Ok(Self { start, bytes }.in_huge_pages())
    }

    /// Huge pages make the first touch of a large arena several times cheaper; a kernel
    /// without them says no, and that is fine. For files, most kernels say no unless their owner has allowed it.
    fn in_huge_pages(self) -> Self {
        // SAFETY: the range is a mapping just made, and the advice changes no contents.
        let _ = unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, Advice::LinuxHugepage) };
        self
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`, and nothing refers to it: slots keep the arena alive, and
        // exported arrays keep their slot alive.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Where slots go that nobody uses any more.
enum Unused {
    /// To this list. Held for a push or a pop, never while working.
    Listed(Mutex<Vec<usize>>),
    /// To the process whose arena it is, which is told so.
    Elsewhere(Box<dyn Fn(usize) + Send + Sync>),
}

impl Unused {
    fn all(slots: usize) -> Self {
        Self::Listed(Mutex::new((0..slots).rev().collect()))
    }

    fn take(&self) -> Option<usize> {
        match self {
            Self::Listed(slots) => slots.lock().unwrap_or_else(PoisonError::into_inner).pop(),
            Self::Elsewhere(_) => None,
        }
    }

    fn give_back(&self, slot: usize) {
        match self {
            Self::Listed(slots) => slots.lock().unwrap_or_else(PoisonError::into_inner).push(slot),
            Self::Elsewhere(tell) => tell(slot),
        }
    }
}

/// The memory of a job's batches.
pub struct Arena {
    mapping: Mapping,
    slot_bytes: usize,
    slots: usize,
    unused: Unused,
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
        let (slot_bytes, slots, bytes) = arena_size(slot_bytes, slots)?;
        Ok(Arc::new(Self {
            mapping: Mapping::new(bytes)?,
            slot_bytes,
            slots,
            unused: Unused::all(slots),
            file: None,
            owner: std::process::id(),
        }))
    }

    /// The same in an anonymous file, which can be handed to other processes.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn shared(slot_bytes: usize, slots: usize) -> Result<Arc<Self>, ArenaError> {
        let (slot_bytes, slots, bytes) = arena_size(slot_bytes, slots)?;
        let file = anonymous_file(bytes)?;
        Ok(Arc::new(Self {
            mapping: Mapping::of_file(&file, bytes)?,
            slot_bytes,
            slots,
            unused: Unused::all(slots),
            file: Some(file),
            owner: std::process::id(),
        }))
    }

    /// Memory for the batches of a job, made by `make`: for as many ahead as there may ever be, and so many held.
    /// Nothing is taken from the system for those that are never used, but it may refuse their addresses; then there is
    /// memory for those of the beginning, and what is prepared beyond them has a mapping of its own.
    ///
    /// # Errors
    /// When there is no memory for those of the beginning either.
    pub(crate) fn reserve(
        slot_bytes: usize,
        ahead: &Depth,
        held: usize,
        make: impl Fn(usize, usize) -> Result<Arc<Self>, ArenaError>,
    ) -> Result<Arc<Self>, ArenaError> {
        let most = ahead.most(slot_bytes as u64).saturating_add(held);
        make(slot_bytes, most).or_else(|_| make(slot_bytes, ahead.batches().saturating_add(held)))
    }

    /// A view of another process's shared arena. That process decides which slots are delivered here
    /// ([`Arena::adopt`]); `give_back` is called with each one that nobody here uses any more.
    ///
    /// # Errors
    /// When the file is smaller than it is said to be, or cannot be mapped.
    pub fn attach(
        file: OwnedFd,
        slot_bytes: usize,
        slots: usize,
        give_back: impl Fn(usize) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, ArenaError> {
        let (slot_bytes, slots, bytes) = arena_size(slot_bytes, slots)?;
        Ok(Arc::new(Self {
            mapping: Mapping::of_whole_file(&file, bytes)?,
            slot_bytes,
            slots,
            unused: Unused::Elsewhere(Box::new(give_back)),
            file: Some(file),
            owner: std::process::id(),
        }))
    }

    /// A slot that the owner of an attached arena has delivered here; `None` when there is no such slot.
    #[must_use]
    pub fn adopt(self: &Arc<Self>, slot: usize) -> Option<BatchMemory> {
        (slot < self.slots).then(|| BatchMemory { arena: Arc::clone(self), place: Place::Slot(slot) })
    }

    /// A batch that the owner of an attached arena has delivered in a file of its own.
    ///
    /// # Errors
    /// As [`Arena::attach`].
    pub fn adopt_file(self: &Arc<Self>, file: OwnedFd, bytes: usize) -> Result<BatchMemory, ArenaError> {
        let mapping = Mapping::of_whole_file(&file, bytes)?;
        Ok(BatchMemory { arena: Arc::clone(self), place: Place::Spilled(mapping, Some(file)) })
    }

    /// Bytes of a slot, and how many there are.
    #[must_use]
    pub fn slots(&self) -> (usize, usize) {
        (self.slot_bytes, self.slots)
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
        let slot = self.unused.take()?;
        Some(BatchMemory { arena: Arc::clone(self), place: Place::Slot(slot) })
    }

    /// Address and length of the whole arena, to be registered with a device once.
    #[must_use]
    pub fn range(&self) -> (usize, usize) {
        (self.mapping.start.as_ptr() as usize, self.mapping.bytes)
    }

    /// Where the whole arena begins. Which rows may be written to is for the engine to say.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.start.as_ptr()
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
                let bytes = bytes.max(self.slot_bytes);
                let place = if self.file.is_some() {
                    let file = anonymous_file(bytes)?;
                    Place::Spilled(Mapping::of_file(&file, bytes)?, Some(file))
                } else {
                    Place::Spilled(Mapping::new(bytes)?, None)
                };
                Ok(BatchMemory { arena: Arc::clone(self), place })
            }
        }
    }
}

/// Slots as they are laid out, their number and the bytes of all of them.
fn arena_size(slot_bytes: usize, slots: usize) -> Result<(usize, usize, usize), ArenaError> {
    let slots = slots.max(1);
    let slot_bytes = slot_bytes.max(1).checked_next_multiple_of(4096);
    let bytes = slot_bytes.and_then(|slot_bytes| slot_bytes.checked_mul(slots));
    match (slot_bytes, bytes) {
        (Some(slot_bytes), Some(bytes)) => Ok((slot_bytes, slots, bytes)),
        _ => Err(ArenaError {
            bytes: usize::MAX,
            source: std::io::Error::other("more bytes than the address space has"),
        }),
    }
}

/// A file without a name. Its size is sealed: pages that one process has mapped cannot be taken away by another.
fn anonymous_file(bytes: usize) -> Result<OwnedFd, ArenaError> {
    let refused = |errno: rustix::io::Errno| ArenaError { bytes, source: errno.into() };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("sutler-batches", flags).map_err(refused)?;
    rustix::fs::ftruncate(&file, bytes as u64).map_err(refused)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(refused)?;
    Ok(file)
}

enum Place {
    Slot(usize),
    /// Memory of its own, and the file behind it in a shared arena.
    Spilled(Mapping, Option<OwnedFd>),
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
            Place::Spilled(mapping, _) => mapping.bytes,
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
            Place::Spilled(..) => None,
        }
    }

    /// Which slot of the arena it is; `None` for memory outside of it.
    #[must_use]
    pub fn slot(&self) -> Option<usize> {
        match self.place {
            Place::Slot(slot) => Some(slot),
            Place::Spilled(..) => None,
        }
    }

    /// The file behind memory outside of a shared arena.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.place {
            Place::Slot(_) => None,
            Place::Spilled(_, file) => file.as_ref().map(AsFd::as_fd),
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
            Place::Spilled(mapping, _) => mapping.start.as_ptr(),
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
            self.arena.unused.give_back(slot);
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
    fn an_attached_arena_sees_what_its_owner_writes_and_gives_slots_back() {
        let owner = Arena::shared(10_000, 2).unwrap();
        let (slot_bytes, slots) = owner.slots();
        let mut written = owner.take(1000).unwrap();
        written.bytes_mut().fill(7);
        let returned = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&returned);
        let file = owner.file().unwrap().try_clone_to_owned().unwrap();
        let there =
            Arena::attach(file, slot_bytes, slots, move |slot| log.lock().unwrap().push(slot)).unwrap();
        let seen = there.adopt(written.slot().unwrap()).unwrap();
        assert_eq!(seen.bytes()[..1000], [7; 1000]);
        assert!(there.adopt(slots).is_none());
        drop(seen);
        assert_eq!(*returned.lock().unwrap(), [written.slot().unwrap()]);
        // A batch that found no slot has a file of its own, which can be handed over as well.
        let _second = owner.take(1000).unwrap();
        let mut spilled = owner.take(1000).unwrap();
        spilled.bytes_mut().fill(9);
        let file = spilled.file().unwrap().try_clone_to_owned().unwrap();
        let seen = there.adopt_file(file, spilled.len()).unwrap();
        drop(spilled);
        assert!(seen.bytes().iter().all(|&byte| byte == 9));
    }

    #[test]
    fn a_file_that_is_too_small_is_refused_and_none_can_be_shrunk() {
        let owner = Arena::shared(4096, 1).unwrap();
        let file = || owner.file().unwrap().try_clone_to_owned().unwrap();
        let error = Arena::attach(file(), 4096, 2, |_| ()).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("its file has 4096 bytes"), "{error}");
        assert!(rustix::fs::ftruncate(file(), 0).is_err());
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
    fn room_for_more_batches_costs_nothing_and_is_done_without_where_it_is_refused() {
        let depth = Depth::growing(4);
        let arena = Arena::reserve(1 << 20, &depth, 2, Arena::shared).unwrap();
        assert_eq!(arena.slots(), (1 << 20, 18));
        let pages = || rustix::fs::fstat(arena.file().unwrap()).unwrap().st_blocks;
        assert_eq!(pages(), 0);
        arena.take(1 << 20).unwrap().bytes_mut().fill(1);
        assert_eq!(pages() * 512, 1 << 20, "the one slot that was written to");
        let refuses = |bytes, slots| match slots {
            6 => Arena::new(bytes, slots),
            _ => Err(ArenaError { bytes, source: std::io::Error::other("no") }),
        };
        assert_eq!(Arena::reserve(4096, &depth, 2, refuses).unwrap().slots(), (4096, 6));
        assert!(Arena::reserve(4096, &depth, 3, refuses).is_err());
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert!(Arena::new(usize::MAX / 2, 8).is_err());
        let error = Arena::new(1 << 60, 1).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("lower batch_size"), "{error}");
    }
}
