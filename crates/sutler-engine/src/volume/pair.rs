//! The two files of a sample, read together.

use std::time::Duration;

use sutler_core::SampleId;
use sutler_media::volume::{Block, Foreground, Header, Limits, Volume, VolumeError};
use sutler_store::Source;

use super::reading::{FileReader, Refusal};
use crate::{Failure, SampleRecord};

/// Where image and labels come from, and what is refused.
pub(super) struct Pair<'a> {
    pub source: &'a dyn Source,
    pub labels: &'a dyn Source,
    pub limits: Limits,
    /// How many channels an image must have, if that matters.
    pub channels: Option<usize>,
}

/// A worker's memory for reading volumes.
#[derive(Default)]
pub(super) struct VolumeReader {
    pub image: FileReader,
    pub labels: FileReader,
    /// All labels of a sample, where its parts are looked for.
    pub all: Vec<u8>,
}

/// The headers of a sample's files, which have one shape, and what both files take.
pub(super) struct Headers {
    pub image: Header,
    pub labels: Header,
    pub bytes: u64,
}

/// What was read of two files: how long that took, how many requests, how many bytes.
#[derive(Clone, Copy)]
pub(super) struct Counted([(Duration, u64, u64); 2]);

impl VolumeReader {
    pub fn start(&mut self) {
        self.image.start();
        self.labels.start();
    }

    /// What was read since then.
    pub fn counted(&self) -> Counted {
        Counted([&self.image, &self.labels].map(|file| (file.fetch, file.reads, file.bytes())))
    }

    /// Forgets what was read but for this.
    pub fn restore(&mut self, counted: Counted) {
        for (file, counted) in [&mut self.image, &mut self.labels].into_iter().zip(counted.0) {
            file.restore(counted);
        }
    }

    /// How long reading took.
    pub fn fetch(&self) -> Duration {
        self.image.fetch + self.labels.fetch
    }

    /// Notes what reading took.
    pub fn note(&self, record: &mut SampleRecord) {
        for file in [&self.image, &self.labels] {
            record.fetch += file.fetch;
            record.storage_reads += file.reads;
            record.storage_bytes += file.bytes();
        }
    }

    /// Reads the headers of a sample's files, and finds that they belong together.
    pub fn open(&mut self, pair: &Pair<'_>, sample: SampleId) -> Result<Headers, Refusal> {
        let (header, image_bytes) = self.image.open(pair.source, sample, pair.limits)?;
        if let Some(expected) = pair.channels.filter(|&expected| expected != header.channels) {
            return Err(VolumeError::Channels { channels: header.channels, expected }.into());
        }
        let of_labels = |refusal: Refusal| refusal.of_labels(pair.labels.describe(sample));
        let (labels, label_bytes) = self.labels.open(pair.labels, sample, pair.limits).map_err(of_labels)?;
        if labels.channels != 1 {
            return Err(of_labels(VolumeError::LabelChannels { channels: labels.channels }.into()));
        }
        if labels.shape != header.shape {
            let labels_path = pair.labels.describe(sample);
            return Err(
                VolumeError::Mismatch { image: header.shape, labels_path, labels: labels.shape }.into()
            );
        }
        Ok(Headers { image: header, labels, bytes: image_bytes.saturating_add(label_bytes) })
    }

    /// Reads a block of the sample whose headers were read last.
    pub fn take(
        &mut self,
        pair: &Pair<'_>,
        sample: SampleId,
        headers: &Headers,
        block: &Block,
        volume: &mut Volume,
    ) -> Result<(), Refusal> {
        let Headers { image: header, labels, .. } = headers;
        volume.reset(header.channels, block.sides(), header.spacing);
        let places = volume.places();
        let slabs = self.image.slabs(pair.source, sample, header, block)?;
        for (channel, out) in volume.image.chunks_exact_mut(places).enumerate() {
            header.channel(channel).floats(block, slabs.of_channel(header, block, channel), out)?;
        }
        self.labels
            .slabs(pair.labels, sample, labels, block)
            .and_then(|slabs| {
                Ok(labels.labels(block, slabs.of_channel(labels, block, 0), &mut volume.label)?)
            })
            .map_err(|refusal| refusal.of_labels(pair.labels.describe(sample)))
    }

    /// Looks for the labelled parts of a sample in all of its labels.
    pub fn foreground(
        &mut self,
        pair: &Pair<'_>,
        sample: SampleId,
        header: &Header,
    ) -> Result<Foreground, Refusal> {
        let block = Block::whole(header.shape);
        let of_labels = |refusal: Refusal| refusal.of_labels(pair.labels.describe(sample));
        let slabs = self.labels.slabs(pair.labels, sample, header, &block).map_err(of_labels)?;
        self.all.resize(block.values(), 0);
        header
            .labels(&block, slabs.of_channel(header, &block, 0), &mut self.all)
            .map_err(|error| of_labels(error.into()))?;
        Ok(Foreground::find(&self.all, header.shape))
    }
}

/// All of a sample's image and labels, as its files have them: of so many channels, or of any number.
///
/// # Errors
/// When one of them cannot be read, or they do not belong together.
pub fn read_volume(
    source: &dyn Source,
    sample: SampleId,
    limits: Limits,
    channels: Option<usize>,
) -> Result<Volume, Failure> {
    let failure = |kind, reason| Failure::new(sample, source.describe(sample), kind, reason);
    let Some(labels) = source.partners() else {
        return Err(failure("labels", "the dataset has no labels".to_owned()));
    };
    let pair = Pair { source, labels: &*labels, limits, channels };
    let (mut reader, mut volume) = (VolumeReader::default(), Volume::default());
    reader
        .open(&pair, sample)
        .and_then(|headers| {
            reader.take(&pair, sample, &headers, &Block::whole(headers.labels.shape), &mut volume)
        })
        .map_err(|refusal| failure(refusal.kind, refusal.reason))?;
    Ok(volume)
}
