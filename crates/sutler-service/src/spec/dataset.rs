//! A dataset: what lists its samples, what they hold, and how they are read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sutler_engine::{VolumePreparation, audio_headers};
use sutler_media::audio::Header;
use sutler_media::volume;
use sutler_store::{
    CocoOptions, Files, FolderOptions, Io, Listing, ManifestOptions, Progress, Source, StoreError,
};

use super::path;

/// A dataset and how its files are read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DatasetSpec {
    /// Where the samples are listed.
    pub listing: ListingSpec,
    /// Whether files are read past the page cache.
    pub direct: bool,
    /// What the files hold.
    pub media: MediaSpec,
    /// Larger files are refused.
    pub bytes_max: u64,
}

/// What the files of a dataset hold, and what of it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum MediaSpec {
    /// Pictures.
    Image {
        /// Those with more pixels are refused.
        pixels_max: u64,
    },
    /// Sound.
    Audio {
        /// What has more values in all channels is refused.
        values_max: u64,
        /// Whether all channels are mixed to one.
        mono: bool,
        /// Files that say they are longer, in seconds, do not belong to the dataset.
        seconds_max: Option<f64>,
    },
    /// Volumes with labels.
    Volume {
        /// Those with more values are refused.
        values_max: u64,
        /// How many channels each has.
        channels: usize,
    },
}

/// Where the samples of a dataset are listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ListingSpec {
    /// One folder for each class.
    ImageFolder {
        /// The folder that holds them.
        #[serde(with = "path")]
        root: PathBuf,
        /// What the name of a sample ends in; by default torchvision's list, or the endings of sound files.
        extensions: Option<Vec<String>>,
        /// Whether a class may have no samples.
        allow_empty: bool,
    },
    /// Volumes and their labels, told apart by their names.
    VolumeFolder {
        /// The folder below which they lie.
        #[serde(with = "path")]
        root: PathBuf,
        /// What the name of a volume ends in; by default `.npy`, `.nii` and `.nii.gz`.
        extensions: Option<Vec<String>>,
    },
    /// A file that lists paths and labels.
    Manifest {
        /// The file.
        #[serde(with = "path")]
        path: PathBuf,
        /// The names of its columns, where its first line does not say.
        columns: Option<Vec<String>>,
        /// Where relative paths start.
        #[serde(with = "path::optional")]
        root: Option<PathBuf>,
    },
    /// A COCO annotation file, which lists pictures and the boxes on them.
    Coco {
        /// The file.
        #[serde(with = "path")]
        path: PathBuf,
        /// Where relative paths start.
        #[serde(with = "path")]
        root: PathBuf,
        /// Whether labels count up from 1; else they are the ids of categories.
        contiguous: bool,
        /// Whether pictures without boxes are samples.
        keep_empty: bool,
        /// Whether boxes of crowds are kept.
        keep_crowds: bool,
        /// Whether boxes without area are an error.
        refuse_empty_boxes: bool,
    },
}

impl DatasetSpec {
    /// Lists the samples.
    ///
    /// # Errors
    /// When the folder or file is missing or makes no sense.
    pub fn list(&self, progress: &dyn Progress) -> Result<Listing, StoreError> {
        let listing = self.list_all(progress)?;
        let MediaSpec::Audio { seconds_max: Some(seconds_max), .. } = self.media else { return Ok(listing) };
        let files = self.files(listing);
        let is_short = |header: &Header| {
            header.frames.is_none_or(|frames| frames as f64 <= seconds_max * f64::from(header.rate))
        };
        let headers = audio_headers(&files, sutler_engine::usable_cores());
        // What cannot be read stays, so that it is reported instead of vanishing.
        Ok(files.listing().retain(|id| headers[id.index()].as_ref().is_none_or(is_short)))
    }

    fn list_all(&self, progress: &dyn Progress) -> Result<Listing, StoreError> {
        match &self.listing {
            ListingSpec::ImageFolder { root, extensions, allow_empty } => {
                let defaults = match self.media {
                    MediaSpec::Image { .. } => FolderOptions::default(),
                    MediaSpec::Audio { .. } => FolderOptions::audio(),
                    MediaSpec::Volume { .. } => FolderOptions::volumes(),
                };
                let mut options = FolderOptions { allow_empty: *allow_empty, ..defaults };
                if let Some(extensions) = extensions {
                    options.extensions.clone_from(extensions);
                }
                Listing::image_folder(root, &options, progress)
            }
            ListingSpec::VolumeFolder { root, extensions } => {
                let mut options = FolderOptions::volumes();
                if let Some(extensions) = extensions {
                    options.extensions.clone_from(extensions);
                }
                Listing::volume_folder(root, &options, progress)
            }
            ListingSpec::Manifest { path, columns, root } => {
                let options = ManifestOptions { root: root.clone(), columns: columns.clone() };
                Listing::manifest(path, &options, progress)
            }
            ListingSpec::Coco { path, root, contiguous, keep_empty, keep_crowds, refuse_empty_boxes } => {
                let options = CocoOptions {
                    root: root.clone(),
                    contiguous: *contiguous,
                    keep_empty: *keep_empty,
                    keep_crowds: *keep_crowds,
                    refuse_empty_boxes: *refuse_empty_boxes,
                };
                Listing::coco(path, &options, progress)
            }
        }
    }

    /// The listed files, to be read as described.
    #[must_use]
    pub fn files(&self, listing: impl Into<Arc<Listing>>) -> Files {
        let io = if self.direct { Io::Direct } else { Io::Buffered };
        Files::new(listing, io, self.bytes_max)
    }

    /// The same for a process with another working directory.
    ///
    /// # Errors
    /// When this process has no working directory any more.
    pub fn absolute(&self) -> std::io::Result<Self> {
        let mut listing = self.listing.clone();
        match &mut listing {
            ListingSpec::ImageFolder { root, .. } | ListingSpec::VolumeFolder { root, .. } => {
                *root = std::path::absolute(&root)?;
            }
            ListingSpec::Manifest { path, root, .. } => {
                *path = std::path::absolute(&path)?;
                *root = root.take().map(std::path::absolute).transpose()?;
            }
            ListingSpec::Coco { path, root, .. } => {
                *path = std::path::absolute(&path)?;
                *root = std::path::absolute(&root)?;
            }
        }
        Ok(Self { listing, ..self.clone() })
    }

    /// How volumes of this dataset are prepared.
    ///
    /// # Errors
    /// When it holds something else, as the sentence that says so.
    pub fn volumes(
        &self,
        source: Arc<dyn Source>,
        pipeline: Arc<volume::Pipeline>,
        seed: u64,
    ) -> Result<VolumePreparation, String> {
        let MediaSpec::Volume { values_max, channels } = self.media else {
            return Err("the samples are no volumes".to_owned());
        };
        let limits = volume::Limits { values_max };
        VolumePreparation::new(source, pipeline, limits, channels, seed)
            .ok_or_else(|| "the dataset lists no labels for its volumes".to_owned())
    }

    /// The folder or file it is listed from.
    #[must_use]
    pub fn place(&self) -> &Path {
        match &self.listing {
            ListingSpec::ImageFolder { root, .. } | ListingSpec::VolumeFolder { root, .. } => root,
            ListingSpec::Manifest { path, .. } | ListingSpec::Coco { path, .. } => path,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn paths_that_are_not_text_survive_the_journey() {
        for root in [PathBuf::from("photos/ä"), PathBuf::from(OsStr::from_bytes(b"photos/\xff"))] {
            let listing = ListingSpec::Manifest { path: root.clone(), columns: None, root: Some(root) };
            let text = serde_json::to_string(&listing).unwrap();
            assert_eq!(serde_json::from_str::<ListingSpec>(&text).unwrap(), listing, "{text}");
        }
    }
}
