//! Pictures of different sizes as one block: each lies in the upper left corner of a frame, with zeros to its right and below.
//!
//! How large the frames of a batch must be shows when its last picture is prepared, so every picture has a buffer of its own until then,
//! and the worker that finished the last one puts them together: the consumer finds the block ready.

use std::sync::Arc;

use sutler_media::{DType, Layout};

use crate::OwnSample;
use crate::reused::Reused;

/// What frames pictures are put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Width and height of a frame are multiples of this.
    pub multiple: u32,
    /// The type of the values.
    pub dtype: DType,
    /// Their order in memory.
    pub layout: Layout,
}

/// Memory between batches.
#[derive(Debug)]
pub(crate) struct Frames {
    framing: Framing,
    blocks: Reused<u8>,
    buffers: Reused<u8>,
}

impl Frames {
    /// For a job that has so many batches of so many samples at a time.
    pub fn new(framing: Framing, batches: usize, batch_size: usize) -> Arc<Self> {
        let buffers = Reused::new(batches.saturating_mul(batch_size));
        Arc::new(Self { framing, blocks: Reused::new(batches), buffers })
    }

    /// A buffer for a sample.
    pub fn sample(&self) -> OwnSample {
        OwnSample { data: self.buffers.take(0).unwrap_or_default(), ..OwnSample::default() }
    }

    /// A sample's buffer is not needed any more.
    pub fn give_back(&self, sample: OwnSample) {
        self.buffers.give_back(sample.data);
    }

    /// The block of these pictures; `None` where there are none, they are not what the framing says, or there is no memory for
    /// frames that are as wide as the widest and as high as the highest.
    pub fn frame<'a>(self: &Arc<Self>, samples: impl Iterator<Item = &'a OwnSample>) -> Option<Framed> {
        let samples: Vec<&OwnSample> = samples.collect();
        let Framing { multiple, dtype, layout } = self.framing;
        let side = |axis: usize| -> Option<u32> {
            samples.iter().map(|sample| sample.shape[axis]).max()?.checked_next_multiple_of(multiple.max(1))
        };
        let [height, width] = [side(0)?, side(1)?];
        let bytes_of = |height: u32, width: u32| {
            (height as usize).checked_mul(width as usize)?.checked_mul(3)?.checked_mul(dtype.size())
        };
        let frame_bytes = bytes_of(height, width)?;
        let mut block = self.blocks.take(frame_bytes.checked_mul(samples.len())?)?;
        let (planes, pixel_bytes) = match layout {
            Layout::Nchw => (3, dtype.size()),
            Layout::Nhwc => (1, 3 * dtype.size()),
        };
        let mut beside = Vec::with_capacity(samples.len());
        if frame_bytes > 0 {
            for (sample, frame) in samples.iter().zip(block.chunks_exact_mut(frame_bytes)) {
                let picture_bytes = bytes_of(sample.shape[0], sample.shape[1])?;
                let (picture, rest) = sample.data.split_at_checked(picture_bytes)?;
                beside.push(rest.to_vec());
                let plane_bytes = (picture_bytes / planes).max(1);
                let line_bytes = sample.shape[1] as usize * pixel_bytes;
                let planes =
                    picture.chunks_exact(plane_bytes).zip(frame.chunks_exact_mut(frame_bytes / planes));
                for (picture, frame) in planes {
                    copy_plane(picture, line_bytes, frame, width as usize * pixel_bytes);
                }
            }
        }
        let sizes = samples.iter().map(|sample| [sample.shape[0], sample.shape[1]]).collect();
        Some(Framed { size: [height, width], sizes, beside, block, frames: Arc::clone(self) })
    }
}

/// Copies the lines of a picture into the corner of a frame and clears the rest of it.
fn copy_plane(picture: &[u8], line_bytes: usize, frame: &mut [u8], frame_line_bytes: usize) {
    let mut lines = picture.chunks_exact(line_bytes.max(1));
    for target in frame.chunks_exact_mut(frame_line_bytes) {
        match lines.next() {
            Some(line) => {
                let (written, rest) = target.split_at_mut(line_bytes);
                written.copy_from_slice(line);
                rest.fill(0);
            }
            None => target.fill(0),
        }
    }
}

/// The pictures of a batch in one block.
#[derive(Debug)]
pub struct Framed {
    size: [u32; 2],
    sizes: Vec<[u32; 2]>,
    beside: Vec<Vec<u8>>,
    block: Vec<u8>,
    frames: Arc<Frames>,
}

impl Framed {
    /// Height and width of a frame.
    #[must_use]
    pub fn size(&self) -> [u32; 2] {
        self.size
    }

    /// Height and width of each picture in its frame.
    #[must_use]
    pub fn sizes(&self) -> &[[u32; 2]] {
        &self.sizes
    }

    /// What each sample has besides its picture.
    #[must_use]
    pub fn beside(&self) -> &[Vec<u8>] {
        &self.beside
    }

    /// All values.
    #[must_use]
    pub fn block(&self) -> &[u8] {
        &self.block
    }
}

impl Drop for Framed {
    fn drop(&mut self) {
        self.frames.blocks.give_back(std::mem::take(&mut self.block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture([height, width]: [u32; 2], first: u8, beside: &[u8]) -> OwnSample {
        let data = (0..height * width * 3).map(|value| first + value as u8).chain(beside.iter().copied());
        OwnSample { shape: [height, width, 3], data: data.collect() }
    }

    fn frames(layout: Layout) -> Arc<Frames> {
        Frames::new(Framing { multiple: 2, dtype: DType::U8, layout }, 1, 2)
    }

    #[test]
    fn pictures_lie_in_the_corner_of_frames_of_one_size() {
        let samples = [picture([1, 2], 1, &[]), picture([2, 1], 11, &[7, 8])];
        let framed = frames(Layout::Nchw).frame(samples.iter()).unwrap();
        assert_eq!((framed.size(), framed.sizes()), ([2, 2], &[[1, 2], [2, 1]][..]));
        assert_eq!(framed.beside(), [vec![], vec![7, 8]]);
        assert_eq!(
            framed.block(),
            [
                [1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 0, 0], // three planes of one line
                [11, 0, 12, 0, 13, 0, 14, 0, 15, 0, 16, 0],
            ]
            .concat()
        );
        let framed = frames(Layout::Nhwc).frame(samples.iter()).unwrap();
        assert_eq!(
            framed.block(),
            [[1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0], [11, 12, 13, 0, 0, 0, 14, 15, 16, 0, 0, 0]].concat()
        );
    }

    #[test]
    fn frames_are_as_large_as_the_multiple_says_and_clean_when_used_again() {
        let frames = frames(Layout::Nchw);
        let first = frames.frame([picture([3, 5], 1, &[])].iter()).unwrap();
        assert_eq!(first.size(), [4, 6]);
        let address = first.block().as_ptr();
        drop(first);
        let second = frames.frame([picture([1, 1], 9, &[])].iter()).unwrap();
        assert_eq!(second.block().as_ptr(), address, "memory is used again");
        assert_eq!(second.block(), [9, 0, 0, 0, 10, 0, 0, 0, 11, 0, 0, 0]);
    }

    #[test]
    fn what_is_no_picture_is_not_framed() {
        let frames = frames(Layout::Nchw);
        assert!(frames.frame([].iter()).is_none());
        let torn = OwnSample { shape: [4, 4, 3], data: vec![0; 5] };
        assert!(frames.frame([torn].iter()).is_none());
    }
}
