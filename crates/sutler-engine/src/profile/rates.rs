//! What memory and storage deliver.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sutler_core::{Form, SampleId};
use sutler_store::cache::Cache;
use sutler_store::{ReadBuffer, Source};

use super::passes::thread_time;

/// How many bytes are copied to see how fast that is: enough for threads to get going, and a tenth of a second where memory is slow.
const COPIED_BYTES: usize = 256 << 20;

/// How many bytes lie on either side: more than processors keep for themselves, so that memory is what is measured.
const SIDE_BYTES: usize = 64 << 20;

/// Seconds of a processor to copy a finished sample, as one that another job has prepared is copied into a batch.
pub(super) fn copy_work(row_bytes: usize, threads: usize) -> f64 {
    let row_bytes = row_bytes.max(1);
    let rows = SIDE_BYTES.div_ceil(row_bytes).clamp(4, 256).next_multiple_of(threads);
    let count = (COPIED_BYTES / row_bytes).clamp(rows, 1 << 14);
    let from: Vec<Vec<u8>> = (0..rows).map(|row| vec![row as u8; row_bytes]).collect();
    let (next, copied, work) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // Written once before, so that the system has given the memory.
                let mut to: Vec<Vec<u8>> = vec![vec![1; row_bytes]; rows / threads];
                let (begun, mut mine) = (thread_time(), 0);
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    let places = to.len();
                    to[mine % places].copy_from_slice(std::hint::black_box(&from[index % rows]));
                    mine += 1;
                }
                std::hint::black_box(&to);
                copied.fetch_add(mine, Ordering::Relaxed);
                work.fetch_add((thread_time() - begun).as_nanos() as u64, Ordering::Relaxed);
            });
        }
    });
    work.into_inner() as f64 / 1e9 / copied.into_inner().max(1) as f64
}

/// Seconds of a processor to get the encoded copy of a sample out of a cache, checksum included.
pub(super) fn recall_work(cache: &Cache, samples: &[SampleId]) -> f64 {
    let (mut out, mut recalled) = (Vec::new(), 0u32);
    let begun = thread_time();
    for &sample in samples {
        if let Some(held) = cache.get(sample, Form::Encoded) {
            recalled += u32::from(held.read_into(&mut out).is_ok());
        }
    }
    (thread_time() - begun).as_secs_f64() / f64::from(recalled.max(1))
}

/// What storage gave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    /// To all threads together.
    pub bytes_per_s: f64,
    /// Seconds of a processor for a byte.
    pub work_s_per_byte: f64,
}

/// Reads samples with so many threads for so long, over and over if they are few.
pub(super) fn read_for(storage: &dyn Source, samples: &[SampleId], threads: usize, time: Duration) -> Read {
    let (next, bytes, work) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut buffer = ReadBuffer::default();
                let begun = thread_time();
                loop {
                    let sample = samples[next.fetch_add(1, Ordering::Relaxed) % samples.len()];
                    // They could be read a moment ago; one that is gone now is no news about the rate.
                    if let Ok(read) = storage.read(sample, &mut buffer) {
                        bytes.fetch_add(read.len() as u64, Ordering::Relaxed);
                    }
                    if started.elapsed() > time {
                        break;
                    }
                }
                work.fetch_add((thread_time() - begun).as_nanos() as u64, Ordering::Relaxed);
            });
        }
    });
    // Nothing could be read any more: as slow as a rate can be.
    let bytes = (bytes.into_inner() as f64).max(1.0);
    Read {
        bytes_per_s: bytes / started.elapsed().as_secs_f64().max(1e-9),
        work_s_per_byte: work.into_inner() as f64 / 1e9 / bytes,
    }
}
