//! A source that is slower than it is: for tests, and for questions of the kind "what if storage gave us 200 MB/s?".
//!
//! It behaves as one server with a queue. A read takes its place in the queue when it is asked for and occupies the server for its
//! bytes; the thread that asked goes on when its turn is over. Turns are laid end to end on the clock and not measured by when threads
//! wake up, so that a late wake-up delays one thread and costs the server nothing: while there is a queue, the rate is exact.
//! When nobody asks, the time is lost, as it is with a disk; so no stretch of time ever sees more than the rate.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sutler_core::{Fingerprint, SampleId};

use crate::annotations::Annotations;
use crate::error::StoreError;
use crate::read_buffer::ReadBuffer;
use crate::source::Source;

/// A rate in bytes per second that any number of threads and sources share.
#[derive(Debug)]
pub struct ByteRate {
    /// Held to give out a turn or to change the rate, never while anybody reads or sleeps.
    turns: Mutex<Turns>,
}

#[derive(Debug)]
struct Turns {
    bytes_per_s: f64,
    /// When the last turn that was given out is over.
    taken_until: Instant,
}

/// A rate that is none.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("storage cannot deliver {bytes_per_s} bytes per second; the rate should be a positive number")]
pub struct NoRate {
    /// What was asked for.
    pub bytes_per_s: f64,
}

impl ByteRate {
    /// So many bytes per second.
    ///
    /// # Errors
    /// When that is not a positive number.
    pub fn new(bytes_per_s: f64) -> Result<Self, NoRate> {
        check(bytes_per_s)?;
        Ok(Self { turns: Mutex::new(Turns { bytes_per_s, taken_until: Instant::now() }) })
    }

    /// Another rate from now on, as when others begin or cease to use the same disk. Reads that have their turn keep it.
    ///
    /// # Errors
    /// When that is not a positive number.
    pub fn set(&self, bytes_per_s: f64) -> Result<(), NoRate> {
        check(bytes_per_s)?;
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).bytes_per_s = bytes_per_s;
        Ok(())
    }

    /// Reads, and returns when the turn that takes is over.
    fn slow<'a>(&self, read: impl FnOnce() -> Result<&'a [u8], StoreError>) -> Result<&'a [u8], StoreError> {
        let asked = Instant::now();
        let bytes = read()?;
        // What the read itself took counts towards its turn, so that a rate the source can keep is kept.
        let over = self.turn(asked, bytes.len());
        std::thread::sleep(over.saturating_duration_since(Instant::now()));
        Ok(bytes)
    }

    /// Gives a turn of so many bytes to somebody who came at `asked`; returns when it is over.
    fn turn(&self, asked: Instant, bytes: usize) -> Instant {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        // A year at most: durations have an end, and nobody waits for this one's.
        let seconds = (bytes as f64 / turns.bytes_per_s).min(3.2e7);
        turns.taken_until = asked.max(turns.taken_until) + Duration::from_secs_f64(seconds);
        turns.taken_until
    }
}

fn check(bytes_per_s: f64) -> Result<(), NoRate> {
    if bytes_per_s > 0.0 && bytes_per_s.is_finite() { Ok(()) } else { Err(NoRate { bytes_per_s }) }
}

/// A source whose bytes come no faster than a rate.
pub struct Throttled {
    inner: Arc<dyn Source>,
    rate: Arc<ByteRate>,
}

impl Throttled {
    /// The same samples, slower.
    #[must_use]
    pub fn new(inner: Arc<dyn Source>, rate: Arc<ByteRate>) -> Self {
        Self { inner, rate }
    }
}

impl Source for Throttled {
    fn len(&self) -> usize {
        self.inner.len()
    }

    fn label(&self, id: SampleId) -> i64 {
        self.inner.label(id)
    }

    fn describe(&self, id: SampleId) -> String {
        self.inner.describe(id)
    }

    fn read<'a>(&self, id: SampleId, buffer: &'a mut ReadBuffer) -> Result<&'a [u8], StoreError> {
        self.rate.slow(|| self.inner.read(id, buffer))
    }

    fn read_start<'a>(
        &self,
        id: SampleId,
        bytes: usize,
        buffer: &'a mut ReadBuffer,
    ) -> Result<(&'a [u8], u64), StoreError> {
        let mut length = 0;
        let start = self.rate.slow(|| {
            let (start, whole) = self.inner.read_start(id, bytes, buffer)?;
            length = whole;
            Ok(start)
        })?;
        Ok((start, length))
    }

    fn read_ranges<'a>(
        &self,
        id: SampleId,
        ranges: &mut dyn Iterator<Item = Range<u64>>,
        buffer: &'a mut ReadBuffer,
    ) -> Result<&'a [u8], StoreError> {
        self.rate.slow(|| self.inner.read_ranges(id, ranges, buffer))
    }

    fn partners(&self) -> Option<Arc<dyn Source>> {
        let partners = Self::new(self.inner.partners()?, Arc::clone(&self.rate));
        Some(Arc::new(partners))
    }

    fn encoded_bytes(&self, id: SampleId) -> Option<u64> {
        self.inner.encoded_bytes(id)
    }

    fn annotations(&self) -> Option<&Arc<Annotations>> {
        self.inner.annotations()
    }

    fn fingerprint(&self) -> Fingerprint {
        self.inner.fingerprint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Files, FolderOptions, Io, Listing, Silent};

    #[test]
    fn turns_are_laid_end_to_end_and_idle_time_is_lost() {
        let rate = ByteRate::new(1000.0).unwrap();
        let start = Instant::now() + Duration::from_secs(1);
        let after = |ms| start + Duration::from_millis(ms);
        assert_eq!(rate.turn(start, 100), after(100));
        // Came while the server was busy, and at a time before that: both queue.
        assert_eq!(rate.turn(after(50), 200), after(300));
        assert_eq!(rate.turn(start, 0), after(300));
        // Came after a pause: nothing is made up for.
        assert_eq!(rate.turn(after(1000), 100), after(1100));
        // A tenth of the rate for whoever comes from now on.
        rate.set(100.0).unwrap();
        assert_eq!(rate.turn(after(1050), 100), after(2100));
    }

    #[test]
    fn many_threads_together_get_the_rate_and_the_same_bytes() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("class")).unwrap();
        for index in 0u8..20 {
            std::fs::write(root.path().join(format!("class/{index:02}.jpg")), [index; 1000]).unwrap();
        }
        let listing = Listing::image_folder(root.path(), &FolderOptions::default(), &Silent).unwrap();
        let files = Arc::new(Files::new(listing, Io::Buffered, 1 << 20));
        let throttled = Throttled::new(files.clone(), Arc::new(ByteRate::new(100_000.0).unwrap()));
        assert_eq!((throttled.len(), throttled.fingerprint()), (20, files.fingerprint()));
        assert_eq!(throttled.describe(SampleId(3)), files.describe(SampleId(3)));
        let started = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let throttled = &throttled;
                scope.spawn(move || {
                    let mut buffer = ReadBuffer::default();
                    for index in (thread..20).step_by(4) {
                        let id = SampleId(index);
                        assert_eq!(throttled.read(id, &mut buffer).unwrap(), [index as u8; 1000]);
                        assert_eq!(throttled.label(id), 0);
                    }
                });
            }
        });
        // 20,000 bytes at 100,000 a second; a busy machine may take longer, none may take less.
        let took = started.elapsed().as_secs_f64();
        assert!((0.2..20.0).contains(&took), "{took}");
    }

    #[test]
    fn a_rate_is_a_positive_number() {
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = ByteRate::new(wrong).unwrap_err().to_string();
            assert!(error.contains("positive"), "{error}");
            assert!(ByteRate::new(1.0).unwrap().set(wrong).is_err());
        }
    }
}
