//! How large the pictures of a dataset are, as far as somebody has opened them: four bytes each.
//!
//! What is drawn for a picture depends on its size, and a forecast must not open files. So whoever does open one leaves its
//! size here, and from then on what the crop of an epoch costs can be told beforehand.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use sutler_core::SampleId;
use sutler_media::Size;

/// 15 bits for the width and 16 for the height: what is larger is noted as the largest, which is large enough to be slow.
const WIDTH_MAX: u32 = (1 << 15) - 1;
const HEIGHT_MAX: u32 = (1 << 16) - 1;

/// A picture and what its decoder can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub size: Size,
    /// Whether it can be decoded in part, and shrunk on the way.
    pub in_part: bool,
}

/// The sizes of pictures, shared by all workers of a job.
#[derive(Debug, Default)]
pub struct PictureSizes {
    /// By sample: whether in part, width, height; 0 where it is not known. A number is whole or not there, so nobody needs a lock.
    table: OnceLock<Box<[AtomicU32]>>,
}

impl PictureSizes {
    /// Somebody has opened a picture, one of so many.
    pub(super) fn note(&self, sample: SampleId, samples: usize, seen: Seen) {
        let table = self.table.get_or_init(|| (0..samples).map(|_| AtomicU32::new(0)).collect());
        if let Some(entry) = table.get(sample.index()) {
            let (width, height) = (seen.size.width.min(WIDTH_MAX), seen.size.height.min(HEIGHT_MAX));
            entry.store(u32::from(seen.in_part) << 31 | width << 16 | height, Ordering::Relaxed);
        }
    }

    pub(super) fn get(&self, sample: SampleId) -> Option<Seen> {
        let entry = self.table.get()?.get(sample.index())?.load(Ordering::Relaxed);
        let size = Size { width: entry >> 16 & WIDTH_MAX, height: entry & HEIGHT_MAX };
        (entry != 0).then_some(Seen { size, in_part: entry >> 31 == 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_told_and_nothing_else() {
        let sizes = PictureSizes::default();
        assert_eq!(sizes.get(SampleId(1)), None);
        for (width, height, in_part) in [(4000, 3000, true), (1, 1, false), (32_767, 65_535, true)] {
            let seen = Seen { size: Size { width, height }, in_part };
            sizes.note(SampleId(1), 3, seen);
            assert_eq!(sizes.get(SampleId(1)), Some(seen));
        }
        sizes.note(SampleId(2), 3, Seen { size: Size { width: 1 << 20, height: 7 }, in_part: false });
        assert_eq!(sizes.get(SampleId(2)).unwrap().size, Size { width: WIDTH_MAX, height: 7 });
        assert_eq!((sizes.get(SampleId(0)), sizes.get(SampleId(3))), (None, None));
        sizes.note(SampleId(99), 3, sizes.get(SampleId(1)).unwrap());
    }
}
