//! What a client asks for, as data: a dataset, a job over it, an epoch of the job.
//!
//! The same descriptions serve the embedded loader and the agent, so that the two cannot drift apart.

mod dataset;
mod epoch;
mod job;
mod path;

pub use dataset::{DatasetSpec, ListingSpec, MediaSpec};
pub use epoch::{EpochError, EpochSpec, SequenceSpec};
pub use job::{JobError, JobSpec, Memory, PolicySpec};
