//! Text: lines as they are or as tokens, and lines packed into blocks of one length.

mod count;
mod packed;

use std::sync::Arc;
use std::time::Instant;

use sutler_core::SampleId;
use sutler_media::text::{TextError, TextReader};
use sutler_store::{ReadBuffer, Source};

pub use count::{TokenCounts, count_tokens};
pub use packed::{PackedPreparation, Planes};

use crate::{Failure, OwnSample, Padding, Place, Preparation, Preparer, RowSpec, SampleRecord, Target};

/// How the lines of a job are prepared, each a sample of its own: as tokens, whole numbers of 64 bits, or as UTF-8 where there is no tokenizer.
#[derive(Clone)]
pub struct LinePreparation {
    /// Where the lines are.
    pub source: Arc<dyn Source>,
    /// What is made of them.
    pub reader: TextReader,
    /// How lines of different lengths become one block, if they do.
    pub padding: Option<Padding>,
}

impl Preparation for LinePreparation {
    fn row(&self) -> RowSpec {
        RowSpec::Varies
    }

    fn padding(&self) -> Option<Padding> {
        self.padding
    }

    fn label(&self, sample: SampleId) -> i64 {
        self.source.label(sample)
    }

    fn describe(&self, sample: SampleId) -> String {
        self.source.describe(sample)
    }

    fn preparer(&self) -> Box<dyn Preparer> {
        Box::new(LinePreparer { preparation: self.clone(), tokenizing: Tokenizing::default() })
    }
}

/// One worker's memory for reading, and what it has read and made.
#[derive(Default)]
struct Tokenizing {
    buffer: ReadBuffer,
}

impl Tokenizing {
    /// Does something with a line and notes how long reading and the rest took. A failure is told as `asked`'s.
    fn with_line<T>(
        &mut self,
        source: &dyn Source,
        line: SampleId,
        asked: SampleId,
        record: &mut SampleRecord,
        make: impl FnOnce(&[u8]) -> Result<T, TextError>,
    ) -> Result<T, Failure> {
        let failure = |kind, reason: String| Failure::new(asked, source.describe(line), kind, reason);
        let begun = Instant::now();
        let read = source.read(line, &mut self.buffer);
        record.fetch += begun.elapsed();
        let bytes = read.map_err(|error| failure(error.kind(), error.to_string()))?;
        record.storage_reads += 1;
        record.storage_bytes += bytes.len() as u64;
        let begun = Instant::now();
        let made = make(bytes);
        record.decode += begun.elapsed();
        made.map_err(|error| failure(error.kind(), error.to_string()))
    }
}

struct LinePreparer {
    preparation: LinePreparation,
    tokenizing: Tokenizing,
}

impl Preparer for LinePreparer {
    fn prepare(
        &mut self,
        sample: SampleId,
        _epoch: u32,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        let Self { preparation: LinePreparation { source, reader, .. }, tokenizing } = self;
        let source = &**source;
        if reader.tokenizer.is_none() {
            let text = |line: &[u8]| reader.text(line).map(|text| text.into_owned().into_bytes());
            let text = tokenizing.with_line(source, sample, sample, record, text)?;
            return deliver(place, text.len(), |own| {
                own.clear();
                own.extend_from_slice(&text);
            });
        }
        let tokens = tokenizing.with_line(source, sample, sample, record, |line| reader.tokens(line))?;
        let begun = Instant::now();
        let delivered = deliver(place, tokens.len(), |own| {
            own.clear();
            own.extend(tokens.iter().flat_map(|&token| i64::from(token).to_ne_bytes()));
        });
        record.augment = begun.elapsed();
        delivered
    }
}

/// Fills the sample's own buffer with a row of so many values. There are no others, since lines differ in length.
fn deliver(place: &mut dyn Place, length: usize, fill: impl FnOnce(&mut Vec<u8>)) -> Result<(), Failure> {
    if let Some(Target::Own(OwnSample { shape, data })) = place.target() {
        // A line has less than 4 GiB, and no more tokens than bytes beside the special ones.
        *shape = [0, 0, length as u32];
        fill(data);
    }
    Ok(())
}
