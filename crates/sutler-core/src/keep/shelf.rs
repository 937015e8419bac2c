//! The samples of one form, and who leaves when room is needed.
//!
//! Entries live in slots that are used again, and a table from sample to slot grows once to the size of the dataset, so that
//! in the long run no event allocates. An entry that somebody *holds* (reads right now) takes no part in the choice of who
//! leaves: it waits outside the queue and comes back when the last holder lets go.

use serde::{Deserialize, Serialize};

use crate::slots::Slots;
use crate::{SampleId, SampleRng, Stream};

/// Who leaves when a new sample needs room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Nobody: what came first stays. When the budget shrinks, the newest leave.
    Pinned,
    /// Whoever has gone unused for longest.
    Lru,
    /// Anyone, with equal chances.
    Random,
}

/// What became of an offered sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is kept from now on.
    Kept,
    /// It is kept already; the offer changed nothing.
    AlreadyKept,
    /// There is no room, and nobody who would have to leave for it.
    NoRoom,
    /// It is larger than the whole share of its form.
    TooLarge,
}

/// What happened on a shelf since it was set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShelfStats {
    /// Samples asked for and found.
    pub hits: u64,
    /// Samples asked for and not found, the very first time included.
    pub misses: u64,
    /// Offers that were kept.
    pub admitted: u64,
    /// Offers that were not.
    pub refused: u64,
    /// Samples let go to make room or because the share shrank.
    pub evicted: u64,
}

/// No slot: the end of a chain, or a sample that is not here.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    sample: SampleId,
    bytes: u64,
    holds: u32,
    /// Neighbours in the queue, older and newer; for [`Policy::Random`] `older` is the place in the urn.
    older: u32,
    newer: u32,
}

/// One form's entries inside its share of the budget.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    policy: Policy,
    budget_bytes: u64,
    used_bytes: u64,
    /// What could leave right now: the bytes of all entries that nobody holds.
    loose_bytes: u64,
    slots: Slots<Entry>,
    slot_of: Vec<u32>,
    oldest: u32,
    newest: u32,
    /// The loose entries under [`Policy::Random`], in no order.
    urn: Vec<u32>,
    rng: SampleRng,
    stats: ShelfStats,
}

impl Shelf {
    pub(super) fn new(policy: Policy, budget_bytes: u64, seed: u64, stream_index: u32) -> Self {
        Self {
            policy,
            budget_bytes,
            used_bytes: 0,
            loose_bytes: 0,
            slots: Slots::new(),
            slot_of: Vec::new(),
            oldest: NONE,
            newest: NONE,
            urn: Vec::new(),
            rng: SampleRng::with_stream(seed, Stream::Keep, 0, stream_index),
            stats: ShelfStats::default(),
        }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub(super) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    pub(super) fn len(&self) -> usize {
        self.slots.in_use()
    }

    pub(super) fn stats(&self) -> ShelfStats {
        self.stats
    }

    pub(super) fn contains(&self, sample: SampleId) -> bool {
        self.find(sample).is_some()
    }

    /// Counts a use, and makes the entry the most recently used.
    pub(super) fn get(&mut self, sample: SampleId) -> bool {
        let Some(slot) = self.find(sample) else {
            self.stats.misses += 1;
            return false;
        };
        self.stats.hits += 1;
        if self.policy == Policy::Lru && self.slots[slot].holds == 0 {
            self.take_out(slot);
            self.put_in(slot);
        }
        true
    }

    /// Takes a sample in if it fits into the share and into `room_bytes`, what the whole budget has left. Whoever leaves for
    /// it is appended to `evicted`.
    pub(super) fn offer(
        &mut self,
        sample: SampleId,
        bytes: u64,
        room_bytes: u64,
        evicted: &mut Vec<SampleId>,
    ) -> Admission {
        let admission = self.judge(sample, bytes, room_bytes, evicted);
        match admission {
            Admission::Kept => self.stats.admitted += 1,
            Admission::NoRoom | Admission::TooLarge => self.stats.refused += 1,
            Admission::AlreadyKept => {}
        }
        admission
    }

    fn judge(
        &mut self,
        sample: SampleId,
        bytes: u64,
        room_bytes: u64,
        evicted: &mut Vec<SampleId>,
    ) -> Admission {
        if self.find(sample).is_some() {
            return Admission::AlreadyKept;
        }
        if bytes > self.budget_bytes {
            return Admission::TooLarge;
        }
        let free_bytes = self.budget_bytes.saturating_sub(self.used_bytes).min(room_bytes);
        let missing_bytes = bytes.saturating_sub(free_bytes);
        if missing_bytes > 0 {
            // A shelf that was larger once comes down to its share on this occasion.
            let target_bytes = self.used_bytes.saturating_sub(missing_bytes).min(self.budget_bytes - bytes);
            // Asked before anybody leaves: an offer that is refused in the end must not have emptied the shelf.
            let leaving_bytes = missing_bytes.max(self.used_bytes - target_bytes);
            if self.policy == Policy::Pinned || self.loose_bytes < leaving_bytes {
                return Admission::NoRoom;
            }
            self.shrink_to(target_bytes, evicted);
        }
        let entry = Entry { sample, bytes, holds: 0, older: NONE, newer: NONE };
        let slot = self.slots.insert(entry);
        if self.slot_of.len() <= sample.index() {
            self.slot_of.resize(sample.index() + 1, NONE);
        }
        self.slot_of[sample.index()] = slot;
        self.used_bytes += bytes;
        self.loose_bytes += bytes;
        self.put_in(slot);
        Admission::Kept
    }

    /// Sets the share. What is beyond it stays until its room is [needed](Self::give_up).
    pub(super) fn set_budget(&mut self, budget_bytes: u64) {
        self.budget_bytes = budget_bytes;
    }

    /// How many of its own bytes would have to leave for a sample to fit into the share; `None` where it cannot.
    pub(super) fn leaving_bytes(&self, sample: SampleId, bytes: u64) -> Option<u64> {
        let leaving_bytes = self.used_bytes.saturating_add(bytes).saturating_sub(self.budget_bytes);
        let may_leave = if self.policy == Policy::Pinned { 0 } else { self.loose_bytes };
        let fits = bytes <= self.budget_bytes && leaving_bytes <= may_leave;
        (fits && !self.contains(sample)).then_some(leaving_bytes)
    }

    /// What it could give up of what it has beyond its share.
    pub(super) fn spare_bytes(&self) -> u64 {
        self.used_bytes.saturating_sub(self.budget_bytes).min(self.loose_bytes)
    }

    /// Lets entries go, of what it has beyond its share, until `bytes` are free or it has no more to spare; an entry is let go whole.
    pub(super) fn give_up(&mut self, bytes: u64, evicted: &mut Vec<SampleId>) {
        let bytes = bytes.min(self.spare_bytes());
        self.shrink_to(self.used_bytes - bytes, evicted);
    }

    /// Marks an entry as being read; false when it is not here.
    pub(super) fn hold(&mut self, sample: SampleId) -> bool {
        let Some(slot) = self.find(sample) else { return false };
        if self.slots[slot].holds == 0 {
            self.take_out(slot);
            self.loose_bytes -= self.slots[slot].bytes;
        }
        self.slots[slot].holds += 1;
        true
    }

    /// One holder is done; false when nobody held the entry.
    pub(super) fn release(&mut self, sample: SampleId) -> bool {
        let Some(slot) = self.find(sample) else { return false };
        let entry = &mut self.slots[slot];
        if entry.holds == 0 {
            return false;
        }
        entry.holds -= 1;
        if entry.holds == 0 {
            self.loose_bytes += entry.bytes;
            self.put_in(slot);
        }
        true
    }

    /// Forgets an entry because its owner has dropped it; false when it is not here or somebody holds it.
    pub(super) fn remove(&mut self, sample: SampleId) -> bool {
        let Some(slot) = self.find(sample) else { return false };
        if self.slots[slot].holds > 0 {
            return false;
        }
        self.drop_slot(slot);
        true
    }

    fn find(&self, sample: SampleId) -> Option<u32> {
        self.slot_of.get(sample.index()).copied().filter(|&slot| slot != NONE)
    }

    fn shrink_to(&mut self, target_bytes: u64, evicted: &mut Vec<SampleId>) {
        while self.used_bytes > target_bytes {
            let Some(slot) = self.victim() else { return };
            evicted.push(self.slots[slot].sample);
            self.stats.evicted += 1;
            self.drop_slot(slot);
        }
    }

    fn victim(&mut self) -> Option<u32> {
        let slot = match self.policy {
            Policy::Pinned => self.newest,
            Policy::Lru => self.oldest,
            Policy::Random if self.urn.is_empty() => NONE,
            Policy::Random => self.urn[self.rng.below(self.urn.len() as u32) as usize],
        };
        (slot != NONE).then_some(slot)
    }

    fn drop_slot(&mut self, slot: u32) {
        self.take_out(slot);
        let entry = self.slots[slot];
        self.used_bytes -= entry.bytes;
        self.loose_bytes -= entry.bytes;
        self.slot_of[entry.sample.index()] = NONE;
        self.slots.free(slot);
    }

    /// A loose entry joins those who may leave, as the newest.
    fn put_in(&mut self, slot: u32) {
        if self.policy == Policy::Random {
            self.slots[slot].older = self.urn.len() as u32;
            self.urn.push(slot);
            return;
        }
        self.slots[slot].older = self.newest;
        self.slots[slot].newer = NONE;
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.slots[newest].newer = slot,
        }
        self.newest = slot;
    }

    fn take_out(&mut self, slot: u32) {
        let Entry { older, newer, .. } = self.slots[slot];
        if self.policy == Policy::Random {
            self.urn.swap_remove(older as usize);
            if let Some(&moved) = self.urn.get(older as usize) {
                self.slots[moved].older = older;
            }
            return;
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer].older = older,
        }
    }
}
