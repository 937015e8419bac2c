//! What a resumed epoch is behind with: samples and batches that others were served before.
//!
//! How late a sample or a batch may be is promised of the epoch, however often it was resumed. So what came before it ahead of its turn counts
//! after a resume, too.

use std::ops::Range;

use super::{Cuts, EpochPlan};

impl EpochPlan {
    /// How many batches from now the own batch of each of the first steps is, as long as others that come after them are done: less than
    /// none, where it has left without them. Where batches are drawn they stay together, and there are none of these.
    #[must_use]
    pub fn owed(&self) -> Vec<i64> {
        let (Cuts::Every(size), Some(done)) = (&self.cuts, &self.done) else {
            return Vec::new();
        };
        let size = i64::from(*size);
        let Some(last) = done.done().last() else {
            return Vec::new();
        };
        let gone = i64::from(done.served() + done.failed()) / size;
        let left = done.remaining().take_while(|&position| position < last);
        left.map(|position| i64::from(position) / size - gone).collect()
    }

    /// How many batches that come after the one which begins at a position are done.
    #[must_use]
    pub fn overtaken(&self, position: u32) -> u32 {
        let after = self.overtakers.partition_point(|&start| start <= position);
        (self.overtakers.len() - after) as u32
    }

    /// Takes out the batches that are done, and keeps in mind which they are.
    pub(super) fn leave_out_done(&mut self, ranges: &mut Vec<Range<u64>>) {
        ranges.retain(|range| {
            let start = range.start as u32;
            let is_done = self.is_done(start);
            // All are left behind what the book knows of.
            if is_done && self.first_left.is_some_and(|first| start > first) {
                self.overtakers.push(start);
            }
            !is_done
        });
    }

    /// Where the batches of this size begin that are done after something that is not.
    pub(super) fn done_in_whole_batches(&self, size: u32) -> Vec<u32> {
        let (Some(done), Some(first_left)) = (&self.done, self.first_left) else {
            return Vec::new();
        };
        done.done().filter(|&position| position > first_left && position % size == 0).collect()
    }
}
