//! Files of text, one sample on each line.
//!
//! A file is looked through once, when it is opened, for where its lines begin ([`index`]); from then on a line is one `pread`. What was found is kept
//! in a folder for the next process ([`saved`]), so that a large file need not be read twice. Nothing of the files stays in
//! memory.

mod find;
mod index;
mod open;
mod saved;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sutler_core::{Fingerprint, FingerprintBuilder, SampleId};

pub use find::{is_json_lines, is_text_file, text_files_in};
use index::{BYTE_ORDER_MARK, LineIndex};
use open::{Compression, decompress, index_plain};
pub use saved::SavedTables;

use crate::error::StoreError;
use crate::listing::NO_LABEL;
use crate::progress::Progress;
use crate::read_buffer::ReadBuffer;
use crate::source::Source;

/// So many files are held open; of more, each is opened for every line, at some microseconds. A process may usually have 1,024 files open.
const HELD_OPEN_MAX: usize = 256;

/// Indices of smaller files are not kept: reading so much takes milliseconds.
const SAVED_BYTES_MIN: u64 = 16 << 20;

/// How files of lines are read.
#[derive(Clone, Debug)]
pub struct LinesOptions {
    /// Whether lines of nothing but white space are samples, too.
    pub keep_blank: bool,
    /// Longer lines are refused.
    pub bytes_max: u64,
    /// Where indices are kept from one process to the next, if they are.
    pub tables: Option<SavedTables>,
    /// The folder on whose disk compressed files are unpacked, into files without a name.
    pub unpacked: PathBuf,
}

/// The lines of some files as a [`Source`].
#[derive(Debug)]
pub struct Lines {
    files: Vec<TextFile>,
    /// The first sample of each file, and at the end how many there are.
    firsts: Vec<u32>,
    bytes_max: u64,
    fingerprint: Fingerprint,
    not_saved: Option<io::Error>,
}

#[derive(Debug)]
struct TextFile {
    path: PathBuf,
    /// Where it is held open.
    file: Option<File>,
    index: LineIndex,
}

impl Lines {
    /// Opens these files and finds their lines.
    ///
    /// # Errors
    /// When a file is missing, cannot be read or decompressed, or there are more lines than can be numbered.
    pub fn open(
        paths: &[PathBuf],
        options: &LinesOptions,
        progress: &dyn Progress,
    ) -> Result<Self, StoreError> {
        let mut not_saved = None;
        let mut files: Vec<TextFile> = Vec::with_capacity(paths.len());
        let mut firsts = vec![0];
        let mut fingerprint = FingerprintBuilder::default();
        fingerprint.add("lines").add([u8::from(options.keep_blank)]);
        let mut samples = 0;
        for path in paths {
            let hold = files.len() < HELD_OPEN_MAX;
            let opened = TextFile::open(path, hold, options, progress, &mut not_saved)?;
            samples += opened.index.len();
            firsts.push(SampleId::check_count(samples)?);
            let name = path.file_name().unwrap_or_default();
            fingerprint.add(name.as_bytes()).add(opened.index.content.0.to_le_bytes());
            files.push(opened);
        }
        let fingerprint = fingerprint.finish();
        Ok(Self { files, firsts, bytes_max: options.bytes_max, fingerprint, not_saved })
    }

    /// Why an index could not be kept for next time, if it could not.
    #[must_use]
    pub fn not_saved(&self) -> Option<&io::Error> {
        self.not_saved.as_ref()
    }

    /// The files, in order.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// How many bytes the files have, decompressed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.index.bytes).sum()
    }

    /// How many bytes every line has, with its end and the blank lines behind it.
    pub fn line_bytes(&self) -> impl Iterator<Item = u32> {
        self.files.iter().flat_map(|file| file.index.strides.iter().copied())
    }

    /// The file of a sample, and which of its samples it is.
    fn locate(&self, id: SampleId) -> (&TextFile, usize) {
        let file = self.firsts.partition_point(|&first| first <= id.0) - 1;
        (&self.files[file], (id.0 - self.firsts[file]) as usize)
    }

    /// The file of a sample and the number of its line, counted from 1; no number where the file cannot be read any more.
    #[must_use]
    pub fn line_of(&self, id: SampleId) -> (&Path, Option<u64>) {
        let (file, sample) = self.locate(id);
        (&file.path, file.line_number(sample))
    }

    /// The same as text, as compilers write it.
    fn named(&self, id: SampleId) -> PathBuf {
        let (path, line) = self.line_of(id);
        let mut name = path.as_os_str().to_owned();
        name.push(line.map_or_else(String::new, |line| format!(":{line}")));
        name.into()
    }
}

impl TextFile {
    fn open(
        path: &Path,
        hold: bool,
        options: &LinesOptions,
        progress: &dyn Progress,
        not_saved: &mut Option<io::Error>,
    ) -> Result<Self, StoreError> {
        let file = open_file(path)?;
        if let Some(compression) = Compression::of(path) {
            let (unpacked, index) =
                decompress(&file, path, compression, &options.unpacked, options.keep_blank, progress)?;
            // There is no way back to it, so it is held open in any case.
            return Ok(Self { path: path.into(), file: Some(unpacked), index });
        }
        let state = state_of(&file, path, options.keep_blank)?;
        let tables = options.tables.as_ref().filter(|_| state.bytes >= SAVED_BYTES_MIN);
        let known = tables.and_then(|tables| tables.load_index(state.name));
        let index = match known {
            Some(index) if index.bytes == state.bytes => index,
            _ => {
                let index = index_plain(&file, path, options.keep_blank, progress)?;
                // Whoever wrote to the file meanwhile has made an index that fits neither state.
                if let Some(tables) = tables
                    && state_of(&file, path, options.keep_blank)?.name == state.name
                    && let Err(error) = tables.save_index(state.name, &index)
                {
                    // The lines are found either way; the caller tells the user.
                    *not_saved = Some(error);
                }
                index
            }
        };
        Ok(Self { path: path.into(), file: hold.then_some(file), index })
    }

    fn read<'a>(&self, parts: &[(u64, usize)], buffer: &'a mut ReadBuffer) -> Result<&'a [u8], StoreError> {
        let opened;
        let file = match &self.file {
            Some(file) => file,
            None => {
                opened = open_file(&self.path)?;
                &opened
            }
        };
        buffer
            .read_parts(file, parts)
            .map_err(|errno| StoreError::Read { path: self.path.clone(), source: errno.into() })
    }

    fn line_number(&self, sample: usize) -> Option<u64> {
        let (mark, _) = self.index.mark_before(sample);
        let (start, _) = self.index.place(sample);
        let mut buffer = ReadBuffer::default();
        let between =
            self.read(&[(mark.offset, usize::try_from(start - mark.offset).ok()?)], &mut buffer).ok()?;
        Some(mark.line + memchr::memchr_iter(b'\n', between).count() as u64)
    }
}

/// What a file's index is called as long as the file is as it is.
struct FileState {
    name: Fingerprint,
    bytes: u64,
}

fn state_of(file: &File, path: &Path, keep_blank: bool) -> Result<FileState, StoreError> {
    let failed = |source| StoreError::Read { path: path.into(), source };
    let metadata = file.metadata().map_err(failed)?;
    let mut name = FingerprintBuilder::default();
    name.add(std::path::absolute(path).map_err(failed)?.as_os_str().as_bytes());
    name.add([u8::from(keep_blank)]);
    for number in [metadata.len() as i64, metadata.mtime(), metadata.mtime_nsec(), metadata.ino() as i64] {
        name.add(number.to_le_bytes());
    }
    Ok(FileState { name: name.finish(), bytes: metadata.len() })
}

/// Opens a file, and refuses what is none before it can block for ever.
fn open_file(path: &Path) -> Result<File, StoreError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => StoreError::Missing { path: path.into() },
        _ => StoreError::Read { path: path.into(), source },
    };
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() { "folder" } else { "special file" };
        return Err(StoreError::NotAFile { path: path.into(), what });
    }
    File::open(path).map_err(failed)
}

impl Source for Lines {
    fn len(&self) -> usize {
        self.firsts.last().map_or(0, |&samples| samples as usize)
    }

    fn label(&self, _id: SampleId) -> i64 {
        NO_LABEL
    }

    fn describe(&self, id: SampleId) -> String {
        self.named(id).display().to_string()
    }

    fn read<'a>(&self, id: SampleId, buffer: &'a mut ReadBuffer) -> Result<&'a [u8], StoreError> {
        let (file, sample) = self.locate(id);
        let (start, stride) = file.index.place(sample);
        if u64::from(stride) > self.bytes_max {
            let path = self.named(id);
            return Err(StoreError::TooLarge { path, bytes: stride.into(), bytes_max: self.bytes_max });
        }
        // A byte more tells whether this is still the beginning of a line, and behind a last one without an end whether it is still the last.
        let before = usize::from(start > 0);
        let stride = stride as usize;
        let is_last = start + stride as u64 == file.index.bytes;
        let wanted = before + stride + usize::from(is_last);
        let bytes = file.read(&[(start - before as u64, wanted)], buffer)?;
        let after_mark = start == BYTE_ORDER_MARK.len() as u64 && bytes.first() == BYTE_ORDER_MARK.last();
        let begins = before == 0 || after_mark || bytes.first() == Some(&b'\n');
        let followed_by = bytes.get(before + stride);
        let line = bytes.get(before..before + stride).filter(|_| begins).and_then(|found| {
            let (line, behind) = match memchr::memchr(b'\n', found) {
                Some(end) => (&found[..end], &found[end + 1..]),
                None => (found, &found[stride..]),
            };
            let ends = found.ends_with(b"\n") || (is_last && matches!(followed_by, None | Some(b'\n')));
            (ends && behind.trim_ascii().is_empty()).then_some(line)
        });
        let line = line.ok_or_else(|| StoreError::LinesMoved { path: file.path.clone() })?;
        Ok(line.strip_suffix(b"\r").unwrap_or(line))
    }

    fn read_ranges<'a>(
        &self,
        id: SampleId,
        ranges: &mut dyn Iterator<Item = Range<u64>>,
        buffer: &'a mut ReadBuffer,
    ) -> Result<&'a [u8], StoreError> {
        let (file, sample) = self.locate(id);
        let (start, stride) = file.index.place(sample);
        let moved = || StoreError::LinesMoved { path: file.path.clone() };
        let ranges: Vec<Range<u64>> = ranges.collect();
        if ranges.iter().any(|range| range.end > u64::from(stride)) {
            return Err(moved());
        }
        let part = |range: &Range<u64>| (start + range.start, range.end.saturating_sub(range.start) as usize);
        let parts: Vec<(u64, usize)> = ranges.iter().map(part).collect();
        let bytes = file.read(&parts, buffer)?;
        let wanted: usize = parts.iter().map(|(_, length)| length).sum();
        if bytes.len() == wanted { Ok(bytes) } else { Err(moved()) }
    }

    fn encoded_bytes(&self, id: SampleId) -> Option<u64> {
        let (file, sample) = self.locate(id);
        Some(u64::from(file.index.strides[sample]))
    }

    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

#[cfg(test)]
mod tests;
