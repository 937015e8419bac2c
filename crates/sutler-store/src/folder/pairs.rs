//! Volumes and their labels, told apart by their names.
//!
//! There is no one way to name them, so three are understood, wherever they lie below the root: `case_7_x.npy` with `case_7_y.npy` (or other
//! pairs of words), `imaging.nii.gz` with `segmentation.nii.gz` in one folder, and `images/case_7.nii` with
//! `labels/case_7.nii`. A name is cut into what it says of the role and what is left, and the two files with the same rest are a
//! pair.
//!
//! A file without a partner is a sample all the same: reading it will say what is missing, which vanishing would not.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sutler_core::SampleId;

use super::FolderOptions;
use super::extensions::{Extensions, VOLUME_EXTENSIONS};
use super::walk::Walk;
use crate::error::StoreError;
use crate::listing::{Listing, NO_LABEL, Table, join};
use crate::progress::Progress;
use crate::text::{grouped, readable};

/// Words that tell an image from its labels, at the end of a name after an underscore.
const ENDINGS: [[&str; 2]; 4] = [["x", "y"], ["imaging", "segmentation"], ["image", "label"], ["img", "seg"]];

/// Those of them that may be a whole name.
const NAMES: [[&str; 2]; 2] = [["imaging", "segmentation"], ["image", "label"]];

/// How the names of folders begin that hold images, or labels: `images`, `imagesTr`.
const FOLDERS: [&str; 2] = ["images", "labels"];

/// What a file is to its sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Image,
    Labels,
}

use Role::{Image, Labels};

impl Role {
    const BOTH: [Self; 2] = [Image, Labels];

    fn name(self) -> &'static str {
        match self {
            Image => "image",
            Labels => "labels",
        }
    }
}

/// Where the word of a role was found, so that the partner's can be put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Words {
    ending: Option<[&'static str; 2]>,
    folder: bool,
}

/// A file name that says what it is.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    role: Role,
    /// What it has in common with its partner, and with nobody else.
    key: Vec<u8>,
    words: Words,
}

/// The files of a sample, relative to the root.
#[derive(Default)]
struct Pair {
    files: [Option<Vec<u8>>; 2],
    words: Option<Words>,
}

fn name(folder: &[u8], stem: &[u8]) -> Option<Named> {
    let mut key = Vec::new();
    let mut folder_role = None;
    for part in folder.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
        let found = Role::BOTH.into_iter().find(|&role| part.starts_with(FOLDERS[role as usize].as_bytes()));
        key.push(b'/');
        match found {
            Some(role) => {
                folder_role = Some(role);
                // No file name has a zero in it, so nothing else has this key.
                key.push(0);
                key.extend(&part[FOLDERS[role as usize].len()..]);
            }
            None => key.extend(part),
        }
    }
    key.push(b'/');
    let mut ending = None;
    for words in ENDINGS {
        for role in Role::BOTH {
            let word = words[role as usize].as_bytes();
            let rest = stem.strip_suffix(word);
            let rest = rest.and_then(|rest| match rest {
                [] => NAMES.contains(&words).then_some(rest),
                _ => rest.ends_with(b"_").then_some(rest),
            });
            if let Some(rest) = rest {
                ending = ending.or(Some((role, rest, words)));
            }
        }
    }
    key.extend(ending.map_or(stem, |(_, rest, _)| rest));
    let role = ending.map(|(role, ..)| role).or(folder_role)?;
    let words = Words { ending: ending.map(|(_, _, words)| words), folder: folder_role.is_some() };
    Some(Named { role, key, words })
}

/// Where the partner of a file should be.
fn partner_of(path: &[u8], role: Role, words: Words, extensions: &Extensions) -> Vec<u8> {
    let (ours, theirs) = (role as usize, 1 - role as usize);
    let at = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let (folder, name) = path.split_at(at);
    let mut partner = Vec::new();
    for part in folder.split_inclusive(|&byte| byte == b'/') {
        match part.strip_prefix(FOLDERS[ours].as_bytes()) {
            Some(rest) if words.folder => {
                partner.extend(FOLDERS[theirs].as_bytes());
                partner.extend(rest);
            }
            _ => partner.extend(part),
        }
    }
    match words.ending {
        None => partner.extend(name),
        Some(words) => {
            let stem = extensions.stem(name);
            partner.extend(stem.strip_suffix(words[ours].as_bytes()).unwrap_or(stem));
            partner.extend(words[theirs].as_bytes());
            partner.extend(&name[stem.len()..]);
        }
    }
    partner
}

impl Listing {
    /// Lists volumes and their labels, anywhere below the root, in the order of their names. A sample is the image; its labels are its
    /// [partner](Self::partners).
    ///
    /// # Errors
    /// When the root is missing, when there is no pair in it, when two files are the same part of one sample, when a folder cannot be read, and
    /// when links form a loop.
    pub fn volume_folder(
        root: impl AsRef<Path>,
        options: &FolderOptions,
        progress: &dyn Progress,
    ) -> Result<Self, StoreError> {
        let root = root.as_ref();
        let extensions = Extensions::new(&options.extensions);
        let walk = Walk { root, extensions: &extensions, in_classes: false, progress };
        let mut folders = walk.everything(options.threads)?;
        // Which of two files of one kind comes first should not depend on which thread was faster.
        folders.sort_unstable_by(|left, right| left.path.cmp(&right.path));
        let mut pairs: BTreeMap<Vec<u8>, Pair> = BTreeMap::new();
        let mut volumes: u64 = 0;
        for folder in &folders {
            // Names with a dot in front are not for us: some systems leave such files beside every other.
            for file in folder.names().filter(|name| !name.starts_with(b".")) {
                volumes += 1;
                let Some(named) = name(&folder.path, extensions.stem(file)) else { continue };
                let mut path = folder.path.clone();
                join(&mut path, file);
                let pair = pairs.entry(named.key).or_default();
                pair.words = Some(named.words);
                if let Some(first) = pair.files[named.role as usize].replace(path.clone()) {
                    let [first, second] = [first, path].map(|path| root.join(OsStr::from_bytes(&path)));
                    return Err(StoreError::TwoOfAKind { role: named.role.name(), first, second });
                }
            }
        }
        if !pairs.values().any(|pair| pair.files.iter().all(Option::is_some)) {
            let found = match volumes {
                0 => "There is no file with such an ending.".to_owned(),
                1 => "There is one volume, but nothing that goes with it.".to_owned(),
                _ => format!("There are {} volumes, but no two of them go together.", grouped(volumes)),
            };
            let extensions = extensions.shown().map(readable).collect();
            return Err(StoreError::NoPairs { root: root.to_owned(), extensions, found });
        }
        let mut tables = [Table::default(), Table::default()];
        for Pair { files, words } in pairs.into_values() {
            let Some(words) = words else { continue };
            let [image, labels] = &files;
            let of = |file: &Option<Vec<u8>>, role| {
                file.as_ref().map(|file| partner_of(file, role, words, &extensions))
            };
            let expected = [of(labels, Labels), of(image, Image)];
            for ((table, file), expected) in tables.iter_mut().zip(files).zip(expected) {
                let path = PathBuf::from(OsStr::from_bytes(&file.or(expected).unwrap_or_default()));
                let folder = path.parent().map_or(&b""[..], |folder| folder.as_os_str().as_bytes());
                let folder = table.add_folder(folder);
                let name = path.file_name().map_or(&b""[..], OsStr::as_bytes);
                table.push(folder, name, NO_LABEL)?;
            }
        }
        let [images, labels] = tables.map(|table| table.into_listing(root, Vec::new()));
        Ok(images.with_partners(labels))
    }
}

impl Listing {
    /// What a volume and its labels are both called: the path of either without its ending, and without the words that tell the one from the
    /// other; folders and name with underscores between them.
    ///
    /// # Panics
    /// When the id is not below [`len`](Self::len).
    #[must_use]
    pub fn pair_name(&self, id: SampleId) -> String {
        let entry = self.entry(id);
        let extensions = Extensions::new(&VOLUME_EXTENSIONS.map(String::from));
        let stem = extensions.stem(entry.name.as_bytes());
        let key = match name(entry.folder.as_os_str().as_bytes(), stem) {
            Some(named) => named.key,
            None => stem.to_vec(),
        };
        let parts = key.split(|&byte| byte == b'/').map(|part| part.strip_prefix(b"\0").unwrap_or(part));
        let parts: Vec<String> = parts.filter(|part| !part.is_empty()).map(readable).collect();
        let whole = parts.join("_");
        match whole.trim_end_matches('_') {
            "" => "volume".to_owned(),
            name => name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(folder: &str, stem: &str) -> Option<(Role, String)> {
        name(folder.as_bytes(), stem.as_bytes())
            .map(|named| (named.role, String::from_utf8(named.key).unwrap().replace('\0', "*")))
    }

    #[test]
    fn names_say_what_a_file_is() {
        for (folder, stem, role, key) in [
            ("", "case_7_x", Image, "/case_7_"),
            ("", "case_7_y", Labels, "/case_7_"),
            ("a", "case_seg", Labels, "/a/case_"),
            ("case_00001", "imaging", Image, "/case_00001/"),
            ("case_00001", "segmentation", Labels, "/case_00001/"),
            ("images", "7", Image, "/*/7"),
            ("labels", "7", Labels, "/*/7"),
            ("task/labelsTr", "liver_7", Labels, "/task/*Tr/liver_7"),
            ("images", "case_y", Labels, "/*/case_"),
        ] {
            assert_eq!(told(folder, stem), Some((role, key.to_owned())), "{folder}/{stem}");
        }
        for (folder, stem) in [("", "x"), ("", "seg"), ("", "case_7"), ("a", "prediction")] {
            assert_eq!(told(folder, stem), None, "{folder}/{stem}");
        }
    }

    #[test]
    fn a_missing_partner_is_looked_for_where_it_should_be() {
        let extensions = Extensions::new(&VOLUME_EXTENSIONS.map(String::from));
        for (folder, file, expected) in [
            ("", "case_7_x.npy", "case_7_y.npy"),
            ("a", "case_y.npy", "a/case_x.npy"),
            ("c/images", "7.nii.gz", "c/labels/7.nii.gz"),
            ("c", "segmentation.nii", "c/imaging.nii"),
            ("images", "x_x.npy", "labels/x_y.npy"),
        ] {
            let mut path = folder.as_bytes().to_vec();
            join(&mut path, file.as_bytes());
            let named = name(folder.as_bytes(), extensions.stem(file.as_bytes())).unwrap();
            let partner = partner_of(&path, named.role, named.words, &extensions);
            assert_eq!(String::from_utf8(partner).unwrap(), expected);
        }
    }
}
