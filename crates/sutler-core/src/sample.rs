//! What a sample is called.

use serde::{Deserialize, Serialize};

/// The index of a sample in its dataset's listing.
///
/// Thirty-two bits keep permutations and cache tables at half the size of the obvious choice; a dataset of more
/// than 4,294,967,295 samples is refused when it is opened ([`SampleId::check_count`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SampleId(pub u32);

/// A dataset lists more samples than a [`SampleId`] can name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the dataset has {0} samples, more than the {max} that one dataset may hold; split it", max = u32::MAX)]
pub struct DatasetTooLarge(pub u64);

impl SampleId {
    /// The id as an index into per-sample tables.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// Checks that every one of `count` samples can be named.
    ///
    /// # Errors
    /// When the count does not fit.
    pub fn check_count(count: usize) -> Result<u32, DatasetTooLarge> {
        u32::try_from(count).map_err(|_| DatasetTooLarge(count as u64))
    }
}
