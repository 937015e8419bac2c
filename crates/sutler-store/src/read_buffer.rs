//! A thread's own memory for reading, and the reading of a whole file into it.
//!
//! A file is opened, asked for its size, and read to its end by one `pread` in the usual case: the buffer is one byte
//! longer than the file, so an answer of exactly the file's size also proves that the file has not grown. Nothing is
//! allocated once the buffer has met the largest file and the longest path.
//!
//! Complications: what carries a sample's name may be a pipe that would block for ever (it is opened without waiting
//! and then refused), the size may change under the reader (an error that says so), a read may stop early (it goes on
//! from there), and direct I/O wants buffer, offset and length aligned (it goes on from the last aligned byte).

use std::ffi::{CStr, OsStr};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Advice, AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::error::StoreError;
use crate::files::Io;
use crate::filesystem;

/// Alignment for direct I/O where the kernel does not say: the size of a page, which every block device accepts.
const DIRECT_ALIGNMENT: usize = 4096;

/// From this size on the kernel is told that the whole file is wanted, so that it fetches more at once than it would
/// read ahead by itself. On a virtual disk a cold file of 4 MB then took 3.8 ms instead of 5.0; one of 110 kB, which
/// fits into a single read, took no less (0.30 ms) and would pay for one call more.
const ANNOUNCED_BYTES_MIN: u64 = 1 << 20;

/// A buffer beyond this is given back when a smaller file comes: 64 MiB in each of 64 threads make 4 GiB, and one giant
/// among the samples should not cost more than that for the rest of the run.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// The first allocation: most photographs fit, and growing by doubling from here ends soon for the others.
const FIRST_BYTES: usize = 256 << 10;

/// Memory for one sample at a time, and a count of what went through it. One for each thread.
#[derive(Debug, Default)]
pub struct ReadBuffer {
    /// The path of the file being read, with a zero at its end.
    path: Vec<u8>,
    /// All of it is initialised; what a sample does not use holds remains of earlier ones.
    bytes: Vec<u8>,
    samples_read: u64,
    bytes_read: u64,
}

impl ReadBuffer {
    /// How many samples were read through this buffer.
    #[must_use]
    pub fn samples_read(&self) -> u64 {
        self.samples_read
    }

    /// How many bytes were read: of all samples, and of parts that were read of some.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Reads the file whose path `write_path` writes.
    pub(crate) fn read_file(
        &mut self,
        write_path: impl FnOnce(&mut Vec<u8>),
        io: Io,
        bytes_max: u64,
    ) -> Result<&[u8], StoreError> {
        let (file, path, size) = open_sized(&mut self.path, write_path, io, bytes_max)?;
        let length = size as usize;
        let alignment = match io {
            Io::Buffered => {
                if size >= ANNOUNCED_BYTES_MIN {
                    // Advice that cannot be followed is no reason not to read.
                    let _ = rustix::fs::fadvise(&file, 0, NonZeroU64::new(size), Advice::WillNeed);
                }
                1
            }
            Io::Direct => direct_alignment(&file).ok_or_else(|| direct_refused(path))?,
        };

        let room = (length + 1).next_multiple_of(alignment);
        let start = make_room(&mut self.bytes, room, alignment);
        fill(&mut self.bytes[start..start + room], length, alignment, |space, offset| {
            rustix::io::pread(&file, space, offset)
        })
        .map_err(|failure| match failure {
            FillFailure::Changed { found } => StoreError::Changed {
                path: owned(path),
                bytes_opened: size,
                bytes_found: found.map(|bytes| bytes as u64),
            },
            FillFailure::System(Errno::INVAL) if io == Io::Direct => direct_refused(path),
            FillFailure::System(errno) => read_failure(path, errno),
        })?;
        self.samples_read += 1;
        self.bytes_read += size;
        Ok(&self.bytes[start..start + length])
    }

    /// Reads the first bytes of the file whose path `write_path` writes, at most so many, and tells how long it is. Through the page cache: so little
    /// is not worth going past it.
    pub(crate) fn read_start(
        &mut self,
        write_path: impl FnOnce(&mut Vec<u8>),
        bytes: usize,
        bytes_max: u64,
    ) -> Result<(&[u8], u64), StoreError> {
        let (file, path, size) = open_sized(&mut self.path, write_path, Io::Buffered, bytes_max)?;
        let wanted = bytes.min(size as usize);
        let start = make_room(&mut self.bytes, wanted, 1);
        read_exactly(&file, path, size, 0, &mut self.bytes[start..start + wanted])?;
        self.bytes_read += wanted as u64;
        Ok((&self.bytes[start..start + wanted], size))
    }

    /// Reads some ranges of the file whose path `write_path` writes, one after the other. Through the page cache: ranges begin and end where
    /// samples want it, and not where blocks of the disk do.
    pub(crate) fn read_ranges(
        &mut self,
        write_path: impl FnOnce(&mut Vec<u8>),
        ranges: &mut dyn Iterator<Item = Range<u64>>,
        bytes_max: u64,
    ) -> Result<&[u8], StoreError> {
        let (file, path, size) = open_sized(&mut self.path, write_path, Io::Buffered, bytes_max)?;
        let ranges: Vec<Range<u64>> = ranges.collect();
        // No range is longer than the file, or it would end beyond it.
        let wanted: u64 = ranges.iter().map(|range| range.end.saturating_sub(range.start).min(size)).sum();
        let start = make_room(&mut self.bytes, wanted as usize, 1);
        let mut filled = start;
        for range in ranges {
            let bytes = range.end.saturating_sub(range.start).min(size) as usize;
            read_exactly(&file, path, size, range.start, &mut self.bytes[filled..filled + bytes])?;
            filled += bytes;
        }
        self.samples_read += 1;
        self.bytes_read += wanted;
        Ok(&self.bytes[start..filled])
    }

    /// Room for so many bytes that come from elsewhere than a file, as `write` fills it; they do not count as read.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn fill_with<E>(
        &mut self,
        bytes: usize,
        write: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<&[u8], E> {
        let start = make_room(&mut self.bytes, bytes, 1);
        let room = &mut self.bytes[start..start + bytes];
        write(room)?;
        Ok(room)
    }

    /// Reads parts of an open file, one after the other; less than all of them where the file ends before.
    pub(crate) fn read_parts(&mut self, file: &impl AsFd, parts: &[(u64, usize)]) -> Result<&[u8], Errno> {
        let start = make_room(&mut self.bytes, parts.iter().map(|(_, length)| length).sum(), 1);
        let mut end = start;
        for &(offset, length) in parts {
            end += read_from(file, offset, &mut self.bytes[end..end + length])?;
        }
        self.samples_read += 1;
        self.bytes_read += (end - start) as u64;
        Ok(&self.bytes[start..end])
    }
}

/// Fills `space` from this place of the file on.
fn read_exactly(
    file: &OwnedFd,
    path: &CStr,
    size: u64,
    offset: u64,
    space: &mut [u8],
) -> Result<(), StoreError> {
    match read_from(file, offset, space) {
        Ok(filled) if filled == space.len() => Ok(()),
        Ok(filled) => {
            let bytes_found = Some(offset + filled as u64);
            Err(StoreError::Changed { path: owned(path), bytes_opened: size, bytes_found })
        }
        Err(errno) => Err(read_failure(path, errno)),
    }
}

/// Fills the space from a place in a file on, as far as the file goes, and tells how far that was.
fn read_from(file: &impl AsFd, offset: u64, space: &mut [u8]) -> Result<usize, Errno> {
    let mut filled = 0;
    while filled < space.len() {
        match rustix::io::pread(file, &mut space[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(filled)
}

/// Opens the file whose path `write_path` writes, which must be one and no larger than allowed, and tells its size.
fn open_sized(
    path: &mut Vec<u8>,
    write_path: impl FnOnce(&mut Vec<u8>),
    io: Io,
    bytes_max: u64,
) -> Result<(OwnedFd, &CStr, u64), StoreError> {
    write_path(path);
    path.push(0);
    let path = CStr::from_bytes_with_nul(path).map_err(|_| StoreError::Read {
        path: Path::new(OsStr::from_bytes(&path[..path.len() - 1])).into(),
        source: Errno::INVAL.into(),
    })?;
    let file = open(path, io)?;
    let size = regular_size(&file, path)?;
    if size > bytes_max || usize::try_from(size).is_err() {
        return Err(StoreError::TooLarge { path: owned(path), bytes: size, bytes_max });
    }
    Ok((file, path, size))
}

/// Makes `bytes` hold `length` aligned bytes and returns where they begin.
fn make_room(bytes: &mut Vec<u8>, length: usize, alignment: usize) -> usize {
    let needed = length + alignment - 1;
    if bytes.len() > KEPT_BYTES_MAX && needed <= KEPT_BYTES_MAX {
        *bytes = Vec::new();
    }
    if bytes.len() < needed {
        // The old contents are of no use, so they are let go before the new memory is taken.
        *bytes = Vec::new();
        *bytes = vec![0; needed.checked_next_power_of_two().unwrap_or(needed).max(FIRST_BYTES)];
    }
    bytes.as_ptr().align_offset(alignment)
}

/// Why a file's bytes did not arrive.
#[derive(Debug, PartialEq)]
enum FillFailure {
    System(Errno),
    /// It ended after `found` bytes, or went on past its size.
    Changed {
        found: Option<usize>,
    },
}

/// Reads exactly `length` bytes. `space` is longer than that, and a multiple of `alignment`.
fn fill(
    space: &mut [u8],
    length: usize,
    alignment: usize,
    mut read_at: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
) -> Result<(), FillFailure> {
    let mut filled = 0;
    loop {
        let offset = filled - filled % alignment;
        let end = match read_at(&mut space[offset..], offset as u64) {
            Ok(bytes) => offset + bytes,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(FillFailure::System(errno)),
        };
        if end == length {
            return Ok(());
        }
        if end > length {
            return Err(FillFailure::Changed { found: None });
        }
        if end <= filled {
            return Err(FillFailure::Changed { found: Some(filled) });
        }
        filled = end;
    }
}

fn open(path: &CStr, io: Io) -> Result<OwnedFd, StoreError> {
    // Without NONBLOCK, opening a pipe would wait for somebody to write to it.
    let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    if io == Io::Direct {
        flags |= OFlags::DIRECT;
    }
    rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
        // Sockets and some devices cannot be opened at all, and what they are explains it better than the error.
        Errno::NXIO | Errno::NODEV | Errno::INVAL => match rustix::fs::stat(path) {
            Ok(stat) if !is_regular(stat.st_mode) => not_a_file(path, stat.st_mode),
            Ok(_) if io == Io::Direct && errno == Errno::INVAL => direct_refused(path),
            _ => read_failure(path, errno),
        },
        _ => read_failure(path, errno),
    })
}

fn regular_size(file: &OwnedFd, path: &CStr) -> Result<u64, StoreError> {
    let stat = rustix::fs::fstat(file).map_err(|errno| read_failure(path, errno))?;
    if is_regular(stat.st_mode) { Ok(stat.st_size as u64) } else { Err(not_a_file(path, stat.st_mode)) }
}

fn is_regular(mode: u32) -> bool {
    FileType::from_raw_mode(mode) == FileType::RegularFile
}

/// What buffer, offset and length must be multiples of; nothing when the file cannot be read directly.
fn direct_alignment(file: &OwnedFd) -> Option<usize> {
    match rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(statx) if statx.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            let alignment = statx.stx_dio_mem_align.max(statx.stx_dio_offset_align) as usize;
            (alignment > 0).then(|| alignment.next_power_of_two())
        }
        // A kernel before 6.1, or a file system that does not say.
        _ => Some(DIRECT_ALIGNMENT),
    }
}

fn owned(path: &CStr) -> PathBuf {
    Path::new(OsStr::from_bytes(path.to_bytes())).into()
}

fn read_failure(path: &CStr, errno: Errno) -> StoreError {
    StoreError::Read { path: owned(path), source: errno.into() }
}

fn direct_refused(path: &CStr) -> StoreError {
    StoreError::DirectRefused { path: owned(path), filesystem: filesystem::name_at(path) }
}

fn not_a_file(path: &CStr, mode: u32) -> StoreError {
    let what = match FileType::from_raw_mode(mode) {
        FileType::Directory => "folder",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        _ => "special file",
    };
    StoreError::NotAFile { path: owned(path), what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads like a file system in a bad mood: `bites` limits each read in turn, zero standing for an interruption.
    fn moody<'a>(
        content: &'a [u8],
        bites: &'a [usize],
    ) -> impl FnMut(&mut [u8], u64) -> Result<usize, Errno> + use<'a> {
        let mut bites = bites.iter();
        move |space, offset| {
            let rest = &content[content.len().min(offset as usize)..];
            let bite = match bites.next() {
                Some(0) => return Err(Errno::INTR),
                Some(&bite) => bite,
                None => usize::MAX,
            };
            let bytes = rest.len().min(space.len()).min(bite);
            space[..bytes].copy_from_slice(&rest[..bytes]);
            Ok(bytes)
        }
    }

    fn filled(
        content: &[u8],
        length: usize,
        alignment: usize,
        bites: &[usize],
    ) -> Result<Vec<u8>, FillFailure> {
        let mut bytes = Vec::new();
        let room = (length + 1).next_multiple_of(alignment);
        let start = make_room(&mut bytes, room, alignment);
        assert_eq!(bytes[start..].as_ptr().align_offset(alignment), 0);
        fill(&mut bytes[start..start + room], length, alignment, moody(content, bites))?;
        Ok(bytes[start..start + length].to_vec())
    }

    proptest! {
        #[test]
        fn short_and_interrupted_reads_add_up(
            content in prop::collection::vec(any::<u8>(), 0..300),
            bites in prop::collection::vec(0..90usize, 0..9),
        ) {
            prop_assert_eq!(filled(&content, content.len(), 1, &bites).unwrap(), content);
        }

        #[test]
        fn aligned_reads_add_up(
            content in prop::collection::vec(any::<u8>(), 0..300),
            // Below the alignment a read would make no headway and count as the end of the file.
            bites in prop::collection::vec((16..90usize).prop_map(|bite| bite * 2), 0..9),
        ) {
            prop_assert_eq!(filled(&content, content.len(), 16, &bites).unwrap(), content);
        }
    }

    #[test]
    fn a_file_that_changes_its_size_is_noticed() {
        for alignment in [1, 16] {
            let shrunk = filled(&[7; 40], 64, alignment, &[]);
            assert_eq!(shrunk, Err(FillFailure::Changed { found: Some(40) }));
            let gone = filled(&[], 64, alignment, &[]);
            assert_eq!(gone, Err(FillFailure::Changed { found: Some(0) }));
            let grown = filled(&[7; 65], 64, alignment, &[]);
            assert_eq!(grown, Err(FillFailure::Changed { found: None }));
        }
    }

    #[test]
    fn other_errors_come_through() {
        let failure = fill(&mut [0; 8], 4, 1, |_, _| Err(Errno::IO));
        assert_eq!(failure, Err(FillFailure::System(Errno::IO)));
    }

    #[test]
    fn memory_is_kept_until_a_giant_has_passed() {
        let mut bytes = Vec::new();
        make_room(&mut bytes, 1000, 1);
        let first = bytes.as_ptr();
        make_room(&mut bytes, FIRST_BYTES, 1);
        assert_eq!(bytes.as_ptr(), first);
        make_room(&mut bytes, KEPT_BYTES_MAX + 1, 1);
        assert!(bytes.len() > KEPT_BYTES_MAX);
        make_room(&mut bytes, 1000, 1);
        assert_eq!(bytes.len(), FIRST_BYTES);
    }
}
