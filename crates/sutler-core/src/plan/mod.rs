//! How to split memory over the forms, from rates that were measured.
//!
//! A sample that is kept *encoded* takes little room and spares the read; kept *decoded* it takes several times the room and spares
//! the decoder too; *augmented* it spares everything, once for each job, and must then be made anew. Which split is
//! best depends on what the machine lacks: bandwidth, processors or memory. A model answers that for every split in percent, so
//! the best one is found by looking at all 5,151.
//!
//! Two models stand side by side, so that they can be compared:
//! - [`bottleneck`] is ours: one machine serves all forms, so their demands on each resource add up, and the resource that is
//!   exhausted first sets the pace.
//! - [`published`] is the model of the paper that had the idea (Seneca, FAST'26), as printed.
//!
//! Nothing is measured here. A [`Profile`] comes from whoever ran the pipeline.

pub mod bottleneck;
mod comparison;
mod observed;
pub mod published;
mod split;

pub use bottleneck::{Loads, Network, Profile, ProfileError, Resource};
pub use comparison::{Answers, Comparison, Entry};
pub use observed::Observed;
pub use split::{Fractions, Plan, Prediction, Split};
