//! Where the labelled parts of samples are, found once and kept: looking for them takes all labels, and a crop wants a few.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use sutler_core::SampleId;
use sutler_media::volume::Foreground;

/// What is kept at most. A sample with two labels takes some 300 bytes, so this is enough for 200,000 of them; those beyond are looked at each
/// time.
const BYTES_MAX: usize = 64 << 20;

/// What an entry takes beside the parts themselves.
const ENTRY_BYTES: usize = 64;

/// The parts of samples, shared by all workers of a job.
#[derive(Default)]
pub(super) struct Known {
    /// Held to look something up or to put it in, never while anybody looks for parts.
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    samples: HashMap<SampleId, Arc<Foreground>>,
    bytes: usize,
}

impl Known {
    /// The parts of a sample, as they are known or as `find` finds them. Two workers may look for the same: they find the same.
    pub fn get_or<E>(
        &self,
        sample: SampleId,
        find: impl FnOnce() -> Result<Foreground, E>,
    ) -> Result<Arc<Foreground>, E> {
        if let Some(found) = self.kept.lock().unwrap_or_else(PoisonError::into_inner).samples.get(&sample) {
            return Ok(Arc::clone(found));
        }
        let found = Arc::new(find()?);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = ENTRY_BYTES + found.bytes();
        if kept.bytes + bytes <= BYTES_MAX && kept.samples.insert(sample, Arc::clone(&found)).is_none() {
            kept.bytes += bytes;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts that take a lot of memory: a label for each byte, in a checkerboard.
    fn large() -> Foreground {
        let labels: Vec<u8> = (0..=255).flat_map(|label| [label, 0, label, 0]).collect();
        Foreground::find(&labels, [1, 1, labels.len()])
    }

    #[test]
    fn what_was_found_is_not_looked_for_again() {
        let known = Known::default();
        let first = known.get_or(SampleId(3), || Ok::<_, ()>(large())).unwrap();
        let again = known.get_or(SampleId(3), || panic!("it is known")).unwrap_or_else(|()| unreachable!());
        assert_eq!(first, again);
        assert_eq!(known.get_or(SampleId(4), || Err("unreadable")), Err("unreadable"));
    }

    #[test]
    fn memory_is_bounded() {
        let known = Known::default();
        let each = large().bytes() + ENTRY_BYTES;
        let samples = (BYTES_MAX / each) as u32 + 100;
        for sample in 0..samples {
            known.get_or(SampleId(sample), || Ok::<_, ()>(large())).unwrap();
        }
        let kept = known.kept.lock().unwrap();
        assert!(kept.bytes <= BYTES_MAX);
        assert_eq!(kept.samples.len(), BYTES_MAX / each);
    }
}
