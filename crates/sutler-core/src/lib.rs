//! The vocabulary of Sutler and its decisions, as pure code.
//!
//! Nothing here reads a clock, a file or a socket, and nothing starts a thread. A decision is a function of
//! what it was told; the engine tells it what really happened, the tests tell it what might.
#![forbid(unsafe_code)]

pub mod analyse;
mod assembly;
mod bits;
mod buckets;
mod costs;
mod course;
mod crew;
mod depth;
mod fingerprint;
mod form;
mod groups;
mod keep;
mod lanes;
mod ledger;
mod order;
mod packing;
mod permutation;
pub mod plan;
mod ranks;
mod repeats;
mod rng;
mod rota;
mod sample;
mod shard;
mod shared;
mod slots;
mod words;

pub use assembly::{Assembly, Place};
pub use buckets::{BucketSpec, bucket_batches};
pub use costs::Costs;
pub use course::{Course, Span, Split};
pub use crew::{Crew, CrewLimits, CrewObservation, CrewReason};
pub use depth::Depth;
pub use fingerprint::{Fingerprint, FingerprintBuilder};
pub use form::Form;
pub use groups::{GroupSpec, group_batches};
pub use keep::{Admission, KeepStats, Keeper, Partition, PartitionError, Policy, ShelfStats, divide};
pub use lanes::{
    Durations, Experience, Hints, Lanes, STEPS_MAX, SlowShare, Step, StepTimes, Traffic, Turn,
    Verdict as LaneVerdict, Waiting,
};
pub use ledger::{Ledger, LedgerError, SavedLedger};
pub use order::{BatchPlan, EpochPlan, JobCursor, JobSpec, OrderError};
pub use packing::{Packing, Piece, Tape};
pub use permutation::Permutation;
pub use ranks::{done_by_ranks, places_of};
pub use repeats::Repeats;
pub use rng::{Draw, SampleRng, Stream};
pub use rota::Rota;
pub use sample::{DatasetTooLarge, SampleId};
pub use shard::{Shard, ShardError};
pub use shared::{
    Choice, EntryId, Home, JobKey, Leaving, Part, SHARED_MIXING, Seat, SharedError, SharedOrder,
    SharedSettings, SharedStats, Verdict, Wanting,
};
pub use words::{counted, grouped};
