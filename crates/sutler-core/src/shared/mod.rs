//! Which sample a job gets next when several jobs use the same dataset.
//!
//! The window is a buffet. A dish that was prepared for one guest stays out until every guest who has yet to eat of it today has
//! had some; nobody is served the same dish twice; and a guest who finds nothing new on the table orders what most of the
//! others are waiting for as well. So `J` jobs that each want `N` samples cost `N` preparations instead of `J·N`.
//!
//! A job that asks for its next sample gets, in this order:
//! 1. what stands ready in the window and it has not had in this epoch;
//! 2. otherwise a new sample, from the *pinned* ones as often as they are among those it has left, so that they last for the whole
//!    epoch and storage is read at an even pace; and among those, or the ones in storage, one that **most jobs lack**;
//! 3. where a copy of all it has left stands in the window but was used by it in an earlier epoch: a copy of its own;
//! 4. where the others are just preparing all it has left: [`Choice::Await`]. Nobody *has to* wait, though: [`SharedOrder::insist`]
//!    prepares a copy of its own, and since there are no clocks here, the caller decides when its patience ends.
//!
//! With a pinned fraction `c` this reads `(1 - c) / J` samples from storage per sample served, at any phases between the jobs,
//! and that is the least there is: every sample that is not pinned must be read once in the time in which each job goes
//! through the dataset once. At different speeds the least is `(1 - c) * fastest / sum of all speeds`: a job that never gets a
//! tensor twice needs every sample that is not pinned read anew in each of its epochs, and the others can live on what is
//! read for the fastest. With a window of 2 % of the samples, a job twice as fast as another and three whose speeds have
//! nothing to do with each other read under 1 % more than that, eight of eight speeds a tenth.
//!
//! The complications:
//! - **The window is full** when a job runs ahead of the others. It then prefers samples that *fewest* others lack, which need no place,
//!   and keeps those that can be shared for when there is room. What is prepared nevertheless takes the place of an entry that
//!   fewer jobs wait for, or is let go.
//! - **Joining** costs nothing: the newcomer lacks everything, so whatever is ready or prepared from now on is shared with it.
//! - **Leaving** drops what only the leaver waited for. What it was preparing is free to be prepared by somebody else.
//! - **Pausing** ([`SharedOrder::expire`]) is leaving without losing one's place: nothing is kept for the job, and it does not
//!   count among those who lack a sample, until it asks again. It loses nothing but reuse.
//! - **Fresh**: an augmented sample is the same tensor for everyone who gets it, so an entry remembers who has had it, also
//!   across epochs, across the ranks of one job, and when a job leaves and comes back. Its random numbers belong to
//!   the *preparation* (its generation), not to a job's epoch, or two jobs with equal seeds would make equal tensors.
//! - **Transforms differ** ([`Wanting`]): jobs of one dataset share its order whatever they do to the samples. An entry then holds what they have in common,
//!   encoded or decoded, and each goes on from there; a finished copy lies beside it for those that do the same.
//! - **Phases persist.** Two jobs half an epoch apart can only share everything by going through the same half together, and then
//!   through the other. While they run at equal speed, each half stays what it is from epoch to epoch and is shuffled only within
//!   itself: where a sample stands in one epoch and in the next correlates by 3/4. Which half a sample is in is up to chance,
//!   and jobs in step have one part, a shuffle like any other. `mixing` breaks the parts up: with that chance a job passes the
//!   window by and takes any sample it lacks. [`SHARED_MIXING`] says what that costs and what it is worth.
//! - **Pinned samples stay in their parts** for the same reason. Those that came into memory while one job ran alone are in the part
//!   that it went through alone; jobs that share get them there, not spread over the epoch, until mixing has spread them.
//!
//! Exactly once is kept by each job's [`Ledger`](crate::Ledger), as everywhere. A sample is *lacked*, then *leased* with the choice, then *served*, *failed*
//! or *released* (lacked again).

mod classes;
mod common;
mod order;
mod seats;
mod vocabulary;
mod window;

pub use common::{Leaving, Wanting};
pub use order::SharedOrder;
pub use seats::{JobKey, Seat};
pub use vocabulary::{Choice, Home, Part, SHARED_MIXING, SharedError, SharedSettings, SharedStats, Verdict};
pub use window::EntryId;
