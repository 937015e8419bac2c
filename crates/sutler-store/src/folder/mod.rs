//! A folder with one folder for each class, read as torchvision's `ImageFolder` reads it.
//!
//! Classes are the folders directly under the root, sorted. A class's samples are the files anywhere below it: its
//! folders are taken in the order of their whole paths, the files of one folder in the order of their names. So
//! `cat/a b/…` comes before `cat/a/c/…`, since a space sorts before a slash. Ids and labels then equal the indices and
//! targets that a torchvision user has in old checkpoints and notebooks.
//!
//! Two things differ, both where torchvision would lose data without a word: a folder that may not be read is an error
//! rather than skipped, and a link that leads back up is an error rather than forty copies of each sample.

mod extensions;
mod leftovers;
mod pairs;
mod walk;

use std::path::Path;

use extensions::Extensions;
pub use extensions::{AUDIO_EXTENSIONS, IMAGE_EXTENSIONS, VOLUME_EXTENSIONS};
use leftovers::Leftovers;
use walk::Walk;

use crate::error::StoreError;
use crate::listing::{Listing, Table};
use crate::progress::Progress;
use crate::text::{code_point_order, readable};

/// How a folder dataset is listed.
#[derive(Clone, Debug)]
pub struct FolderOptions {
    /// What the name of a sample ends in, compared without regard to case.
    pub extensions: Vec<String>,
    /// Whether a class may have no samples.
    pub allow_empty: bool,
    /// How many threads list at the same time.
    pub threads: usize,
}

impl Default for FolderOptions {
    /// torchvision's extensions; no empty classes; four to sixteen threads.
    fn default() -> Self {
        // Four even on a small machine: on network storage a thread spends its time waiting for the answer.
        let threads = std::thread::available_parallelism().map_or(4, |cores| cores.get().clamp(4, 16));
        Self { extensions: IMAGE_EXTENSIONS.map(String::from).into(), allow_empty: false, threads }
    }
}

impl FolderOptions {
    /// The same for sound files.
    #[must_use]
    pub fn audio() -> Self {
        Self { extensions: AUDIO_EXTENSIONS.map(String::from).into(), ..Self::default() }
    }

    /// The same for volumes.
    #[must_use]
    pub fn volumes() -> Self {
        Self { extensions: VOLUME_EXTENSIONS.map(String::from).into(), ..Self::default() }
    }
}

impl Listing {
    /// Lists a folder that holds one folder for each class.
    ///
    /// # Errors
    /// When the root is missing or has no class folders, when a class has no samples (unless
    /// [`allow_empty`](FolderOptions::allow_empty)), when a folder cannot be read, and when links form a loop.
    pub fn image_folder(
        root: impl AsRef<Path>,
        options: &FolderOptions,
        progress: &dyn Progress,
    ) -> Result<Self, StoreError> {
        let root = root.as_ref();
        let extensions = Extensions::new(&options.extensions);
        let walk = Walk { root, extensions: &extensions, in_classes: true, progress };
        let (classes, loose) = walk.classes()?;
        if classes.is_empty() {
            return Err(StoreError::NoClasses {
                root: root.to_owned(),
                found: loose.in_place_of_classes(extensions.kind()),
            });
        }

        let mut folders = walk.folders(&classes, options.threads)?;
        // Byte order is code-point order where both sides are UTF-8, which is nearly always.
        folders.sort_unstable_by(|left, right| {
            left.class.cmp(&right.class).then_with(|| code_point_order(&left.path, &right.path))
        });

        let mut leftovers: Vec<Option<Leftovers>> =
            classes.iter().map(|_| Some(Leftovers::default())).collect();
        let mut table = Table::default();
        table.reserve(
            folders.iter().map(|folder| folder.name_ends.len()).sum(),
            folders.iter().map(|folder| folder.names.len()).sum(),
        );
        for folder in folders {
            let class = folder.class as usize;
            if folder.name_ends.is_empty() {
                if let Some(leftovers) = &mut leftovers[class] {
                    leftovers.merge(folder.leftovers);
                }
                continue;
            }
            leftovers[class] = None;
            let number = table.add_folder(&folder.path);
            for name in folder.names() {
                table.push(number, name, i64::from(folder.class))?;
            }
        }

        if !options.allow_empty && leftovers.iter().any(Option::is_some) {
            return Err(empty_classes(&classes, leftovers, &extensions));
        }
        Ok(table.into_listing(root, classes.iter().map(|class| readable(class)).collect()))
    }
}

/// `leftovers` has what was found in each class without samples, and nothing for the others.
fn empty_classes(
    classes: &[Vec<u8>],
    leftovers: Vec<Option<Leftovers>>,
    extensions: &Extensions,
) -> StoreError {
    let mut names = Vec::new();
    let mut found = Leftovers::default();
    for (class, leftovers) in classes.iter().zip(leftovers) {
        if let Some(leftovers) = leftovers {
            names.push(readable(class));
            found.merge(leftovers);
        }
    }
    StoreError::EmptyClasses {
        found: found.in_place_of_samples(names.len(), extensions.kind()),
        classes: names,
        extensions: extensions.shown().map(readable).collect(),
    }
}
