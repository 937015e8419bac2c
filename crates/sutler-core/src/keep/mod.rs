//! What stays in memory, and in which form.
//!
//! A training epoch touches every sample once, in an order that is new each time. So the last use of a sample says
//! nothing about its next one: it is about an epoch away for all of them alike, and a cache that makes room for the newest
//! sample throws out one that will be asked for just as soon. With a fraction `c` of the samples in memory, and `a = 1 - c`:
//!
//! | policy | misses in a shuffled epoch | at c = .5 |
//! |---|---|---|
//! | [`Policy::Pinned`]: admit until full, never evict | `a` | .500 |
//! | [`Policy::Lru`]: the longest unused goes | `a (1 - ln a)` | .847 |
//! | [`Policy::Random`]: anyone goes (what a page cache looks like) | `m` of `m = 1 - ((1 - e^-k) / k)²`, `k = m/c` | .719 |
//!
//! No policy that serves every sample once can miss less than `a`, so `Pinned` is the default and the other two are kept for
//! orders with repetition and to be compared against. The tests hold each of them to its closed form.
//!
//! One byte budget is [divided](divide) over datasets, and each part split over the forms by a [`Partition`]; a [`Keeper`] decides inside it, by the sizes the samples really
//! have. It holds no sample itself: it is told what was read and answers what to keep and what to let go; the memory
//! belongs to whoever asks. Augmented samples that several jobs share do not live here but in the window of
//! [`SharedOrder`](crate::SharedOrder), which gets its share of the same budget.

mod division;
mod keeper;
mod partition;
mod shelf;

pub use division::divide;
pub use keeper::{KeepStats, Keeper};
pub use partition::{Partition, PartitionError};
pub use shelf::{Admission, Policy, ShelfStats};
