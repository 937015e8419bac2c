//! How many tokens every line has, which packing needs to know.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sutler_core::SampleId;
use sutler_media::text::TextReader;
use sutler_store::{Progress, Source};

use super::{Origin, Tokenizing};
use crate::{Failure, SampleRecord};

/// A thread takes so many lines at a time: some milliseconds of work.
const LINES_AT_A_TIME: usize = 256;

/// How many tokens every line has.
#[derive(Debug, Default)]
pub struct TokenCounts {
    /// By line; 0 for lines that cannot be read.
    pub counts: Vec<u32>,
    /// Those lines, in order.
    pub bad: Vec<Failure>,
}

/// Makes tokens of all lines and counts them. It takes as long as an epoch; once `cancelled` it ends soon, and what it tells is worth nothing.
#[must_use]
pub fn count_tokens(
    source: &dyn Source,
    reader: &TextReader,
    threads: usize,
    progress: &dyn Progress,
    cancelled: &AtomicBool,
) -> TokenCounts {
    let lines = source.len();
    let next = AtomicUsize::new(0);
    let all = Mutex::new(TokenCounts { counts: vec![0; lines], bad: Vec::new() });
    std::thread::scope(|scope| {
        let work = || {
            let mut tokenizing = Tokenizing::default();
            loop {
                let first = next.fetch_add(LINES_AT_A_TIME, Ordering::Relaxed);
                if first >= lines || cancelled.load(Ordering::Relaxed) {
                    return;
                }
                let end = lines.min(first + LINES_AT_A_TIME);
                let mut counts = [0; LINES_AT_A_TIME];
                let mut bad = Vec::new();
                for (count, line) in counts.iter_mut().zip(first..end) {
                    let line = SampleId(line as u32);
                    let mut record = SampleRecord::start();
                    let origin = Origin { source, reader, cache: None };
                    match tokenizing.tokens(origin, line, line, &mut record) {
                        // A line has less than 4 GiB, so fewer tokens than four bytes can count.
                        Ok((tokens, _)) => *count = tokens.len() as u32,
                        Err(failure) => bad.push(failure),
                    }
                }
                let mut all = all.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                all.counts[first..end].copy_from_slice(&counts[..end - first]);
                all.bad.append(&mut bad);
                drop(all);
                progress.listed((end - first) as u64);
            }
        };
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            if let Err(panic) = worker.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let mut all = all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    all.bad.sort_by_key(|failure| failure.sample);
    all
}
