//! What jobs say to a shared order, and what it answers.

use serde::{Deserialize, Serialize};

use super::EntryId;
use crate::{Form, LedgerError, SampleId, counted};

/// How often a job passes the window by where nobody says otherwise, so that jobs at a constant distance do not go through the
/// same parts of the dataset together for ever.
///
/// Each such pass takes a sample out of its part, and somebody has to read it once more; the more jobs there are, the more
/// of them. In virtual time, jobs .37 epochs apart read so much more than the least, and where a sample stands in an
/// epoch correlates so with where it stood ten epochs before (for `J` jobs of equal speed):
///
/// | mixing | J = 2 | J = 3 | J = 4 | J = 8 |
/// |---|---|---|---|---|
/// | 0 | 0 %, .68 | 0 %, .87 | 0 %, .90 | 0 %, .94 |
/// | .02 | 0.7 %, .52 | 1.3 %, .52 | 1.9 %, .38 | 4.3 %, .22 |
/// | .05 | 1.8 %, .32 | 3.2 %, .27 | 4.9 %, .06 | 11 %, .00 |
///
/// So .02 is about as much as up to eight jobs can have within a twentieth of the least.
pub const SHARED_MIXING: f64 = 0.02;

/// What a shared order is set up with.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedSettings {
    /// The size of the dataset.
    pub samples: u32,
    /// Decides between equally good samples. The random numbers of preparations are drawn from it too, so whoever starts anew while
    /// jobs go on should give a new one.
    pub seed: u64,
    /// What the window may take.
    pub window_bytes: u64,
    /// What stands in the window. Augmented samples are given to each job once and never again; decoded ones may be given to
    /// it in every epoch, since it augments them itself.
    pub window_form: Form,
    /// The chance, from 0 to 1, that a job passes the window by and takes any sample it lacks: 0 reads least, more mixes the parts of
    /// the dataset that jobs at a constant distance go through together.
    pub mixing: f64,
}

/// Where a sample that has to be prepared comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// It has to be read from storage.
    Storage,
    /// Its encoded or decoded form is in memory.
    Pinned,
}

/// What a job gets next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A prepared sample from the window. It is held for the job until [`SharedOrder::copied`](crate::SharedOrder::copied).
    Take {
        /// Which one.
        sample: SampleId,
        /// Where it lies.
        entry: EntryId,
    },
    /// A sample that this job prepares.
    Prepare {
        /// Which one.
        sample: SampleId,
        /// Where it comes from.
        from: Home,
        /// Seeds its random decisions, together with the seed of the order.
        generation: u64,
        /// Set when others want it too: report it with [`SharedOrder::ready`](crate::SharedOrder::ready) or
        /// [`SharedOrder::abandon`](crate::SharedOrder::abandon).
        share: Option<EntryId>,
    },
    /// All that is left is being prepared by others: ask again when something is ready, or [insist](crate::SharedOrder::insist).
    Await,
    /// Nothing is left in this epoch.
    EpochDone,
}

/// What to do with a sample that was prepared for several jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Put it into the window.
    Keep,
    /// Nobody waits for it any more, or there is no room.
    LetGo,
}

/// Which samples an epoch has.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// The whole dataset.
    Whole,
    /// These: a rank's share.
    Of(&'a [SampleId]),
}

/// A request that does not fit the state of things.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SharedError {
    /// There is a bit for each seat, and all are taken.
    #[error("64 jobs and ranks share this dataset already, as many as can; wait until one leaves")]
    TooManyJobs,
    /// The job has left.
    #[error("this job has left the shared order; join again")]
    NotSeated,
    /// A new epoch begins when all samples of the last one are on their way.
    #[error("epoch {epoch} still lacks {}; quit it before another begins", counted(u64::from(*lacks), "sample"))]
    EpochUnfinished {
        /// The epoch in progress.
        epoch: u32,
        /// How many of its samples were not handed out.
        lacks: u32,
    },
    /// A sample that the dataset does not have.
    #[error("sample {sample} was named, but the dataset has {}", counted(u64::from(*samples), "sample"))]
    NoSuchSample {
        /// The id that was named.
        sample: u32,
        /// The size of the dataset.
        samples: u32,
    },
    /// Two epochs of one job with the same number could not be told apart.
    #[error("epoch {0} still has samples on their way to the trainer, so it cannot begin again")]
    EpochRunning(u32),
    /// A ledger for another dataset.
    #[error(
        "the ledger is for {}, but the dataset has {samples}; resume with the dataset it was saved for",
        counted(u64::from(*ledger), "sample")
    )]
    OtherDataset {
        /// The length of the ledger.
        ledger: u32,
        /// The size of the dataset.
        samples: u32,
    },
    /// The job is not in that epoch.
    #[error("the job has nothing on its way in epoch {0}")]
    NoSuchEpoch(u32),
    /// A lease of a past epoch cannot go back among what is lacked.
    #[error(
        "epoch {0} is past, so nobody else can take over its sample: prepare it again, or report it as failed"
    )]
    EpochOver(u32),
    /// A sample that was not handed out, or was served already.
    #[error("sample ids are the positions of a job's ledger, and {0}")]
    Ledger(#[from] LedgerError),
}

/// What happened since the order was set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedStats {
    /// Samples handed out from the window.
    pub taken: u64,
    /// Samples handed out to be prepared, from storage.
    pub prepared_storage: u64,
    /// Samples handed out to be prepared, from memory.
    pub prepared_pinned: u64,
    /// Those of them that somebody else had prepared or was preparing, but this job could not use or wait for.
    pub prepared_again: u64,
    /// Prepared samples that the window took in.
    pub kept: u64,
    /// Prepared samples that came too late or found no room.
    pub let_go: u64,
    /// Ready samples that had to make room for one that more jobs waited for.
    pub displaced: u64,
}
