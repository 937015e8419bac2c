//! Lines packed into blocks of one length: a sample is a block.
//!
//! Which lines a block is made of follows from the order of the lines in this epoch ([`sutler_core::Packing`]), so workers make blocks independently
//! of each other. A line that a cut goes through is read by both sides.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use sutler_core::{Draw, Form, Packing, Piece, SampleId, Tape};
use sutler_media::text::TextReader;
use sutler_store::Source;
use sutler_store::cache::Cache;

use super::{Origin, Tokenizing};
use crate::{Failure, Place, Preparation, Preparer, RowSpec, SampleRecord, Target};

/// The end of one epoch overlaps with the beginning of the next.
const TAPES_KEPT: usize = 2;

/// What a block tells besides its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planes {
    /// For each token the number of its document in this block, from 1 on, and 0 for padding.
    pub documents: bool,
    /// For each token its place in its document, from 0 on.
    pub positions: bool,
}

impl Planes {
    /// How many rows of numbers a block has.
    #[must_use]
    pub fn count(self) -> usize {
        1 + usize::from(self.documents) + usize::from(self.positions)
    }
}

/// How lines become a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockFormat {
    /// What it tells besides its tokens.
    pub planes: Planes,
    /// The token that closes each line.
    pub end: u32,
    /// What the last block is filled up with.
    pub padding: i64,
}

/// How the blocks of a job are prepared: whole numbers of 64 bits.
pub struct PackedPreparation {
    parts: Arc<Parts>,
}

struct Parts {
    source: Arc<dyn Source>,
    reader: TextReader,
    packing: Packing,
    format: BlockFormat,
    shuffle: Option<u64>,
    cache: Option<Arc<Cache>>,
    /// The order of the lines in the latest epochs. Whoever needs one first draws it, and the others wait, as they have nothing to do
    /// without it.
    tapes: Mutex<Vec<(u32, Arc<Tape>)>>,
}

impl PackedPreparation {
    /// Blocks of these lines. With a seed the lines come in another order in every epoch. Copies of lines are kept in the cache, if there is
    /// one.
    #[must_use]
    pub fn new(
        source: Arc<dyn Source>,
        reader: TextReader,
        packing: Packing,
        format: BlockFormat,
        shuffle: Option<u64>,
        cache: Option<Arc<Cache>>,
    ) -> Self {
        let tapes = Mutex::default();
        Self { parts: Arc::new(Parts { source, reader, packing, format, shuffle, cache, tapes }) }
    }
}

impl Parts {
    fn tape(&self, epoch: u32) -> Arc<Tape> {
        let epoch = if self.shuffle.is_some() { epoch } else { 0 };
        let mut tapes = self.tapes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, tape)) = tapes.iter().find(|(of, _)| *of == epoch) {
            return Arc::clone(tape);
        }
        let tape = Arc::new(match self.shuffle {
            Some(seed) => self.packing.shuffled(seed, epoch),
            None => self.packing.in_order(),
        });
        if tapes.len() == TAPES_KEPT {
            tapes.remove(0);
        }
        tapes.push((epoch, Arc::clone(&tape)));
        tape
    }

    fn row_values(&self) -> usize {
        self.packing.length() as usize * self.format.planes.count()
    }
}

impl Preparation for PackedPreparation {
    fn row(&self) -> RowSpec {
        RowSpec::Fixed { bytes: self.parts.row_values() * size_of::<i64>() }
    }

    fn label(&self, _sample: SampleId) -> i64 {
        sutler_store::NO_LABEL
    }

    fn describe(&self, sample: SampleId) -> String {
        format!("block {} of {}", sample.0, self.parts.packing.blocks())
    }

    fn preparer(&self) -> Box<dyn Preparer> {
        Box::new(PackedPreparer {
            parts: Arc::clone(&self.parts),
            tokenizing: Tokenizing::default(),
            latest: None,
            found: None,
            row: Vec::new(),
        })
    }
}

struct PackedPreparer {
    parts: Arc<Parts>,
    tokenizing: Tokenizing,
    /// The line that was read last, as the next block often begins with the rest of it.
    latest: Option<(SampleId, Vec<u32>)>,
    /// In which form the lines of this block were found, of several the one that is furthest away.
    found: Option<Form>,
    /// All planes of a block, one after the other.
    row: Vec<i64>,
}

impl PackedPreparer {
    /// The tokens of a line, without the one at its end.
    fn tokens(
        &mut self,
        line: SampleId,
        block: SampleId,
        record: &mut SampleRecord,
    ) -> Result<Vec<u32>, Failure> {
        let Parts { source, reader, packing, cache, .. } = &*self.parts;
        if let Some((_, tokens)) = self.latest.take_if(|(of, _)| *of == line) {
            return Ok(tokens);
        }
        let origin = Origin { source: &**source, reader, cache: cache.as_deref() };
        let (tokens, found) = self.tokenizing.tokens(origin, line, block, record)?;
        self.found = Some(self.found.map_or(found, |others| others.min(found)));
        let counted = packing.tokens(line).saturating_sub(1);
        if tokens.len() != counted as usize {
            let reason = format!(
                "the line has {} tokens and had {counted} when they were counted; the file was changed, so make the \
                 dataset anew",
                tokens.len()
            );
            return Err(Failure::new(block, source.describe(line), "changed", reason));
        }
        Ok(tokens)
    }

    fn fill(&mut self, pieces: &[Piece], block: SampleId, record: &mut SampleRecord) -> Result<(), Failure> {
        let parts = Arc::clone(&self.parts);
        let length = parts.packing.length() as usize;
        self.row.clear();
        self.row.resize(parts.row_values(), 0);
        self.row[..length].fill(parts.format.padding);
        self.found = None;
        let mut filled = 0;
        for (number, piece) in (1..).zip(pieces) {
            let tokens = self.tokens(piece.document, block, record)?;
            let (start, end) = (piece.start as usize, piece.end as usize);
            let placed = filled..filled + (end - start);
            let with_end = tokens.iter().copied().chain([parts.format.end]);
            for (value, token) in self.row[placed.clone()].iter_mut().zip(with_end.skip(start)) {
                *value = i64::from(token);
            }
            let mut plane = length;
            if parts.format.planes.documents {
                self.row[plane + placed.start..plane + placed.end].fill(number);
                plane += length;
            }
            if parts.format.planes.positions {
                let positions = self.row[plane + placed.start..plane + placed.end].iter_mut();
                positions.zip(i64::from(piece.start)..).for_each(|(value, position)| *value = position);
            }
            filled = placed.end;
            self.latest = Some((piece.document, tokens));
        }
        Ok(())
    }
}

impl Preparer for PackedPreparer {
    fn prepare(
        &mut self,
        sample: SampleId,
        draw: Draw,
        place: &mut dyn Place,
        record: &mut SampleRecord,
    ) -> Result<(), Failure> {
        let pieces = self.parts.tape(draw.epoch).block(sample.0);
        self.fill(&pieces, sample, record)?;
        // A block that lies within one line, which the last one has read, was not looked for.
        record.served = self.found.unwrap_or(Form::Storage);
        let begun = Instant::now();
        let out = match place.target() {
            None => return Ok(()),
            Some(Target::Row(row)) => row,
            Some(Target::Own(own)) => {
                let planes = self.parts.format.planes.count() as u32;
                own.shape = [0, if planes > 1 { planes } else { 0 }, self.parts.packing.length()];
                own.data.resize(self.row.len() * size_of::<i64>(), 0);
                &mut own.data[..]
            }
        };
        for (bytes, value) in out.chunks_exact_mut(size_of::<i64>()).zip(&self.row) {
            bytes.copy_from_slice(&value.to_ne_bytes());
        }
        record.augment = begun.elapsed();
        Ok(())
    }
}
