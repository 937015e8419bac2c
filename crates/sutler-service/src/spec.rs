//! What a client asks for, as data: a dataset, a job over it, an epoch of the job.
//!
//! The same descriptions serve the embedded loader and the agent, so that the two cannot drift apart.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sutler_core::{
    EpochPlan, Fingerprint, JobCursor, Ledger, OrderError, Permutation, SampleId, SavedLedger, Shard,
    ShardError,
};
use sutler_engine::{
    ArenaError, AudioPreparation, DetectionPreparation, Engine, ErrorPolicy, ImagePreparation, Job,
    JobOptions, Padding, Preparation, Run, ServingOrder, StartError, VolumePreparation, audio_headers,
};
use sutler_media::audio::{self, Header};
use sutler_media::{Layout, Limits, Pipeline, PipelineOptions, volume};
use sutler_store::cache::{Cache, CacheError};
use sutler_store::{
    CocoOptions, Files, FolderOptions, Io, Listing, ManifestOptions, Progress, Source, StoreError,
};

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
        #[serde(with = "optional_path")]
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

/// What a bad sample does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PolicySpec {
    /// The batch that should have held it raises.
    Raise,
    /// It is left out and listed.
    Skip,
    /// It is left out and listed until there are too many.
    Budget {
        /// The most failures an epoch may have.
        count_max: Option<u64>,
        /// The largest share of an epoch's samples that may fail.
        rate_max: Option<f64>,
    },
}

impl From<PolicySpec> for ErrorPolicy {
    fn from(policy: PolicySpec) -> Self {
        match policy {
            PolicySpec::Raise => Self::Raise,
            PolicySpec::Skip => Self::Skip,
            PolicySpec::Budget { count_max, rate_max } => Self::Budget { count_max, rate_max },
        }
    }
}

/// What is prepared and how; the same for every epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// A name that all ranks of the job give it.
    pub name: Option<String>,
    /// The dataset.
    pub dataset: DatasetSpec,
    /// The dataset as the client sees it.
    pub fingerprint: Fingerprint,
    /// The operations of the pipeline, as JSON.
    pub operations: String,
    /// Whether JPEGs may be decoded at a smaller scale.
    pub dct_scaling: bool,
    /// Whether the values of a pixel lie side by side.
    pub channels_last: bool,
    /// With the epoch and the sample, the origin of all randomness.
    pub seed: u64,
    /// The most samples a batch holds.
    pub batch_size: usize,
    /// How many batches may be in preparation or waiting to be taken.
    pub batches_ahead: usize,
    /// Whether there may be more of them where these turn out to be too few. Not for an agent to know, which many jobs
    /// share the memory of.
    #[serde(skip)]
    pub ahead_grows: bool,
    /// How many delivered batches the client usually holds at once.
    pub batches_held: usize,
    /// Whether other ranks count on this one to deliver as many batches as they do.
    pub in_step: bool,
    /// What a bad sample does.
    pub errors: PolicySpec,
    /// With what samples of different lengths are padded to one block, where they are.
    pub pad: Option<f32>,
    /// Of what the sides of a batch are multiples into which pictures of different sizes are put, where they are.
    pub frame: Option<u32>,
    /// By how many batches a sample may be late; `None` where batches are served in order.
    pub lateness: Option<u32>,
    /// Whether it takes what other jobs have prepared, in whatever order.
    pub shared: bool,
}

/// A job that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// Its pipeline makes no sense.
    #[error("{0}")]
    Pipeline(String),
    /// There is no memory for its batches.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// There is no memory for samples to be kept.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// Whose memory a job's batches are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The process's own.
    Own,
    /// Memory that another process is handed.
    Shared,
}

impl JobSpec {
    /// How these pictures are prepared.
    ///
    /// # Errors
    /// When they are none, or the pipeline makes no sense.
    pub fn preparation(
        &self,
        source: Arc<dyn Source>,
        cache: Option<Arc<Cache>>,
    ) -> Result<ImagePreparation, JobError> {
        let MediaSpec::Image { pixels_max } = self.dataset.media else {
            return Err(JobError::Pipeline("the samples are no pictures".to_owned()));
        };
        let options = PipelineOptions { dct_scaling: self.dct_scaling };
        let pipeline = Pipeline::from_json(&self.operations, options)
            .map_err(|error| JobError::Pipeline(error.to_string()))?;
        Ok(ImagePreparation {
            source,
            pipeline: Arc::new(pipeline),
            layout: self.layout(),
            limits: Limits { pixels_max, bytes_max: self.dataset.bytes_max },
            seed: self.seed,
            cache,
            sizes: Arc::default(),
        })
    }

    /// How these volumes are prepared.
    fn volumes(&self, source: Arc<dyn Source>) -> Result<VolumePreparation, JobError> {
        let pipeline = volume::Pipeline::from_json(&self.operations)
            .map_err(|error| JobError::Pipeline(error.to_string()))?;
        self.dataset.volumes(source, Arc::new(pipeline), self.seed).map_err(JobError::Pipeline)
    }

    /// The job over these samples.
    ///
    /// # Errors
    /// When the pipeline makes no sense or the memory cannot be had.
    pub fn open(
        &self,
        source: Arc<dyn Source>,
        memory: Memory,
        cache: Option<Arc<Cache>>,
    ) -> Result<Arc<Job>, JobError> {
        let preparation: Arc<dyn Preparation> = match self.dataset.media {
            MediaSpec::Image { .. } => {
                let images = self.preparation(source, cache)?;
                // Another process is sent the pictures as they are, and frames them itself.
                let frame = self.frame.filter(|_| memory == Memory::Own);
                let detection = DetectionPreparation::of(&images, frame)
                    .map_err(|error| JobError::Pipeline(error.to_string()))?;
                match detection {
                    Some(detection) => Arc::new(detection),
                    None => Arc::new(images),
                }
            }
            MediaSpec::Audio { values_max, mono, .. } => {
                let pipeline = audio::Pipeline::from_json(&self.operations)
                    .map_err(|error| JobError::Pipeline(error.to_string()))?;
                // Another process is sent the samples as they are, and pads them itself.
                let padding = self.pad.filter(|_| memory == Memory::Own).map(Padding::floats);
                Arc::new(AudioPreparation {
                    source,
                    pipeline: Arc::new(pipeline),
                    limits: audio::Limits { values_max },
                    mono,
                    seed: self.seed,
                    padding,
                    cache,
                })
            }
            MediaSpec::Volume { .. } => Arc::new(self.volumes(source)?.keeping(cache)),
        };
        let options = JobOptions {
            batch_size: self.batch_size,
            batches_ahead: self.batches_ahead,
            ahead_grows: self.ahead_grows,
            batches_held: self.batches_held,
            errors: self.errors.into(),
            go_on: false,
            in_step: self.in_step,
            order: self.lateness.map_or(ServingOrder::Strict, |lateness| ServingOrder::Ready { lateness }),
        };
        Ok(match memory {
            Memory::Own => Job::new(preparation, options)?,
            Memory::Shared => Job::shared(preparation, options)?,
        })
    }

    /// The order of the values in memory.
    #[must_use]
    pub fn layout(&self) -> Layout {
        if self.channels_last { Layout::Nhwc } else { Layout::Nchw }
    }
}

/// An epoch and where in it to begin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EpochSpec {
    /// Which one.
    pub epoch: u32,
    /// How much of its sequence all ranks have consumed.
    pub consumed: u64,
    /// The places of its sequence that ranks had done beyond that when the rest was dealt out anew, if it was.
    #[serde(with = "ledger")]
    pub before: Option<Ledger>,
    /// What this rank has done since.
    #[serde(with = "ledger")]
    pub done: Option<Ledger>,
    /// Where its order comes from.
    pub sequence: SequenceSpec,
    /// Where it is an epoch of a part of the dataset, whose order is its own: the samples of that part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Vec<SampleId>>,
}

/// Where the order of an epoch comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SequenceSpec {
    /// All samples, shuffled or not, shared by the ranks.
    Own {
        /// How many samples there are.
        samples: u32,
        /// Whether they are shuffled.
        shuffle: bool,
        /// With the epoch, decides the order.
        seed: u64,
        /// Samples in a batch.
        batch_size: u32,
        /// Whether an incomplete batch is left out.
        drop_last: bool,
        /// This rank.
        rank: u32,
        /// How many ranks there are.
        world_size: u32,
    },
    /// A sampler draws it bit by bit.
    Drawn {
        /// Samples in a batch.
        batch_size: u32,
        /// Whether an incomplete batch is left out.
        drop_last: bool,
    },
    /// A batch sampler draws it bit by bit.
    Batches,
}

/// An epoch that cannot be begun.
#[derive(Debug, thiserror::Error)]
pub enum EpochError {
    /// Its plan makes no sense.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// The rank does not exist.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// It cannot be shared.
    #[error(transparent)]
    Shared(#[from] StartError),
}

impl EpochSpec {
    /// The plan of the epoch from here on.
    ///
    /// # Errors
    /// When it makes no sense.
    pub fn plan(&self) -> Result<EpochPlan, EpochError> {
        Ok(match &self.done {
            Some(done) if done.served() > 0 => self.whole_plan()?.without(done.clone()),
            _ => self.whole_plan()?,
        })
    }

    /// The same for a job that shares: its done positions are samples, and the order of the rest is nobody's to foresee.
    ///
    /// # Errors
    /// When it makes no sense.
    pub fn shared_plan(&self) -> Result<EpochPlan, EpochError> {
        let whole = self.whole_plan()?;
        let done = self.done.clone().unwrap_or_else(|| Ledger::new(0));
        Ok(sutler_engine::what_is_left(&whole, &done)?)
    }

    /// Begins the epoch.
    ///
    /// # Errors
    /// When its plan makes no sense, or the job's pool has no place.
    pub fn start(&self, engine: &Engine, job: &Arc<Job>) -> Result<Run, EpochError> {
        if job.pool().is_none() {
            return Ok(engine.start(job, self.plan()?, self.epoch));
        }
        // Which samples are done, not which positions: the order is nobody's to foresee.
        let done = self.done.clone().unwrap_or_else(|| Ledger::new(0));
        Ok(engine.start_shared(job, &self.whole_plan()?, self.epoch, &done)?)
    }

    /// Checks that a part names samples of the dataset, which has so many.
    ///
    /// # Errors
    /// When it names others.
    pub fn check_part(&self, samples: u32) -> Result<(), EpochError> {
        let outside = self.part.iter().flatten().find(|sample| sample.0 >= samples);
        outside.map_or(Ok(()), |sample| Err(OrderError::NoSuchSample { index: sample.0, samples }.into()))
    }

    fn whole_plan(&self) -> Result<EpochPlan, EpochError> {
        let cursor = JobCursor { epoch: self.epoch, consumed: self.consumed };
        Ok(match self.sequence {
            SequenceSpec::Own { samples, shuffle, seed, batch_size, drop_last, rank, world_size } => {
                let shard = Shard::new(rank, world_size)?;
                let permutation = if shuffle {
                    Permutation::shuffled(samples, seed, self.epoch)
                } else {
                    Permutation::identity(samples)
                };
                let spec = sutler_core::JobSpec { batch_size, drop_last, shard };
                let plan = match &self.before {
                    Some(before) => EpochPlan::dealt_anew(permutation, before, &spec, cursor)?,
                    None => EpochPlan::new(permutation, &spec, cursor)?,
                };
                match &self.part {
                    Some(part) => plan.of_part(part.clone())?,
                    None => plan,
                }
            }
            SequenceSpec::Drawn { batch_size, drop_last } => {
                EpochPlan::to_be_drawn(batch_size, drop_last, cursor)?
            }
            SequenceSpec::Batches => EpochPlan::batches_to_be_drawn(cursor),
        })
    }
}

/// A ledger travels as a checkpoint keeps it.
mod ledger {
    use super::{Deserialize, Ledger, SavedLedger, Serialize};
    use serde::{Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(ledger: &Option<Ledger>, serializer: S) -> Result<S::Ok, S::Error> {
        ledger.as_ref().map(Ledger::save).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Ledger>, D::Error> {
        let saved: Option<SavedLedger> = Option::deserialize(deserializer)?;
        saved.map(|saved| Ledger::load(&saved)).transpose().map_err(D::Error::custom)
    }
}

/// A path travels as text, or as its bytes where it is none.
mod path {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    pub enum Portable {
        Text(String),
        Bytes(Vec<u8>),
    }

    impl From<Portable> for PathBuf {
        fn from(path: Portable) -> Self {
            match path {
                Portable::Text(text) => text.into(),
                Portable::Bytes(bytes) => OsStr::from_bytes(&bytes).into(),
            }
        }
    }

    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        match path.to_str() {
            Some(text) => text.serialize(serializer),
            None => path.as_os_str().as_bytes().serialize(serializer),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        Portable::deserialize(deserializer).map(PathBuf::from)
    }
}

/// The same for a path that may be absent.
mod optional_path {
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
        match path {
            Some(path) => super::path::serialize(path, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
        let path: Option<super::path::Portable> = Option::deserialize(deserializer)?;
        Ok(path.map(PathBuf::from))
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

    #[test]
    fn an_epoch_that_travelled_has_the_same_rest() {
        let done = Ledger::with_served(10, [3]);
        let before = Ledger::with_served(10, [0, 9]);
        let sequence = SequenceSpec::Own {
            samples: 10,
            shuffle: true,
            seed: u64::MAX,
            batch_size: 4,
            drop_last: false,
            rank: 0,
            world_size: 1,
        };
        let part = Some((0..10).rev().map(SampleId).collect());
        let epoch =
            EpochSpec { epoch: 2, consumed: 1, before: Some(before), done: Some(done), sequence, part };
        let travelled: EpochSpec = serde_json::from_str(&serde_json::to_string(&epoch).unwrap()).unwrap();
        let samples = |epoch: &EpochSpec| {
            let plan = epoch.plan().unwrap();
            (0..plan.steps()).map(|step| plan.sample(step)).collect::<Vec<_>>()
        };
        assert_eq!(samples(&travelled), samples(&epoch));
        assert_eq!(samples(&epoch).len(), 7);
    }
}
