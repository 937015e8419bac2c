//! Reading as little of a file as a block of it takes.
//!
//! The header says where values lie, so of a plain file just the slabs that hold the block are read: one range for each plane. A packed
//! file is read as a whole, and unpacked as far as the block goes; the first time all of it, since only its end tells whether it is well.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use sutler_core::SampleId;
use sutler_media::audio::PipelineError;
use sutler_media::volume::{Block, Format, Header, Limits, Unpacked, VolumeError, sniff};
use sutler_store::{ReadBuffer, Source, StoreError};

/// Why a volume cannot be served.
pub(super) struct Refusal {
    pub kind: &'static str,
    pub reason: String,
    /// Whether the reason names the file.
    names_file: bool,
}

impl Refusal {
    /// A fault of ours.
    pub fn internal(reason: String) -> Self {
        Self { kind: "internal", reason, names_file: false }
    }

    /// The same, about the labels of a sample instead of the sample itself.
    pub fn of_labels(self, path: String) -> Self {
        let reason = match self {
            Self { kind: "missing", ref reason, .. } => format!("its labels are missing. {reason}"),
            Self { names_file: true, ref reason, .. } => reason.clone(),
            Self { ref reason, .. } => format!("its labels, {path}, cannot be used: {reason}"),
        };
        Self { reason, names_file: true, ..self }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self { kind: error.kind(), reason: error.to_string(), names_file: true }
    }
}

impl From<VolumeError> for Refusal {
    fn from(error: VolumeError) -> Self {
        Self { kind: error.kind(), reason: error.to_string(), names_file: false }
    }
}

impl From<PipelineError> for Refusal {
    fn from(error: PipelineError) -> Self {
        Self { kind: "transform", reason: error.to_string(), names_file: false }
    }
}

/// Of so many files it is remembered that they are well: 1 MiB. Those beyond are unpacked to the end each time.
const WHOLE_MAX: usize = 1 << 16;

/// A worker's memory for one file at a time.
#[derive(Default)]
pub(super) struct FileReader {
    buffer: ReadBuffer,
    /// The file as it is, where it is packed.
    packed: Vec<u8>,
    /// The beginning of what was packed.
    unpacked: Vec<u8>,
    /// Packed files, with their length, that were unpacked to the end and are well.
    whole: HashSet<(SampleId, u64)>,
    /// How much the buffer had read when the sample began, as far as that counts.
    bytes_before: u64,
    /// Time spent waiting for storage since then.
    pub fetch: Duration,
    /// Requests to storage since then.
    pub reads: u64,
}

impl FileReader {
    /// Another sample begins.
    pub fn start(&mut self) {
        self.bytes_before = self.buffer.bytes_read();
        (self.fetch, self.reads) = (Duration::ZERO, 0);
        self.unpacked.clear();
    }

    /// What was read since then.
    pub fn bytes(&self) -> u64 {
        self.buffer.bytes_read() - self.bytes_before
    }

    /// Forgets what was read but for this: how long it took, how many requests, how many bytes.
    pub fn restore(&mut self, (fetch, reads, bytes): (Duration, u64, u64)) {
        (self.fetch, self.reads) = (fetch, reads);
        self.bytes_before = self.buffer.bytes_read() - bytes;
    }

    /// Reads all of a file behind what `out` holds.
    pub fn append(
        &mut self,
        source: &dyn Source,
        sample: SampleId,
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let asked = Instant::now();
        let bytes = source.read(sample, &mut self.buffer)?;
        self.fetch += asked.elapsed();
        self.reads += 1;
        out.extend_from_slice(bytes);
        Ok(())
    }

    /// Reads a file's header, finds that the file is as long as the header says, and tells how long that is.
    pub fn open(
        &mut self,
        source: &dyn Source,
        sample: SampleId,
        limits: Limits,
    ) -> Result<(Header, u64), Refusal> {
        let asked = Instant::now();
        let (start, length) = source.read_start(sample, Header::START_BYTES, &mut self.buffer)?;
        self.fetch += asked.elapsed();
        self.reads += 1;
        if sniff(start)? != Format::NiftiGzip {
            let header = Header::parse(start, limits)?;
            header.check_length(length)?;
            return Ok((header, length));
        }
        let asked = Instant::now();
        let packed = source.read(sample, &mut self.buffer)?;
        self.fetch += asked.elapsed();
        self.reads += 1;
        self.packed.clear();
        self.packed.extend_from_slice(packed);
        let mut unpacked = Unpacked::open(&self.packed, limits, &mut self.unpacked)?;
        let header = unpacked.header().clone();
        let file = (sample, self.packed.len() as u64);
        if !self.whole.contains(&file) {
            unpacked.go_on_to(header.end(), &mut self.unpacked)?;
            if self.whole.len() < WHOLE_MAX {
                self.whole.insert(file);
            }
        }
        Ok((header, length))
    }

    /// The bytes that hold a block, of all channels. The header is that of the file that was opened last.
    pub fn slabs(
        &mut self,
        source: &dyn Source,
        sample: SampleId,
        header: &Header,
        block: &Block,
    ) -> Result<Slabs<'_>, Refusal> {
        let mut ranges = (0..header.channels).flat_map(|channel| header.channel(channel).ranges(block));
        if header.format == Format::NiftiGzip {
            let end = ranges.last().map_or(0, |range| range.end);
            if (self.unpacked.len() as u64) < end {
                let limits = Limits { values_max: u64::MAX };
                let mut unpacked = Unpacked::open(&self.packed, limits, &mut self.unpacked)?;
                unpacked.go_on_to(end, &mut self.unpacked)?;
            }
            return Ok(Slabs::InPlace(&self.unpacked));
        }
        let asked = Instant::now();
        let bytes = source.read_ranges(sample, &mut ranges, &mut self.buffer)?;
        self.fetch += asked.elapsed();
        self.reads += 1;
        Ok(Slabs::Joined(bytes))
    }
}

/// The bytes that hold a block.
pub(super) enum Slabs<'a> {
    /// In their places in the file.
    InPlace(&'a [u8]),
    /// One after the other.
    Joined(&'a [u8]),
}

impl<'a> Slabs<'a> {
    /// Those of one channel, range by range.
    pub fn of_channel(
        &self,
        header: &Header,
        block: &Block,
        channel: usize,
    ) -> Box<dyn Iterator<Item = &'a [u8]> + 'a> {
        let ranges = header.channel(channel).ranges(block);
        match *self {
            Self::InPlace(file) => {
                Box::new(ranges.map(|range| &file[range.start as usize..range.end as usize]))
            }
            Self::Joined(bytes) => {
                let (mut count, mut each) = (0, 0);
                ranges.for_each(|range| (count, each) = (count + 1, (range.end - range.start) as usize));
                let before = channel * count * each;
                Box::new(bytes[before..before + count * each].chunks_exact(each.max(1)))
            }
        }
    }
}
