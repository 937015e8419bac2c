//! The bare loop: the same operations on the same threads, and nothing else. What a loader could at best reach.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sutler_core::{Draw, SampleId};

use crate::{Failure, OwnSample, Preparation, RowSpec, SampleRecord, Target};

/// Prepares all `samples` as epoch `epoch` on `threads` threads, each over a buffer of its own, and tells how long it
/// took.
///
/// # Errors
/// The first sample that cannot be prepared.
pub fn bare_rate(
    preparation: &dyn Preparation,
    samples: &[SampleId],
    epoch: u32,
    threads: usize,
) -> Result<Duration, Failure> {
    let (next, draw) = (AtomicUsize::new(0), Draw::first(epoch));
    let started = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1))
            .map(|_| {
                scope.spawn(|| {
                    let mut preparer = preparation.preparer();
                    let mut row = match preparation.row() {
                        RowSpec::Fixed { bytes } => vec![0u8; bytes],
                        RowSpec::Varies => Vec::new(),
                    };
                    let mut own = OwnSample::default();
                    while let Some(&sample) = samples.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let mut target =
                            if row.is_empty() { Target::Own(&mut own) } else { Target::Row(&mut row) };
                        preparer.prepare(sample, draw, &mut target, &mut SampleRecord::start())?;
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(started.elapsed())
}
