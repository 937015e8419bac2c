//! Copies of volumes that are kept: both files as they were stored, or image and labels as values.
//!
//! The encoded copy of a sample is the length of its image, the image and the labels. Of either form only the blocks of memory
//! are copied that hold what a crop wants.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use sutler_core::{Fingerprint, SampleId};
use sutler_media::Rows;
use sutler_media::volume::{Block, DecodedForm, DecodedLayout, Foreground, Volume};
use sutler_store::cache::{Corrupt, Held, Pieces};
use sutler_store::{ReadBuffer, Source, StoreError};

/// What leads an encoded copy: how long the image is.
pub(super) const HEAD_BYTES: usize = 8;

/// Where the bytes of a copy are.
#[derive(Clone, Copy)]
pub(super) enum Copied<'a> {
    /// In the cache.
    Kept(&'a Held<'a>),
    /// In a worker's memory, on the way there.
    Read(&'a [u8]),
}

impl Copied<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Kept(held) => held.len(),
            Self::Read(bytes) => bytes.len(),
        }
    }

    fn copy(&self, start: usize, out: &mut [u8]) -> Result<(), Corrupt> {
        match self {
            Self::Kept(held) => {
                held.read(Pieces { start, piece: out.len(), stride: out.len().max(1), count: 1 }, out)
            }
            Self::Read(bytes) => {
                out.copy_from_slice(bytes.get(start..start + out.len()).ok_or(Corrupt)?);
                Ok(())
            }
        }
    }
}

/// One of the two files of a copy, read as if it were in storage.
pub(super) struct CopiedFile<'a> {
    original: &'a dyn Source,
    bytes: Copied<'a>,
    range: Range<usize>,
    /// Whether the copy has turned out not to be what was kept.
    corrupt: AtomicBool,
}

impl<'a> CopiedFile<'a> {
    /// The image and the labels of a copy.
    pub fn both(
        bytes: Copied<'a>,
        image: &'a dyn Source,
        labels: &'a dyn Source,
    ) -> Result<[CopiedFile<'a>; 2], Corrupt> {
        let mut head = [0; HEAD_BYTES];
        bytes.copy(0, &mut head)?;
        let length = usize::try_from(u64::from_le_bytes(head)).map_err(|_| Corrupt)?;
        let middle = HEAD_BYTES.checked_add(length).filter(|&middle| middle <= bytes.len()).ok_or(Corrupt)?;
        let file = |original, range| Self { original, bytes, range, corrupt: AtomicBool::new(false) };
        Ok([file(image, HEAD_BYTES..middle), file(labels, middle..bytes.len())])
    }

    pub fn is_corrupt(&self) -> bool {
        self.corrupt.load(Ordering::Relaxed)
    }

    fn copy(&self, from: u64, out: &mut [u8], id: SampleId) -> Result<(), StoreError> {
        let start = self.range.start + from as usize;
        let inside = start + out.len() <= self.range.end;
        if inside && self.bytes.copy(start, out).is_ok() {
            return Ok(());
        }
        // A range beyond the end is the file's fault, and is told as of a file that has become shorter.
        self.corrupt.fetch_or(inside, Ordering::Relaxed);
        let length = self.range.len() as u64;
        let path = self.original.describe(id).into();
        Err(StoreError::Changed { path, bytes_opened: length, bytes_found: Some(length) })
    }
}

impl Source for CopiedFile<'_> {
    fn len(&self) -> usize {
        self.original.len()
    }

    fn label(&self, id: SampleId) -> i64 {
        self.original.label(id)
    }

    fn describe(&self, id: SampleId) -> String {
        self.original.describe(id)
    }

    fn read<'b>(&self, id: SampleId, buffer: &'b mut ReadBuffer) -> Result<&'b [u8], StoreError> {
        buffer.fill_with(self.range.len(), |out| self.copy(0, out, id))
    }

    fn read_start<'b>(
        &self,
        id: SampleId,
        bytes: usize,
        buffer: &'b mut ReadBuffer,
    ) -> Result<(&'b [u8], u64), StoreError> {
        let start = buffer.fill_with(bytes.min(self.range.len()), |out| self.copy(0, out, id))?;
        Ok((start, self.range.len() as u64))
    }

    fn read_ranges<'b>(
        &self,
        id: SampleId,
        ranges: &mut dyn Iterator<Item = Range<u64>>,
        buffer: &'b mut ReadBuffer,
    ) -> Result<&'b [u8], StoreError> {
        let length = self.range.len() as u64;
        let ranges: Vec<Range<u64>> = ranges.collect();
        let wanted: u64 = ranges.iter().map(|range| range.end.saturating_sub(range.start).min(length)).sum();
        buffer.fill_with(wanted as usize, |mut out| {
            for range in &ranges {
                let bytes = range.end.saturating_sub(range.start).min(length) as usize;
                let (piece, rest) = std::mem::take(&mut out).split_at_mut(bytes);
                self.copy(range.start, piece, id)?;
                out = rest;
            }
            Ok(())
        })
    }

    fn fingerprint(&self) -> Fingerprint {
        self.original.fingerprint()
    }
}

/// The decoded copy of a volume.
pub(super) struct DecodedCopy<'a> {
    held: &'a Held<'a>,
    pub layout: DecodedLayout,
}

impl<'a> DecodedCopy<'a> {
    /// `None` where it was kept for other operations.
    pub fn open(form: &DecodedForm, held: &'a Held<'a>) -> Result<Option<Self>, Corrupt> {
        let mut head = [0; DecodedLayout::HEAD_BYTES];
        Copied::Kept(held).copy(0, &mut head)?;
        let Some(layout) = form.layout(&head) else { return Ok(None) };
        if layout.bytes() == held.len() { Ok(Some(Self { held, layout })) } else { Err(Corrupt) }
    }

    /// Copies a block of image and labels. `bytes` is scratch.
    pub fn read(&self, block: &Block, volume: &mut Volume, bytes: &mut Vec<u8>) -> Result<(), Corrupt> {
        let Self { layout, .. } = self;
        volume.reset(layout.channels, block.sides(), layout.spacing);
        let places = volume.places();
        let [planes, rows, row] = block.sides();
        let plane_places = rows * row;
        bytes.resize(plane_places * size_of::<f32>(), 0);
        for (channel, values) in volume.image.chunks_exact_mut(places.max(1)).enumerate() {
            for (plane, values) in values.chunks_exact_mut(plane_places.max(1)).enumerate() {
                self.copy(layout.image_rows(channel, plane, block), bytes)?;
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                    *value = f32::from_ne_bytes(*bytes);
                }
            }
        }
        for (plane, labels) in (0..planes).zip(volume.label.chunks_exact_mut(plane_places.max(1))) {
            self.copy(layout.label_rows(plane, block), labels)?;
        }
        Ok(())
    }

    /// Looks for the labelled parts of the volume in all of its labels.
    pub fn foreground(&self, labels: &mut Vec<u8>) -> Result<Foreground, Corrupt> {
        let whole = Block::whole(self.layout.shape);
        labels.resize(whole.values(), 0);
        let [_, rows, row] = self.layout.shape;
        for (plane, labels) in labels.chunks_exact_mut((rows * row).max(1)).enumerate() {
            self.copy(self.layout.label_rows(plane, &whole), labels)?;
        }
        Ok(Foreground::find(labels, self.layout.shape))
    }

    fn copy(&self, rows: Rows, out: &mut [u8]) -> Result<(), Corrupt> {
        let Rows { start, bytes, stride, count } = rows;
        self.held.read(Pieces { start, piece: bytes, stride, count }, out)
    }
}
