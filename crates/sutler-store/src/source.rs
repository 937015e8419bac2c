//! What the engine needs of a place where samples are kept.

use std::ops::Range;
use std::sync::Arc;

use sutler_core::{Fingerprint, SampleId};

use crate::annotations::Annotations;
use crate::error::StoreError;
use crate::read_buffer::ReadBuffer;

/// A place where the encoded samples of a dataset are kept.
///
/// Many threads read from one source at the same time, each into its own [`ReadBuffer`]. The caller promises ids below
/// [`len`](Self::len); the source owes the same bytes for the same id for as long as its fingerprint stays the same.
pub trait Source: Send + Sync {
    /// How many samples there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The label of a sample.
    fn label(&self, id: SampleId) -> i64;

    /// What to call a sample in a message: its path or address.
    fn describe(&self, id: SampleId) -> String;

    /// The whole encoded sample, which stays in the buffer until the next read.
    ///
    /// # Errors
    /// When the sample cannot be read in full. An empty sample is not an error here; its decoder will say what it is.
    fn read<'a>(&self, id: SampleId, buffer: &'a mut ReadBuffer) -> Result<&'a [u8], StoreError>;

    /// The first bytes of an encoded sample, at most so many, and how long it is as a whole. Where a part costs as much as
    /// all of it, it may be all of it.
    ///
    /// # Errors
    /// When the sample cannot be read.
    fn read_start<'a>(
        &self,
        id: SampleId,
        _bytes: usize,
        buffer: &'a mut ReadBuffer,
    ) -> Result<(&'a [u8], u64), StoreError> {
        self.read(id, buffer).map(|all| (all, all.len() as u64))
    }

    /// Some ranges of an encoded sample, which do not overlap and go forward, one after the other. Where a part costs as much as all of it, all
    /// of it may be read.
    ///
    /// # Errors
    /// When the sample cannot be read, or ends before the last range does.
    fn read_ranges<'a>(
        &self,
        id: SampleId,
        ranges: &mut dyn Iterator<Item = Range<u64>>,
        buffer: &'a mut ReadBuffer,
    ) -> Result<&'a [u8], StoreError>;

    /// Where what belongs to each sample beside it is kept, under the same ids: the labels of volumes.
    fn partners(&self) -> Option<Arc<dyn Source>> {
        None
    }

    /// How large an encoded sample is, where that can be told without reading it. A wrong or missing answer does no harm: it is for
    /// estimates.
    fn encoded_bytes(&self, _id: SampleId) -> Option<u64> {
        None
    }

    /// The boxes on its pictures, where it has such.
    fn annotations(&self) -> Option<&Arc<Annotations>> {
        None
    }

    /// A name for the samples and their labels: two sources with the same one hold the same dataset.
    fn fingerprint(&self) -> Fingerprint;
}
