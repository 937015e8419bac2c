//! Reading and nothing else: what storage or a cache delivers to so many threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sutler_core::{Form, SampleId};
use sutler_store::cache::Cache;
use sutler_store::{ReadBuffer, Source, StoreError};

/// How many bytes there were, and how long they took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Delivered {
    /// Samples that were found.
    pub samples: usize,
    /// Their bytes.
    pub bytes: u64,
    /// On the wall.
    pub took: Duration,
}

/// Reads each of the samples once.
///
/// # Errors
/// The first that cannot be read.
pub fn read_once(
    storage: &dyn Source,
    samples: &[SampleId],
    threads: usize,
) -> Result<Delivered, StoreError> {
    deliver(samples, threads, ReadBuffer::default, |sample, buffer| {
        storage.read(sample, buffer).map(|bytes| Some(bytes.len()))
    })
}

/// Copies what a cache keeps of the samples, as they were stored; those it does not keep are passed over.
#[must_use]
pub fn recall_once(cache: &Cache, samples: &[SampleId], threads: usize) -> Delivered {
    let recalled = deliver(samples, threads, Vec::new, |sample, out: &mut Vec<u8>| {
        let held = cache.get(sample, Form::Encoded);
        Ok::<_, std::convert::Infallible>(held.and_then(|held| held.read_into(out).ok().map(|()| out.len())))
    });
    match recalled {
        Ok(delivered) => delivered,
        Err(never) => match never {},
    }
}

fn deliver<Own, Failure: Send>(
    samples: &[SampleId],
    threads: usize,
    own: impl Fn() -> Own + Sync,
    get: impl Fn(SampleId, &mut Own) -> Result<Option<usize>, Failure> + Sync,
) -> Result<Delivered, Failure> {
    let next = AtomicUsize::new(0);
    let started = Instant::now();
    let parts = std::thread::scope(|scope| {
        let work = || {
            let (mut buffer, mut found, mut bytes) = (own(), 0, 0);
            while let Some(&sample) = samples.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Some(length) = get(sample, &mut buffer)? {
                    found += 1;
                    bytes += length as u64;
                }
            }
            Ok((found, bytes))
        };
        let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(part) => part,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect::<Result<Vec<(usize, u64)>, Failure>>()
    })?;
    Ok(Delivered {
        samples: parts.iter().map(|part| part.0).sum(),
        bytes: parts.iter().map(|part| part.1).sum(),
        took: started.elapsed(),
    })
}
