//! Documents laid end to end and cut into blocks of one length.
//!
//! A tape: every document is written on it, one after the other, each closed by a mark, and then the tape is cut every so many
//! tokens. Where the cuts fall depends on the order of the documents alone, so a block can be made by anybody who knows
//! that order and how long each document is, and every token is in one block.
//!
//! Complications. The order is another one in every epoch, so a block is found by looking: a running total is kept at every 64th
//! document, and the rest of the way is counted. The tape's end seldom meets a cut: what is left over is a block of its own, to be
//! filled up, or is left out. Whether a document without tokens leaves its mark, its count says.

use std::sync::Arc;

use crate::{DatasetTooLarge, Permutation, SampleId, SampleRng, Stream};

/// A running total is kept for one document out of so many: an eighth of a byte for each, and at most so many to count.
const STRIDE: usize = 64;

/// How many tokens every document takes on the tape, and how the tape is cut.
#[derive(Clone, Debug)]
pub struct Packing {
    /// With the mark at its end; 0 for a document that is left out.
    tokens: Arc<[u32]>,
    length: u32,
    total: u64,
    blocks: u32,
}

/// A part of a document in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The document.
    pub document: SampleId,
    /// The first of its tokens.
    pub start: u32,
    /// The one after the last. Where that is all it has, the mark is among them.
    pub end: u32,
}

impl Packing {
    /// Documents of so many tokens, marks included, in blocks of `length`, which is not 0. What is left at the end is a block of its own if
    /// `keep_rest`.
    ///
    /// # Errors
    /// When there are more blocks than can be numbered.
    pub fn new(tokens: Arc<[u32]>, length: u32, keep_rest: bool) -> Result<Self, DatasetTooLarge> {
        let total = tokens.iter().map(|&tokens| u64::from(tokens)).sum::<u64>();
        let length = length.max(1);
        let whole = total / u64::from(length);
        let blocks = whole + u64::from(keep_rest && !total.is_multiple_of(u64::from(length)));
        let blocks = SampleId::check_count(usize::try_from(blocks).unwrap_or(usize::MAX))?;
        Ok(Self { tokens, length, total, blocks })
    }

    /// How many blocks there are, the same for every order.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// How many tokens a block has.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }

    /// How many tokens there are in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// How many tokens a document has, its mark included.
    ///
    /// # Panics
    /// When there is no such document.
    #[must_use]
    pub fn tokens(&self, document: SampleId) -> u32 {
        self.tokens[document.index()]
    }

    /// The tape with the documents as they are listed.
    #[must_use]
    pub fn in_order(&self) -> Tape {
        self.tape(Permutation::identity(self.documents()))
    }

    /// The tape with the documents in the order that belongs to this seed and epoch.
    #[must_use]
    pub fn shuffled(&self, seed: u64, epoch: u32) -> Tape {
        let rng = SampleRng::with_stream(seed, Stream::Pack, epoch, 0);
        self.tape(Permutation::drawn(self.documents(), rng))
    }

    fn documents(&self) -> u32 {
        // A listing is refused when it has more samples than ids.
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX)
    }

    fn tape(&self, order: Permutation) -> Tape {
        let mut before = 0;
        let mut totals = Vec::with_capacity(self.tokens.len() / STRIDE + 1);
        for position in 0..order.len() {
            if (position as usize).is_multiple_of(STRIDE) {
                totals.push(before);
            }
            before += u64::from(self.tokens(order.sample_at(position)));
        }
        Tape { packing: self.clone(), order, totals }
    }
}

/// All documents in one order.
#[derive(Clone, Debug)]
pub struct Tape {
    packing: Packing,
    order: Permutation,
    /// How many tokens come before every [`STRIDE`]th document.
    totals: Vec<u64>,
}

impl Tape {
    /// What a block is made of, in order. Only the last one may have less than [`Packing::length`] tokens.
    ///
    /// # Panics
    /// When there is no such block.
    #[must_use]
    pub fn block(&self, block: u32) -> Vec<Piece> {
        let packing = &self.packing;
        assert!(block < packing.blocks, "block {block} of {}", packing.blocks);
        let start = u64::from(block) * u64::from(packing.length);
        let end = (start + u64::from(packing.length)).min(packing.total);
        let group = self.totals.partition_point(|&before| before <= start) - 1;
        let mut before = self.totals[group];
        let mut pieces = Vec::new();
        for position in (group * STRIDE) as u32..self.order.len() {
            let document = self.order.sample_at(position);
            let after = before + u64::from(packing.tokens(document));
            let (from, to) = (start.max(before), end.min(after));
            if from < to {
                // Both lie inside the document, whose tokens are counted by 32 bits.
                pieces.push(Piece { document, start: (from - before) as u32, end: (to - before) as u32 });
            }
            before = after;
            if before >= end {
                break;
            }
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packing(tokens: &[u32], length: u32, keep_rest: bool) -> Packing {
        Packing::new(tokens.into(), length, keep_rest).unwrap()
    }

    /// Every token of a tape, as (document, number), block by block.
    fn blocks(packing: &Packing, tape: &Tape) -> Vec<Vec<(u32, u32)>> {
        let tokens = |piece: Piece| (piece.start..piece.end).map(move |token| (piece.document.0, token));
        (0..packing.blocks()).map(|block| tape.block(block).into_iter().flat_map(tokens).collect()).collect()
    }

    #[test]
    fn documents_are_cut_where_blocks_end() {
        let packing = packing(&[3, 0, 4, 2], 4, true);
        let tape = packing.in_order();
        let piece = |document, start, end| Piece { document: SampleId(document), start, end };
        assert_eq!(tape.block(0), [piece(0, 0, 3), piece(2, 0, 1)]);
        assert_eq!(tape.block(1), [piece(2, 1, 4), piece(3, 0, 1)]);
        assert_eq!(tape.block(2), [piece(3, 1, 2)]);
    }

    proptest! {
        #[test]
        fn every_token_is_in_one_block(
            tokens in prop::collection::vec(0..40u32, 0..300),
            length in 1..60u32,
            seed: u64,
            epoch: u32,
        ) {
            let packing = packing(&tokens, length, true);
            for tape in [packing.in_order(), packing.shuffled(seed, epoch)] {
                let blocks = blocks(&packing, &tape);
                let full = blocks.len().saturating_sub(1);
                prop_assert!(blocks[..full].iter().all(|block| block.len() == length as usize));
                prop_assert!(blocks.iter().all(|block| !block.is_empty()));
                let mut all: Vec<_> = blocks.into_iter().flatten().collect();
                all.sort_unstable();
                let expected: Vec<_> = (0..).zip(&tokens).flat_map(|(d, &n)| (0..n).map(move |t| (d, t))).collect();
                prop_assert_eq!(all, expected);
            }
        }

        #[test]
        fn without_the_rest_all_blocks_are_full(
            tokens in prop::collection::vec(0..40u32, 0..100),
            length in 1..60u32,
            seed: u64,
        ) {
            let packing = packing(&tokens, length, false);
            let blocks = blocks(&packing, &packing.shuffled(seed, 0));
            prop_assert_eq!(u64::from(packing.blocks()), packing.total() / u64::from(length));
            prop_assert!(blocks.iter().all(|block| block.len() == length as usize));
            let mut all: Vec<_> = blocks.into_iter().flatten().collect();
            let served = all.len();
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!(all.len(), served);
        }
    }

    #[test]
    fn the_order_belongs_to_the_epoch() {
        let packing = packing(&[1; 200], 10, true);
        let orders: Vec<_> = [(0, 0), (0, 0), (0, 1), (1, 0)]
            .map(|(seed, epoch)| packing.shuffled(seed, epoch).block(0))
            .into();
        assert_eq!(orders[0], orders[1]);
        assert_ne!(orders[0], orders[2]);
        assert_ne!(orders[0], orders[3]);
    }
}
