//! What memory and storage deliver.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sutler_core::SampleId;
use sutler_store::{ReadBuffer, Source};

/// How many bytes are copied to see how fast that is: enough for threads to get going, and a tenth of a second where memory is slow.
const COPIED_BYTES: usize = 256 << 20;

/// How long it takes to copy finished samples, as one that another job has prepared is copied into a batch; and how many were copied.
pub(super) fn copy_time(row_bytes: usize, threads: usize) -> (usize, Duration) {
    // More than processors keep for themselves, so that memory is what is measured.
    let rows = (64usize << 20).div_ceil(row_bytes.max(1)).clamp(4, 256);
    let count = (COPIED_BYTES / row_bytes.max(1)).clamp(rows, 1 << 14);
    let from: Vec<Vec<u8>> = (0..rows).map(|row| vec![row as u8; row_bytes]).collect();
    let next = AtomicUsize::new(0);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut to: Vec<Vec<u8>> = vec![vec![0; row_bytes]; 8];
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    to[index % 8].copy_from_slice(std::hint::black_box(&from[index % rows]));
                }
                std::hint::black_box(&to);
            });
        }
    });
    (count, started.elapsed())
}

/// Bytes per second that storage delivers to so many threads together, within so much time.
pub(super) fn storage_rate(
    storage: &dyn Source,
    samples: &[SampleId],
    threads: usize,
    time: Duration,
) -> f64 {
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut buffer = ReadBuffer::default();
                while let Some(&sample) = samples.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // They could be read a moment ago; one that is gone now is no news about the rate.
                    if let Ok(read) = storage.read(sample, &mut buffer) {
                        bytes.fetch_add(read.len() as u64, Ordering::Relaxed);
                    }
                    if started.elapsed() > time {
                        break;
                    }
                }
            });
        }
    });
    // Nothing could be read any more: as slow as a rate can be.
    (bytes.into_inner() as f64).max(1.0) / started.elapsed().as_secs_f64().max(1e-9)
}
