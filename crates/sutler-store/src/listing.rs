//! Which samples a dataset has, in order, with path and label.
//!
//! A listing is a shelf with labels on its boards rather than on its books. Samples that follow one another mostly
//! lie in the same folder and belong to the same class, so both are written down once for a *run* of samples; a
//! sample itself costs its file name and four bytes. ImageNet-21k (14.2 million files, names of some 20 bytes, 21,841
//! folders) takes 340 MB this way; as Python tuples, at 187 bytes each (measured), it takes 2.7 GB.
//!
//! The worst case is a manifest in random order, where every run holds one sample: 28 bytes beside its name.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::annotations::Annotations;
use sutler_core::{DatasetTooLarge, Fingerprint, FingerprintBuilder, SampleId};

/// The label of every sample in a dataset that has no labels.
///
/// Outside the range of any class, so that a loss function refuses it instead of learning class 0.
pub const NO_LABEL: i64 = -1;

/// The samples of a dataset.
pub struct Listing {
    root: PathBuf,
    classes: Vec<String>,
    table: Table,
    /// The boxes on its pictures, where it has such.
    annotations: Option<Arc<Annotations>>,
    fingerprint: Fingerprint,
    /// What belongs to each sample beside its file, under the same ids.
    partners: Option<Arc<Listing>>,
}

/// One sample of a [`Listing`], borrowed from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The sample's index.
    pub id: SampleId,
    /// Its folder, relative to the listing's root unless a manifest named an absolute path.
    pub folder: &'a Path,
    /// Its file name.
    pub name: &'a OsStr,
    /// Its label.
    pub label: i64,
}

impl Listing {
    /// How many samples there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.name_ends.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The folder that paths are relative to, as it was given.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The names of the classes, sorted; a label is an index into them. Empty when labels are bare numbers.
    ///
    /// Bytes of a folder's name that are not UTF-8 appear as `\xff`.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The label of each class by its name.
    #[must_use]
    pub fn class_to_idx(&self) -> HashMap<&str, i64> {
        self.classes.iter().map(String::as_str).zip(0..).collect()
    }

    /// The boxes on its pictures, where it has such.
    #[must_use]
    pub fn annotations(&self) -> Option<&Arc<Annotations>> {
        self.annotations.as_ref()
    }

    /// A name for the relative paths, labels, classes and boxes; the same wherever the root lies.
    ///
    /// It does not look into the files: a sample replaced under its old name keeps the fingerprint.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The files that belong to the samples beside their own, under the same ids: the labels of volumes.
    #[must_use]
    pub fn partners(&self) -> Option<&Arc<Listing>> {
        self.partners.as_ref()
    }

    /// The same with a further file for each sample.
    ///
    /// # Panics
    /// When there are not as many.
    pub(crate) fn with_partners(mut self, partners: Listing) -> Self {
        assert_eq!(self.len(), partners.len(), "a partner for each sample");
        let mut builder = FingerprintBuilder::default();
        builder.add(self.fingerprint.0.to_le_bytes()).add(partners.fingerprint.0.to_le_bytes());
        self.fingerprint = builder.finish();
        self.partners = Some(Arc::new(partners));
        self
    }

    /// The sample with this id.
    ///
    /// # Panics
    /// When the id is not below [`len`](Self::len).
    #[must_use]
    pub fn entry(&self, id: SampleId) -> Entry<'_> {
        let (run, name) = self.table.get(id);
        let folder = Path::new(OsStr::from_bytes(self.table.folder(run.folder)));
        Entry { id, folder, name: OsStr::from_bytes(name), label: run.label }
    }

    /// All samples in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Entry<'_>> {
        // The constructor has checked that every index is an id.
        (0..self.len()).map(|index| self.entry(SampleId(index as u32)))
    }

    /// The label of a sample.
    ///
    /// # Panics
    /// When the id is not below [`len`](Self::len).
    #[must_use]
    pub fn label(&self, id: SampleId) -> i64 {
        self.table.get(id).0.label
    }

    /// Where a sample lies.
    ///
    /// # Panics
    /// When the id is not below [`len`](Self::len).
    #[must_use]
    pub fn path(&self, id: SampleId) -> PathBuf {
        let entry = self.entry(id);
        self.root.join(entry.folder).join(entry.name)
    }

    /// The same without those samples for which `keep` says no, in the same order and with the same classes.
    #[must_use]
    pub fn retain(&self, keep: impl Fn(SampleId) -> bool) -> Self {
        let mut table = Table::default();
        let mut folder: Option<(u32, u32)> = None;
        let kept: Vec<SampleId> = (0..self.len() as u32).map(SampleId).filter(|&id| keep(id)).collect();
        for &id in &kept {
            let (run, name) = self.table.get(id);
            let number = match folder {
                Some((theirs, ours)) if theirs == run.folder => ours,
                _ => table.add_folder(self.table.folder(run.folder)),
            };
            folder = Some((run.folder, number));
            if let Err(error) = table.push(number, name, run.label) {
                unreachable!("a part of a listing has no more samples than the whole: {error}");
            }
        }
        let part = match &self.annotations {
            None => table.into_listing(&self.root, self.classes.clone()),
            Some(annotations) => {
                table.into_annotated_listing(&self.root, annotations.select(kept.into_iter()))
            }
        };
        match &self.partners {
            Some(partners) => part.with_partners(partners.retain(keep)),
            None => part,
        }
    }

    /// Writes the bytes of [`path`](Self::path) over whatever `path` held, without allocating once it is long enough.
    ///
    /// # Panics
    /// When the id is not below [`len`](Self::len).
    pub fn write_path(&self, id: SampleId, path: &mut Vec<u8>) {
        let (run, name) = self.table.get(id);
        let folder = self.table.folder(run.folder);
        path.clear();
        if !folder.starts_with(b"/") {
            path.extend_from_slice(self.root.as_os_str().as_bytes());
        }
        join(path, folder);
        join(path, name);
    }
}

impl std::fmt::Debug for Listing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listing")
            .field("root", &self.root)
            .field("samples", &self.len())
            .field("classes", &self.classes.len())
            .field("fingerprint", &self.fingerprint)
            .finish()
    }
}

/// Appends a part to a path, with a slash between them where both need one.
pub(crate) fn join(path: &mut Vec<u8>, part: &[u8]) {
    if !path.is_empty() && !path.ends_with(b"/") && !part.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(part);
}

/// Samples that follow one another in one folder with one label.
struct Run {
    /// The index of the first of them.
    first: u32,
    folder: u32,
    /// Where their names begin in [`Table::names`].
    names_start: usize,
    label: i64,
}

/// The columns behind a listing, filled sample by sample.
#[derive(Default)]
pub(crate) struct Table {
    folders: Vec<u8>,
    /// Where each folder's path ends in `folders`.
    folder_ends: Vec<usize>,
    runs: Vec<Run>,
    /// All file names, one after another.
    names: Vec<u8>,
    /// Where each sample's name ends, counted from its run's `names_start`: relative, so that four bytes are enough.
    name_ends: Vec<u32>,
}

impl Table {
    /// Makes room, so that a listing of known size is not copied while it grows.
    pub(crate) fn reserve(&mut self, samples: usize, name_bytes: usize) {
        self.name_ends.reserve_exact(samples);
        self.names.reserve_exact(name_bytes);
    }

    /// Adds a folder and returns its number for [`push`](Self::push).
    pub(crate) fn add_folder(&mut self, path: &[u8]) -> u32 {
        let number = self.folder_ends.len();
        self.folders.extend_from_slice(path);
        self.folder_ends.push(self.folders.len());
        // There are no more folders than samples, and `push` counts those.
        number as u32
    }

    /// Adds a sample.
    pub(crate) fn push(&mut self, folder: u32, name: &[u8], label: i64) -> Result<(), DatasetTooLarge> {
        let first = SampleId::check_count(self.name_ends.len() + 1)? - 1;
        let names_end = self.names.len() + name.len();
        let name_end = match self.runs.last() {
            Some(run) if run.folder == folder && run.label == label => {
                u32::try_from(names_end - run.names_start).ok()
            }
            _ => None,
        };
        let name_end = name_end.unwrap_or_else(|| {
            self.runs.push(Run { first, folder, names_start: self.names.len(), label });
            // A file name has at most 255 bytes, and a manifest's row is refused long before 4 GiB.
            name.len() as u32
        });
        self.names.extend_from_slice(name);
        self.name_ends.push(name_end);
        Ok(())
    }

    /// Replaces every label. Labels that differ must stay different, or runs would no longer be as long as they can be.
    pub(crate) fn relabel(&mut self, new: impl Fn(i64) -> i64) {
        for run in &mut self.runs {
            run.label = new(run.label);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.name_ends.len()
    }

    /// The finished listing.
    pub(crate) fn into_listing(self, root: &Path, classes: Vec<String>) -> Listing {
        self.finish(root, classes, None)
    }

    /// The finished listing of pictures with boxes; its classes are the names of their categories.
    pub(crate) fn into_annotated_listing(self, root: &Path, annotations: Annotations) -> Listing {
        let classes = annotations.categories().iter().map(|category| category.name.clone()).collect();
        self.finish(root, classes, Some(annotations))
    }

    fn finish(mut self, root: &Path, classes: Vec<String>, annotations: Option<Annotations>) -> Listing {
        self.folders.shrink_to_fit();
        self.folder_ends.shrink_to_fit();
        self.runs.shrink_to_fit();
        self.names.shrink_to_fit();
        self.name_ends.shrink_to_fit();
        let fingerprint = self.fingerprint(&classes, annotations.as_ref());
        let annotations = annotations.map(Arc::new);
        Listing { root: root.to_owned(), classes, table: self, annotations, fingerprint, partners: None }
    }

    fn fingerprint(&self, classes: &[String], annotations: Option<&Annotations>) -> Fingerprint {
        let mut builder = FingerprintBuilder::default();
        builder.add((classes.len() as u64).to_le_bytes());
        for class in classes {
            builder.add(class);
        }
        let mut path = Vec::new();
        for index in 0..self.len() {
            let (run, name) = self.get(SampleId(index as u32));
            path.clear();
            path.extend_from_slice(self.folder(run.folder));
            join(&mut path, name);
            builder.add(&path).add(run.label.to_le_bytes());
        }
        if let Some(annotations) = annotations {
            annotations.add_to(&mut builder);
        }
        builder.finish()
    }

    fn folder(&self, number: u32) -> &[u8] {
        let number = number as usize;
        let start = if number == 0 { 0 } else { self.folder_ends[number - 1] };
        &self.folders[start..self.folder_ends[number]]
    }

    fn get(&self, id: SampleId) -> (&Run, &[u8]) {
        assert!(id.index() < self.len(), "sample {} is not among the {} of the listing", id.0, self.len());
        let run = &self.runs[self.runs.partition_point(|run| run.first <= id.0) - 1];
        let start = if id.0 == run.first { 0 } else { self.name_ends[id.index() - 1] as usize };
        let end = self.name_ends[id.index()] as usize;
        (run, &self.names[run.names_start + start..run.names_start + end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn listing(root: &str, samples: &[(&str, &str, i64)]) -> Listing {
        let mut table = Table::default();
        let mut folders = HashMap::new();
        for &(folder, name, label) in samples {
            let folder = *folders.entry(folder).or_insert_with(|| table.add_folder(folder.as_bytes()));
            table.push(folder, name.as_bytes(), label).unwrap();
        }
        table.into_listing(Path::new(root), vec!["a".into(), "b".into()])
    }

    proptest! {
        #[test]
        fn gives_back_what_was_put_in(
            samples in prop::collection::vec(("(/?[ab]{1,2}(/c)?)?", "[a-z.]{1,9}", 0..2i64), 0..60),
            root in "/?[rs]{1,3}/?",
        ) {
            let borrowed: Vec<_> = samples.iter().map(|(f, n, l)| (f.as_str(), n.as_str(), *l)).collect();
            let listing = listing(&root, &borrowed);
            prop_assert_eq!(listing.len(), samples.len());
            let mut bytes = Vec::new();
            for (entry, (folder, name, label)) in listing.iter().zip(&samples) {
                prop_assert_eq!(entry.label, *label);
                prop_assert_eq!(listing.label(entry.id), *label);
                let path = listing.path(entry.id);
                prop_assert_eq!(&path, &Path::new(&root).join(folder).join(name));
                listing.write_path(entry.id, &mut bytes);
                prop_assert_eq!(Path::new(OsStr::from_bytes(&bytes)), path.as_path());
            }
        }
    }

    #[test]
    fn the_fingerprint_ignores_the_root_and_sees_all_else() {
        let samples = [("a", "1.jpg", 0), ("b", "2.jpg", 1)];
        let here = listing("here", &samples).fingerprint();
        assert_eq!(here, listing("there", &samples).fingerprint());
        for other in [
            [("a", "1.jpg", 0), ("b", "3.jpg", 1)],
            [("a", "1.jpg", 0), ("b", "2.jpg", 0)],
            [("b", "2.jpg", 1), ("a", "1.jpg", 0)],
            [("a", "1.jpg", 0), ("c", "2.jpg", 1)],
        ] {
            assert_ne!(here, listing("here", &other).fingerprint());
        }
    }

    #[test]
    #[should_panic(expected = "sample 1 is not among the 1 of the listing")]
    fn an_id_past_the_end_says_so() {
        let _ = listing("here", &[("a", "1.jpg", 0)]).label(SampleId(1));
    }
}
