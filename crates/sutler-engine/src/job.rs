//! What is prepared, how, and into which memory: the same for every epoch.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sutler_core::{Depth, Experience, JobKey};

use crate::batch::BlockShape;
use crate::framed::Frames;
use crate::padded::Spares;
use crate::pool::{Kind, Pool};
use crate::{
    Arena, ArenaError, ErrorPolicy, Failure, Likeness, Metrics, Preparation, RowSpec, Snapshot, StageSummary,
};

/// What a job asks of the engine beside its samples.
#[derive(Clone, Copy, Debug)]
pub struct JobOptions {
    /// The most samples a batch holds.
    pub batch_size: usize,
    /// How many batches may be in preparation or waiting to be taken.
    pub batches_ahead: usize,
    /// Whether there may be more of them where these turn out to be too few ([`Depth`]).
    pub ahead_grows: bool,
    /// How many delivered batches the consumer usually holds at once; memory for as many is kept ready.
    pub batches_held: usize,
    /// What a bad sample does.
    pub errors: ErrorPolicy,
    /// Whether other ranks count on this one to deliver as many batches as they do, so that a batch without a single
    /// good sample cannot just be passed over.
    pub in_step: bool,
    /// Whether an epoch goes on after a batch that raised, as PyTorch's does, instead of raising the same again.
    pub go_on: bool,
    /// In which order the samples of an epoch are served.
    pub order: ServingOrder,
}

impl JobOptions {
    /// How many batches are prepared ahead, in the beginning and later.
    #[must_use]
    pub fn depth(&self) -> Depth {
        let depth = if self.ahead_grows { Depth::growing } else { Depth::fixed };
        depth(self.batches_ahead)
    }
}

/// In which order the samples of an epoch are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServingOrder {
    /// As planned.
    Strict,
    /// As they get ready: each in the batch it was planned for, or earlier, or at most so many batches later. Where a
    /// batch sampler decides what is in a batch, or one worker makes all of it, whole batches are served as they get
    /// ready, each overtaken by at most so many.
    Ready {
        /// So many batches.
        lateness: u32,
    },
    /// As they get ready, and those first that other jobs of the same [`Pool`] have prepared: see [`Job::sharing`].
    Shared {
        /// By how many batches a sample may come later than those that were begun after it.
        lateness: u32,
    },
}

impl ServingOrder {
    pub(crate) fn lateness(self) -> Option<u32> {
        match self {
            ServingOrder::Strict => None,
            ServingOrder::Ready { lateness } | ServingOrder::Shared { lateness } => Some(lateness),
        }
    }
}

/// What is prepared, how, and into which memory; the same for every epoch.
pub struct Job {
    pub(crate) preparation: Arc<dyn Preparation>,
    pub(crate) options: JobOptions,
    pub(crate) arena: Option<Arc<Arena>>,
    /// Memory for samples and blocks, where samples are padded.
    pub(crate) spares: Option<Arc<Spares>>,
    /// The same where pictures are framed.
    pub(crate) frames: Option<Arc<Frames>>,
    pub(crate) metrics: Metrics,
    /// How many batches are prepared ahead: an epoch begins with as many as the one before it came to.
    depth: Mutex<Depth>,
    /// What samples have taken, in this epoch and those before.
    experience: Mutex<Experience>,
    /// How long what counts as slow takes, in microseconds; for workers, which look between transforms and shall not
    /// wait for a lock there.
    slow_after: AtomicU64,
    failures: Mutex<EpochFailures>,
    /// What it shares with other jobs.
    pub(crate) share: Option<Share>,
}

/// A job's part in a pool.
pub(crate) struct Share {
    pub pool: Arc<Pool>,
    /// Its name there, which all its ranks have.
    pub name: JobKey,
    /// What it makes of samples.
    pub kind: Kind,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.pool.dismiss(self.name);
    }
}

/// The failures of the epoch that was begun last; of an earlier one that is still running they are nobody's business.
#[derive(Default)]
pub(crate) struct EpochFailures {
    pub run: u64,
    pub list: Vec<Failure>,
}

impl Job {
    /// A job and its batch memory.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn new(preparation: Arc<dyn Preparation>, options: JobOptions) -> Result<Arc<Self>, ArenaError> {
        Self::with_memory(preparation, options, Arena::new)
    }

    /// A job whose batch memory can be handed to another process.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn shared(preparation: Arc<dyn Preparation>, options: JobOptions) -> Result<Arc<Self>, ArenaError> {
        Self::with_memory(preparation, options, Arena::shared)
    }

    fn with_memory(
        preparation: Arc<dyn Preparation>,
        options: JobOptions,
        memory: impl Fn(usize, usize) -> Result<Arc<Arena>, ArenaError>,
    ) -> Result<Arc<Self>, ArenaError> {
        let shape = BlockShape::of(&*preparation);
        let depth = options.depth();
        let arena = match shape.row {
            RowSpec::Fixed { .. } => {
                let bytes = shape.bytes(options.batch_size).ok_or_else(|| ArenaError {
                    bytes: usize::MAX,
                    source: std::io::Error::other("more bytes than the address space has"),
                })?;
                Some(Arena::reserve(bytes, &depth, options.batches_held, memory)?)
            }
            RowSpec::Varies => None,
        };
        // What is kept for later batches was some batch's before: there is no more of it than there were batches at a
        // time.
        let batches = depth.most(1).saturating_add(options.batches_held);
        let spares = preparation.padding().map(|padding| Spares::new(padding, batches, options.batch_size));
        let frames = preparation.framing().map(|framing| Frames::new(framing, batches, options.batch_size));
        Ok(Arc::new(Self {
            spares,
            frames,
            preparation,
            options,
            arena,
            metrics: Metrics::default(),
            depth: Mutex::new(depth),
            experience: Mutex::default(),
            slow_after: AtomicU64::new(u64::MAX),
            failures: Mutex::default(),
            share: None,
        }))
    }

    /// The same job as a member of a pool, which shares samples with the pool's other jobs: finished ones where they do
    /// the same to them ([`Preparation::likeness`]), and what they have in common otherwise. All must have the same
    /// dataset. Ranks of one training job have the same name, and different jobs different ones.
    ///
    /// # Panics
    /// When somebody else has a hold of the job already.
    #[must_use]
    pub fn sharing(mut self: Arc<Self>, pool: Arc<Pool>, name: JobKey) -> Arc<Self> {
        let job = Arc::get_mut(&mut self).expect("a job joins its pool before it is given to anybody");
        let lateness = job.options.order.lateness().unwrap_or(0);
        job.options.order = ServingOrder::Shared { lateness };
        let kind = pool.kind_of(&job.preparation.likeness());
        job.share = Some(Share { pool, name, kind });
        self
    }

    /// What it shares with other jobs, if it does.
    #[must_use]
    pub fn pool(&self) -> Option<&Arc<Pool>> {
        self.share.as_ref().map(|share| &share.pool)
    }

    /// The figures so far.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// All figures so far, those of the steps of the chain among them.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let steps = StageSummary::of_steps(self.experience().steps(), self.preparation.steps());
        Snapshot { steps, ..self.metrics.snapshot() }
    }

    /// The memory a sample takes.
    #[must_use]
    pub fn row(&self) -> RowSpec {
        self.preparation.row()
    }

    /// What the memory of a batch holds.
    #[must_use]
    pub fn block_shape(&self) -> BlockShape {
        BlockShape::of(&*self.preparation)
    }

    /// What other jobs over the same dataset may have in common with it.
    #[must_use]
    pub fn likeness(&self) -> Likeness {
        self.preparation.likeness()
    }

    /// The batch memory, where samples have one size.
    #[must_use]
    pub fn arena(&self) -> Option<&Arc<Arena>> {
        self.arena.as_ref()
    }

    pub(crate) fn depth(&self) -> MutexGuard<'_, Depth> {
        self.depth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many batches may be in preparation or waiting to be taken, as things are.
    #[must_use]
    pub fn batches_ahead(&self) -> usize {
        self.depth().batches()
    }

    /// How much memory its batches have, where samples have one size: for those ahead as things are, and for those that
    /// are held.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let batches = self.batches_ahead().saturating_add(self.options.batches_held);
        self.arena.as_ref().map_or(0, |arena| {
            let (bytes, slots) = arena.slots();
            bytes * slots.min(batches)
        })
    }

    pub(crate) fn experience(&self) -> MutexGuard<'_, Experience> {
        self.experience.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long what counts as slow takes, as of the last batch that left; `None` while too little is known.
    pub(crate) fn slow_after(&self) -> Option<Duration> {
        let microseconds = self.slow_after.load(Ordering::Relaxed);
        (microseconds < u64::MAX).then(|| Duration::from_micros(microseconds))
    }

    /// Lets workers know what the experience says.
    pub(crate) fn publish(&self, experience: &Experience) {
        self.slow_after.store(experience.slow_after().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn epoch_failures(&self) -> MutexGuard<'_, EpochFailures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The samples that failed in the latest epoch.
    #[must_use]
    pub fn failures(&self) -> Vec<Failure> {
        self.failures_from(0)
    }

    /// The same without the first so many, for whoever knows those.
    #[must_use]
    pub fn failures_from(&self, first: usize) -> Vec<Failure> {
        self.epoch_failures().list.get(first..).unwrap_or_default().to_vec()
    }
}
