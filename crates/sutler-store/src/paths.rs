//! Samples that a file names by their paths, on their way into a listing.

use std::collections::HashMap;

use sutler_core::DatasetTooLarge;

use crate::listing::Table;
use crate::progress::Progress;

/// Longer paths cannot be opened (Linux's `PATH_MAX`, which counts a zero at the end).
const PATH_BYTES_MAX: usize = 4095;

/// Progress is told every so many rows, a few milliseconds apart.
const PROGRESS_ROWS: u64 = 16_384;

/// Why a path is not taken.
pub(crate) enum PathRefusal {
    /// It is the path of no file.
    NoFile(String),
    /// There are too many.
    TooMany(DatasetTooLarge),
}

/// The samples so far.
pub(crate) struct Paths<'a> {
    progress: &'a dyn Progress,
    unreported: u64,
    table: Table,
    folders: HashMap<Box<[u8]>, u32>,
}

impl<'a> Paths<'a> {
    pub(crate) fn new(progress: &'a dyn Progress) -> Self {
        Self { progress, unreported: 0, table: Table::default(), folders: HashMap::new() }
    }

    /// Adds a sample.
    pub(crate) fn push(&mut self, path: &[u8], label: i64) -> Result<(), PathRefusal> {
        let (folder, name) = split(path).map_err(PathRefusal::NoFile)?;
        let folder = match self.folders.get(folder) {
            Some(&number) => number,
            None => {
                let number = self.table.add_folder(folder);
                self.folders.insert(folder.into(), number);
                number
            }
        };
        self.table.push(folder, name, label).map_err(PathRefusal::TooMany)?;
        self.unreported += 1;
        if self.unreported == PROGRESS_ROWS {
            self.report();
        }
        Ok(())
    }

    fn report(&mut self) {
        self.progress.listed(std::mem::take(&mut self.unreported));
    }

    /// All of them.
    pub(crate) fn into_table(mut self) -> Table {
        self.report();
        self.table
    }
}

/// The folder and the name in a path.
fn split(path: &[u8]) -> Result<(&[u8], &[u8]), String> {
    let slash = path.iter().rposition(|&byte| byte == b'/');
    let (folder, name) = match slash {
        // The root of the file system is the one folder whose slash is all it has.
        Some(0) => path.split_at(1),
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&b""[..], path),
    };
    if path.is_empty() {
        Err("the row has no path".to_owned())
    } else if name.is_empty() {
        Err("the path ends in a slash, as that of a folder does".to_owned())
    } else if path.contains(&0) {
        Err("the path has a zero byte in it, which no file name has".to_owned())
    } else if path.len() > PATH_BYTES_MAX {
        Err(format!("the path has {} bytes, more than the {PATH_BYTES_MAX} that can be opened", path.len()))
    } else {
        Ok((folder, name))
    }
}
