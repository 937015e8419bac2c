//! Text: lines as they are or as tokens, and lines packed into blocks of one length.

mod count;
mod packed;

use std::sync::Arc;
use std::time::Instant;

use sutler_core::{Draw, Form, SampleId};
use sutler_media::text::{TextError, TextReader};
use sutler_store::Source;
use sutler_store::cache::Cache;

pub use count::{TokenCounts, count_tokens};
pub use packed::{BlockFormat, PackedPreparation, Planes};

use crate::copies::{Fetching, kept_as, read_copy, seat};
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
    /// Where copies of lines are kept, if they are: as they were stored, or what was made of them.
    pub cache: Option<Arc<Cache>>,
}

impl Preparation for LinePreparation {
    fn row(&self) -> RowSpec {
        RowSpec::Varies
    }

    fn padding(&self) -> Option<Padding> {
        self.padding
    }

    fn kept_as(&self, sample: SampleId) -> Form {
        kept_as(self.cache.as_deref(), sample)
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

/// Where lines come from, what is made of them, and where copies of both are kept.
#[derive(Clone, Copy)]
struct Origin<'a> {
    source: &'a dyn Source,
    reader: &'a TextReader,
    cache: Option<&'a Cache>,
}

/// One worker's memory for reading, and what it has read and made.
#[derive(Default)]
struct Tokenizing {
    fetching: Fetching,
    /// The decoded copy that is read or made: a line's tokens, or its text.
    decoded: Vec<u8>,
}

impl Tokenizing {
    /// The tokens of a line, and in which form it was found. A failure is told as `asked`'s.
    fn tokens(
        &mut self,
        origin: Origin<'_>,
        line: SampleId,
        asked: SampleId,
        record: &mut SampleRecord,
    ) -> Result<(Vec<u32>, Form), Failure> {
        if self.recall(origin, line, record) {
            let tokens = self.decoded.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
            return Ok((tokens.collect(), Form::Decoded));
        }
        let write = |tokens: &Vec<u32>, out: &mut Vec<u8>| {
            out.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        };
        self.make(origin, line, asked, record, |bytes| origin.reader.tokens(bytes), write)
    }

    /// The text of a line, the same way.
    fn text(
        &mut self,
        origin: Origin<'_>,
        line: SampleId,
        record: &mut SampleRecord,
    ) -> Result<(Vec<u8>, Form), Failure> {
        if self.recall(origin, line, record) {
            return Ok((self.decoded.clone(), Form::Decoded));
        }
        let make = |bytes: &[u8]| origin.reader.text(bytes).map(|text| text.into_owned().into_bytes());
        self.make(origin, line, line, record, make, |text, out| out.extend_from_slice(text))
    }

    /// Whether there is a decoded copy of a line, which is then at hand.
    fn recall(&mut self, origin: Origin<'_>, line: SampleId, record: &mut SampleRecord) -> bool {
        let begun = Instant::now();
        let found =
            origin.cache.is_some_and(|cache| read_copy(cache, line, Form::Decoded, &mut self.decoded));
        record.decode += begun.elapsed();
        found
    }

    /// Makes something of a line, notes how long reading and the rest took, and keeps a copy if there is room. `write` writes what was
    /// made as it is kept.
    fn make<T>(
        &mut self,
        origin: Origin<'_>,
        line: SampleId,
        asked: SampleId,
        record: &mut SampleRecord,
        make: impl FnOnce(&[u8]) -> Result<T, TextError>,
        write: impl FnOnce(&T, &mut Vec<u8>),
    ) -> Result<(T, Form), Failure> {
        let Origin { source, cache, .. } = origin;
        let failure = |kind, reason: String| Failure::new(asked, source.describe(line), kind, reason);
        let Self { fetching, decoded } = self;
        let fetched = fetching
            .fetch(source, cache, line, record)
            .map_err(|error| failure(error.kind(), error.to_string()))?;
        let begun = Instant::now();
        let made = make(fetched.bytes).map_err(|error| failure(error.kind(), error.to_string()));
        if let (Ok(made), Some(cache)) = (&made, cache) {
            decoded.clear();
            let decoded_bytes = || {
                write(made, decoded);
                Some(decoded.len())
            };
            match seat(cache, line, fetched, decoded_bytes, false) {
                Some(seat) if seat.form() == Form::Decoded => seat.commit(&[decoded]),
                Some(seat) => seat.commit(&[fetched.bytes]),
                None => {}
            }
        }
        record.decode += begun.elapsed();
        made.map(|made| (made, if fetched.from_storage { Form::Storage } else { Form::Encoded }))
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
        _draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        let Self { preparation: LinePreparation { source, reader, cache, .. }, tokenizing } = self;
        let origin = Origin { source: &**source, reader, cache: cache.as_deref() };
        if reader.tokenizer.is_none() {
            let (text, found) = tokenizing.text(origin, sample, record)?;
            record.served = found;
            return deliver(place, text.len(), |own| {
                own.clear();
                own.extend_from_slice(&text);
            });
        }
        let (tokens, found) = tokenizing.tokens(origin, sample, sample, record)?;
        record.served = found;
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
