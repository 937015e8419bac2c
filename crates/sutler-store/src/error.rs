//! What can go wrong between a path and its bytes.

use std::io;
use std::path::PathBuf;

use sutler_core::DatasetTooLarge;

use crate::text::grouped;

/// Why a listing could not be made or a sample could not be read.
///
/// Every message is made of whole sentences: what was wanted, why it failed, what to do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The root of a folder dataset, or a manifest, is not there.
    #[error("There is nothing at {}. Check the path{}.", path.display(), working_directory(path))]
    Missing {
        /// The path as it was given.
        path: PathBuf,
    },

    /// Storage that is none of the file system's.
    #[error(
        "{} cannot be read: {scheme}:// is not supported yet, only folders and files of a local or mounted file system \
         are. {}.",
        path.display(), scheme_remedy(scheme)
    )]
    Scheme {
        /// The path as it was given.
        path: PathBuf,
        /// What stands before the colon.
        scheme: String,
    },

    /// A dataset folder turned out to be something else.
    #[error(
        "{} is not a folder. {}.",
        path.display(),
        if *classes {
            "Pass the folder that holds one folder for each class, or list the samples in a manifest"
        } else {
            "Pass the folder below which the files and those that belong to them lie"
        }
    )]
    NotAFolder {
        /// The path as it was given.
        path: PathBuf,
        /// Whether it should hold a folder for each class.
        classes: bool,
    },

    /// A folder dataset without a single class.
    #[error("Couldn't find any class folder in {}. {found}", root.display())]
    NoClasses {
        /// The dataset's folder.
        root: PathBuf,
        /// What is there instead, and what to do about it.
        found: String,
    },

    /// Classes without samples.
    #[error(
        "Found no valid file for the classes {}. Supported extensions are: {}. {found}",
        shortened(classes), extensions.join(", ")
    )]
    EmptyClasses {
        /// The classes in question, sorted.
        classes: Vec<String>,
        /// The extensions that were looked for.
        extensions: Vec<String>,
        /// What is there instead, and what to do about it.
        found: String,
    },

    /// A folder of volumes without a pair of image and labels.
    #[error(
        "Found no volume with labels in {}. {found} A pair is case_x.npy and case_y.npy, imaging.nii.gz and \
         segmentation.nii.gz in a folder, or one name in a folder images and a folder labels; endings may be {}.",
        root.display(), extensions.join(", ")
    )]
    NoPairs {
        /// The dataset's folder.
        root: PathBuf,
        /// The extensions that were looked for.
        extensions: Vec<String>,
        /// What is there instead.
        found: String,
    },

    /// Two files that are the same part of one sample.
    #[error("{} and {} are both the {role} of one sample. Move one of them out of the dataset.", first.display(), second.display())]
    TwoOfAKind {
        /// Image or labels.
        role: &'static str,
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },

    /// A folder that contains itself by way of a link.
    #[error(
        "{} leads back to {}, in which it lies, so walking it would never end. Remove that link.",
        link.display(), target.display()
    )]
    LinkLoop {
        /// The folder that was reached for the second time.
        link: PathBuf,
        /// Where it was reached the first time.
        target: PathBuf,
    },

    /// A folder could not be read while listing.
    #[error("Cannot list {}: {source}. {}.", path.display(), remedy(source, "the folder"))]
    List {
        /// The folder, or the link in it that could not be followed.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// A manifest that makes no sense.
    #[error("{}{}: {reason}. {remedy}.", path.display(), line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// Where in it, counted from 1; nothing when it is about the file as a whole.
        line: Option<u64>,
        /// What is wrong.
        reason: String,
        /// What to do.
        remedy: String,
    },

    /// More samples than ids.
    #[error(transparent)]
    TooManySamples(#[from] DatasetTooLarge),

    /// A file could not be opened or read.
    #[error("Cannot read {}: {source}. {}.", path.display(), remedy(source, "the file"))]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// A sample that is a folder, a pipe, a socket or a device.
    #[error("{} is a {what}, not a file. Take it out of the dataset.", path.display())]
    NotAFile {
        /// The sample's path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },

    /// A file larger than the limit; nothing of it was read.
    #[error(
        "{} has {} bytes, more than the limit of {} for one sample. Take it out of the dataset or raise bytes_max.",
        path.display(), grouped(*bytes), grouped(*bytes_max)
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },

    /// A file changed its size between being opened and being read.
    #[error(
        "{} had {} bytes when it was opened and {} when it had been read: something is writing to it. Wait until the \
         dataset is complete.",
        path.display(), grouped(*bytes_opened), found_bytes(*bytes_found)
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Its size when it was opened.
        bytes_opened: u64,
        /// How many bytes it gave before it ended; nothing when it went on past its size.
        bytes_found: Option<u64>,
    },

    /// A file of lines is not the one whose lines were found.
    #[error(
        "{} was changed after its lines had been found: what was a line is none any more. Make the dataset \
         anew once nobody writes to the file.",
        path.display()
    )]
    LinesMoved {
        /// The file.
        path: PathBuf,
    },

    /// A line that is no sample's.
    #[error(
        "{}:{line} has more than 4 GiB. One line is one sample; check that the file is text with line ends.",
        path.display()
    )]
    LongLine {
        /// The file.
        path: PathBuf,
        /// Which line, counted from 1.
        line: u64,
    },

    /// A compressed file that cannot be read.
    #[error("Cannot decompress {}: {reason}. Fetch or compress the file anew.", path.display())]
    Compressed {
        /// The file.
        path: PathBuf,
        /// What the decoder said.
        reason: String,
    },

    /// There is nowhere to put what was in a compressed file.
    #[error(
        "Cannot decompress {} into {}: {source}. Make room there, pass another cache_folder, or decompress the file \
         yourself.",
        path.display(), folder.display()
    )]
    NoRoom {
        /// The compressed file.
        path: PathBuf,
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// A folder without files of text.
    #[error(
        "There are no files of text in {}: none ends in {}, perhaps followed by .gz or .zst. Pass the files \
         themselves, or a pattern such as \"folder/*.log\".",
        path.display(), extensions.join(", ")
    )]
    NoText {
        /// The folder.
        path: PathBuf,
        /// What was looked for.
        extensions: Vec<String>,
    },

    /// The file system does not do direct I/O.
    #[error(
        "{} cannot be read past the page cache: its file system ({filesystem}) refuses direct I/O. Pass io=\"buffered\".",
        path.display()
    )]
    DirectRefused {
        /// The file.
        path: PathBuf,
        /// The name of the file system, or its number when the name is not known.
        filesystem: String,
    },
}

impl StoreError {
    /// There is nothing at a path, which may be because it is none.
    pub(crate) fn missing(path: &std::path::Path) -> Self {
        let path = path.to_owned();
        match scheme(&path) {
            Some(scheme) => Self::Scheme { scheme: scheme.to_owned(), path },
            None => Self::Missing { path },
        }
    }

    /// Adds the line to an error about a manifest that does not know it yet.
    pub(crate) fn at_line(mut self, number: impl FnOnce() -> Option<u64>) -> Self {
        if let Self::Manifest { line: line @ None, .. } = &mut self {
            *line = number();
        }
        self
    }

    /// A stable word for the kind of failure, for counters and for the choice of a Python exception.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "missing",
            Self::Scheme { .. } => "scheme",
            Self::NotAFolder { .. } => "not_a_folder",
            Self::NoClasses { .. } => "no_classes",
            Self::EmptyClasses { .. } => "empty_classes",
            Self::NoPairs { .. } => "no_pairs",
            Self::TwoOfAKind { .. } => "two_of_a_kind",
            Self::LinkLoop { .. } => "link_loop",
            Self::Manifest { .. } => "manifest",
            Self::TooManySamples(_) => "too_many_samples",
            Self::NotAFile { .. } => "not_a_file",
            Self::TooLarge { .. } => "too_large",
            Self::Changed { .. } | Self::LinesMoved { .. } => "changed",
            Self::LongLine { .. } => "too_large",
            Self::Compressed { .. } => "compressed",
            Self::NoRoom { .. } => "no_room",
            Self::NoText { .. } => "missing",
            Self::DirectRefused { .. } => "direct_refused",
            Self::List { source, .. } | Self::Read { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => "missing",
                io::ErrorKind::PermissionDenied => "denied",
                _ => "io",
            },
        }
    }
}

/// What a URL begins with. One slash is enough: whoever makes paths of URLs merges the two.
fn scheme(path: &std::path::Path) -> Option<&str> {
    let (scheme, _) = path.to_str()?.split_once(":/")?;
    let named = scheme.len() > 1 && scheme.starts_with(|letter: char| letter.is_ascii_alphabetic());
    let usual = |letter: char| letter.is_ascii_alphanumeric() || "+.-".contains(letter);
    (named && scheme.chars().all(usual)).then_some(scheme)
}

fn scheme_remedy(scheme: &str) -> &'static str {
    match scheme {
        "file" => "Pass the path alone, without file://",
        _ => "Mount the storage, or copy the dataset to a disk, and pass that path",
    }
}

/// A relative path means nothing without the folder it starts from.
fn working_directory(path: &std::path::Path) -> String {
    match std::env::current_dir() {
        Ok(directory) if path.is_relative() => format!(", which starts from {}", directory.display()),
        _ => String::new(),
    }
}

fn remedy(source: &io::Error, thing: &str) -> String {
    match source.kind() {
        io::ErrorKind::NotFound => {
            format!(
                "Check that {thing} was not moved since it was listed, and that no link on the way is broken"
            )
        }
        io::ErrorKind::PermissionDenied => {
            format!(
                "Give this user the right to read {thing} and to enter each folder above it (chmod -R a+rX)"
            )
        }
        _ if source.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => {
            "Raise the limit on open files (ulimit -n)".into()
        }
        _ => format!("Check the storage on which {thing} lies"),
    }
}

fn found_bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "more".into(), grouped)
}

/// The names, at most twenty of them: a wrong root can leave thousands of classes empty.
fn shortened(names: &[String]) -> String {
    const NAMES_MAX: usize = 20;
    let shown = names[..names.len().min(NAMES_MAX)].join(", ");
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        more => format!("{shown} and {} more", grouped(more as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_not_just_missing() {
        let told = |path: &str| StoreError::missing(path.as_ref()).to_string();
        assert_eq!(
            told("s3://bucket/train"),
            "s3://bucket/train cannot be read: s3:// is not supported yet, only folders and files of a local or mounted \
             file system are. Mount the storage, or copy the dataset to a disk, and pass that path."
        );
        assert!(
            told("gs:/bucket/train").contains("gs:// is not supported yet"),
            "two slashes may have become one"
        );
        assert!(told("file:///data").ends_with("Pass the path alone, without file://."));
        for path in ["/data/train", "train", "a b:/c", "1:/x", "c:/x", ":/x"] {
            assert!(told(path).starts_with("There is nothing at"), "{path}");
        }
    }
}
