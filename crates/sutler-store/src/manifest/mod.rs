//! A file that lists the samples: CSV or JSON Lines.
//!
//! ```text
//! path,label                      {"path": "tom.jpg", "label": "cat"}
//! tom.jpg,cat                     {"path": "rex.jpg", "label": "dog"}
//! rex.jpg,dog
//! ```
//!
//! Samples keep the order of the rows, and one file may appear in many of them. Labels are of one kind throughout:
//!
//! - whole numbers are used as they are, and [`Listing::classes`] is empty, since nobody said what they mean;
//! - names become indices into the sorted distinct names, which are the classes, as in a folder dataset;
//! - a manifest without labels gives every sample [`NO_LABEL`].
//!
//! CSV cannot say whether `7` is a number or a name: a label is a number when it is spelt as one (so `007` is a name).
//! Rows of both kinds are refused rather than guessed at; JSON Lines, where `"7"` is a name, has a way to write them.

mod json_lines;
mod table_text;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::listing::{Listing, NO_LABEL};
use crate::paths::{PathRefusal, Paths};
use crate::progress::Progress;
use crate::text::excerpt;

/// How a manifest is read.
#[derive(Clone, Debug, Default)]
pub struct ManifestOptions {
    /// The folder that relative paths start from; the manifest's own unless given.
    pub root: Option<PathBuf>,
    /// The columns of a CSV file without a first line that names them. One must be `path`, one may be `label`.
    pub columns: Option<Vec<String>>,
}

impl Listing {
    /// Lists the samples that a manifest names: `.csv`, `.tsv` (columns `path` and, if there are labels, `label`, in any
    /// order and among any others) or `.jsonl`, `.ndjson` (the same as the fields of an object on each line).
    ///
    /// The files themselves are not looked at until they are read.
    ///
    /// # Errors
    /// When the manifest is missing, is of another kind, names no samples, or has a row that makes no sense; the error
    /// says which.
    pub fn manifest(
        path: impl AsRef<Path>,
        options: &ManifestOptions,
        progress: &dyn Progress,
    ) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        let mut rows = Rows::new(path, progress);
        match extension.as_deref() {
            Some("csv") => table_text::read(open(path)?, b',', options.columns.as_deref(), &mut rows)?,
            Some("tsv") => table_text::read(open(path)?, b'\t', options.columns.as_deref(), &mut rows)?,
            Some("jsonl" | "ndjson") if options.columns.is_some() => {
                return Err(rows.refuse("JSON Lines have no columns to name", "Leave out columns"));
            }
            Some("jsonl" | "ndjson") => json_lines::read(open(path)?, &mut rows)?,
            _ => {
                return Err(rows.refuse(
                    "a manifest's kind is told by the end of its name",
                    "Name it .csv, .tsv, .jsonl or .ndjson",
                ));
            }
        }
        let root = match (&options.root, path.parent()) {
            (Some(root), _) => root,
            (None, Some(folder)) if folder != Path::new("") => folder,
            (None, _) => Path::new("."),
        };
        rows.into_listing(root)
    }
}

/// Opens a file that lists samples.
pub(crate) fn open(path: &Path) -> Result<File, StoreError> {
    let failure = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => StoreError::missing(path),
        _ => StoreError::Read { path: path.to_owned(), source },
    };
    let file = File::open(path).map_err(failure)?;
    if file.metadata().map_err(failure)?.is_dir() {
        return Err(StoreError::Manifest {
            path: path.to_owned(),
            line: None,
            reason: "this is a folder".into(),
            remedy: "Pass the manifest itself".into(),
        });
    }
    Ok(file)
}

/// A label as its row has it.
#[derive(Clone, Copy)]
enum Label<'a> {
    Number(i64),
    Name(&'a str),
}

/// What the rows so far have for labels; the first row decides.
enum Labels {
    Undecided,
    Absent,
    Numbers,
    /// Each name with its number in order of appearance, which is the sample's label until the last row is read.
    Names(HashMap<String, i64>),
}

/// The rows of a manifest on their way into a table.
struct Rows<'a> {
    manifest: &'a Path,
    paths: Paths<'a>,
    labels: Labels,
}

impl<'a> Rows<'a> {
    fn new(manifest: &'a Path, progress: &'a dyn Progress) -> Self {
        Self { manifest, paths: Paths::new(progress), labels: Labels::Undecided }
    }

    /// Adds a row. An error does not say which; the reader of the rows knows.
    fn push(&mut self, path: &[u8], label: Option<Label<'_>>) -> Result<(), StoreError> {
        let label = self.label(label)?;
        self.paths.push(path, label).map_err(|refusal| match refusal {
            PathRefusal::NoFile(reason) => self.refuse(&reason, "Give it the path of a file"),
            PathRefusal::TooMany(error) => error.into(),
        })
    }

    fn label(&mut self, label: Option<Label<'_>>) -> Result<i64, StoreError> {
        if let Labels::Undecided = self.labels {
            self.labels = match label {
                None => Labels::Absent,
                Some(Label::Number(_)) => Labels::Numbers,
                Some(Label::Name(_)) => Labels::Names(HashMap::new()),
            };
        }
        match (&mut self.labels, label) {
            (Labels::Absent, None) => Ok(NO_LABEL),
            (Labels::Numbers, Some(Label::Number(number))) => Ok(number),
            (Labels::Names(names), Some(Label::Name(name))) => Ok(match names.get(name) {
                Some(&number) => number,
                None => {
                    let number = names.len() as i64;
                    names.insert(name.to_owned(), number);
                    number
                }
            }),
            (before, label) => {
                let reason = format!(
                    "the row has {}, but those before it have {}",
                    described(label),
                    before.described()
                );
                Err(self.refuse(
                    &reason,
                    "Give every row a whole number, or every row a name (in JSON Lines, with quotes around it), or \
                     none a label",
                ))
            }
        }
    }

    fn refuse(&self, reason: &str, remedy: &str) -> StoreError {
        StoreError::Manifest {
            path: self.manifest.to_owned(),
            line: None,
            reason: reason.into(),
            remedy: remedy.into(),
        }
    }

    fn unreadable(&self, source: io::Error) -> StoreError {
        StoreError::Read { path: self.manifest.to_owned(), source }
    }

    fn into_listing(self, root: &Path) -> Result<Listing, StoreError> {
        let none = self.refuse("the manifest lists no samples", "Give it a row for each sample");
        let mut table = self.paths.into_table();
        if table.len() == 0 {
            return Err(none);
        }
        let Labels::Names(names) = self.labels else {
            return Ok(table.into_listing(root, Vec::new()));
        };
        let mut sorted: Vec<(String, i64)> = names.into_iter().collect();
        sorted.sort_unstable();
        let mut index = vec![0; sorted.len()];
        for ((_, appearance), label) in sorted.iter().zip(0..) {
            index[*appearance as usize] = label;
        }
        table.relabel(|appearance| index[appearance as usize]);
        Ok(table.into_listing(root, sorted.into_iter().map(|(name, _)| name).collect()))
    }
}

impl Labels {
    fn described(&self) -> &'static str {
        match self {
            Self::Undecided | Self::Absent => "none",
            Self::Numbers => "whole numbers",
            Self::Names(_) => "names",
        }
    }
}

fn described(label: Option<Label<'_>>) -> String {
    match label {
        None => "no label".into(),
        Some(Label::Number(number)) => format!("the whole number {number} for a label"),
        Some(Label::Name(name)) => format!("the name {:?} for a label", excerpt(name)),
    }
}
