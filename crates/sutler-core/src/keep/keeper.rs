//! The keeper of all forms: one budget, one shelf per form.

use serde::{Deserialize, Serialize};

use super::shelf::Shelf;
use super::{Admission, Partition, Policy, ShelfStats};
use crate::{Form, SampleId};

/// What happened to each form since the keeper was set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepStats {
    /// Samples as stored.
    pub encoded: ShelfStats,
    /// Samples after the transforms without random numbers.
    pub decoded: ShelfStats,
    /// Samples after all transforms.
    pub augmented: ShelfStats,
}

/// Decides which samples stay in memory, in which form, inside one [`Partition`].
///
/// An entry is *offered*, then *kept* or refused; while it is kept it can be *held* by readers; it leaves when it is evicted,
/// or removed by its owner. What is held never leaves. The bytes of everything kept never grow past the budget.
///
/// A share that shrinks is not emptied: what it has beyond its new size is still of use, and leaves only as another form, or the window, needs the
/// room. Where all that could leave is held, the others wait.
#[derive(Clone, Debug)]
pub struct Keeper {
    partition: Partition,
    shelves: [Shelf; 3],
    window_used_bytes: u64,
    /// Reused for every event, so that none allocates.
    leaving: Vec<SampleId>,
}

/// The forms a keeper keeps, in the order of its shelves.
const KEPT: [Form; 3] = [Form::Encoded, Form::Decoded, Form::Augmented];

impl Keeper {
    /// An empty keeper. `policies` are those of the encoded, the decoded and the augmented form; `seed` belongs to
    /// [`Policy::Random`].
    #[must_use]
    pub fn new(partition: Partition, policies: [Policy; 3], seed: u64) -> Self {
        let shelf =
            |index: usize| Shelf::new(policies[index], partition.bytes_of(KEPT[index]), seed, index as u32);
        Self { partition, shelves: [shelf(0), shelf(1), shelf(2)], window_used_bytes: 0, leaving: Vec::new() }
    }

    /// Whether a sample is kept in this form. Counts as a use: a hit or a miss.
    pub fn get(&mut self, sample: SampleId, form: Form) -> bool {
        self.shelf_mut(form).is_some_and(|shelf| shelf.get(sample))
    }

    /// Whether a sample is kept in this form, without counting.
    #[must_use]
    pub fn contains(&self, sample: SampleId, form: Form) -> bool {
        self.shelf(form).is_some_and(|shelf| shelf.contains(sample))
    }

    /// The nearest form in which a sample is kept; [`Form::Storage`] when in none.
    #[must_use]
    pub fn nearest(&self, sample: SampleId) -> Form {
        KEPT.into_iter().rev().find(|&form| self.contains(sample, form)).unwrap_or(Form::Storage)
    }

    /// Offers a sample that was read or prepared. Whoever has to leave for it is appended to `evicted`, and the caller
    /// drops their memory before it stores the new one.
    pub fn offer(
        &mut self,
        sample: SampleId,
        form: Form,
        bytes: u64,
        evicted: &mut Vec<(SampleId, Form)>,
    ) -> Admission {
        self.make_room(sample, form, bytes, evicted);
        let room_bytes = self.room_bytes();
        self.with_shelf(form, evicted, |shelf, leaving| shelf.offer(sample, bytes, room_bytes, leaving))
            .unwrap_or(Admission::TooLarge)
    }

    /// Somebody reads the entry: it will not leave before it is [released](Self::release). False when it is not kept.
    pub fn hold(&mut self, sample: SampleId, form: Form) -> bool {
        self.shelf_mut(form).is_some_and(|shelf| shelf.hold(sample))
    }

    /// What the budget has left for the forms: the window's share is not theirs, nor what it still occupies beyond that.
    fn room_bytes(&self) -> u64 {
        let window_bytes = self.window_used_bytes.max(self.partition.window_bytes);
        self.partition.total_bytes().saturating_sub(self.used_bytes() + window_bytes)
    }

    /// Has forms that are beyond their share give up as much as a sample needs that has a right to its place, or nothing where that would not be
    /// enough.
    fn make_room(&mut self, sample: SampleId, form: Form, bytes: u64, evicted: &mut Vec<(SampleId, Form)>) {
        let leaving_bytes = self.shelf(form).and_then(|shelf| shelf.leaving_bytes(sample, bytes));
        let Some(leaving_bytes) = leaving_bytes else { return };
        let missing_bytes = bytes.saturating_sub(self.room_bytes().saturating_add(leaving_bytes));
        let spare_bytes: u64 = self.shelves.iter().map(Shelf::spare_bytes).sum();
        if missing_bytes > 0 && missing_bytes <= spare_bytes {
            self.give_up(missing_bytes, evicted);
        }
    }

    /// Has forms that are beyond their share give up so many bytes, or all they can.
    fn give_up(&mut self, bytes: u64, evicted: &mut Vec<(SampleId, Form)>) {
        let target_bytes = self.used_bytes().saturating_sub(bytes);
        for form in KEPT {
            let missing_bytes = self.used_bytes().saturating_sub(target_bytes);
            self.with_shelf(form, evicted, |shelf, leaving| shelf.give_up(missing_bytes, leaving));
        }
    }

    /// Sees to it that all forms together have no more than the window leaves them.
    fn trim(&mut self, evicted: &mut Vec<(SampleId, Form)>) {
        let for_forms = self.partition.total_bytes() - self.partition.window_bytes;
        self.give_up(self.used_bytes().saturating_sub(for_forms), evicted);
    }

    /// A reader is done. Where the budget has shrunk meanwhile, the entry may leave now. False when nobody held it.
    pub fn release(&mut self, sample: SampleId, form: Form, evicted: &mut Vec<(SampleId, Form)>) -> bool {
        let released = self.shelf_mut(form).is_some_and(|shelf| shelf.release(sample));
        if released {
            self.trim(evicted);
        }
        released
    }

    /// Forgets an entry that its owner wants to drop (a bad copy, a dataset that is closed). False when it is not kept or somebody
    /// reads it.
    pub fn remove(&mut self, sample: SampleId, form: Form) -> bool {
        self.shelf_mut(form).is_some_and(|shelf| shelf.remove(sample))
    }

    /// Splits the budget anew. Nothing leaves as long as all of it fits the new budget; what does not fit leaves at once, or as it is
    /// released.
    pub fn set_partition(&mut self, partition: Partition, evicted: &mut Vec<(SampleId, Form)>) {
        self.partition = partition;
        for (form, shelf) in KEPT.into_iter().zip(&mut self.shelves) {
            shelf.set_budget(partition.bytes_of(form));
        }
        self.trim(evicted);
    }

    /// The split in force.
    #[must_use]
    pub fn partition(&self) -> Partition {
        self.partition
    }

    /// Tells the keeper what the shared window really takes, so that a window that is still emptying is not paid for twice.
    pub fn set_window_used(&mut self, bytes: u64) {
        self.window_used_bytes = bytes;
    }

    /// What the shared window may take right now: its share, less what forms whose share shrank still occupy.
    #[must_use]
    pub fn window_bytes_max(&self) -> u64 {
        self.partition.window_bytes.min(self.partition.total_bytes().saturating_sub(self.used_bytes()))
    }

    /// The bytes of everything kept, the shared window not counted.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.shelves.iter().map(Shelf::used_bytes).sum()
    }

    /// The bytes kept in one form.
    #[must_use]
    pub fn used_bytes_of(&self, form: Form) -> u64 {
        self.shelf(form).map_or(0, Shelf::used_bytes)
    }

    /// How many samples are kept in one form.
    #[must_use]
    pub fn kept(&self, form: Form) -> usize {
        self.shelf(form).map_or(0, Shelf::len)
    }

    /// Whether a form has more than its share, because nobody has needed the room yet.
    #[must_use]
    pub fn is_over_share(&self, form: Form) -> bool {
        self.shelf(form).is_some_and(|shelf| shelf.used_bytes() > shelf.budget_bytes())
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> KeepStats {
        let [encoded, decoded, augmented] = &self.shelves;
        KeepStats { encoded: encoded.stats(), decoded: decoded.stats(), augmented: augmented.stats() }
    }

    fn shelf(&self, form: Form) -> Option<&Shelf> {
        KEPT.iter().position(|&kept| kept == form).map(|index| &self.shelves[index])
    }

    fn shelf_mut(&mut self, form: Form) -> Option<&mut Shelf> {
        KEPT.iter().position(|&kept| kept == form).map(|index| &mut self.shelves[index])
    }

    /// Lets a shelf decide, and reports those who leave together with their form.
    fn with_shelf<T>(
        &mut self,
        form: Form,
        evicted: &mut Vec<(SampleId, Form)>,
        decide: impl FnOnce(&mut Shelf, &mut Vec<SampleId>) -> T,
    ) -> Option<T> {
        let mut leaving = std::mem::take(&mut self.leaving);
        let decision = self.shelf_mut(form).map(|shelf| decide(shelf, &mut leaving));
        evicted.extend(leaving.drain(..).map(|sample| (sample, form)));
        self.leaving = leaving;
        decision
    }
}

#[cfg(test)]
mod tests;
