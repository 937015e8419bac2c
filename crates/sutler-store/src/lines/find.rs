//! Which files of a folder are text.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::text::code_point_order;

/// What the name of a file of text ends in, perhaps followed by `.gz` or `.zst`.
const TEXT_EXTENSIONS: [&str; 5] = [".txt", ".text", ".jsonl", ".ndjson", ".json"];

/// The same for files with a JSON object on each line.
const JSON_EXTENSIONS: [&str; 3] = [".jsonl", ".ndjson", ".json"];

/// Whether a file is text by its name.
#[must_use]
pub fn is_text_file(path: &Path) -> bool {
    ends_in(path, &TEXT_EXTENSIONS)
}

/// Whether a file has a JSON object on each line by its name.
#[must_use]
pub fn is_json_lines(path: &Path) -> bool {
    ends_in(path, &JSON_EXTENSIONS)
}

fn ends_in(path: &Path, extensions: &[&str]) -> bool {
    let Some(name) = path.file_name() else { return false };
    let name = name.to_string_lossy().to_ascii_lowercase();
    let plain = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(&name);
    extensions.iter().any(|extension| plain.len() > extension.len() && plain.ends_with(extension))
}

/// The files of text anywhere below a folder, in the order of their paths. Hidden files and folders are passed over.
///
/// # Errors
/// When a folder cannot be read, or there is no such file.
pub fn text_files_in(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let failed = |source| StoreError::List { path: folder.clone(), source };
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name().as_bytes().starts_with(b".") {
                continue;
            }
            // Links to folders are not followed: one may lead back up.
            if entry.file_type().map_err(failed)?.is_dir() {
                folders.push(entry.path());
            } else if is_text_file(&entry.path()) {
                found.push(entry.path());
            }
        }
    }
    if found.is_empty() {
        let extensions = TEXT_EXTENSIONS.map(String::from).into();
        return Err(StoreError::NoText { path: folder.into(), extensions });
    }
    found.sort_by(|left, right| code_point_order(left.as_os_str().as_bytes(), right.as_os_str().as_bytes()));
    Ok(found)
}
