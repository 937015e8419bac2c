//! Who has had what: the book that makes "exactly once" true.
//!
//! An epoch is a row of positions. Each is *left*, then *leased* to whoever prepares it, then *served* or *failed*; a
//! lease that is given up makes its position left again. No other move exists, so nothing can be served twice, and at
//! the end of an epoch `served + failed` is the number of positions: nothing was lost either.

use serde::{Deserialize, Serialize};

use crate::bits::Bits;

/// A move that the book does not allow.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LedgerError {
    /// Two preparers must not hold the same position.
    #[error("position {0} is already leased or done")]
    NotLeft(u32),
    /// Only what is leased can be served, failed or released.
    #[error("position {0} is not leased")]
    NotLeased(u32),
    /// The position does not exist.
    #[error("position {position} of {len}")]
    OutOfRange {
        /// What was asked for.
        position: u32,
        /// How many there are.
        len: u32,
    },
    /// A saved ledger that contradicts itself.
    #[error("the saved ledger is damaged: {0}")]
    Damaged(&'static str),
}

/// The state of every position of one job's epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    len: u32,
    /// Positions that are served or failed.
    done: Bits,
    /// Positions being prepared. Not saved: after a restart nobody is preparing anything.
    leased: Bits,
    served: u32,
    failed: u32,
    in_lease: u32,
}

impl Ledger {
    /// A book in which everything is left.
    #[must_use]
    pub fn new(len: u32) -> Self {
        Self { len, done: Bits::new(len), leased: Bits::new(len), served: 0, failed: 0, in_lease: 0 }
    }

    /// A book in which these positions are served; naming one twice makes no difference.
    #[must_use]
    pub fn with_served(len: u32, positions: impl IntoIterator<Item = u32>) -> Self {
        let mut ledger = Self::new(len);
        for position in positions.into_iter().filter(|&position| position < len) {
            ledger.done.set(position, true);
        }
        ledger.served = ledger.done.count();
        ledger.check();
        ledger
    }

    /// More positions have become known: `len` in all. They are left.
    pub fn extend(&mut self, len: u32) {
        self.len = self.len.max(len);
        let words = (self.len as usize).div_ceil(64);
        self.done.0.resize(words, 0);
        self.leased.0.resize(words, 0);
    }

    /// How many positions there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the epoch has no positions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many were served.
    #[must_use]
    pub fn served(&self) -> u32 {
        self.served
    }

    /// How many failed.
    #[must_use]
    pub fn failed(&self) -> u32 {
        self.failed
    }

    /// How many are being prepared.
    #[must_use]
    pub fn leased(&self) -> u32 {
        self.in_lease
    }

    /// How many nobody has touched.
    #[must_use]
    pub fn left(&self) -> u32 {
        self.len - self.served - self.failed - self.in_lease
    }

    /// Whether every position is served or failed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.served + self.failed == self.len
    }

    /// Whether a position is served or failed.
    #[must_use]
    pub fn is_done(&self, position: u32) -> bool {
        position < self.len && self.done.get(position)
    }

    /// Whether nobody has a position yet.
    #[must_use]
    pub fn is_left(&self, position: u32) -> bool {
        position < self.len && !self.done.get(position) && !self.leased.get(position)
    }

    /// The positions that are served or failed, in order.
    pub fn done(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len).filter(|&position| self.done.get(position))
    }

    /// The positions that are neither served nor failed, in order.
    pub fn remaining(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len).filter(|&position| !self.done.get(position))
    }

    /// Hands a position to a preparer.
    ///
    /// # Errors
    /// When it is not left.
    pub fn lease(&mut self, position: u32) -> Result<(), LedgerError> {
        self.in_range(position)?;
        if self.done.get(position) || self.leased.get(position) {
            return Err(LedgerError::NotLeft(position));
        }
        self.leased.set(position, true);
        self.in_lease += 1;
        self.check();
        Ok(())
    }

    /// A preparer gives its position back unprepared.
    ///
    /// # Errors
    /// When it is not leased.
    pub fn release(&mut self, position: u32) -> Result<(), LedgerError> {
        self.end_lease(position)?;
        self.check();
        Ok(())
    }

    /// A leased position has reached the trainer.
    ///
    /// # Errors
    /// When it is not leased.
    pub fn serve(&mut self, position: u32) -> Result<(), LedgerError> {
        self.end_lease(position)?;
        self.done.set(position, true);
        self.served += 1;
        self.check();
        Ok(())
    }

    /// A leased position turned out to hold a bad sample, and the user's policy was to go on.
    ///
    /// # Errors
    /// When it is not leased.
    pub fn fail(&mut self, position: u32) -> Result<(), LedgerError> {
        self.end_lease(position)?;
        self.done.set(position, true);
        self.failed += 1;
        self.check();
        Ok(())
    }

    /// What a checkpoint keeps: the done positions as run lengths or as a bitmap, whichever is smaller.
    #[must_use]
    pub fn save(&self) -> SavedLedger {
        let mut runs = Vec::new();
        let mut length = 0u32;
        let mut current = false;
        for position in 0..self.len {
            if self.done.get(position) != current {
                runs.push(length);
                length = 0;
                current = !current;
            }
            length += 1;
        }
        runs.push(length);
        let bitmap_digits = (self.len as usize).div_ceil(4);
        let done = if runs.len() * 4 <= bitmap_digits.max(64) {
            SavedBits::Runs(runs)
        } else {
            SavedBits::Hex(self.done.0.iter().map(|word| format!("{:016x}", word.swap_bytes())).collect())
        };
        SavedLedger { len: self.len, failed: self.failed, done }
    }

    /// The book a checkpoint describes. What was leased when it was saved is left again.
    ///
    /// # Errors
    /// When the checkpoint contradicts itself.
    pub fn load(saved: &SavedLedger) -> Result<Self, LedgerError> {
        let mut ledger = Self::new(saved.len);
        match &saved.done {
            SavedBits::Runs(runs) => {
                let total: u64 = runs.iter().map(|&run| u64::from(run)).sum();
                if total != u64::from(saved.len) {
                    return Err(LedgerError::Damaged("its runs do not add up to its length"));
                }
                let mut position = 0;
                for (index, &run) in runs.iter().enumerate() {
                    for _ in 0..run {
                        ledger.done.set(position, index % 2 == 1);
                        position += 1;
                    }
                }
            }
            SavedBits::Hex(text) => {
                if text.len() != ledger.done.0.len() * 16 || !text.is_ascii() {
                    return Err(LedgerError::Damaged("its bitmap does not fit its length"));
                }
                for (word, digits) in ledger.done.0.iter_mut().zip(text.as_bytes().chunks(16)) {
                    let digits = std::str::from_utf8(digits)
                        .map_err(|_| LedgerError::Damaged("its bitmap is not hexadecimal"))?;
                    *word = u64::from_str_radix(digits, 16)
                        .map_err(|_| LedgerError::Damaged("its bitmap is not hexadecimal"))?
                        .swap_bytes();
                }
                if (0..64).any(|bit| {
                    let index = (ledger.done.0.len() as u64).saturating_sub(1) * 64 + bit;
                    index >= u64::from(saved.len)
                        && ledger.done.0.last().is_some_and(|word| word >> bit & 1 == 1)
                }) {
                    return Err(LedgerError::Damaged("its bitmap marks positions past its length"));
                }
            }
        }
        let done = ledger.done.count();
        ledger.failed = saved.failed;
        ledger.served = done
            .checked_sub(saved.failed)
            .ok_or(LedgerError::Damaged("more positions failed than were done"))?;
        ledger.check();
        Ok(ledger)
    }

    /// The book of a whole job from those of its ranks, over the same positions. A position that two of them have served, as padding
    /// makes them, is served.
    ///
    /// # Errors
    /// When one contradicts itself, or they are of different lengths.
    pub fn union(ranks: &[SavedLedger]) -> Result<Self, LedgerError> {
        let len = ranks.first().map_or(0, |first| first.len);
        let mut whole = Self::new(len);
        for saved in ranks {
            let rank = Self::load(saved)?;
            if rank.len != len {
                return Err(LedgerError::Damaged("it is not as long as those of the other ranks"));
            }
            for (word, more) in whole.done.0.iter_mut().zip(&rank.done.0) {
                *word |= more;
            }
            whole.failed = whole.failed.saturating_add(rank.failed);
        }
        let done = whole.done.count();
        whole.failed = whole.failed.min(done);
        whole.served = done - whole.failed;
        whole.check();
        Ok(whole)
    }

    fn in_range(&self, position: u32) -> Result<(), LedgerError> {
        if position < self.len { Ok(()) } else { Err(LedgerError::OutOfRange { position, len: self.len }) }
    }

    fn end_lease(&mut self, position: u32) -> Result<(), LedgerError> {
        self.in_range(position)?;
        if !self.leased.get(position) {
            return Err(LedgerError::NotLeased(position));
        }
        self.leased.set(position, false);
        self.in_lease -= 1;
        Ok(())
    }

    /// served + failed + leased + left = len, cheap enough to hold after every move.
    fn check(&self) {
        assert!(
            u64::from(self.served) + u64::from(self.failed) + u64::from(self.in_lease) <= u64::from(self.len),
            "ledger out of balance: {} served, {} failed, {} leased of {}",
            self.served,
            self.failed,
            self.in_lease,
            self.len
        );
    }
}

/// A ledger as a checkpoint holds it; plain JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedLedger {
    len: u32,
    failed: u32,
    done: SavedBits,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SavedBits {
    /// Lengths of alternating runs, beginning with positions that are not done.
    Runs(Vec<u32>),
    /// 16 digits for every 64 positions, lowest position in the lowest bit of the first byte.
    Hex(String),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Move {
        Lease(u32),
        Release(u32),
        Serve(u32),
        Fail(u32),
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let one = prop_oneof![
            4 => any::<u32>().prop_map(Move::Lease),
            1 => any::<u32>().prop_map(Move::Release),
            3 => any::<u32>().prop_map(Move::Serve),
            1 => any::<u32>().prop_map(Move::Fail),
        ];
        prop::collection::vec(one, 0..400)
    }

    proptest! {
        /// Invariant 1, exactly once: against a model that keeps its own count.
        #[test]
        fn nothing_is_served_twice_whatever_is_tried(len in 1u32..90, moves in moves()) {
            let mut ledger = Ledger::new(len);
            let mut model = vec!["left"; len as usize];
            for step in moves {
                let (position, from, to, result) = match step {
                    Move::Lease(p) => (p % len, "left", "leased", ledger.lease(p % len)),
                    Move::Release(p) => (p % len, "leased", "left", ledger.release(p % len)),
                    Move::Serve(p) => (p % len, "leased", "served", ledger.serve(p % len)),
                    Move::Fail(p) => (p % len, "leased", "failed", ledger.fail(p % len)),
                };
                let cell = &mut model[position as usize];
                prop_assert_eq!(result.is_ok(), *cell == from);
                if result.is_ok() {
                    *cell = to;
                }
                let count = |state| model.iter().filter(|&&s| s == state).count() as u32;
                prop_assert_eq!(ledger.served(), count("served"));
                prop_assert_eq!(ledger.failed(), count("failed"));
                prop_assert_eq!(ledger.leased(), count("leased"));
                prop_assert_eq!(ledger.left(), count("left"));
            }
            // Invariant 4, resumable: through JSON, leases forgotten, everything else kept.
            let json = serde_json::to_string(&ledger.save()).unwrap();
            let loaded = Ledger::load(&serde_json::from_str(&json).unwrap()).unwrap();
            prop_assert_eq!(loaded.served(), ledger.served());
            prop_assert_eq!(loaded.failed(), ledger.failed());
            prop_assert_eq!(loaded.leased(), 0);
            prop_assert_eq!(loaded.remaining().collect::<Vec<_>>(), ledger.remaining().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_served_prefix_saves_in_a_few_bytes_and_chaos_in_a_bitmap() {
        let mut ledger = Ledger::new(1_000_000);
        for position in 0..400_000 {
            ledger.lease(position).unwrap();
            ledger.serve(position).unwrap();
        }
        assert!(serde_json::to_string(&ledger.save()).unwrap().len() < 80);
        for position in (400_001..1_000_000).step_by(2) {
            ledger.lease(position).unwrap();
            ledger.serve(position).unwrap();
        }
        let text = serde_json::to_string(&ledger.save()).unwrap();
        assert!(text.len() < 1_000_000 / 4 + 100, "{} bytes", text.len());
        let loaded = Ledger::load(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(loaded.served(), ledger.served());
        assert!(loaded.remaining().eq(ledger.remaining()));
    }

    #[test]
    fn the_books_of_ranks_make_one() {
        let mut ranks = [Ledger::new(100), Ledger::new(100)];
        for position in 0..30 {
            let rank = &mut ranks[position as usize % 2];
            rank.lease(position).unwrap();
            if position == 7 { rank.fail(position).unwrap() } else { rank.serve(position).unwrap() }
        }
        ranks[0].lease(1).unwrap();
        ranks[0].serve(1).unwrap();
        let whole = Ledger::union(&ranks.each_ref().map(Ledger::save)).unwrap();
        assert_eq!((whole.served(), whole.failed(), whole.left()), (29, 1, 70));
        assert!(whole.remaining().eq(30..100));
        let other = Ledger::new(99).save();
        assert!(matches!(Ledger::union(&[ranks[0].save(), other]), Err(LedgerError::Damaged(_))));
        assert!(Ledger::union(&[]).unwrap().is_empty());
    }

    #[test]
    fn damaged_saves_are_refused() {
        for text in [
            r#"{"len":10,"failed":0,"done":{"runs":[3,4]}}"#,
            r#"{"len":10,"failed":9,"done":{"runs":[5,5]}}"#,
            r#"{"len":10,"failed":0,"done":{"hex":"ff"}}"#,
            r#"{"len":10,"failed":0,"done":{"hex":"00ff000000000000"}}"#,
            r#"{"len":10,"failed":0,"done":{"hex":"zz00000000000000"}}"#,
        ] {
            let saved = serde_json::from_str(text).unwrap();
            assert!(matches!(Ledger::load(&saved), Err(LedgerError::Damaged(_))), "{text}");
        }
    }
}
