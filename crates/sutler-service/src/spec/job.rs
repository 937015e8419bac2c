//! A job: what is prepared and how, in every epoch alike.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sutler_core::Fingerprint;
use sutler_engine::{
    ArenaError, AudioPreparation, DetectionPreparation, ErrorPolicy, ImagePreparation, Job, JobOptions,
    Padding, Preparation, ServingOrder, VolumePreparation,
};
use sutler_media::{Layout, Limits, Pipeline, PipelineOptions, audio, volume};
use sutler_store::Source;
use sutler_store::cache::{Cache, CacheError};

use super::{DatasetSpec, MediaSpec};

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
    /// Whether that is what the user asked for. Left out, it follows from the number of workers, in which ranks may differ.
    pub lateness_given: bool,
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
