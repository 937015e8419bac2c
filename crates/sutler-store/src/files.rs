//! Samples that are local files.

use std::ops::Range;
use std::sync::Arc;

use sutler_core::{Fingerprint, SampleId};

use crate::annotations::Annotations;
use crate::error::StoreError;
use crate::listing::Listing;
use crate::read_buffer::ReadBuffer;
use crate::source::Source;

/// Which way bytes take from a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Io {
    /// Through the page cache of the operating system.
    #[default]
    Buffered,
    /// Past the page cache (`O_DIRECT`), so that a sample which Sutler caches is not kept in memory a second time.
    Direct,
}

/// The files of a [`Listing`] as a [`Source`].
#[derive(Debug)]
pub struct Files {
    listing: Arc<Listing>,
    io: Io,
    bytes_max: u64,
}

impl Files {
    /// A source that reads with `io` and refuses files of more than `bytes_max` bytes before it takes memory for them.
    #[must_use]
    pub fn new(listing: impl Into<Arc<Listing>>, io: Io, bytes_max: u64) -> Self {
        Self { listing: listing.into(), io, bytes_max }
    }

    /// The files and their labels.
    #[must_use]
    pub fn listing(&self) -> &Arc<Listing> {
        &self.listing
    }
}

impl Source for Files {
    fn len(&self) -> usize {
        self.listing.len()
    }

    fn label(&self, id: SampleId) -> i64 {
        self.listing.label(id)
    }

    fn describe(&self, id: SampleId) -> String {
        self.listing.path(id).display().to_string()
    }

    fn read<'a>(&self, id: SampleId, buffer: &'a mut ReadBuffer) -> Result<&'a [u8], StoreError> {
        buffer.read_file(|path| self.listing.write_path(id, path), self.io, self.bytes_max)
    }

    fn read_start<'a>(
        &self,
        id: SampleId,
        bytes: usize,
        buffer: &'a mut ReadBuffer,
    ) -> Result<(&'a [u8], u64), StoreError> {
        buffer.read_start(|path| self.listing.write_path(id, path), bytes, self.bytes_max)
    }

    fn read_ranges<'a>(
        &self,
        id: SampleId,
        ranges: &mut dyn Iterator<Item = Range<u64>>,
        buffer: &'a mut ReadBuffer,
    ) -> Result<&'a [u8], StoreError> {
        buffer.read_ranges(|path| self.listing.write_path(id, path), ranges, self.bytes_max)
    }

    fn partners(&self) -> Option<Arc<dyn Source>> {
        let partners = Arc::clone(self.listing.partners()?);
        Some(Arc::new(Self { listing: partners, io: self.io, bytes_max: self.bytes_max }))
    }

    fn encoded_bytes(&self, id: SampleId) -> Option<u64> {
        std::fs::metadata(self.listing.path(id)).ok().map(|file| file.len())
    }

    fn annotations(&self) -> Option<&Arc<Annotations>> {
        self.listing.annotations()
    }

    fn fingerprint(&self) -> Fingerprint {
        self.listing.fingerprint()
    }
}
