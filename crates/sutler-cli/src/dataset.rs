//! What commands take as a dataset, and how they run one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::ProgressBar;
use serde::Serialize;
use sutler_core::{EpochPlan, JobCursor, JobSpec, Ledger, Permutation, SampleId, Shard};
use sutler_engine::{
    ArenaError, Engine, ErrorPolicy, ImagePreparation, Job, JobOptions, Next, RunError, ServingOrder,
};
use sutler_media::{Layout, Limits, Op, Pipeline, PipelineOptions};
use sutler_store::{
    ByteRate, Files, FolderOptions, Io, Listing, ManifestOptions, Progress, Silent, Source, StoreError,
    Throttled,
};

use crate::boxes::{coco_options, is_annotation_file};
use crate::volumes::BYTES_MAX as VOLUME_BYTES_MAX;
use crate::{Failed, report};

/// ImageNet's mean and deviation, as everybody uses them.
const MEAN: [f64; 3] = [0.485, 0.456, 0.406];
const STD: [f64; 3] = [0.229, 0.224, 0.225];

/// A counter on the terminal while files are listed.
pub struct ListingBar {
    bar: ProgressBar,
    files: AtomicU64,
}

impl ListingBar {
    /// Shown if so, or by default on a terminal.
    pub fn new(shown: Option<bool>, doing: &str) -> Self {
        Self { bar: report::progress_if(shown, 0, doing), files: AtomicU64::new(0) }
    }

    /// The listing is over.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for ListingBar {
    fn listed(&self, files: u64) {
        let files = self.files.fetch_add(files, Ordering::Relaxed) + files;
        self.bar.set_length(files);
        self.bar.set_position(files);
    }
}

/// Lists a folder of class folders, or the rows of a manifest.
pub fn open(path: &Path, allow_empty: bool) -> Result<Arc<Files>, Failed> {
    let files = list(path, FolderOptions { allow_empty, ..FolderOptions::default() })
        .map_err(|error| sound_instead(path).unwrap_or(error))?;
    if files.is_empty() { Err(format!("{} lists no samples.", path.display()).into()) } else { Ok(files) }
}

/// What to say of a folder that holds sound and no images, where only images will do.
fn sound_instead(path: &Path) -> Option<Failed> {
    let anything = |options| list(path, FolderOptions { allow_empty: true, ..options }).ok();
    let images = anything(FolderOptions::default())?;
    let sounds = anything(FolderOptions::audio())?;
    (images.is_empty() && !sounds.is_empty()).then(|| {
        let text = format!(
            "{} holds sound ({}), and this command is about images; `sutler inspect` knows sound, and in Python \
             sutler.AudioFolder loads it.",
            path.display(),
            report::counted(sounds.listing().len() as u64, "file")
        );
        text.into()
    })
}

/// What the files of a dataset are taken for, whatever is in them: a dataset in Python takes all of its files for the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Pictures, which are all that manifests and annotation files list.
    Images,
    /// Sound.
    Sound,
    /// Volumes with their labels.
    Volumes,
}

/// The same, and where a folder holds no images the sound files in it, or the volumes; or the pictures of a COCO annotation file,
/// which are in the folder `images` or where they are most likely.
pub fn open_any(path: &Path, images: Option<&Path>) -> Result<(Arc<Files>, Content), Failed> {
    if is_annotation_file(path) {
        let listing = Listing::coco(path, &coco_options(path, images), &Silent)?;
        let files = Files::new(listing, Io::Buffered, Limits::default().bytes_max);
        return Ok((Arc::new(files), Content::Images));
    }
    if let Some(images) = images {
        let reason = format!(
            "--images {} says where the pictures of a COCO annotation file (.json) are, and {} is none; leave it out.",
            images.display(),
            path.display()
        );
        return Err(reason.into());
    }
    let images = list(path, FolderOptions { allow_empty: true, ..FolderOptions::default() });
    if images.as_ref().is_ok_and(|images| !images.is_empty()) {
        return images.map(|images| (images, Content::Images));
    }
    let sounds = list(path, FolderOptions { allow_empty: true, ..FolderOptions::audio() });
    if sounds.as_ref().is_ok_and(|sounds| !sounds.is_empty()) {
        return sounds.map(|sounds| (sounds, Content::Sound));
    }
    if path.is_dir() {
        let progress = ListingBar::new(None, "listing");
        let volumes = Listing::volume_folder(path, &FolderOptions::volumes(), &progress);
        progress.finish();
        match volumes {
            Ok(volumes) => {
                let files = Files::new(volumes, Io::Buffered, VOLUME_BYTES_MAX);
                return Ok((Arc::new(files), Content::Volumes));
            }
            // Of three kinds that are not there, images are the likeliest to be missed: what is wrong with them is said below.
            Err(StoreError::NoPairs { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    images?;
    // Nothing was there, which had to be allowed in order to look for the other kinds. Not allowed, it is explained.
    list(path, FolderOptions::default())?;
    Err(format!("{} lists no samples.", path.display()).into())
}

fn list(path: &Path, options: FolderOptions) -> Result<Arc<Files>, Failed> {
    let progress = ListingBar::new(None, "listing");
    let listing = if path.is_file() {
        Listing::manifest(path, &ManifestOptions::default(), &progress)
    } else {
        Listing::image_folder(path, &options, &progress)
    };
    progress.finish();
    Ok(Arc::new(Files::new(listing?, Io::Buffered, Limits::default().bytes_max)))
}

/// The two pipelines that commands measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PipelineKind {
    /// RandomResizedCrop, RandomHorizontalFlip, Normalize.
    Train,
    /// Resize, CenterCrop, Normalize.
    Eval,
}

impl PipelineKind {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            PipelineKind::Train => "train",
            PipelineKind::Eval => "eval",
        }
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate),
        _ => Err(format!("{text:?} is no rate; write megabytes per second, like 200")),
    }
}

/// What a job is made of.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct JobArguments {
    /// Which transforms to run: RandomResizedCrop + flip + normalise, or Resize + CenterCrop + normalise.
    #[arg(long, value_enum, default_value = "train")]
    pub pipeline: PipelineKind,
    /// Height and width of the result, in pixels.
    #[arg(long, default_value_t = 224, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub size: u32,
    /// Samples per batch.
    #[arg(short = 'b', long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub batch_size: u32,
    /// Worker threads; by default one per usable core.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Read no more than so many megabytes per second: what slower storage would do.
    #[arg(long, value_name = "MB/S", value_parser = rate)]
    pub storage_mbps: Option<f64>,
}

impl JobArguments {
    /// How many threads to use.
    pub fn thread_count(&self) -> usize {
        self.threads.map_or_else(sutler_engine::usable_cores, |threads| threads as usize)
    }

    /// The operations, with torchvision's defaults.
    fn operations(&self) -> Vec<Op> {
        use sutler_media::op::{Interpolation, ResizeTo};
        let size = [self.size; 2];
        let interpolation = Interpolation::Bilinear;
        let normalize = Op::Normalize { mean: MEAN, std: STD };
        match self.pipeline {
            PipelineKind::Train => vec![
                Op::RandomResizedCrop {
                    size,
                    scale: [0.08, 1.0],
                    ratio: [3.0 / 4.0, 4.0 / 3.0],
                    interpolation,
                    antialias: true,
                },
                Op::RandomHorizontalFlip { p: 0.5 },
                normalize,
            ],
            // The customary ratio: 256 for 224.
            PipelineKind::Eval => vec![
                Op::Resize {
                    size: ResizeTo::Shorter(self.size * 8 / 7),
                    max_size: None,
                    interpolation,
                    antialias: true,
                },
                Op::CenterCrop { size },
                normalize,
            ],
        }
    }

    /// The samples as fast as storage is to be.
    pub fn storage(&self, source: Arc<dyn Source>) -> Result<Arc<dyn Source>, Failed> {
        let Some(megabytes) = self.storage_mbps else { return Ok(source) };
        let rate = Arc::new(ByteRate::new(megabytes * 1e6)?);
        Ok(Arc::new(Throttled::new(source, rate)))
    }

    /// How the samples are prepared.
    pub fn preparation(&self, files: &Arc<Files>) -> Result<ImagePreparation, Failed> {
        let pipeline = Pipeline::new(self.operations(), PipelineOptions { dct_scaling: true })?;
        Ok(ImagePreparation {
            source: self.storage(files.clone())?,
            pipeline: Arc::new(pipeline),
            layout: Layout::Nchw,
            limits: Limits::default(),
            seed: 0,
            cache: None,
            sizes: Arc::default(),
        })
    }

    /// The job a loader would make of these arguments.
    pub fn job(&self, preparation: ImagePreparation, order: ServingOrder) -> Result<Arc<Job>, Failed> {
        let batches_ahead = 2.max((2 * self.thread_count()).div_ceil(self.batch_size as usize));
        let options = JobOptions {
            order,
            batch_size: self.batch_size as usize,
            batches_ahead,
            ahead_grows: false,
            batches_held: 2,
            errors: ErrorPolicy::Skip,
            in_step: false,
            go_on: false,
        };
        Job::new(Arc::new(preparation), options).map_err(|ArenaError { bytes, source }| {
            format!(
                "{bytes} bytes of batch memory could not be had ({source}); lower --batch-size or --size, or free memory."
            )
            .into()
        })
    }
}

/// The samples of an epoch in the order a loader with `seed=0` serves them.
pub fn shuffled(samples: u32, epoch: u32) -> Vec<SampleId> {
    let permutation = Permutation::shuffled(samples, 0, epoch);
    (0..samples).map(|position| permutation.sample_at(position)).collect()
}

/// Serves one epoch, alone or as a member of a pool, and throws the batches away; returns how many samples came.
pub fn serve_epoch(
    engine: &Engine,
    job: &Arc<Job>,
    samples: u32,
    batch_size: u32,
    epoch: u32,
) -> Result<u64, Failed> {
    let spec = JobSpec { batch_size, drop_last: false, shard: Shard::WHOLE };
    let plan = EpochPlan::new(Permutation::shuffled(samples, 0, epoch), &spec, JobCursor::start_of(epoch))?;
    let mut run = match job.pool() {
        Some(_) => engine.start_shared(job, &plan, epoch, &Ledger::new(0))?,
        None => engine.start(job, plan, epoch),
    };
    let mut served = 0;
    loop {
        match run.next(Duration::from_secs(3600)).map_err(|error: RunError| error.to_string())? {
            Next::Batch(batch) => served += batch.len() as u64,
            Next::End => return Ok(served),
            Next::Passed => {}
            Next::TimedOut => return Err("no batch was ready within an hour.".into()),
        }
    }
}

/// A path argument.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct DatasetPath {
    /// A folder with one folder per class, or a manifest (.csv, .tsv, .jsonl).
    pub path: PathBuf,
}
