//! Indices of lines and counts of tokens, kept in a folder from one process to the next.
//!
//! Finding the lines of a large file takes as long as reading it. What was found is kept under a name made of what it was found in
//! (path, size, time of the last change), so a file that has changed has no index, and an old one is never looked at again. The last eight bytes
//! are a checksum: a file that was cut short or altered counts as none.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sutler_core::Fingerprint;
use twox_hash::XxHash3_64;

use super::index::{LineIndex, Mark};

/// Changes with the format.
const VERSION: u32 = 1;

/// A folder of such files.
#[derive(Clone, Debug)]
pub struct SavedTables {
    folder: PathBuf,
}

impl SavedTables {
    /// Tables in this folder, which is made when the first is saved.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Where they are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, name: Fingerprint, kind: &str) -> PathBuf {
        self.folder.join(format!("{name}.v{VERSION}.{kind}"))
    }

    fn load(&self, name: Fingerprint, kind: &str) -> Option<Vec<u8>> {
        let mut bytes = fs::read(self.path(name, kind)).ok()?;
        let (content, checksum) = bytes.split_last_chunk::<8>()?;
        if XxHash3_64::oneshot(content) != u64::from_le_bytes(*checksum) {
            return None;
        }
        bytes.truncate(bytes.len() - 8);
        Some(bytes)
    }

    /// Writes a table under another name first, so that nobody ever finds half of one.
    fn save(&self, name: Fingerprint, kind: &str, mut content: Vec<u8>) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        content.extend(XxHash3_64::oneshot(&content).to_le_bytes());
        let path = self.path(name, kind);
        let draft = path.with_extension(format!("{kind}.{}", std::process::id()));
        let written = fs::File::create(&draft).and_then(|mut file| file.write_all(&content));
        let moved = written.and_then(|()| fs::rename(&draft, &path));
        if moved.is_err() {
            // It may not be there at all; the first error is the one to tell.
            let _ = fs::remove_file(&draft);
        }
        moved
    }

    /// How many tokens each line has, if that was saved under this name.
    #[must_use]
    pub fn load_counts(&self, name: Fingerprint) -> Option<Vec<u32>> {
        let bytes = self.load(name, "tokens")?;
        bytes.len().is_multiple_of(4).then(|| numbers(&bytes))
    }

    /// Saves how many tokens each line has.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save_counts(&self, name: Fingerprint, counts: &[u32]) -> io::Result<()> {
        self.save(name, "tokens", counts.iter().flat_map(|count| count.to_le_bytes()).collect())
    }

    pub(super) fn load_index(&self, name: Fingerprint) -> Option<LineIndex> {
        let bytes = self.load(name, "lines")?;
        let (bytes_in_file, rest) = bytes.split_first_chunk::<8>()?;
        let (content, rest) = rest.split_first_chunk::<16>()?;
        let (samples, rest) = rest.split_first_chunk::<8>()?;
        let strides = usize::try_from(u64::from_le_bytes(*samples)).ok()?.checked_mul(4)?;
        let (strides, marks) = rest.split_at_checked(strides)?;
        let (marks, []) = marks.as_chunks::<16>() else { return None };
        let mark = |bytes: &[u8; 16]| {
            let both = u128::from_le_bytes(*bytes);
            Mark { offset: both as u64, line: (both >> 64) as u64 }
        };
        let index = LineIndex {
            strides: numbers(strides),
            marks: marks.iter().map(mark).collect(),
            bytes: u64::from_le_bytes(*bytes_in_file),
            content: Fingerprint(u128::from_le_bytes(*content)),
        };
        index.is_whole().then_some(index)
    }

    pub(super) fn save_index(&self, name: Fingerprint, index: &LineIndex) -> io::Result<()> {
        let mut content = Vec::with_capacity(40 + index.strides.len() * 4 + index.marks.len() * 16);
        content.extend(index.bytes.to_le_bytes());
        content.extend(index.content.0.to_le_bytes());
        content.extend((index.strides.len() as u64).to_le_bytes());
        content.extend(index.strides.iter().flat_map(|stride| stride.to_le_bytes()));
        for mark in &index.marks {
            content.extend(mark.offset.to_le_bytes());
            content.extend(mark.line.to_le_bytes());
        }
        self.save(name, "lines", content)
    }
}

fn numbers(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::index::Indexer;
    use super::*;

    #[test]
    fn what_was_saved_is_found_and_what_was_damaged_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let tables = SavedTables::new(folder.path().join("made/when/needed"));
        let name = Fingerprint(7);
        let mut indexer = Indexer::new(false);
        indexer.push("one\n\ntwo\n".repeat(100).as_bytes()).unwrap();
        let index = indexer.finish().unwrap();
        assert_eq!(tables.load_index(name), None);
        tables.save_index(name, &index).unwrap();
        assert_eq!(tables.load_index(name), Some(index));
        tables.save_counts(name, &[3, 0, u32::MAX]).unwrap();
        assert_eq!(tables.load_counts(name), Some(vec![3, 0, u32::MAX]));
        assert_eq!(tables.load_counts(Fingerprint(8)), None);

        let path = tables.path(name, "lines");
        let whole = fs::read(&path).unwrap();
        for length in [0, 7, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(tables.load_index(name), None, "cut to {length} bytes");
        }
        let mut altered = whole.clone();
        altered[whole.len() / 2] ^= 1;
        fs::write(&path, altered).unwrap();
        assert_eq!(tables.load_index(name), None);
    }
}
