//! Where a trainer's time goes, what would change it, and what to do about it: decided from rates that somebody measured.
//!
//! The method is differential. The same batches are trained on three times: when they are simply there, when every sample is in memory
//! and only has to be prepared, and when samples come from storage as they really do. What the second takes longer than the first is
//! waiting for preparation, and what the third takes longer than the second is waiting for storage ([`Stalls::between`]).
//!
//! What-ifs have two sources. Where everything overlaps and one resource binds there are closed forms ([`cache_needed`],
//! [`storage_needed`], [`cores_needed`]); for everything else the rates become a [`Profile`](crate::plan::Profile), and the bottleneck model that
//! also plans caches answers ([`Facts::predict`]). Each answer carries an interval: what the measurements leave open, and how far the model is off where its answer
//! can be compared with a measurement: for the configuration as it is, and for those that were tried ([`Missed`]).
//!
//! Nothing is measured here.

mod advice;
mod confidence;
mod facts;
mod missed;
mod needed;
mod stalls;

pub use advice::{Advice, GAIN_MIN, MOSTLY_WAITING, STEP_BUSY, Setting};
pub use confidence::Known;
pub use facts::{Change, Facts, FactsError, Outlook};
pub use missed::Missed;
pub use needed::{cache_needed, cores_needed, storage_needed};
pub use stalls::{EpochTimes, LoaderAlone, Stalls};
