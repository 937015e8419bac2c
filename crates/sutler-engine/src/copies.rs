//! Copies of samples that are kept: what all kinds of files have in common on the way out of the cache and into it.
//!
//! A sample comes from its encoded copy where there is one, and from storage otherwise. What came from storage is offered to the
//! cache once it has proved to be good: a file that cannot be decoded is not worth its place, and may be mended by the next
//! epoch. What a kind of samples adds is its decoded form.

use std::time::Instant;

use sutler_core::{Form, SampleId};
use sutler_store::cache::{Cache, Offer, Reservation};
use sutler_store::{ReadBuffer, Source, StoreError};

use crate::SampleRecord;

/// A buffer beyond this is given back after its sample, as the buffer for reading is: one giant among the samples should
/// not cost every thread its size for the rest of the run.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// One worker's memory for an encoded sample at a time.
#[derive(Default)]
pub(crate) struct Fetching {
    buffer: ReadBuffer,
    /// The encoded copy, where the cache has one.
    copy: Vec<u8>,
}

/// An encoded sample.
#[derive(Clone, Copy)]
pub(crate) struct Fetched<'a> {
    pub bytes: &'a [u8],
    /// Whether it came from storage, or from its copy.
    pub from_storage: bool,
}

impl Fetching {
    /// Gets an encoded sample from its copy or from storage, and notes what that took and where it was found.
    ///
    /// # Errors
    /// When storage cannot be read.
    pub fn fetch(
        &mut self,
        source: &dyn Source,
        cache: Option<&Cache>,
        sample: SampleId,
        record: &mut SampleRecord,
    ) -> Result<Fetched<'_>, StoreError> {
        let begun = Instant::now();
        let from_storage =
            !cache.is_some_and(|cache| read_copy(cache, sample, Form::Encoded, &mut self.copy));
        let read = if from_storage { source.read(sample, &mut self.buffer) } else { Ok(&self.copy[..]) };
        record.fetch += begun.elapsed();
        let bytes = read?;
        if from_storage {
            record.storage_reads += 1;
            record.storage_bytes += bytes.len() as u64;
        } else {
            record.served = Form::Encoded;
        }
        Ok(Fetched { bytes, from_storage })
    }
}

/// Copies what is kept of a sample in this form over whatever `out` held; false when nothing is.
pub(crate) fn read_copy(cache: &Cache, sample: SampleId, form: Form, out: &mut Vec<u8>) -> bool {
    let Some(held) = cache.get(sample, form) else { return false };
    if held.len() <= KEPT_BYTES_MAX {
        give_back_giant(out);
    }
    let read = held.read_into(out);
    drop(held);
    if read.is_err() {
        cache.discard(sample, form);
    }
    read.is_ok()
}

/// A seat for a sample that was just fetched, in the form there is room for. `decoded` says how many bytes it takes decoded, where it can be
/// kept so, and `foreign` whether there is a decoded copy that the caller cannot use.
pub(crate) fn seat<'c>(
    cache: &'c Cache,
    sample: SampleId,
    fetched: Fetched<'_>,
    decoded: impl FnOnce() -> Option<usize>,
    foreign: bool,
) -> Option<Reservation<'c>> {
    if !fetched.from_storage && !cache.may_change_seats() {
        return None;
    }
    let offer = Offer {
        encoded_bytes: fetched.from_storage.then_some(fetched.bytes.len()),
        decoded_bytes: if cache.keeps(Form::Decoded) { decoded() } else { None },
        decoded_is_foreign: foreign,
    };
    cache.reserve(sample, &offer)
}

/// The form in which a sample is kept; of both, the one that serves the most jobs.
pub(crate) fn kept_as(cache: Option<&Cache>, sample: SampleId) -> Form {
    let has = |form| cache.is_some_and(|cache| cache.get(sample, form).is_some());
    [Form::Encoded, Form::Decoded].into_iter().find(|&form| has(form)).unwrap_or(Form::Storage)
}

/// Lets go of a buffer that one sample in a thousand needs.
pub(crate) fn give_back_giant(buffer: &mut Vec<u8>) {
    if buffer.capacity() > KEPT_BYTES_MAX {
        *buffer = Vec::new();
    }
}
