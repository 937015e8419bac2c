//! The files that were passed over, counted by their endings, so that an empty answer can explain itself.

use std::collections::BTreeMap;

use super::extensions::Kind;
use crate::text::{counted, grouped, readable};

/// A folder of files that each have an ending of their own must not turn the tally into a second listing.
const EXTENSIONS_MAX: usize = 64;

/// Longer "endings" are the tails of names with a dot in them.
const EXTENSION_BYTES_MAX: usize = 12;

/// How many endings a message names before it says "others".
const EXTENSIONS_SHOWN: usize = 3;

/// Files that are not samples.
#[derive(Default)]
pub(super) struct Leftovers {
    files: u64,
    /// By ending, in lower case and with its dot.
    by_extension: BTreeMap<Box<[u8]>, u64>,
}

impl Leftovers {
    pub(super) fn add(&mut self, name: &[u8]) {
        self.files += 1;
        if let Some(extension) = extension(name) {
            self.add_extension(extension.to_ascii_lowercase().into(), 1);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files == 0
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.files += other.files;
        for (extension, files) in other.by_extension {
            self.add_extension(extension, files);
        }
    }

    fn add_extension(&mut self, extension: Box<[u8]>, files: u64) {
        if self.by_extension.len() < EXTENSIONS_MAX || self.by_extension.contains_key(&extension) {
            *self.by_extension.entry(extension).or_default() += files;
        }
    }

    /// Explains classes without samples of the kind that was looked for.
    pub(super) fn in_place_of_samples(&self, classes: usize, wanted: Option<Kind>) -> String {
        let (they, hold, them) =
            if classes == 1 { ("The folder", "holds", "it") } else { ("These folders", "hold", "them") };
        let otherwise =
            format!("remove {them}; a dataset with allow_empty=True keeps classes without samples");
        match self.commonest() {
            _ if self.is_empty() => format!("{they} {hold} no files at all; {otherwise}."),
            Some(extension) => {
                let advice = match Kind::of(&extension).filter(|&kind| Some(kind) != wanted) {
                    Some(kind) => format!("{} reads those", kind.dataset()),
                    None => format!("a dataset with extensions=(\"{extension}\",) reads those"),
                };
                format!("{they} {hold} {}; {advice}. Otherwise {otherwise}.", self.description())
            }
            None => format!("{they} {hold} {}; {otherwise}.", self.description()),
        }
    }

    /// Explains a root without class folders, where samples of this kind are looked for.
    pub(super) fn in_place_of_classes(&self, wanted: Option<Kind>) -> String {
        if self.is_empty() {
            return "The folder is empty; check the path.".into();
        }
        let kind = self.commonest().and_then(|extension| Kind::of(&extension));
        let advice = match kind.filter(|_| kind != wanted) {
            Some(Kind::Volume) => {
                format!("{} reads those, with their labels beside them", Kind::Volume.dataset())
            }
            Some(kind) => format!("{} reads those, in one folder for each class", kind.dataset()),
            // Manifests name images.
            None if wanted == Some(Kind::Sound) => "move the files into one folder for each class".to_owned(),
            None => "move the files into one folder for each class, or list them in a manifest".to_owned(),
        };
        format!("It holds no folders, only {}; {advice}.", self.description())
    }

    fn ranked(&self) -> Vec<(String, u64)> {
        let mut ranked: Vec<_> =
            self.by_extension.iter().map(|(extension, &files)| (readable(extension), files)).collect();
        ranked.sort_by_key(|&(_, files)| std::cmp::Reverse(files));
        ranked
    }

    fn commonest(&self) -> Option<String> {
        self.ranked().into_iter().next().map(|(extension, _)| extension)
    }

    fn description(&self) -> String {
        let files = counted(self.files, "file");
        let mut ranked = self.ranked();
        ranked.truncate(EXTENSIONS_SHOWN);
        let others = self.files - ranked.iter().map(|&(_, files)| files).sum::<u64>();
        match ranked.as_slice() {
            [] => format!("{files} without an extension"),
            [(extension, _)] if others == 0 && self.files == 1 => format!("{files}, ending in {extension}"),
            [(extension, _)] if others == 0 => format!("{files}, all ending in {extension}"),
            _ => {
                let mut parts: Vec<_> = ranked
                    .iter()
                    .map(|(extension, files)| format!("{} in {extension}", grouped(*files)))
                    .collect();
                if others > 0 {
                    parts.push(format!("{} in something else", grouped(others)));
                }
                format!("{files} ({})", parts.join(", "))
            }
        }
    }
}

fn extension(name: &[u8]) -> Option<&[u8]> {
    let dot = name.iter().rposition(|&byte| byte == b'.')?;
    let extension = &name[dot..];
    (dot > 0 && (2..=EXTENSION_BYTES_MAX).contains(&extension.len())).then_some(extension)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leftovers(names: &[&str]) -> Leftovers {
        let mut leftovers = Leftovers::default();
        names.iter().for_each(|name| leftovers.add(name.as_bytes()));
        leftovers
    }

    #[test]
    fn says_what_is_there_instead() {
        assert_eq!(leftovers(&["a.TIF", "b.tif"]).description(), "2 files, all ending in .tif");
        assert_eq!(leftovers(&["README"]).description(), "1 file without an extension");
        assert_eq!(leftovers(&["a.gif"]).description(), "1 file, ending in .gif");
        assert_eq!(
            leftovers(&["a.gif", "b.gif", "c.txt", "d.md", "e.py", "f"]).description(),
            "6 files (2 in .gif, 1 in .md, 1 in .py, 2 in something else)"
        );
    }

    #[test]
    fn files_of_another_kind_are_another_datasets() {
        let speech = leftovers(&["a.wav", "b.flac", "c.WAV"]);
        let photos = leftovers(&["a.jpg"]);
        assert!(
            speech.in_place_of_samples(1, Some(Kind::Image)).contains("; sutler.AudioFolder reads those.")
        );
        assert!(
            photos.in_place_of_samples(1, Some(Kind::Sound)).contains("; sutler.ImageFolder reads those.")
        );
        let loose = |files: &Leftovers, wanted| files.in_place_of_classes(Some(wanted));
        assert!(loose(&speech, Kind::Image).contains("; sutler.AudioFolder reads those, in one folder"));
        assert!(loose(&speech, Kind::Sound).ends_with("into one folder for each class."));
        assert!(loose(&photos, Kind::Image).ends_with("or list them in a manifest."));
        assert!(
            photos
                .in_place_of_samples(1, Some(Kind::Image))
                .contains("; a dataset with extensions=(\".jpg\",) reads those.")
        );
        assert!(
            leftovers(&["a.tif2"])
                .in_place_of_samples(1, Some(Kind::Image))
                .contains("extensions=(\".tif2\",)")
        );
    }

    #[test]
    fn a_flood_of_endings_is_counted_and_not_kept() {
        let mut leftovers = Leftovers::default();
        for number in 0..10_000 {
            leftovers.add(format!("file.{number}").as_bytes());
        }
        assert_eq!(leftovers.files, 10_000);
        assert_eq!(leftovers.by_extension.len(), EXTENSIONS_MAX);
    }
}
