//! One mapping, private or in an anonymous file.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Where the memory of a cache comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// This process's own memory, in huge pages where the system has them.
    #[default]
    Private,
    /// An anonymous file, which can be handed to other processes. It has no name, so nothing is left behind.
    Shared,
}

pub(super) struct Region {
    start: NonNull<u8>,
    bytes: usize,
    file: Option<OwnedFd>,
}

// SAFETY: a Region is plain memory without thread affinity. Numbers in it are atomics; who may copy bytes in and out
// is the business of the callers of the two unsafe methods.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A zeroed region. Its pages are taken from the system when first written.
    pub fn new(bytes: usize, backing: Backing) -> std::io::Result<Self> {
        let bytes = bytes.max(1);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let nowhere = std::ptr::null_mut();
        let file = match backing {
            Backing::Private => None,
            Backing::Shared => {
                let file = rustix::fs::memfd_create("sutler-cache", MemfdFlags::CLOEXEC)?;
                rustix::fs::ftruncate(&file, bytes as u64)?;
                Some(file)
            }
        };
        // SAFETY: a new mapping at an address the kernel chooses overlaps nothing.
        let start = unsafe {
            match &file {
                None => rustix::mm::mmap_anonymous(
                    nowhere,
                    bytes,
                    protection,
                    MapFlags::PRIVATE | MapFlags::NORESERVE,
                ),
                Some(file) => rustix::mm::mmap(nowhere, bytes, protection, MapFlags::SHARED, file, 0),
            }
        }?;
        let start = NonNull::new(start.cast::<u8>())
            .ok_or_else(|| std::io::Error::other("the mapping is at address 0"))?;
        // Huge pages make the first touch several times cheaper; a kernel without them says no, and that is fine.
        // SAFETY: the range is the mapping just made, and the advice changes no contents.
        let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        Ok(Self { start, bytes, file })
    }

    /// A region that another process has made, to be read only.
    pub fn open(file: OwnedFd, bytes: usize) -> std::io::Result<Self> {
        let there = rustix::fs::fstat(&file)?.st_size;
        if usize::try_from(there).is_ok_and(|there| there < bytes) {
            return Err(std::io::Error::other(format!("the memory has {there} bytes, not {bytes}")));
        }
        // SAFETY: a new mapping at an address the kernel chooses overlaps nothing, and it lies inside the file.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, &file, 0)
        }?;
        let start = NonNull::new(start.cast::<u8>())
            .ok_or_else(|| std::io::Error::other("the mapping is at address 0"))?;
        Ok(Self { start, bytes, file: Some(file) })
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// `count` numbers that begin at `offset`.
    pub fn numbers(&self, offset: usize, count: usize) -> &[AtomicU32] {
        self.check(offset, count * 4, 4);
        // SAFETY: in range and aligned by the check (a mapping begins at a page); any bytes make an atomic, and nobody
        // reaches this part of the region in another way.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset).cast(), count) }
    }

    /// `count` long numbers that begin at `offset`.
    pub fn long_numbers(&self, offset: usize, count: usize) -> &[AtomicU64] {
        self.check(offset, count * 8, 8);
        // SAFETY: as for `numbers`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset).cast(), count) }
    }

    /// Copies from the region.
    ///
    /// # Safety
    /// Nobody may write to this part of the region at the same time.
    pub unsafe fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.check(offset, bytes.len(), 1);
        // SAFETY: in range by the check, unwritten by the caller's promise; a unique borrow cannot overlap the mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), bytes.as_mut_ptr(), bytes.len());
        }
    }

    /// Copies into the region.
    ///
    /// # Safety
    /// Nobody may read or write this part of the region at the same time.
    pub unsafe fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len(), 1);
        // SAFETY: in range by the check, untouched by the caller's promise; nobody has a slice over the region's bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(offset), bytes.len());
        }
    }

    /// Gives whole pages back to the system; they are zero from then on. A system that does not want them leaves them as they are, which does no
    /// harm but to the memory it could have had.
    ///
    /// # Safety
    /// Nobody may read or write this part of the region at the same time, or count on what is in it.
    pub unsafe fn give_back(&self, offset: usize, bytes: usize) {
        self.check(offset, bytes, 1);
        let advice = if self.file.is_some() { Advice::LinuxRemove } else { Advice::LinuxDontNeed };
        // SAFETY: in range by the check, and nobody's by the caller's promise.
        let _ = unsafe { rustix::mm::madvise(self.start.as_ptr().add(offset).cast(), bytes, advice) };
    }

    fn check(&self, offset: usize, bytes: usize, alignment: usize) {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(inside && offset.is_multiple_of(alignment), "a part outside the region");
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`; everything handed out from it borrows the region.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
