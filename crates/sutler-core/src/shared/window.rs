//! The entries of the shared window: what is being prepared for several jobs, and what stands ready.
//!
//! An entry is *pending*, then *ready*, then gone; when somebody is still copying it as its last user takes it, it is *leaving* until
//! the copy is done. This file keeps the count of bytes and holders. Who may still have an entry is a matter of the
//! classes ([`super::classes`]).

use super::classes::Seats;
use crate::SampleId;
use crate::slots::Slots;

/// The name of one preparation. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId {
    slot: u32,
    generation: u64,
}

impl EntryId {
    /// The number of the preparation; the seed of its random decisions.
    #[must_use]
    pub fn generation(self) -> u64 {
        self.generation
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The job in this seat is preparing it.
    Pending {
        preparer: u8,
    },
    Ready,
    /// Nobody can take it any more; somebody still copies it.
    Leaving,
    /// The slot is free.
    Gone,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) sample: SampleId,
    pub(super) stage: Stage,
    /// Who has had it: these jobs are not given it again, also in a later epoch.
    pub(super) used: Seats,
    generation: u64,
    holds: u32,
    bytes: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Window {
    budget_bytes: u64,
    used_bytes: u64,
    pending: u32,
    /// The size of the latest entry: what a pending one will probably take.
    typical_bytes: u64,
    slots: Slots<Entry>,
    /// The slot of a sample's pending or ready entry.
    slot_of: Vec<u32>,
    generation_next: u64,
}

const NONE: u32 = u32::MAX;

impl Window {
    pub(super) fn new(samples: u32, budget_bytes: u64) -> Self {
        Self {
            budget_bytes,
            used_bytes: 0,
            pending: 0,
            typical_bytes: 0,
            slots: Slots::new(),
            slot_of: vec![NONE; samples as usize],
            generation_next: 0,
        }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub(super) fn set_budget(&mut self, bytes: u64) {
        self.budget_bytes = bytes;
    }

    /// Whether `bytes` more can be stored now.
    pub(super) fn fits(&self, bytes: u64) -> bool {
        self.used_bytes.saturating_add(bytes) <= self.budget_bytes
    }

    /// Whether one more entry would have no place beside those that are pending already.
    pub(super) fn is_full(&self) -> bool {
        !self.fits(self.typical_bytes.saturating_mul(u64::from(self.pending) + 1))
    }

    /// The number for a preparation that stays outside the window.
    pub(super) fn next_generation(&mut self) -> u64 {
        self.generation_next += 1;
        self.generation_next - 1
    }

    /// Somebody begins to prepare a sample for several jobs.
    pub(super) fn begin(&mut self, sample: SampleId, preparer: u8, used: Seats) -> EntryId {
        let generation = self.next_generation();
        let stage = Stage::Pending { preparer };
        let entry = Entry { sample, stage, used, generation, holds: 0, bytes: 0 };
        let slot = self.slots.insert(entry);
        self.slot_of[sample.index()] = slot;
        self.pending += 1;
        EntryId { slot, generation }
    }

    /// The entry of that name, unless it is gone.
    pub(super) fn get(&self, id: EntryId) -> Option<&Entry> {
        let entry = self.slots.get(id.slot)?;
        (entry.generation == id.generation && entry.stage != Stage::Gone).then_some(entry)
    }

    /// The pending or ready entry of a sample.
    pub(super) fn of(&self, sample: SampleId) -> Option<EntryId> {
        let slot = self.slot_of[sample.index()];
        let entry = self.slots.get(slot)?;
        Some(EntryId { slot, generation: entry.generation })
    }

    /// Who has had the sample's entry; nobody when it has none.
    pub(super) fn used_by(&self, sample: SampleId) -> Seats {
        self.slots.get(self.slot_of[sample.index()]).map_or(0, |entry| entry.used)
    }

    pub(super) fn mark_used(&mut self, id: EntryId, seats: Seats) {
        self.slots[id.slot].used |= seats;
    }

    /// Rewrites who has had each pending or ready entry.
    pub(super) fn rewrite_used(&mut self, rewrite: impl Fn(Seats) -> Seats) {
        for entry in self.slots.all_mut() {
            entry.used = rewrite(entry.used);
        }
    }

    /// A pending entry is prepared and takes its place. The caller has seen to it that it fits.
    pub(super) fn settle(&mut self, id: EntryId, bytes: u64) {
        let entry = &mut self.slots[id.slot];
        entry.stage = Stage::Ready;
        entry.bytes = bytes;
        self.pending -= 1;
        self.used_bytes += bytes;
    }

    /// An entry that stands in the window takes so much more. False when it is being prepared still, or has nobody to take it any more.
    pub(super) fn enlarge(&mut self, id: EntryId, bytes: u64) -> bool {
        let entry = &mut self.slots[id.slot];
        let stands = entry.stage == Stage::Ready;
        if stands {
            entry.bytes += bytes;
            self.used_bytes += bytes;
        }
        stands
    }

    /// Remembers the size of a prepared sample, kept or not.
    pub(super) fn learn_size(&mut self, bytes: u64) {
        self.typical_bytes = bytes;
    }

    pub(super) fn hold(&mut self, id: EntryId) {
        self.slots[id.slot].holds += 1;
    }

    pub(super) fn is_held(&self, id: EntryId) -> bool {
        self.slots[id.slot].holds > 0
    }

    /// A copy is done. True when that was the last thing that kept a leaving entry.
    pub(super) fn release(&mut self, id: EntryId) -> bool {
        let entry = &mut self.slots[id.slot];
        entry.holds = entry.holds.saturating_sub(1);
        if entry.holds == 0 && entry.stage == Stage::Leaving {
            self.vacate(id.slot);
            return true;
        }
        false
    }

    /// Nobody can take the entry from now on. True when its memory is free at once; false when it had none yet, or somebody
    /// still copies it.
    pub(super) fn forget(&mut self, id: EntryId) -> bool {
        let entry = &mut self.slots[id.slot];
        self.slot_of[entry.sample.index()] = NONE;
        match entry.stage {
            Stage::Pending { .. } => {
                self.pending -= 1;
                self.vacate(id.slot);
                false
            }
            Stage::Ready if entry.holds > 0 => {
                entry.stage = Stage::Leaving;
                false
            }
            Stage::Ready => {
                self.vacate(id.slot);
                true
            }
            Stage::Leaving | Stage::Gone => false,
        }
    }

    /// All pending and ready entries. Looks at every slot: for joins, leaves and new epochs, not for every sample.
    pub(super) fn current(&self) -> Vec<(EntryId, Entry)> {
        (0..)
            .zip(self.slots.all())
            .filter(|(_, entry)| matches!(entry.stage, Stage::Pending { .. } | Stage::Ready))
            .map(|(slot, entry)| (EntryId { slot, generation: entry.generation }, *entry))
            .collect()
    }

    fn vacate(&mut self, slot: u32) {
        let entry = &mut self.slots[slot];
        self.used_bytes -= entry.bytes;
        entry.bytes = 0;
        entry.stage = Stage::Gone;
        self.slots.free(slot);
    }
}
